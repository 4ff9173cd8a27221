"""FaultyLog: exactly the planned faults happen."""

import asyncio

import pytest

from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable, UnknownTopic
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.topics import Topic

TOPICS = [Topic(name=name, key="cell", writers=(), readers=()) for name in ("a", "b")]
A, B = Partition("a"), Partition("b")


class PlannedFaults:
    """A log, its plan, and the records that it really holds."""

    def __init__(self, *faults: Fault) -> None:
        self.clock = ManualClock()
        self.memory = MemoryLog(self.clock)
        self.plan = FaultPlan(self.clock, faults)
        self.log = FaultyLog(self.memory.handle(), self.plan)

    async def begin(self) -> "PlannedFaults":
        await self.log.create_topics(TOPICS)
        return self

    async def append(self, mark: str, partition: Partition = A) -> int:
        return await self.log.append(partition, [Record(b"", mark.encode())])

    async def there(self, partition: Partition = A) -> list[str]:
        return [(s.record.value or b"").decode() for s in await self.memory.read(partition, 0)]


def fault(nth: int, kind: FaultKind, **settings: float) -> Fault:
    return Fault(topic="a", nth=nth, kind=kind, **settings)  # type: ignore[arg-type]


async def test_without_faults_nothing_is_different() -> None:
    faulty = await PlannedFaults().begin()
    assert [await faulty.append("1"), await faulty.append("2")] == [0, 1]
    assert await faulty.there() == ["1", "2"]


async def test_a_lost_append_is_not_there_and_its_writer_does_not_know() -> None:
    faulty = await PlannedFaults(fault(2, FaultKind.LOST)).begin()
    await faulty.append("1")
    with pytest.raises(AppendOutcomeUnknown):
        await faulty.append("2")
    assert await faulty.append("3") == 1
    assert await faulty.there() == ["1", "3"]


async def test_a_landed_append_is_there_and_its_writer_does_not_know() -> None:
    faulty = await PlannedFaults(fault(1, FaultKind.LANDED)).begin()
    with pytest.raises(AppendOutcomeUnknown):
        await faulty.append("1")
    assert await faulty.there() == ["1"]


async def test_a_late_append_lands_after_so_many_operations_of_anyone() -> None:
    faulty = await PlannedFaults(fault(1, FaultKind.LATE, after_operations=2)).begin()
    other = FaultyLog(faulty.memory.handle(), faulty.plan)
    with pytest.raises(AppendOutcomeUnknown):
        await faulty.append("late")
    assert await faulty.log.end(A) == 0
    assert await other.end(A) == 0
    assert await other.append(A, [Record(b"", b"after")]) == 1
    assert await faulty.there() == ["late", "after"]


async def test_a_late_append_lands_after_its_writer_was_closed() -> None:
    faulty = await PlannedFaults(fault(1, FaultKind.LATE)).begin()
    with pytest.raises(AppendOutcomeUnknown):
        await faulty.append("late")
    assert await faulty.there() == []
    await faulty.plan.write_late()
    assert await faulty.there() == ["late"]


async def test_a_late_append_lands_when_its_time_has_come() -> None:
    faulty = await PlannedFaults(fault(1, FaultKind.LATE, after_s=4.0)).begin()
    with pytest.raises(AppendOutcomeUnknown):
        await faulty.append("late")
    faulty.clock.advance(3.5)
    assert await faulty.append("between") == 0
    faulty.clock.advance(1)
    assert await faulty.log.end(A) == 2
    assert await faulty.there() == ["between", "late"]


async def test_a_late_append_whose_log_is_closed_is_lost() -> None:
    faulty = await PlannedFaults(fault(1, FaultKind.LATE, after_operations=0)).begin()
    with pytest.raises(AppendOutcomeUnknown):
        await faulty.append("late")
    await faulty.log.close()
    other = FaultyLog(faulty.memory, faulty.plan)
    assert await other.end(A) == 0


async def test_a_stalled_append_lands_after_its_stall() -> None:
    faulty = await PlannedFaults(fault(1, FaultKind.STALLED, after_s=600)).begin()
    async with asyncio.TaskGroup() as group:
        stalled = group.create_task(faulty.append("slow"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert await faulty.append("quick") == 0
        faulty.clock.advance(600)
        assert await stalled == 1


async def test_an_unavailable_log_has_written_nothing() -> None:
    faulty = await PlannedFaults(fault(1, FaultKind.UNAVAILABLE)).begin()
    with pytest.raises(LogUnavailable):
        await faulty.append("1")
    assert await faulty.append("again") == 0


async def test_appends_are_counted_by_topic_over_all_handles_of_a_plan() -> None:
    faulty = await PlannedFaults(fault(2, FaultKind.LOST)).begin()
    other = FaultyLog(faulty.memory.handle(), faulty.plan)
    await faulty.append("1")
    await faulty.append("b1", B)
    await faulty.append("b2", B)
    with pytest.raises(AppendOutcomeUnknown):
        await other.append(A, [Record(b"", b"2")])
    assert faulty.plan.happened == [fault(2, FaultKind.LOST)]


async def test_a_mistake_of_the_caller_is_named_even_where_a_fault_is_due() -> None:
    faulty = PlannedFaults(fault(1, FaultKind.LOST))
    with pytest.raises(UnknownTopic):
        await faulty.append("1")


def test_a_fault_says_all_that_its_kind_needs() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        fault(0, FaultKind.LOST)
    with pytest.raises(ValueError, match="after_s"):
        fault(1, FaultKind.STALLED)


def test_a_drawn_plan_is_the_same_for_the_same_chance_and_has_every_kind() -> None:
    def drawn(seed: int, topics: list[str]) -> list[Fault]:
        plan = FaultPlan.drawn(
            ManualClock(), SeededChance(seed), topics=topics, appends=200, permille=250
        )
        return list(plan.faults)

    faults = drawn(7, ["a", "b"])
    assert faults == drawn(7, ["a", "b"]) != drawn(8, ["a", "b"])
    assert 60 < len(faults) < 140
    assert {each.kind for each in faults} == set(FaultKind)
    assert [each for each in faults if each.topic == "b"] == drawn(7, ["b"]), "one moves no other"
