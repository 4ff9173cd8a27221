"""A log whose first records have expired is used from a snapshot on, or refused by name."""

import json
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cell_world import SynchronousExecutor, World, job, submission
from tests.support.logs import joined
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_eventlog.sqlite.file import LogFile
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.errors import BeforeFirstCycle, LogBeginsLater
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.restore import from_snapshot, restore
from yardmaster_runtime.machine.snapshotting import take
from yardmaster_runtime.replay.cut import CutPlan, plan_cut
from yardmaster_runtime.replay.rebuild import state_at
from yardmaster_runtime.replay.report import Report
from yardmaster_runtime.replay.verify import audit_log, verify
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.requests import CancelRequestedV1
from yardmaster_schemas.topics import INPUT_ORDER, TOPICS

ROUNDS = 6
NODE_EVENTS = Partition("node-events")


class ExpiredLog:
    """A whole log, the same log without the first node events, and the snapshots of both."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.store = SnapshotStore(str(folder), executor=SynchronousExecutor())
        self.whole: EventLog = world.log
        self.log: EventLog = world.log
        #: Of the scheduler's snapshots: by cycle, the node events that it covers; oldest first.
        self.covered: dict[int, int] = {}
        self.first = 0
        self.clock = ManualClock()

    @property
    def usable(self) -> list[int]:
        """The cycles of the snapshots that cover what has expired."""
        return [cycle for cycle, covered in self.covered.items() if covered >= self.first]

    def remove_snapshots(self, machine: str = "scheduler") -> None:
        shutil.rmtree(self.folder / machine)

    async def restored(self, machine: Machine[Any]) -> Fold[Any]:
        telemetry = Telemetry("test", now_ms=self.clock.now_ms, stream=self.world.lines)
        return await restore(
            *(self.log, machine, "main"),
            snapshots=self.store,
            clock=self.clock,
            metrics=RuntimeMetrics(telemetry),
        )

    async def verified(self) -> Report:
        machines: list[Machine[Any]] = [QuotaMachine(check), SchedulerMachine()]
        return await verify(self.log, machines, "main", snapshots=self.store)

    async def planned(self, log: EventLog | None = None, cycle: int | None = None) -> CutPlan:
        return await plan_cut(
            *(log or self.log, QuotaMachine(check), SchedulerMachine(), "main"),
            cycle=cycle,
            snapshots=self.store,
        )


async def in_memory(
    log: EventLog, firsts: Mapping[str, int], ends: Mapping[str, int] | None = None
) -> MemoryLog:
    """A copy of a log without the first and last records of some topics."""
    copy = MemoryLog(ManualClock())
    await copy.create_topics(list(TOPICS.values()))
    for topic in INPUT_ORDER:
        end = (ends or {}).get(topic, 100_000)
        for stored in (await log.read(Partition(topic), 0, max_records=100_000))[:end]:
            await copy.append(Partition(topic), [stored.record])
        copy.lose_before(Partition(topic), firsts.get(topic, 0))
    return copy


async def in_a_file(log: EventLog, firsts: Mapping[str, int], path: Path) -> SqliteLog:
    file = LogFile(path, create=True, lock_timeout_s=5.0)
    file.create_topics(list(TOPICS.values()), 1)
    with file.bulk():
        for topic in INPUT_ORDER:
            to, first = file.find(Partition(topic)), firsts.get(topic, 0)
            file.begin_at(to, first)
            kept = (await log.read(Partition(topic), 0, max_records=100_000))[first:]
            file.load(to, [(one.appended_ms, one.record) for one in kept])
    file.close()
    return await SqliteLog.open(path, ManualClock(), create=False)


@pytest.fixture(params=["memory", "sqlite"])
async def cell(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ExpiredLog]:
    """The oldest snapshot of the scheduler does not cover what has expired, the others do."""
    world = World(tmp_path / "snapshots")
    await world.create()
    async with world.running():
        for number in range(ROUNDS):
            await world.claim(joined(f"n{number}", 1))
            await world.request(submission(number))
            await world.run_for_half_a_second()
            if number % 2:
                await world.request(CancelRequestedV1(job_id=job(number)))
                await world.run_for_half_a_second()
    cell = ExpiredLog(world, tmp_path / "snapshots")
    for cycle in reversed(await cell.store.cycles("scheduler", "main")):
        snapshot = await cell.store.load("scheduler", "main", cycle)
        inputs = {one[0]: one[2] for one in json.loads(snapshot.payload)["reader"]["inputs"]}
        cell.covered[cycle] = inputs["node-events"]
    covered = list(cell.covered.values())
    assert len(covered) == 3
    assert covered[0] < covered[1], "for this test"
    cell.first = covered[1]
    firsts = {"node-events": cell.first}
    if request.param == "memory":
        log: EventLog = await in_memory(world.log, firsts)
    else:
        log = await in_a_file(world.log, firsts, tmp_path / "log.db")
    cell.log = log
    yield cell
    await log.close()


def all_named(error: LogBeginsLater, *wanted: str) -> bool:
    return all(one in str(error) for one in wanted)


async def digest_of_the_whole_log(cell: ExpiredLog) -> str:
    return (await state_at(cell.whole, SchedulerMachine(), "main")).state.digest()


async def test_a_start_with_a_snapshot_that_covers_what_has_expired_works(cell: ExpiredLog) -> None:
    fold = await cell.restored(SchedulerMachine())
    assert fold.state.digest() == await digest_of_the_whole_log(cell)
    assert (await cell.restored(QuotaMachine(check))).origin is not None


async def test_a_snapshot_of_each_cycle_is_proved_by_its_commit(cell: ExpiredLog) -> None:
    """Also where the end of the cycle removed a group whose last task has started."""
    fold: Fold[Any] = Fold(cell.whole, SchedulerMachine(), "main")
    removed = 0
    while await fold.cursor.fill(1):
        counted = fold.feed(fold.cursor.pop())
        if counted is None:
            continue
        await fold.follow(counted)
        again = await from_snapshot(cell.whole, SchedulerMachine(), "main", take(fold))
        assert again.dump() == fold.dump()
        removed += fold.state.digest() != counted.commit.state_digest
    assert removed > 0, "for this test"


async def test_a_start_without_a_snapshot_names_what_is_missing(cell: ExpiredLog) -> None:
    cell.remove_snapshots()
    with pytest.raises(LogBeginsLater) as raised:
        await cell.restored(SchedulerMachine())
    assert all_named(
        raised.value,
        f"records 0 to {cell.first - 1} of node-events/0 have expired",
        "scheduler of cell main needs a snapshot",
        f"{cell.folder}/scheduler/main has no usable one (there is none at all)",
        "Copy its snapshots there from a backup",
    )
    cell.remove_snapshots("quota")
    assert (await cell.restored(QuotaMachine(check))).origin is None, "quota reads no node events"


async def test_a_start_names_why_each_snapshot_was_skipped(cell: ExpiredLog) -> None:
    oldest, *others = cell.covered
    for cycle in others:
        path = cell.folder / "scheduler" / "main" / f"{cycle:016d}.snapshot"
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LogBeginsLater) as raised:
        await cell.restored(SchedulerMachine())
    assert all_named(raised.value, *(f"{cycle:016d}.snapshot: its checksum" for cycle in others))
    assert all_named(raised.value, f"cycle {oldest}: Offset {cell.covered[oldest]} of node-events")


async def test_a_machine_whose_commit_has_expired_needs_another_snapshot(cell: ExpiredLog) -> None:
    end = await cell.whole.end(Partition("decisions"))
    log = await in_memory(cell.whole, {"decisions": end})
    cell.log = log
    with pytest.raises(LogBeginsLater, match=f"records 0 to {end - 1} of decisions/0"):
        await cell.restored(SchedulerMachine())


async def test_verify_proves_every_cycle_after_the_oldest_usable_snapshot(cell: ExpiredLog) -> None:
    report = await cell.verified()
    assert [one for one in report.findings if one.topic != "details"] == []
    quota, scheduler = report.proved
    assert (quota.from_cycle, scheduler.from_cycle) == (0, cell.usable[0])
    last = (await state_at(cell.whole, SchedulerMachine(), "main")).cycle
    assert (scheduler.cycles, scheduler.last_cycle) == (last - cell.usable[0], last)
    assert report.expired == {NODE_EVENTS: cell.first}


async def test_verify_finds_a_change_after_the_snapshot(cell: ExpiredLog) -> None:
    stored = await cell.whole.read(Partition("decisions"), 0, max_records=100_000)
    changed = MemoryLog(ManualClock())
    await changed.create_topics(list(TOPICS.values()))
    for topic in INPUT_ORDER:
        for one in await cell.whole.read(Partition(topic), 0, max_records=100_000):
            record = stored[-2].record if one == stored[-1] else one.record
            await changed.append(Partition(topic), [record])
    changed.lose_before(NODE_EVENTS, cell.first)
    cell.log = changed
    report = await cell.verified()
    (found,) = [one for one in report.findings if one.machine == "scheduler"]
    assert found.offset == stored[-1].offset


async def test_nothing_that_needs_every_record_says_ok_without_them(cell: ExpiredLog) -> None:
    with pytest.raises(LogBeginsLater, match="The audit needs every record"):
        await audit_log(cell.log)
    cell.remove_snapshots()
    for work in (cell.verified, cell.planned):
        with pytest.raises(LogBeginsLater, match="scheduler of cell main needs a snapshot"):
            await work()
    unknown = "no place of snapshots is known: name it"
    with pytest.raises(LogBeginsLater, match=re.escape(unknown)):
        await state_at(cell.log, SchedulerMachine(), "main")


async def test_the_state_at_each_cycle_after_the_snapshot_is_that_of_the_whole_log(
    cell: ExpiredLog,
) -> None:
    first, last = cell.usable[0], (await cell.planned()).cycle
    assert last > first
    for cycle in range(first, last + 1):
        found = await state_at(
            cell.log, SchedulerMachine(), "main", cycle=cycle, snapshots=cell.store
        )
        expected = await state_at(cell.whole, SchedulerMachine(), "main", cycle=cycle)
        assert (found.cycle, found.position, found.from_cycle) == (
            cycle,
            expected.position,
            first,
        )
        assert found.state.digest() == expected.state.digest()
    before: Sequence[dict[str, Any]] = ({"cycle": first - 1}, {"time_ms": 0})
    for bound in before:
        with pytest.raises(BeforeFirstCycle, match=f"cycle:{first}"):
            await state_at(cell.log, SchedulerMachine(), "main", snapshots=cell.store, **bound)


async def test_a_cut_keeps_the_same_records_as_one_of_the_whole_log(cell: ExpiredLog) -> None:
    machines = (QuotaMachine(check), SchedulerMachine())
    last = (await cell.planned()).cycle
    for cycle in range(cell.usable[0], last + 1):
        expected = await plan_cut(cell.whole, *machines, "main", cycle=cycle)
        assert await cell.planned(cycle=cycle) == expected
    with pytest.raises(LogBeginsLater, match="after the cut"):
        await cell.planned(cycle=cell.usable[0] - 1)


async def test_a_log_that_lost_both_its_start_and_its_end_is_cut(cell: ExpiredLog) -> None:
    end = await cell.whole.end(Partition("decisions"))
    short = await in_memory(cell.whole, {"node-events": cell.first}, {"decisions": end - 3})
    plan = await cell.planned(short)
    assert plan.cycle > cell.usable[0]
    assert plan.lost.requests == ()
    ends = {at.topic: end for at, end in plan.ends.items()}
    cell.log = await in_memory(cell.whole, {"node-events": cell.first}, ends)
    report = await cell.verified()
    assert [one for one in report.findings if one.topic != "details"] == []
    assert report.proved[1].last_cycle == plan.cycle


@pytest.mark.parametrize("topic", ["requests", "admissions", "decisions"])
async def test_each_topic_may_begin_later(cell: ExpiredLog, topic: str) -> None:
    """Records are lost up to the commits of the newest snapshots of both machines."""
    firsts = []
    for machine in ("quota", "scheduler"):
        (newest, *_) = await cell.store.cycles(machine, "main")
        reader = json.loads((await cell.store.load(machine, "main", newest)).payload)["reader"]
        own = {"quota": "admissions", "scheduler": "decisions"}[machine]
        known = {one[0]: one[2] for one in reader["inputs"]} | {own: reader["next"] - 1}
        firsts += [known[topic]] if topic in known else []
    cell.log = await in_memory(cell.whole, {topic: min(firsts)})
    for one in (QuotaMachine(check), SchedulerMachine()):
        await cell.restored(one)
    report = await cell.verified()
    assert [one for one in report.findings if one.topic != "details"] == []
    plan = await cell.planned()
    assert (plan.broken, plan.lost.requests) == (None, ())
