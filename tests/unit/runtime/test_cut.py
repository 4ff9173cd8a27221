"""A cut is consistent for both machines, which read each other's topics."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.cell_world import SynchronousExecutor, World, job, of, submission
from tests.support.logs import joined
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.replay.cut import CutPlan, plan_cut
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.events.admissions import TaskAdmittedV1
from yardmaster_schemas.events.decisions import TaskEndedV1
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.events.requests import CancelRequestedV1
from yardmaster_schemas.topics import DECISIONS, INPUT_ORDER, TOPICS

JOBS = 4


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """A log in which quota has read the ends of tasks, and judged requests after them."""
    world = World(tmp_path / "snapshots")
    await world.create()
    await world.claim(joined("n1", 1))
    async with world.running():
        # The first task holds the node, and the others end while they are pending.
        for number in range(JOBS):
            await world.request(submission(number))
            await world.run_for_half_a_second()
            if number:
                await world.request(CancelRequestedV1(job_id=job(number)))
                await world.run_for_half_a_second()
    assert len(of(TaskEndedV1, await world.decisions())) == JOBS - 1
    return world


async def shortened(log: EventLog, ends: Mapping[str, int]) -> MemoryLog:
    """A log with the first records of each topic."""
    short = MemoryLog(ManualClock())
    await short.create_topics(list(TOPICS.values()))
    for topic in INPUT_ORDER:
        end = ends.get(topic, await log.end(Partition(topic)))
        stored = await log.read(Partition(topic), 0, max_records=100_000)
        for one in stored[:end]:
            await short.append(Partition(topic), [one.record])
    return short


async def planned(log: EventLog, *, cycle: int | None = None, number: int = 0) -> CutPlan:
    machines = (QuotaMachine(check), SchedulerMachine())
    return await plan_cut(log, *machines, "main", cycle=cycle, number=number)


def ends_of(plan: CutPlan) -> dict[str, int]:
    return {partition.topic: end for partition, end in plan.ends.items()}


async def commits(
    log: EventLog, topic: str, end: int, *, number: int = 0
) -> list[CycleCommittedV1]:
    stored = await log.read(Partition(topic, number), 0, max_records=100_000)
    events = [decode(one.record).data for one in stored[:end]]
    return [event for event in events if isinstance(event, CycleCommittedV1)]


async def prove(log: EventLog) -> None:
    report = await verify(log, [QuotaMachine(check), SchedulerMachine()], "main")
    # The test writes no details, so findings about them are expected.
    assert [f for f in report.findings if f.topic != "details"] == []


async def test_quota_keeps_no_cycle_that_has_read_a_removed_decision(world: World) -> None:
    whole = await planned(world.log)
    everything = await commits(world.log, "admissions", 100_000)
    read = [t for one in everything for t in one.inputs if t.topic == DECISIONS.name]
    assert len(read) >= JOBS, "quota must read ends for this test"
    for cycle in range(1, whole.cycle + 1):
        plan = await planned(world.log, cycle=cycle)
        assert plan.cycle == cycle
        ends = ends_of(plan)
        for commit in await commits(world.log, "admissions", ends["admissions"]):
            for taken in commit.inputs:
                assert taken.next <= ends.get(taken.topic, taken.next), (cycle, commit.cycle)
        await prove(await shortened(world.log, ends))


@pytest.mark.parametrize("topic", ["requests", "admissions", "node-events", "decisions"])
async def test_a_log_that_lost_records_which_quota_has_read_is_consistent_after_a_cut(
    world: World, topic: str
) -> None:
    end = await world.log.end(Partition(topic))
    for lost in (1, 2, 5, 9):
        short = await shortened(world.log, {topic: max(0, end - lost)})
        plan = await planned(short)
        await prove(await shortened(short, ends_of(plan)))


async def test_both_machines_continue_on_the_shorter_log(world: World, tmp_path: Path) -> None:
    ended = of(TaskEndedV1, await world.decisions())
    middle = (await planned(world.log)).cycle // 2
    plan = await planned(world.log, cycle=middle)
    world.log = await shortened(world.log, ends_of(plan))
    world.snapshots = SnapshotStore(str(tmp_path / "after"), executor=SynchronousExecutor())
    async with world.running():
        await world.happens(lambda seen: len(of(TaskEndedV1, seen)) == len(ended))
    await world.prove()


async def test_requests_that_took_the_place_of_lost_ones_are_judged_after_a_cut(
    world: World, tmp_path: Path
) -> None:
    """As a gateway records them that started after the loss: it keeps no fence."""
    short = await shortened(world.log, {"requests": await world.log.end(Partition("requests")) - 2})
    world.log = short
    world.writers.gateway.source = "gateway/gw-1.0123456789ab"
    late = job(JOBS)
    await world.request(*(submission(number) for number in range(JOBS, JOBS + 3)))
    plan = await planned(world.log)
    assert plan.broken is not None
    world.log = await shortened(world.log, ends_of(plan))
    world.snapshots = SnapshotStore(str(tmp_path / "after"), executor=SynchronousExecutor())
    async with world.running():
        await world.run_for_half_a_second()
        await world.run_for_half_a_second()
    stored = await world.log.read(Partition("admissions"), 0, max_records=100_000)
    admitted = [decode(one.record).data for one in stored]
    assert late in [one.job_id for one in of(TaskAdmittedV1, admitted)]
    await world.prove()


class SecondCell(World):
    """A world in partition 1 of a log, whose partition 0 is another cell's."""

    async def create(self, **pool: Any) -> Self:
        await self.log.create_topics(list(TOPICS.values()), 2)
        return await super().create(**pool)

    async def _put(self, topic: str, envelopes: Sequence[Any]) -> None:
        records = [encode(each, "main") for each in envelopes]
        await self.log.append(Partition(topic, 1), records)


async def test_a_cell_in_another_partition_is_cut_by_itself(world: World, tmp_path: Path) -> None:
    second = SecondCell(tmp_path / "second")
    await second.create()
    for topic in INPUT_ORDER:
        for one in await world.log.read(Partition(topic), 0, max_records=100_000):
            await second.log.append(Partition(topic), [one.record])
    async with second.running(partition=1):
        for number in range(JOBS):
            await second.request(submission(number))
            await second.run_for_half_a_second()
    whole = await planned(second.log, number=1)
    assert (whole.cycle, whole.broken) == (await cycles(second.log, 1), None)
    plan = await planned(second.log, cycle=whole.cycle // 2, number=1)
    assert {partition.number for partition in plan.ends} == {1}
    assert plan.cycle == whole.cycle // 2
    assert plan.ends[Partition("decisions", 1)] < await second.log.end(Partition("decisions", 1))
    assert (await planned(second.log)).cycle == await cycles(second.log, 0), "the other is whole"


async def cycles(log: EventLog, number: int) -> int:
    return len(await commits(log, "decisions", 100_000, number=number))
