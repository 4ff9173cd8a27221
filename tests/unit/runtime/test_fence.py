"""The fence of a machine: what it has read of the log, stored outside the log."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.support.toy_cell import ToyCell, until
from tests.support.toy_machine import ToyMachine
from yardmaster_eventlog.errors import LogTruncated
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.fence import Fence, Mark, check_marks
from yardmaster_schemas.topics import TOPICS

REQUESTS, ADMISSIONS = Partition("requests"), Partition("admissions")
#: The names of logs whose first record in the machine's topic contains 32 times this letter.
NAMES = {each: digest_of(Record(b"main", each.encode() * 32)).hex() for each in "ab"}


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
            """The election has no candidate to withdraw."""

        def on_restore(self) -> None:
            """The election has no term to lose."""

        def on_fenced(self) -> None:
            """The election has no term to lose."""

    standby = cell.candidate(log=log_of(cell).handle(), snapshots=store, election=Standby())
    work = asyncio.create_task(standby.run())
    await until(lambda: bool(cell.logged("restored")), cell.clock)
    end = await log_of(cell).end(ADMISSIONS)
    log_of(cell).cut(ADMISSIONS, end - 1)
    with pytest.raises(LogTruncated):
        await work
    assert f"ends at {end - 1}" in str(await stopped(cell, store))


async def starts(cell: ToyCell, store: SnapshotStore) -> None:
    """Start a candidate until it leads."""
    work = asyncio.create_task(cell.candidate(log=log_of(cell).handle(), snapshots=store).run())
    started = len(cell.logged("term_started"))
    await until(lambda: len(cell.logged("term_started")) > started, cell.clock)
    work.cancel()


async def fence(cell: ToyCell, store: SnapshotStore, folder: Path) -> Path:
    await led(cell, store, folder)
    return folder / "quota" / "main" / "fence.json"


@pytest.mark.parametrize("inner", ["", "quota/main", "quota/main/fence.json"])
async def test_snapshots_or_a_fence_that_other_users_may_write_are_named_at_each_start(
    cell: ToyCell, tmp_path: Path, inner: str
) -> None:
    store = SnapshotStore(str(tmp_path))
    await fence(cell, store, tmp_path)
    await starts(cell, store)
    assert cell.logged("writable_by_others") == []
    path = tmp_path / inner
    os.chmod(tmp_path, 0o711)
    os.chmod(path, 0o777)
    await starts(cell, store)
    (line,) = cell.logged("writable_by_others")
    assert line["path"] == str(path)
    assert line["found"].startswith("all users may write it")
    if inner:
        os.chmod(tmp_path, 0o700)
        await starts(cell, store)
        assert len(cell.logged("writable_by_others")) == 1, "others cannot reach it"


def changes_nothing(before: bytes, after: bytes) -> bool:
    """Whether both are the same JSON, as where a bit changed a space into another."""
    try:
        return bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False


async def test_a_fence_with_one_changed_bit_is_reported_and_stops_nothing(
    cell: ToyCell, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    path = await fence(cell, store, tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        if changes_nothing(whole, bytes(changed)):
            continue
        said = len(cell.logged("fence_unreadable"))
        path.write_bytes(changed)
        telemetry = cell.metrics().telemetry
        one = Fence(store, "quota", "main", ADMISSIONS, cell.clock, telemetry)
        await one.check(log_of(cell).handle())
        assert len(cell.logged("fence_unreadable")) == said + 1, f"byte {at}"
    path.write_bytes(whole.replace(b'"generation": 0', b'"generation": 4'))
    await starts(cell, store)
    line = cell.logged("fence_unreadable")[-1]
    assert (line["path"], "checksum" in line["found"]) == (str(path), True)


@pytest.mark.parametrize(
    ("machine", "name", "log_id", "found"),
    [
        ("scheduler", "main", "a" * 32, "its machine is scheduler, not quota"),
        ("quota", "second", "a" * 32, "its cell is second, not main"),
        ("quota", "main", "b" * 32, f"its log is {NAMES['b']}, not {NAMES['a']}"),
    ],
)
async def test_a_fence_of_another_machine_cell_or_log_is_named_and_replaced(
    cell: ToyCell, tmp_path: Path, machine: str, name: str, log_id: str, found: str
) -> None:
    async def written(folder: Path, machine: str, cell_name: str, log_id: str) -> Path:
        log = await created(log_id)
        store = SnapshotStore(str(folder))
        one = Fence(store, machine, cell_name, ADMISSIONS, cell.clock, cell.metrics().telemetry)
        await one.check(log)
        await one.write({Partition("requests"): Mark(4_711, "0" * 64)})
        return folder / machine / cell_name / "fence.json"

    path = tmp_path / "right" / "quota" / "main" / "fence.json"
    path.parent.mkdir(parents=True)
    path.write_bytes((await written(tmp_path / "wrong", machine, name, log_id)).read_bytes())
    store = SnapshotStore(str(tmp_path / "right"))
    one = Fence(store, "quota", "main", ADMISSIONS, cell.clock, cell.metrics().telemetry)
    await one.check(await created("a" * 32))
    (line,) = cell.logged("fence_foreign")
    assert (line["path"], line["found"]) == (str(path), found)
    await one.write({})
    await one.check(await created("a" * 32))
    assert len(cell.logged("fence_foreign")) == 2, "read once more by the write that replaced it"


async def created(log_id: str) -> MemoryLog:
    """A log whose first record in the machine's topic contains `log_id`."""
    log = MemoryLog(ManualClock())
    await log.create_topics(tuple(TOPICS.values()))
    await log.append(ADMISSIONS, [Record(b"main", log_id.encode())])
    return log


async def test_a_mark_beyond_the_end_of_a_topic_names_the_file_too(
    cell: ToyCell, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    path = await fence(cell, store, tmp_path)
    log_of(cell).cut(REQUESTS, await log_of(cell).end(REQUESTS) - 1)
    assert f"as the fence {path} " in str(await stopped(cell, store))


async def test_a_commit_whose_inputs_are_gone_names_the_truncated_topic(cell: ToyCell) -> None:
    await cell.ask(3)
    leader = cell.leader()
    await leader.take_term()
    await leader.step()
    log_of(cell).cut(REQUESTS, 1)
    with pytest.raises(LogTruncated, match="requests/0 ends at 1, but cycle 1 took"):
        await ToyCell(log_of(cell).handle(), cell.clock).fold(ToyMachine.quota())


async def test_a_mark_whose_record_has_expired_is_skipped(cell: ToyCell, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    await led(cell, store, tmp_path)
    end = await log_of(cell).end(REQUESTS)
    log_of(cell).lose_before(REQUESTS, end)
    marks = {REQUESTS: Mark(end - 1, "0" * 64)}
    await check_marks(log_of(cell).handle(), marks, kept_in="the fence")
    log_of(cell).cut(REQUESTS, end - 1)
    with pytest.raises(LogTruncated, match=f"ends at {end - 1}"):
        await check_marks(log_of(cell).handle(), marks, kept_in="the fence")
