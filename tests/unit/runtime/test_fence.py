"""The fence of a machine: what it has read of the log, stored outside the log."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.toy_cell import ToyCell, until
from tests.support.toy_machine import ToyMachine
from yardmaster_eventlog.errors import LogTruncated
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_eventlog.snapshots import SnapshotStore

REQUESTS, ADMISSIONS = Partition("requests"), Partition("admissions")


@pytest.fixture
async def cell() -> ToyCell:
    return await ToyCell().create()


def log_of(cell: ToyCell) -> MemoryLog:
    assert isinstance(cell.log, MemoryLog)
    return cell.log


async def stopped(cell: ToyCell, store: SnapshotStore) -> LogTruncated:
    """Start a candidate with a handle of its own, as after a restart; return why it stops."""
    with pytest.raises(LogTruncated) as raised:
        async with asyncio.timeout(30):
            await cell.candidate(log=log_of(cell).handle(), snapshots=store).run()
    return raised.value


async def led(cell: ToyCell, store: SnapshotStore, folder: Path) -> None:
    """Lead for a few cycles, until the fence names the last record of each topic; then crash."""
    candidate = cell.candidate(log=log_of(cell).handle(), snapshots=store)
    work = asyncio.create_task(candidate.run())
    for number in range(3):
        await cell.ask()
        await until(
            lambda n=number: (
                candidate.leader is not None  # type: ignore[misc]
                and candidate.leader.fold.reader.cycle == n + 1
            ),
            cell.clock,
        )
    ends = {each: await log_of(cell).end(each) for each in (REQUESTS, ADMISSIONS)}

    def written() -> bool:
        path = folder / "quota" / "main" / "fence.json"
        read = json.loads(path.read_text())["read"] if path.exists() else {}
        return all(read.get(str(each), [-1])[0] == end - 1 for each, end in ends.items())

    await until(written, cell.clock)
    work.cancel()


@pytest.mark.parametrize("topic", [REQUESTS, ADMISSIONS], ids=str)
async def test_a_machine_does_not_start_on_a_log_that_lost_what_it_has_read(
    cell: ToyCell, tmp_path: Path, topic: Partition
) -> None:
    store = SnapshotStore(str(tmp_path))
    await led(cell, store, tmp_path)
    end = await log_of(cell).end(topic)
    log_of(cell).cut(topic, end - 1)
    assert f"{topic} ends at {end - 1}" in str(await stopped(cell, store))
    await ToyCell(log_of(cell).handle(), cell.clock).ask()
    if topic == ADMISSIONS:
        await leads_elsewhere(cell)
    assert f"{topic} has another record at offset {end - 1}" in str(await stopped(cell, store))


async def leads_elsewhere(cell: ToyCell) -> None:
    """Let the log grow again, by a candidate that has no fence."""
    leader = cell.leader(log=log_of(cell).handle())
    await leader.take_term()
    await leader.step()


async def test_a_machine_that_meets_its_fence_writes_nothing(cell: ToyCell, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    await led(cell, store, tmp_path)
    end = await log_of(cell).end(ADMISSIONS)
    log_of(cell).cut(ADMISSIONS, end - 1)
    await stopped(cell, store)
    assert await log_of(cell).end(ADMISSIONS) == end - 1


async def test_a_standby_that_sees_the_log_end_earlier_leaves_a_fence(
    cell: ToyCell, tmp_path: Path
) -> None:
    """The leader crashed before it wrote one."""
    store = SnapshotStore(str(tmp_path))
    await cell.ask(2)
    leader = cell.leader(log=log_of(cell).handle())
    await leader.take_term()
    await leader.step()

    class Standby:
        """An election that this candidate does not win."""

        async def won(self) -> None:
            await asyncio.Event().wait()

        async def lost(self) -> None:
            await asyncio.Event().wait()

        def withdraw(self) -> None:
            """It was no candidate."""

        def on_restore(self) -> None:
            """It has no term to lose."""

        def on_fenced(self) -> None:
            """It has no term to lose."""

    standby = cell.candidate(log=log_of(cell).handle(), snapshots=store, election=Standby())
    work = asyncio.create_task(standby.run())
    await until(lambda: bool(cell.said("restored")), cell.clock)
    end = await log_of(cell).end(ADMISSIONS)
    log_of(cell).cut(ADMISSIONS, end - 1)
    with pytest.raises(LogTruncated):
        await work
    assert f"ends at {end - 1}" in str(await stopped(cell, store))


async def test_an_unreadable_fence_is_reported_and_does_not_stop_a_machine(
    cell: ToyCell, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    await store.save_fence("quota", "main", b"{}")
    work = asyncio.create_task(cell.candidate(snapshots=store).run())
    await until(lambda: bool(cell.said("term_started")), cell.clock)
    work.cancel()
    assert "fence.json" in cell.said("fence_unreadable")[0]["found"]


async def test_a_commit_whose_inputs_are_gone_names_the_truncated_topic(cell: ToyCell) -> None:
    await cell.ask(3)
    leader = cell.leader()
    await leader.take_term()
    await leader.step()
    log_of(cell).cut(REQUESTS, 1)
    with pytest.raises(LogTruncated, match="requests/0 ends at 1, but cycle 1 took"):
        await ToyCell(log_of(cell).handle(), cell.clock).fold(ToyMachine.quota())
