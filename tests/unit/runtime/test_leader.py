"""The leader: one cycle at a time, step by step."""

import asyncio
from typing import Any

import pytest

from tests.support.memory_cell import CELL
from tests.support.toy_cell import ToyCell, answers, until
from tests.support.toy_machine import (
    INCARNATION,
    PAUSE_MS,
    ToyMachine,
    ToyState,
    job_id,
    progress,
    request,
)
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.errors import BatchTooLarge
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_runtime.errors import CycleTooLarge, Fenced, UnwritableDecision
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.waiting import together
from yardmaster_schemas.events.admissions import CancelAcceptedV1
from yardmaster_schemas.events.decisions import NodeLostV1, NodeSilenceObservedV1
from yardmaster_schemas.events.expiring import RecordQuarantinedV1
from yardmaster_schemas.events.machine import CycleCommittedV1, TermStartedV1
from yardmaster_schemas.events.requests import PauseRequestedV1
from yardmaster_schemas.reasons import RefusalCode


@pytest.fixture
async def cell() -> ToyCell:
    return await ToyCell().create()


async def commits(cell: ToyCell, topic: str = "admissions") -> list[CycleCommittedV1]:
    return [e for e in await cell.events(topic) if isinstance(e, CycleCommittedV1)]


async def test_a_cycle_takes_all_inputs_and_appends_decisions_and_commit_in_one_batch(
    cell: ToyCell,
) -> None:
    leader = cell.leader()
    await leader.take_term()
    await cell.ask(3)
    assert await leader.step()
    assert [type(e) for e in await cell.events("admissions")] == [
        TermStartedV1,
        *[CancelAcceptedV1] * 3,
        CycleCommittedV1,
    ]
    assert set(answers(leader.fold)) == {job_id(n) for n in range(3)}
    assert answers(await cell.fold()) == answers(leader.fold)


async def test_an_idle_leader_appends_nothing(cell: ToyCell) -> None:
    leader = cell.leader()
    await leader.take_term()
    await cell.ask()
    assert await leader.step()
    for _ in range(3):
        assert not await leader.step()
    assert len(await commits(cell)) == 1


async def test_a_due_time_starts_a_cycle(cell: ToyCell) -> None:
    leader = cell.leader()
    await leader.take_term()
    await cell.ask(1, PauseRequestedV1(job_id=job_id(0)))
    await leader.step()
    cell.clock.advance(PAUSE_MS / 1000 - 0.001)
    assert not await leader.step()
    cell.clock.advance(0.001)
    assert await leader.step()
    assert not await leader.step()
    assert answers(leader.fold) == {job_id(0): 1}


class Restless(ToyMachine):
    """Says that something is due, and never does anything about it."""

    def due_ms(self, state: ToyState) -> int | None:
        return 1


async def test_a_due_time_that_an_empty_cycle_does_not_change_starts_no_further_cycle(
    cell: ToyCell,
) -> None:
    template = ToyMachine.quota()
    leader = cell.leader(Restless(template.name, template.output, template.inputs))
    await leader.take_term()
    assert await leader.step()
    for _ in range(3):
        assert not await leader.step()


async def test_a_cycle_cut_at_its_limit_is_continued_without_new_inputs(cell: ToyCell) -> None:
    leader = cell.leader(max_decisions=2)
    await leader.take_term()
    await cell.ask(5)
    assert await leader.step()
    await cell.ask(1)
    assert await leader.step()
    assert await leader.step()
    first, second, third = await commits(cell)
    assert [c.complete for c in (first, second, third)] == [False, False, True]
    assert [c.limit for c in (first, second, third)] == [2, 2, None]
    assert [bool(c.inputs) for c in (first, second, third)] == [True, False, False]
    assert await leader.step()
    assert len(answers(await cell.fold())) == 6


async def test_invalid_claims_are_refused_recorded_and_quarantined(
    cell: ToyCell,
) -> None:
    leader = cell.leader()
    await leader.take_term()
    other_cell = Record(b"elsewhere", cell_record(1).value, cell_record(1).headers)
    unknown = Record(b"main", b"{}", (("ce_type", b"Nonsense"), ("yard_version", b"1")))
    newer = Record(b"main", b"{}", (("ce_type", b"CancelRequested"), ("yard_version", b"99")))
    raw = [Record(b"main", b"junk"), Record(b"main", b"more"), unknown, newer, other_cell]
    await cell.put("requests", [request(0), request(0), *raw, progress(0, 5), request(3)])
    assert await leader.step()
    (commit,) = await commits(cell)
    assert [(r.first, r.last, r.code) for r in commit.refused] == [
        (1, 1, RefusalCode.REPEATED),
        (2, 3, RefusalCode.MALFORMED),
        (4, 4, RefusalCode.UNKNOWN_TYPE),
        (5, 5, RefusalCode.UNKNOWN_VERSION),
        (6, 6, RefusalCode.WRONG_CELL),
        (7, 7, RefusalCode.WRONG_TOPIC),
    ]
    copies = [e for e in await cell.events("quarantine") if isinstance(e, RecordQuarantinedV1)]
    assert [c.offset for c in copies] == [1, 2, 3, 4, 5, 6, 7]
    assert len(cell.logged("record_refused")) == 7
    assert set(answers(leader.fold)) == {job_id(0), job_id(3)}
    assert answers(await cell.fold()) == answers(leader.fold)


def cell_record(number: int) -> Record:
    return encode(request(number), CELL)


async def test_a_flood_of_refused_records_is_summarized_and_limited(cell: ToyCell) -> None:
    leader = cell.leader(max_quarantined=3, max_refused=4)
    await leader.take_term()
    flood: list[Any] = []
    for number in range(10):
        flood += [request(number), Record(b"main", b"junk"), Record(b"main", b"junk")]
    await cell.put("requests", flood)
    while await leader.step():
        pass
    found = await commits(cell)
    assert [len(c.refused) for c in found] == [4, 4, 2]
    assert len(await cell.stored("quarantine")) == 9
    assert [line["more"] for line in cell.logged("records_refused")] == [5, 5, 1]
    assert len(answers(await cell.fold())) == 10


async def test_another_machines_records_are_taken_only_in_whole_cycles(cell: ToyCell) -> None:
    quota = cell.leader(max_batch_bytes=1024)
    scheduler = cell.leader(ToyMachine.scheduler(), max_inputs=2)
    await quota.take_term()
    await scheduler.take_term()
    await cell.ask(4)
    plan = FaultPlan(cell.clock, [Fault(topic="admissions", nth=3, kind=FaultKind.LOST)])
    quota.fold.log = FaultyLog(cell.log, plan)
    with pytest.raises(Exception, match="Whether a batch was written to admissions is unknown"):
        await quota.step()
    assert len(await cell.stored("admissions")) > 1, "part of the cycle is there"
    assert not await scheduler.step(), "but not its commit"
    again = cell.leader()
    await again.take_term()
    await again.step()
    assert await scheduler.step()
    (commit,) = await commits(cell, "decisions")
    assert commit.inputs[0].next == len(await cell.stored("admissions"))
    assert answers(scheduler.fold) == {job_id(n): 1 for n in range(4)}


async def test_inputs_are_taken_in_the_machines_order(cell: ToyCell) -> None:
    quota, scheduler = cell.leader(), cell.leader(ToyMachine.scheduler())
    await quota.take_term()
    await scheduler.take_term()
    await cell.put("node-events", [progress(0, 5)])
    await cell.ask()
    await quota.step()
    await scheduler.step()
    (commit,) = await commits(cell, "decisions")
    assert [i.topic for i in commit.inputs] == ["admissions", "node-events"]


async def test_a_large_cycle_is_split_into_consecutive_batches(cell: ToyCell) -> None:
    leader = cell.leader(max_batch_bytes=2_000)
    await leader.take_term()
    await cell.ask(20)
    await leader.step()
    assert leader._metrics.batches._value.get() > 5
    assert len(answers(await cell.fold())) == 20


class Narrow:
    """A log that takes smaller batches than its catalogue says."""

    def __init__(self, inner: Any, records: int) -> None:
        self._inner = inner
        self._records = records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, partition: Partition, batch: Any) -> int:
        if partition.topic == "admissions" and len(batch) > self._records:
            raise BatchTooLarge(size=len(batch), limit=self._records, topic=partition.topic)
        return int(await self._inner.append(partition, batch))


async def test_a_batch_that_the_log_refuses_as_too_large_is_split(cell: ToyCell) -> None:
    leader = cell.leader(log=Narrow(cell.log, 3))
    await leader.take_term()
    await cell.ask(20)
    assert await leader.step()
    assert len(answers(await cell.fold())) == 20
    assert leader._metrics.batches_too_large._value.get() > 0


async def test_a_record_that_fits_no_batch_is_a_named_error(cell: ToyCell) -> None:
    leader = cell.leader(log=Narrow(cell.log, 1))
    await leader.take_term()
    leader.fold.log = Narrow(cell.log, 0)
    await cell.ask()
    with pytest.raises(CycleTooLarge):
        await leader.step()


async def test_a_higher_term_fences_an_idle_leader(cell: ToyCell) -> None:
    first, second = cell.leader(), cell.leader()
    await first.take_term()
    await second.take_term()
    with pytest.raises(Fenced, match="belongs to term 2"):
        await first.step()


async def test_a_higher_term_fences_a_leader_within_its_cycle(cell: ToyCell) -> None:
    first, second = cell.leader(), cell.leader()
    await first.take_term()
    await cell.ask()
    await second.take_term()
    with pytest.raises(Fenced):
        await first.step()
    assert await second.step()
    assert answers(await cell.fold()) == {job_id(0): 1}


async def test_a_leader_owns_its_term_only_after_reading_it_back(cell: ToyCell) -> None:
    first, second = cell.leader(), cell.leader()
    await second.fold.catch_up()

    class Beaten:
        """Lets another start the same term just before."""

        def __init__(self) -> None:
            self.beaten = False

        def __getattr__(self, name: str) -> Any:
            return getattr(cell.log, name)

        async def append(self, partition: Partition, batch: Any) -> int:
            if not self.beaten:
                self.beaten = True
                await first.take_term()
            return int(await cell.log.append(partition, batch))

    second.fold.log = Beaten()
    await second.take_term()
    assert (first.term, second.term) == (1, 2)
    assert second._metrics.terms_lost._value.get() == 1
    with pytest.raises(Fenced):
        await first.step()


async def test_a_candidate_that_keeps_losing_terms_gives_up(cell: ToyCell) -> None:
    class Always:
        def __getattr__(self, name: str) -> Any:
            return getattr(cell.log, name)

        async def append(self, partition: Partition, batch: Any) -> int:
            await cell.leader().take_term()
            return int(await cell.log.append(partition, batch))

    leader = cell.leader(max_lost_terms=3)
    leader.fold.log = Always()
    with pytest.raises(Fenced):
        await leader.take_term()


class Illegible(ToyMachine):
    """Decides what no reader could decode."""

    def decide(self, state: ToyState, **kwargs: Any) -> CycleResult:
        return CycleResult([Decision(CancelAcceptedV1(job_id="NOT A JOB"), "x")], "0" * 64)


async def test_a_decision_that_readers_could_not_decode_is_not_written(cell: ToyCell) -> None:
    template = ToyMachine.quota()
    leader = cell.leader(Illegible(template.name, template.output, template.inputs))
    await leader.take_term()
    await cell.ask()
    with pytest.raises(UnwritableDecision, match="CancelAccepted"):
        await leader.step()
    assert len(await cell.stored("admissions")) == 1


async def test_observations_come_first_in_the_batch_and_stay_queued_until_it_counts(
    cell: ToyCell,
) -> None:
    leader = cell.leader(ToyMachine.scheduler())
    await leader.take_term()
    silence = NodeSilenceObservedV1(node="n1", incarnation=INCARNATION, last_heard_at_ms=5)
    observed = Decision(silence, "n1")
    assert leader._observations.put(observed)
    assert not leader._observations.put(observed), "said already"
    assert await leader.step()
    assert [type(e) for e in (await cell.events("decisions"))[1:3]] == [
        NodeSilenceObservedV1,
        NodeLostV1,
    ]
    assert not len(leader._observations)
    assert (await cell.fold(ToyMachine.scheduler())).state.lost == ["n1"]


async def test_time_in_the_log_never_decreases_when_the_clock_does(cell: ToyCell) -> None:
    leader = cell.leader()
    await leader.take_term()
    await cell.ask()
    await leader.step()
    cell.clock.advance(-3600)
    await cell.ask()
    await leader.step()
    first, second = await commits(cell)
    assert first.now_ms == second.now_ms
    assert cell.logged("clock_behind_log")


async def test_time_in_the_log_passes_while_the_clock_is_behind_it(cell: ToyCell) -> None:
    ahead = cell.leader()
    await ahead.take_term()
    await cell.ask()
    await ahead.step()
    cell.clock.advance(-86_400)
    leader = cell.leader()
    await leader.take_term()
    await cell.ask()
    await leader.step()
    cell.clock.advance(5)
    await cell.ask()
    await leader.step()
    first, second, third = [commit.now_ms for commit in await commits(cell)]
    assert (first, third - second) == (second, 2_500)


async def test_time_in_the_log_meets_a_clock_that_was_set_back(cell: ToyCell) -> None:
    ahead = cell.leader()
    await ahead.take_term()
    await cell.ask()
    await ahead.step()
    cell.clock.advance(-100)
    leader = cell.leader()
    await leader.take_term()
    started_ms = cell.clock.now_ms()
    for _ in range(30):
        await cell.ask()
        await leader.step()
        cell.clock.advance(10)
    times = [commit.now_ms for commit in await commits(cell)]
    assert times == sorted(times)
    ahead_s = [(now_ms - started_ms) / 1000 - 10 * n for n, now_ms in enumerate(times[1:])]
    assert ahead_s == [max(0, 100 - 5 * n) for n in range(30)]


async def test_a_cycle_is_no_earlier_than_the_appends_of_its_inputs(cell: ToyCell) -> None:
    leader = cell.leader()
    await leader.take_term()
    cell.clock.advance(3600)
    await cell.ask()
    appended_ms = cell.clock.now_ms()
    cell.clock.advance(-3600)
    await leader.step()
    assert [commit.now_ms for commit in await commits(cell)] == [appended_ms]


def running(
    cell: ToyCell, group: asyncio.TaskGroup, machine: ToyMachine | None = None, **limits: Any
) -> Leader[Any]:
    leader = cell.leader(machine, **limits)

    async def run() -> None:
        await leader.take_term()
        await leader.run()

    leader.task = group.create_task(run())  # type: ignore[attr-defined]
    return leader


async def test_an_idle_leader_starts_a_cycle_at_once_and_batches_what_follows(
    cell: ToyCell,
) -> None:
    async with asyncio.TaskGroup() as group:
        leader = running(cell, group, min_interval_ms=50)
        await until(lambda: leader.term == 1)
        await cell.ask()
        await until(lambda: leader.fold.reader.cycle == 1)
        for _ in range(5):
            await cell.ask()
            for _ in range(50):
                await asyncio.sleep(0)
        assert leader.fold.reader.cycle == 1, "the interval has not passed"
        cell.clock.advance(0.05)
        await until(lambda: leader.fold.reader.cycle == 2)
        assert len(answers(leader.fold)) == 6
        leader.task.cancel()  # type: ignore[attr-defined]


async def test_a_waiting_leader_wakes_at_a_due_time(cell: ToyCell) -> None:
    async with asyncio.TaskGroup() as group:
        leader = running(cell, group, idle_wait_s=600)
        await until(lambda: leader.term == 1)
        await cell.ask(1, PauseRequestedV1(job_id=job_id(0)))
        await until(lambda: leader.fold.reader.cycle == 2, cell.clock)
        leader.task.cancel()  # type: ignore[attr-defined]
    assert answers(leader.fold) == {job_id(0): 1}


async def test_a_waiting_leader_wakes_for_an_observation(cell: ToyCell) -> None:
    async with asyncio.TaskGroup() as group:
        leader = running(cell, group, ToyMachine.scheduler(), idle_wait_s=600)
        await until(lambda: leader.term == 1)
        silence = NodeSilenceObservedV1(node="n1", incarnation=INCARNATION, last_heard_at_ms=5)
        leader._observations.put(Decision(silence, "n1"))
        await until(lambda: leader.fold.state.lost == ["n1"])
        leader.task.cancel()  # type: ignore[attr-defined]


async def test_a_waiting_leader_notices_that_it_was_fenced(cell: ToyCell) -> None:
    leader = cell.leader()
    await leader.take_term()

    async def usurp() -> None:
        await cell.leader().take_term()

    work = together(leader.run(), usurp(), until(lambda: False, cell.clock))
    with pytest.raises(Fenced):
        await work


class Early(ToyMachine):
    """Is due a second before there is something to do, and then when there is."""

    def due_ms(self, state: ToyState) -> int | None:
        due_ms = super().due_ms(state)
        if due_ms is None or state.now_ms >= due_ms - 1_000:
            return due_ms
        return due_ms - 1_000


async def test_a_cycle_that_decides_nothing_does_not_hide_the_next_due_time(cell: ToyCell) -> None:
    template = ToyMachine.quota()
    leader = cell.leader(Early(template.name, template.output, template.inputs))
    await leader.take_term()
    await cell.ask(1, PauseRequestedV1(job_id=job_id(0)))
    assert await leader.step()
    cell.clock.advance(PAUSE_MS / 1000 - 1)
    assert await leader.step()
    assert not await leader.step()
    cell.clock.advance(1)
    assert await leader.step()
    assert answers(leader.fold) == {job_id(0): 1}
