"""The embedded mode's own parts: a log's first records, and how the process ends."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from yardmaster.cli import embedded
from yardmaster.cli.devdata import DataFolder, PolicySpec, plain_cluster
from yardmaster.cli.embedded import Options, serve, set_up
from yardmaster.cli.errors import CliError, Exit
from yardmaster.eventlog.codec import decode
from yardmaster.eventlog.errors import LogCorrupt
from yardmaster.eventlog.memory import MemoryLog
from yardmaster.eventlog.port import Partition
from yardmaster.runtime.chance import SeededChance
from yardmaster.runtime.clock import ManualClock
from yardmaster.schemas.events.requests import LogCreatedV1, PoolChangeRequestedV1

REQUESTS = Partition("requests")


async def test_a_new_log_begins_with_its_identity_and_what_a_first_job_needs() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    cluster = plain_cluster(2, 4, PolicySpec(options={"preemption": False}))
    await set_up(log, clock, SeededChance(1), cluster)
    events = [decode(stored.record).data for stored in await log.read(REQUESTS, 0)]
    assert [event.TYPE for event in events] == [
        "LogCreated",
        "PoolChangeRequested",
        "DepartmentChangeRequested",
        "ProjectChangeRequested",
    ]
    assert isinstance(events[0], LogCreatedV1)
    assert isinstance(events[1], PoolChangeRequestedV1)
    assert events[1].config.policy.options == {"preemption": False}
    assert await log.end(Partition("assignments.node-2")) == 0


async def test_a_later_start_changes_nothing() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    for seed in range(3):
        await set_up(log, clock, SeededChance(seed), plain_cluster(1, seed, PolicySpec()))
    assert await log.end(REQUESTS) == 4


@pytest.mark.parametrize(
    "policy", [PolicySpec(name="nonsense"), PolicySpec(options={"nonsense": True})]
)
async def test_a_policy_that_is_not_there_is_bad_usage(policy: PolicySpec) -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    with pytest.raises(CliError) as caught:
        await set_up(log, clock, SeededChance(1), plain_cluster(1, 1, policy))
    assert caught.value.exit_code == Exit.USAGE
    assert await log.end(REQUESTS) == 0


def ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **services: Callable[[], Awaitable[object]]
) -> CliError:
    async def listens(*_: object) -> None:
        return

    def only_these(*_: Any) -> dict[str, Callable[[], Awaitable[object]]]:
        return services

    monkeypatch.setattr(embedded, "_services", only_these)
    monkeypatch.setattr(embedded, "_until_ready", listens)
    folder = DataFolder.take(tmp_path / "data")
    options = Options(cluster=plain_cluster(1, 1, PolicySpec()))
    with pytest.raises(CliError) as caught:
        serve(folder, options, lambda _: None)
    assert not (folder.path / "dev.json").exists()
    return caught.value


async def broken() -> None:
    raise LogCorrupt(path="log.db", found="a hole")


async def surprised() -> None:
    raise KeyError("what")


async def finished() -> None:
    return


def test_a_service_that_fails_stops_the_process_with_its_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ended(tmp_path, monkeypatch, quota=broken)
    assert error.exit_code == Exit.INTERNAL
    assert error.message.startswith("log_corrupt: ")
    assert "service quota failed" in capsys.readouterr().err


def test_an_unforeseen_failure_names_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ended(tmp_path, monkeypatch, views=surprised)
    assert "The service views failed" in error.message
    assert "KeyError" in error.message


def test_a_service_that_just_returns_is_a_failure_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "it returned" in ended(tmp_path, monkeypatch, gateway=finished).message
