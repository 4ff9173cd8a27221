"""The embedded mode's own parts: how the process ends."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from yardmaster_cli.dev import embedded
from yardmaster_cli.dev.data_directory import DataDirectory, plain_cluster
from yardmaster_cli.dev.embedded import Options, serve
from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.policy_spec import PolicySpec
from yardmaster_eventlog.errors import LogCorrupt


def ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **services: Callable[[], Awaitable[object]]
) -> CliError:
    async def listens(*_: object) -> None:
        return

    def only_these(*_: Any) -> dict[str, Callable[[], Awaitable[object]]]:
        return services

    monkeypatch.setattr(embedded, "_services", only_these)
    monkeypatch.setattr(embedded, "_until_ready", listens)
    folder = DataDirectory.take(tmp_path / "data")
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


def test_the_nodes_divide_the_machine_and_run_tasks_as_the_user_of_the_process(
    tmp_path: Path,
) -> None:
    folder = DataDirectory.take(tmp_path / "data")
    options = Options(cluster=plain_cluster(3, 4, PolicySpec()))
    nodes = [
        embedded._agent_settings(folder, options, index, range(30_000, 30_100))
        for index in range(3)
    ]
    assert [(node.machine_agents, node.task_users) for node in nodes] == [(3, "same")] * 3
