"""For any outcomes of appends and any turns of leaders: one history, no record lost or repeated.

SAFETY: every reader folds the same; each request has one answer; of two leaders' cycles one counts.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_cell import CELL
from tests.support.toy_cell import ToyCell, answers
from tests.support.toy_machine import ToyMachine, job_id, progress, request
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogError
from yardmaster_eventlog.port import Partition, Record, StoredRecord
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_runtime.errors import Fenced
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.replay.verify import verify
from yardmaster_runtime.waiting import together
from yardmaster_schemas.events.machine import CycleCommittedV1

REQUESTS = Partition("requests")

faults = st.lists(
    st.builds(
        Fault,
        topic=st.sampled_from(["admissions", "decisions"]),
        nth=st.integers(1, 25),
        kind=st.sampled_from([FaultKind.LOST, FaultKind.LANDED, FaultKind.LATE]),
        after_operations=st.none() | st.integers(0, 40),
    ),
    max_size=12,
)
#: 0 to 3 move a candidate: two for quota, two for the scheduler; 4 requests, 5 claims, 6 advances
#: the clock; 7 and 8 move both candidates of quota, or of the scheduler, at once.
moves = st.lists(st.integers(0, 8), min_size=5, max_size=60)


class YieldingLog(FaultyLog):
    """Lets other tasks run before an append, so that two may write the same term."""

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        await asyncio.sleep(0)
        return await super().append(partition, batch)


class Racer:
    """A candidate that leads again whenever it was fenced, from its last snapshot."""

    def __init__(self, cell: ToyCell, log: FaultyLog, machine: ToyMachine, limits: Any) -> None:
        self.cell = cell
        self.log = log
        self.machine = machine
        self.limits = limits
        self.leader: Leader[Any] | None = None
        self.dump: Any = None

    async def move(self) -> None:
        try:
            if self.leader is None:
                leader = self.cell.leader(self.machine, self.log, dump=self.dump, **self.limits)
                await leader.take_term()
                self.leader = leader
            else:
                await self.leader.step()
                self.dump = self.leader.fold.dump()
        except (Fenced, AppendOutcomeUnknown):
            self.leader = None

    async def finish(self) -> None:
        """Lead until there is no more work."""
        for _ in range(200):
            before = self.leader
            await self.move()
            if before is not None and self.leader is before and not await self._more():
                return
        raise AssertionError("the candidate does not become idle")

    async def _more(self) -> bool:
        assert self.leader is not None
        try:
            return await self.leader.step()
        except (Fenced, AppendOutcomeUnknown):
            self.leader = None
            return True


async def race(plan_faults: list[Fault], steps: list[int], limits: dict[str, int]) -> None:
    cell = await ToyCell().create()
    plan = FaultPlan(cell.clock, plan_faults)
    log = YieldingLog(cell.log, plan)
    quotas = [Racer(cell, log, ToyMachine.quota(), limits) for _ in range(2)]
    schedulers = [Racer(cell, log, ToyMachine.scheduler(), limits) for _ in range(2)]
    racers = [*quotas, *schedulers]
    asked = claimed = 0
    for step in steps:
        if step < 4:
            await racers[step].move()
        elif step == 4:
            await cell.ask(2)
            asked += 2
        elif step == 5:
            await cell.put("node-events", [progress(claimed, 666 if claimed % 3 else 5)])
            claimed += 1
        elif step == 6:
            cell.clock.advance(0.5)
        else:
            await together(*(racer.move() for racer in (quotas, schedulers)[step - 7]))
    await racers[0].finish()
    await plan.write_late()
    await racers[0].finish()
    await racers[2].finish()
    await plan.write_late()

    wanted = {job_id(n): 1 for n in range(asked)}
    quota, scheduler = await cell.fold(), await cell.fold(ToyMachine.scheduler())
    assert answers(quota) == wanted, "each request is answered once"
    assert answers(scheduler) == wanted
    for racer, fold in ((racers[0], quota), (racers[2], scheduler)):
        assert racer.leader is not None
        assert racer.leader.fold.machine.digest(racer.leader.fold.state) == (
            fold.machine.digest(fold.state)
        )
    report = await verify(
        cell.log, [ToyMachine.quota(), ToyMachine.scheduler()], CELL, promises=False
    )
    assert report.ok, report.findings
    for topic, fold in (("admissions", quota), ("decisions", scheduler)):
        await at_most_one_of_each_cycle_counts(await cell.stored(topic), fold)


async def at_most_one_of_each_cycle_counts(stored: list[StoredRecord], fold: Fold[Any]) -> None:
    commits = [decode(each.record).data for each in stored]
    written = [c.cycle for c in commits if isinstance(c, CycleCommittedV1)]
    assert fold.reader.cycle <= len(written)
    assert set(range(1, fold.reader.cycle + 1)) <= set(written)


@settings(max_examples=150, deadline=None)
@given(
    plan_faults=faults,
    steps=moves,
    limits=st.fixed_dictionaries(
        {
            "max_decisions": st.sampled_from([1, 3, 1000]),
            "max_inputs": st.sampled_from([1, 4, 1000]),
            "max_batch_bytes": st.sampled_from([1024, 3000, 900_000]),
        }
    ),
)
def test_two_leaders_and_late_batches_make_one_history(
    plan_faults: list[Fault], steps: list[int], limits: dict[str, int]
) -> None:
    asyncio.run(race(plan_faults, steps, limits))


# Any split of the inputs over polls


@settings(max_examples=60, deadline=None)
@given(
    splits=st.lists(st.integers(1, 7), min_size=1, max_size=20),
    limits=st.fixed_dictionaries(
        {"max_decisions": st.integers(1, 10), "max_inputs": st.integers(1, 10)}
    ),
    junk=st.sets(st.integers(0, 29)),
)
def test_any_split_of_the_inputs_over_polls_leads_to_the_same_state(
    splits: list[int], limits: dict[str, int], junk: set[int]
) -> None:
    async def run(sizes: list[int], **limited: Any) -> str:
        cell = await ToyCell().create()
        leader = cell.leader(**limited)
        await leader.take_term()
        records: list[Any] = [
            Record(b"main", b"junk") if n in junk else request(n) for n in range(30)
        ]
        turn = 0
        while records:
            size = sizes[turn % len(sizes)]
            turn += 1
            await cell.put("requests", records[:size])
            records = records[size:]
            await leader.step()
        while await leader.step():
            pass
        fold = await cell.fold()
        assert fold.machine.digest(fold.state) == leader.fold.machine.digest(leader.fold.state)
        return fold.machine.digest(fold.state)

    async def both() -> tuple[str, str]:
        return await run(splits, **limits), await run([30])

    split, whole = asyncio.run(both())
    assert split == whole


# Any restart point


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.integers(1, 5), min_size=1, max_size=8), at=st.integers(0, 40))
def test_a_dump_taken_anywhere_and_the_tail_lead_to_the_same_state(
    batches: list[int], at: int
) -> None:
    async def run() -> None:
        cell = await ToyCell().create()
        quota, scheduler = cell.leader(max_decisions=2), cell.leader(ToyMachine.scheduler())
        await quota.take_term()
        await scheduler.take_term()
        dumps = []
        for size in batches:
            await cell.ask(size)
            while await quota.step():
                await scheduler.step()
                dumps.append((scheduler.fold.dump(), quota.fold.dump()))
        whole = (await cell.fold(ToyMachine.scheduler())).dump(), (await cell.fold()).dump()
        scheduler_dump, quota_dump = dumps[at % len(dumps)]
        tail = (
            (await cell.fold(ToyMachine.scheduler(), dump=scheduler_dump)).dump(),
            (await cell.fold(dump=quota_dump)).dump(),
        )
        assert tail == whole

    asyncio.run(run())


# A late batch, at any place


@settings(max_examples=40, deadline=None)
@given(after=st.integers(0, 30))
def test_a_late_batch_counts_exactly_when_it_arrives_before_the_next_term(after: int) -> None:
    async def run() -> None:
        cell = await ToyCell().create()
        plan = FaultPlan(
            cell.clock,
            [Fault(topic="admissions", nth=2, kind=FaultKind.LATE, after_operations=after)],
        )
        log = FaultyLog(cell.log, plan)
        racer = Racer(cell, log, ToyMachine.quota(), {})
        await cell.ask(3)
        await racer.finish()
        await plan.write_late()
        await cell.ask(2)
        await racer.finish()
        fold = await cell.fold()
        assert answers(fold) == {job_id(n): 1 for n in range(5)}
        stored = await cell.stored("admissions")
        terms = [s.offset for s in stored if decode(s.record).type == "TermStarted"]
        first = [s.offset for s in stored if decode(s.record).epoch == 1][1:]
        landed_in_time = bool(first) and first[0] < terms[1]
        assert (fold.reader.dropped == 0) == landed_in_time

    try:
        asyncio.run(run())
    except LogError as error:
        raise AssertionError(str(error)) from error
