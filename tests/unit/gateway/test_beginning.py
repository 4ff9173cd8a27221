"""The start of a gateway: users from quota's newest usable snapshot, and the records after it."""

import dataclasses
import io
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tests.support.cell_world import SynchronousExecutor
from tests.support.gateway import GatewayCell
from tests.support.memory_cell import CELL
from tests.support.views import telemetry
from tests.unit.gateway.test_users import OPERATOR, ROLE, add, cell_of, imported
from yardmaster_core.access import User
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_eventlog.snapshots import Snapshot, SnapshotStore
from yardmaster_gateway import main
from yardmaster_gateway.app import create_app
from yardmaster_gateway.background.token_import import import_users
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.identity.access import Access
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.errors import LogBeginsLater
from yardmaster_runtime.machine.snapshotting import take
from yardmaster_runtime.service import Process
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas import plain
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, REQUESTS

OWN = Partition("admissions")


class ReadLog:
    """A log, and the offsets of `admissions` that were read from it."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.offsets: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read(self, partition: Partition, offset: int, **how: Any) -> Sequence[StoredRecord]:
        found: Sequence[StoredRecord] = await self._log.read(partition, offset, **how)
        if partition == OWN:
            self.offsets += [stored.offset for stored in found]
        return found


class Start:
    """A gateway's users as a start reads them, and what the start logged."""

    def __init__(
        self, cell: GatewayCell, snapshots: SnapshotStore | None, log: EventLog | None = None
    ) -> None:
        self.log = ReadLog(log or cell.log)
        self._lines = io.StringIO()
        self.access = Access(
            self.log,
            cell.clock,
            Telemetry("gateway", now_ms=cell.clock.now_ms, stream=self._lines),
            cell=CELL,
            partition=0,
            max_age_s=60,
            snapshots=snapshots,
        )

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self._lines.getvalue().splitlines())
        return [line for line in lines if line["event"] == event]

    @property
    def folded(self) -> tuple[Mapping[str, User], Mapping[str, str], Mapping[str, Any]]:
        access = self.access
        return access.users, access._owners, access._cycles.reader.dump()


async def started(cell: GatewayCell, snapshots: SnapshotStore | None) -> Start:
    start = Start(cell, snapshots)
    await start.access.catch_up()
    return start


def snapshot_of(cell: GatewayCell) -> Snapshot:
    return take(cell.leaders[0].fold)


def end_of(snapshot: Snapshot) -> int:
    """The offset in `admissions` up to which a snapshot covers the log."""
    return int(json.loads(snapshot.payload)["reader"]["next"])


@pytest.fixture
async def cell() -> AsyncIterator[GatewayCell]:
    async with cell_of() as made:
        yield made


@pytest.fixture
async def expiring() -> GatewayCell:
    """A cell whose log may lose its first records, and cannot be audited then."""
    cell = await GatewayCell(file_users=OPERATOR).start()
    await imported(cell)
    return cell


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(str(tmp_path), executor=SynchronousExecutor())


def app_with(cell: GatewayCell, store: SnapshotStore) -> FastAPI:
    """Another gateway of the cell, which reads snapshots."""
    ports = dataclasses.replace(cell.ports, telemetry=telemetry("gateway"), snapshots=store)
    return create_app(ports, cell.settings)


async def newest_of(store: SnapshotStore) -> Snapshot:
    found = (await store.newest("quota", CELL)).snapshot
    assert found is not None
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.snapshot"))


async def with_users(cell: GatewayCell, store: SnapshotStore) -> None:
    """Two snapshots, and a change of users after each of them."""
    for name in ("ana", "ben"):
        await add(cell, f"{name}-before")
        await store.save(snapshot_of(cell))
        await add(cell, name)


async def test_only_the_records_after_the_snapshot_are_read(
    cell: GatewayCell, store: SnapshotStore
) -> None:
    await with_users(cell, store)
    newest = snapshot_of(cell)
    await store.save(newest)
    await add(cell, "cem")
    start = await started(cell, store)
    boundary, end = end_of(newest), await cell.log.end(OWN)
    # The record before them is the commit with which the snapshot is compared.
    assert start.log.offsets == [boundary - 1, *range(boundary, end)]
    assert start.folded == (await started(cell, None)).folded
    (line,) = start.said("users_from_snapshot")
    assert (line["cycle"], line["users"]) == (newest.cycle, 5)


async def test_from_a_snapshot_of_any_cycle_the_users_are_those_of_the_whole_log(
    cell: GatewayCell, tmp_path: Path
) -> None:
    taken: list[Snapshot] = []

    async def change(method: str, path: str, **what: Any) -> Any:
        answer = await cell.call(method, path, status=202, **what)
        taken.append(snapshot_of(cell))
        return answer

    for name in ("ana", "ben", "cem"):
        user = {"name": name, "roles": [ROLE], "lifetime_s": 3600}
        await change("POST", "/v1/users", json=user)
    operates = {"role": "operator", "scope": "cell", "name": CELL}
    await change("POST", "/v1/users/ana/grant", json={"roles": [operates]})
    await change("POST", "/v1/users/ana/tokens", json={"overlap_s": 60})
    await change("POST", "/v1/users/ana/tokens", json={"overlap_s": 0})
    await change("POST", "/v1/users/ben/revoke", json={"roles": [ROLE]})
    listed = await cell.call("GET", "/v1/users")
    ids = {one["name"]: [token["id"] for token in one["tokens"]] for one in listed["items"]}
    await change("DELETE", f"/v1/users/cem/tokens/{ids['cem'][0]}")
    await change("DELETE", "/v1/users/ben")
    await change("POST", "/v1/users", json={"name": "ben", "roles": [operates]})
    await cell.submit(token="operator")
    taken.append(snapshot_of(cell))
    whole = await started(cell, None)
    assert len(whole.access.users) == 4
    for number, snapshot in enumerate(taken):
        store = SnapshotStore(str(tmp_path / str(number)), executor=SynchronousExecutor())
        await store.save(snapshot)
        start = await started(cell, store)
        assert start.said("users_from_snapshot")[0]["cycle"] == snapshot.cycle
        assert start.folded == whole.folded


async def test_a_change_after_the_start_holds_at_a_gateway_that_began_at_a_snapshot(
    cell: GatewayCell, store: SnapshotStore
) -> None:
    await store.save(snapshot_of(cell))
    start = await started(cell, store)
    await add(cell)
    await start.access.catch_up()
    assert start.folded == (await started(cell, None)).folded
    await cell.call("DELETE", "/v1/users/ana", status=202)
    await start.access.catch_up()
    assert start.access.users["ana"].removed
    assert start.folded == (await started(cell, None)).folded


async def test_without_a_snapshot_the_whole_log_is_folded_and_a_line_says_so(
    cell: GatewayCell, store: SnapshotStore
) -> None:
    start = await started(cell, store)
    assert start.log.offsets == list(range(await cell.log.end(OWN)))
    (line,) = start.said("users_without_snapshot")
    assert "from the start of admissions" in line["found"]


async def test_a_damaged_snapshot_is_skipped_for_the_one_before(
    cell: GatewayCell, store: SnapshotStore, tmp_path: Path
) -> None:
    await with_users(cell, store)
    first, newest = files(tmp_path)
    newest.write_bytes(newest.read_bytes()[:-1])
    start = await started(cell, store)
    assert [line["code"] for line in start.said("snapshot_skipped")] == ["snapshot_corrupt"]
    assert start.said("users_from_snapshot")[0]["cycle"] == int(first.stem)
    assert start.folded == (await started(cell, None)).folded


async def test_a_forged_snapshot_makes_no_user_an_operator(
    cell: GatewayCell, store: SnapshotStore
) -> None:
    """The snapshot is consistent in itself, as a writer with access to its folder can make it."""
    await add(cell)
    true = snapshot_of(cell)
    dump = json.loads(true.payload)
    dump["state"]["users"]["ana"][0] = dump["state"]["users"]["olga"][0]
    await store.save(dataclasses.replace(true, payload=plain.encode(dump)))
    start = await started(cell, store)
    (line,) = start.said("snapshot_skipped")
    assert (line["cycle"], line["code"]) == (true.cycle, "snapshot_unreadable")
    assert "its state differs from the log's commit" in line["found"]
    assert start.said("users_without_snapshot")
    assert start.folded == (await started(cell, None)).folded


async def test_a_snapshot_of_another_log_is_skipped(
    cell: GatewayCell, store: SnapshotStore
) -> None:
    async with cell_of() as other:
        await add(other)
        await store.save(snapshot_of(other))
    await add(cell, "ben")
    await add(cell, "cem")
    start = await started(cell, store)
    assert len(start.said("snapshot_skipped")) == 1
    assert start.folded == (await started(cell, None)).folded


async def test_a_snapshot_that_is_ahead_of_the_log_is_skipped_for_the_one_before(
    cell: GatewayCell, store: SnapshotStore
) -> None:
    await with_users(cell, store)
    newest, first = await store.cycles("quota", CELL)
    end = end_of(await store.load("quota", CELL, newest))
    short = MemoryLog(cell.clock)
    await short.create_topics((REQUESTS, ADMISSIONS, DECISIONS))
    for name in ("requests", "admissions", "decisions"):
        for stored in await cell.log.read(Partition(name), 0, max_records=10_000):
            if name != "admissions" or stored.offset < end - 1:
                await short.append(Partition(name), [stored.record])
    start = Start(cell, store, short)
    await start.access.catch_up()
    (line,) = start.said("snapshot_skipped")
    assert (line["cycle"], line["code"]) == (newest, "log_truncated")
    assert start.said("users_from_snapshot")[0]["cycle"] == first
    assert "ben" not in start.access.users


async def test_a_snapshot_store_that_hangs_does_not_hold_a_start_up(
    cell: GatewayCell, store: SnapshotStore, tmp_path: Path
) -> None:
    await store.save(snapshot_of(cell))
    (newest,) = files(tmp_path)
    newest.unlink()
    os.mkfifo(newest)
    try:
        start = await started(cell, SnapshotStore(str(tmp_path), deadline_s=0.05))
    finally:
        os.close(os.open(newest, os.O_RDWR))
    assert "no answer within 0.05 s" in start.said("snapshots_unavailable")[0]["found"]
    assert start.folded == (await started(cell, None)).folded


def test_a_url_that_names_no_store_does_not_end_a_gateway() -> None:
    lines = io.StringIO()
    said = Telemetry("gateway", now_ms=lambda: 0, stream=lines)
    process = Process(ManualClock(), SeededChance(1), said, Health())
    settings = GatewaySettings(snapshots="nosuchprotocol://x")
    assert main._open_snapshots(process, settings) is None
    assert json.loads(lines.getvalue())["event"] == "snapshots_unavailable"


def expire(cell: GatewayCell, snapshot: Snapshot, *topics: str) -> None:
    """Let the records expire that a snapshot covers, except the commit of its cycle."""
    reader = json.loads(snapshot.payload)["reader"]
    covered = {topic: end for topic, _, end in reader["inputs"]} | {OWN.topic: end_of(snapshot) - 1}
    assert isinstance(cell.log, MemoryLog)
    for topic in topics:
        sequence = cell.log._shared.sequences[Partition(topic)]
        sequence.first = covered[topic]
        sequence.records = [one for one in sequence.records if one.offset >= sequence.first]


async def test_a_log_that_has_lost_its_first_records_is_read_from_a_snapshot(
    expiring: GatewayCell, store: SnapshotStore
) -> None:
    await with_users(expiring, store)
    whole = await started(expiring, None)
    before = await expiring.call("GET", "/v1/version")
    expire(expiring, await newest_of(store), "requests", "admissions")
    expiring.app = app_with(expiring, store)
    gateway: Gateway = expiring.app.state.gateway
    await import_users(gateway)
    assert gateway.access.users == whole.access.users
    answer = await expiring.call("GET", "/v1/version", run=False)
    assert answer == before | {"created_ms": None}


@pytest.mark.parametrize("expired", [("admissions",), ("requests",), ("requests", "admissions")])
@pytest.mark.parametrize("damaged", [False, True])
async def test_without_a_snapshot_a_start_names_the_expired_records_and_what_is_missing(
    expiring: GatewayCell,
    store: SnapshotStore,
    tmp_path: Path,
    expired: tuple[str, ...],
    damaged: bool,
) -> None:
    await add(expiring)
    snapshot = snapshot_of(expiring)
    if damaged:
        await store.save(snapshot)
        files(tmp_path)[0].write_bytes(b"nonsense")
    expire(expiring, snapshot, *expired)
    with pytest.raises(LogBeginsLater) as caught:
        await import_users(app_with(expiring, store).state.gateway)
    message = str(caught.value)
    for topic in expired:
        assert f"of {topic}/0 have expired" in message
    assert f"{tmp_path}/quota/main has no usable one" in message
    assert ("it does not start like a snapshot" in message) == damaged


async def test_a_snapshot_whose_commit_has_expired_is_named(
    expiring: GatewayCell, store: SnapshotStore
) -> None:
    await store.save(snapshot_of(expiring))
    await add(expiring)
    expire(expiring, snapshot_of(expiring), "admissions")
    cycle = (await newest_of(store)).cycle
    with pytest.raises(LogBeginsLater, match=f"cycle {cycle}: "):
        await started(expiring, store)
