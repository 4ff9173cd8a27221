"""The relay: what counts reaches the nodes it concerns, whatever happens in between."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    allocated,
    incarnation,
    joined,
    log_created,
    placed,
)
from tests.support.memory_cell import MemoryCell
from tests.support.toy_cell import until
from yardmaster_core.commit import CommitReader
from yardmaster_core.errors import ForeignRecord
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_eventlog.snapshots import Snapshot, SnapshotStore
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.replay.cut import CutPlan
from yardmaster_scheduler.copies import nodes_to_notify
from yardmaster_scheduler.metrics import ShellMetrics
from yardmaster_scheduler.relay import Relay, Unstarted
from yardmaster_scheduler.settings import ShellLimits
from yardmaster_schemas.events.admissions import NodeEnrolledV1
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    LossCause,
    NodeLostV1,
    Outcome,
    PreemptionRequestedV1,
    TaskEndedV1,
)
from yardmaster_schemas.events.machine import LogCutV1
from yardmaster_schemas.events.requests import Enrollment, NodeEnrolRequestedV1
from yardmaster_schemas.reasons import EndCode, PolicyStop, Stop, StopCode
from yardmaster_schemas.relayed import OFFSET_HEADER, RelayedFrom, relayed_from
from yardmaster_schemas.topics import CUTS, Topic, assignments


def task(number: int) -> str:
    return f"job{number:09d}.0"


class RelayCell(MemoryCell):
    """A log written by hand, and a relay that reads it."""

    clock: ManualClock
    log: MemoryLog

    def __init__(self) -> None:
        super().__init__()
        self.builder = LogBuilder()
        self.written = 0

    async def write(self) -> None:
        """Append what the builder has more than the log."""
        for entry in self.builder.of("decisions")[self.written :]:
            await self.log.append(Partition("decisions"), [entry.record])
        self.written = self.builder.end("decisions")

    def relay(
        self,
        log: EventLog | None = None,
        snapshots: SnapshotStore | None = None,
        unstarted: Unstarted = lambda _task, _attempt: {},
        limits: ShellLimits | None = None,
        retired: Collection[str] = (),
    ) -> Relay:
        return Relay(
            log or self.log,
            "main",
            clock=self.clock,
            limits=limits or ShellLimits(),
            metrics=ShellMetrics(self.telemetry("scheduler")),
            snapshots=snapshots,
            unstarted=unstarted,
            needs_topic=lambda node: node not in retired,
        )

    async def relayed(self, node: str) -> list[int]:
        """The offsets in `decisions` of what a node's topic holds."""
        return [
            relayed_from(dict(s.record.headers)[OFFSET_HEADER]).offset
            for s in await self.copies(node)
        ]

    async def copies(self, node: str) -> list[StoredRecord]:
        # Another handle: one that has read lost records raises an error.
        return list(await self.log.handle().read(Partition(assignments(node).name), 0))


@pytest.fixture
async def cell() -> RelayCell:
    return await RelayCell().create()


@asynccontextmanager
async def running(relay: Relay, nodes: list[str], origin: Any = None) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        work = group.create_task(relay.run(nodes, origin))
        yield
        work.cancel()


async def idle(cell: RelayCell) -> None:
    for _ in range(300):
        await asyncio.sleep(0)
    del cell


async def test_each_decision_is_copied_to_the_nodes_that_must_act_and_to_no_other(
    cell: RelayCell,
) -> None:
    cell.builder.scheduler.cycle(
        allocated(task(1), placed("a", 0), placed("b", 0, replica=1)),
        allocated(task(2), placed("b", 1)),
    )
    cell.builder.scheduler.cycle(
        TaskEndedV1(task_id=task(2), attempt=1, outcome=Outcome.FAILED, code=EndCode.EXIT),
        NodeLostV1(node="a", incarnation=incarnation(), cause=LossCause.SILENT, last_heard_at_ms=5),
    )
    await cell.write()
    async with running(cell.relay(), ["a", "b", "c"]):
        await idle(cell)
    assert await cell.relayed("a") == [1, 5]
    assert await cell.relayed("b") == [1, 2]
    assert await cell.relayed("c") == []


async def test_a_copy_is_the_record_with_its_offset(cell: RelayCell) -> None:
    cell.builder.scheduler.cycle(allocated(task(1), placed("a", 0)))
    await cell.write()
    async with running(cell.relay(), ["a"]):
        await idle(cell)
    (copy,) = await cell.copies("a")
    original = cell.builder.of("decisions")[1].record
    assert copy.record.key == original.key
    assert copy.record.value == original.value
    assert copy.record.headers == (*original.headers, (OFFSET_HEADER, b"1"))


async def test_a_copy_of_a_stop_names_the_replicas_that_have_not_started_on_its_node(
    cell: RelayCell,
) -> None:
    stop = Stop(code=StopCode.START_TIMEOUT)
    cell.builder.scheduler.cycle(
        allocated(task(1), placed("a", 0), placed("b", 0, replica=1), placed("b", 1, replica=2)),
    )
    cell.builder.scheduler.cycle(
        AllocationRevokedV1(task_id=task(1), attempt=1, nodes=("a", "b"), stop=stop),
    )
    await cell.write()

    def unstarted(task_id: str, attempt: int) -> dict[str, tuple[str, list[int]]]:
        assert (task_id, attempt) == (task(1), 1)
        return {"b": (incarnation(), [1, 2])}

    async with running(cell.relay(unstarted=unstarted), ["a", "b"]):
        await idle(cell)
    a, b = [(await cell.copies(node))[1].record.headers[-1] for node in ("a", "b")]
    assert a == (OFFSET_HEADER, b"3")
    assert b == (OFFSET_HEADER, b"3 000000000001 1,2")
    assert relayed_from(b[1]) == RelayedFrom(3, incarnation(), (1, 2))
    cell.builder.scheduler.cycle(allocated(task(2), placed("a", 0)))
    await cell.write()
    async with running(cell.relay(), ["a", "b"]):
        await idle(cell)
    assert await cell.relayed("b") == [1, 3, 3], "a relay that takes over begins with that copy"


async def test_a_cycle_reaches_no_node_before_its_commit(cell: RelayCell) -> None:
    cell.builder.scheduler.cycle(
        allocated(task(1), placed("a", 0)), allocated(task(2), placed("a", 1))
    )
    entries = cell.builder.of("decisions")
    async with running(cell.relay(), ["a"]):
        for entry in entries[:-1]:
            await cell.log.append(Partition("decisions"), [entry.record])
        await idle(cell)
        assert await cell.relayed("a") == []
        await cell.log.append(Partition("decisions"), [entries[-1].record])
        await idle(cell)
        assert await cell.relayed("a") == [1, 2]


async def test_a_fenced_leaders_batch_reaches_no_node(cell: RelayCell) -> None:
    cell.builder.scheduler.start_term(incarnation(1))
    old = cell.builder.scheduler.writer
    cell.builder.scheduler.start_term(incarnation(2))
    cell.builder.append("decisions", old.envelope(allocated(task(1), placed("a", 0)), "x"))
    cell.builder.scheduler.cycle(allocated(task(2), placed("a", 0)))
    await cell.write()
    async with running(cell.relay(), ["a"]):
        await idle(cell)
    assert await cell.relayed("a") == [3]


async def test_nodes_that_join_get_a_topic_before_a_task_is_placed_there(cell: RelayCell) -> None:
    relay = cell.relay()
    async with running(relay, []):
        await idle(cell)
        claim = cell.builder.claim(joined("new")).envelope
        assert claim is not None
        relay.on_cycle([claim], SimpleNamespace(decisions=()))  # type: ignore[arg-type]
        await idle(cell)
        assert await cell.log.end(Partition("assignments.new")) == 0


async def test_a_node_that_is_enrolled_gets_a_topic_so_that_its_agent_can_start(
    cell: RelayCell,
) -> None:
    relay = cell.relay()
    enrollment = Enrollment(pool="default", gpus=8)
    async with running(relay, []):
        await idle(cell)
        cell.builder.request(log_created())
        cell.builder.judged(
            NodeEnrolRequestedV1(node="new", enrollment=enrollment),
            NodeEnrolledV1(node="new", enrollment=enrollment, revision=1),
        )
        verdict = cell.builder.of("admissions")[-2]
        assert verdict.envelope is not None
        relay.on_cycle([verdict.envelope], SimpleNamespace(decisions=()))  # type: ignore[arg-type]
        await idle(cell)
        assert await cell.log.end(Partition("assignments.new")) == 0


async def test_a_node_without_a_topic_gets_one_when_a_decision_needs_it(cell: RelayCell) -> None:
    cell.builder.scheduler.cycle(allocated(task(1), placed("a", 0)))
    await cell.write()
    async with running(cell.relay(), []):
        await idle(cell)
    assert await cell.relayed("a") == [1]


async def test_a_new_relay_continues_with_the_newest_copied_cycle_and_repeats_only_that_one(
    cell: RelayCell,
) -> None:
    for number in range(3):
        cell.builder.scheduler.cycle(
            allocated(task(2 * number), placed("a", number)),
            allocated(task(2 * number + 1), placed("b", number)),
        )
    await cell.write()
    # A relay that fell after the second cycle reached `a` but not `b`.
    await cell.log.create_topics([assignments("a"), assignments("b")])
    first, second = (cell.builder.of("decisions")[at].record for at in (1, 4))
    for node, copies in (("a", [(1, first), (4, second)]), ("b", [(2, first)])):
        for offset, record in copies:
            header = (OFFSET_HEADER, str(offset).encode())
            copy = Record(record.key, record.value, (*record.headers, header))
            await cell.log.append(Partition(assignments(node).name), [copy])
    async with running(cell.relay(), ["a", "b"]):
        await idle(cell)
    assert await cell.relayed("a") == [1, 4, 4, 7]
    assert await cell.relayed("b") == [2, 5, 8]


async def test_the_relay_starts_from_a_reader_that_is_early_enough(
    cell: RelayCell, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    reader = CommitReader("scheduler", "main", "decisions")
    dumps = []
    for number in range(4):
        cell.builder.scheduler.cycle(allocated(task(number), placed("a", number)))
        for entry in cell.builder.of("decisions")[reader.next :]:
            assert entry.envelope is not None
            reader.feed(entry.offset, entry.digest, entry.envelope)
        dumps.append(reader.dump())
    await cell.write()
    for cycle, dump in enumerate(dumps, 1):
        payload = json.dumps({"reader": dump}).encode()
        await store.save(
            Snapshot(
                machine="scheduler",
                cell="main",
                cycle=cycle,
                state_digest="0" * 64,
                payload=payload if cycle != 3 else b"{}",
            )
        )
    relay = cell.relay(snapshots=store)
    # Reached: the third cycle's decision, at offset 5; snapshots of cycles 3 and 4 come too late.
    found = await relay._reader_before(5, dumps[3])
    assert found.next == dumps[1]["next"]
    assert (await relay._reader_before(9, dumps[3])).next == dumps[3]["next"]
    assert (await relay._reader_before(8, dumps[3])).next == dumps[1]["next"], "3 is unreadable"
    assert (await relay._reader_before(-1, dumps[3])).next == 0
    cell.log.lose_before(Partition("decisions"), dumps[1]["next"])
    for reached in (-1, 5):
        found = await relay._reader_before(reached, dumps[3])
        assert found.next == dumps[1]["next"], "earlier records have expired"


@pytest.mark.parametrize("kind", [FaultKind.LOST, FaultKind.LANDED, FaultKind.UNAVAILABLE])
async def test_a_copy_of_unknown_outcome_is_repeated(cell: RelayCell, kind: FaultKind) -> None:
    cell.builder.scheduler.cycle(allocated(task(1), placed("a", 0)))
    await cell.write()
    plan = FaultPlan(
        cell.clock, [Fault(topic="assignments.a", nth=nth, kind=kind) for nth in (1, 2)]
    )
    async with running(cell.relay(FaultyLog(cell.log, plan)), ["a"]):
        copies: list[int] = []

        def arrived() -> bool:
            return len(plan.happened) == 2

        await until(arrived, cell.clock)
        for _ in range(20):
            cell.clock.advance(1)
            await idle(cell)
        copies = await cell.relayed("a")
    assert set(copies) == {1}


async def test_a_record_that_cannot_be_decoded_stops_the_relay_with_a_named_error(
    cell: RelayCell,
) -> None:
    await cell.log.append(Partition("decisions"), [Record(b"main", b"junk")])
    with pytest.raises(ForeignRecord):
        await cell.relay().run([], None)


def test_stops_and_revocations_are_copied_to_the_nodes_they_name() -> None:
    drawn = PolicyStop(policy="rand", rule="drawn")
    preempted = PreemptionRequestedV1(
        task_id=task(1), attempt=1, nodes=("a", "b"), stop=drawn, grace_s=5, deadline_at_ms=9
    )
    stop = Stop(code=StopCode.START_TIMEOUT)
    revoked = AllocationRevokedV1(task_id=task(1), attempt=1, nodes=("c",), stop=stop)
    assert [*nodes_to_notify(preempted)] == ["a", "b"]
    assert [*nodes_to_notify(revoked)] == ["c"]


async def allocate_each(cell: RelayCell, numbers: range, node: str = "a") -> None:
    """One cycle for each task; the decisions have the offsets 1, 3, 5, ..."""
    for number in numbers:
        cell.builder.scheduler.cycle(allocated(task(number), placed(node, number)))
    await cell.write()


def delete_topic(cell: RelayCell, node: str) -> None:
    del cell.log._shared.sequences[Partition(assignments(node).name)]


async def test_a_relay_copies_again_what_a_topic_lost_while_it_runs(cell: RelayCell) -> None:
    await allocate_each(cell, range(4))
    async with running(cell.relay(), ["a", "b"]):
        await idle(cell)
        assert await cell.relayed("a") == [1, 3, 5, 7]
        cell.log.cut(Partition(assignments("a").name), 2)
        cell.clock.advance(30)
        await idle(cell)
        assert await cell.relayed("a") == [1, 3, 5, 7]
        cell.clock.advance(300)
        await idle(cell)
        assert await cell.relayed("a") == [1, 3, 5, 7], "it copies once"


async def test_a_relay_notices_at_an_append_that_a_topic_lost_copies(cell: RelayCell) -> None:
    await allocate_each(cell, range(3))
    async with running(cell.relay(), ["a"]):
        await idle(cell)
        cell.log.cut(Partition(assignments("a").name), 1)
        await allocate_each(cell, range(3, 4))
        await idle(cell)
        assert sorted({*await cell.relayed("a")}) == [1, 3, 5, 7]


async def test_a_new_relay_copies_again_what_a_topic_lost_while_none_ran(cell: RelayCell) -> None:
    await allocate_each(cell, range(3))
    await allocate_each(cell, range(3, 4), "b")
    async with running(cell.relay(), ["a", "b", "c"]):
        await idle(cell)
    cell.log.cut(Partition(assignments("a").name), 1)
    async with running(cell.relay(), ["a", "b", "c"]):
        await idle(cell)
    assert await cell.relayed("a") == [1, 3, 5]
    assert await cell.relayed("b") == [7, 7], "the cycle of the newest copy is repeated"
    async with running(cell.relay(), ["a", "b", "c"]):
        await idle(cell)
    assert await cell.relayed("a") == [1, 3, 5], "nothing is lost, nothing is copied again"


async def test_copies_of_decisions_that_a_cut_removed_do_not_hide_the_decisions_after_it(
    cell: RelayCell,
) -> None:
    """The broker crashed soon after the cut, and the copies that the cut deleted came back."""
    await allocate_each(cell, range(2))
    kept, end = deepcopy(cell.builder), cell.written
    await allocate_each(cell, range(2, 6))
    async with running(cell.relay(), ["a", "b"]):
        await idle(cell)
    assert await cell.relayed("a") == [1, 3, 5, 7, 9, 11]
    cell.log.cut(Partition("decisions"), end)
    cell.log = cell.log.handle()
    plan = CutPlan(
        cell="main", number=0, event=LogCutV1(generation=1, cycles=(), kept=()), broken=None
    )
    await cell.log.append(Partition(CUTS.name), [plan.record(0)])
    cell.builder, cell.written = kept, end
    await allocate_each(cell, range(6, 7), "a")
    await allocate_each(cell, range(7, 8), "b")
    async with running(cell.relay(), ["a", "b"]):
        await idle(cell)
    decided = {stored.offset: stored.record.value for stored in await cell.stored("decisions")}
    for node, offset in (("a", end), ("b", end + 2)):
        copied = [copy.record.value for copy in await cell.copies(node)]
        assert decided[offset] in copied, node
    before = await cell.relayed("a")
    async with running(cell.relay(), ["a", "b"]):
        await idle(cell)
    assert await cell.relayed("a") == before, "a new relay continues where the last one ended"


async def test_a_relay_creates_a_deleted_topic_and_copies_again(cell: RelayCell) -> None:
    await allocate_each(cell, range(3))
    async with running(cell.relay(), ["a"]):
        await idle(cell)
        delete_topic(cell, "a")
        cell.clock.advance(30)
        await idle(cell)
        assert await cell.relayed("a") == [1, 3, 5]


async def test_the_topic_of_a_retired_node_that_was_deleted_is_not_created_again(
    cell: RelayCell,
) -> None:
    await allocate_each(cell, range(3))
    await allocate_each(cell, range(3, 4), "b")
    async with running(cell.relay(), ["a", "b"]):
        await idle(cell)
    retired = ["a"]
    async with running(cell.relay(retired=retired), ["a", "b"]):
        await idle(cell)
        delete_topic(cell, "a")
        delete_topic(cell, "b")
        cell.clock.advance(30)
        await idle(cell)
        assert await cell.relayed("b") == [7]
    async with running(cell.relay(retired=retired), ["a", "b"]):
        await idle(cell)
        await allocate_each(cell, range(4, 5))
        await idle(cell)
        cell.clock.advance(30)
        await idle(cell)
    with pytest.raises(UnknownTopic):
        await cell.copies("a")


async def test_a_retired_node_that_joins_again_gets_a_topic_again(cell: RelayCell) -> None:
    retired: set[str] = set()
    relay = cell.relay(retired=retired)
    await allocate_each(cell, range(1))
    async with running(relay, ["a"]):
        await idle(cell)
        retired.add("a")
        delete_topic(cell, "a")
        cell.clock.advance(30)
        await idle(cell)
        retired.clear()
        claim = cell.builder.claim(joined("a")).envelope
        assert claim is not None
        relay.on_cycle([claim], SimpleNamespace(decisions=()))  # type: ignore[arg-type]
        await idle(cell)
        assert await cell.relayed("a") == []


class CountingLog(MemoryLog):
    """Counts the calls for the end of a topic, and for new topics."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.calls: Counter[str] = Counter()

    async def end(self, partition: Partition) -> int:
        self.calls["end"] += 1
        return await super().end(partition)

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        self.calls["create_topics"] += 1
        await super().create_topics(topics, partitions)


async def test_the_check_for_lost_copies_asks_nothing_about_nodes_that_never_had_a_copy(
    cell: RelayCell,
) -> None:
    cell.log = log = CountingLog(cell.clock)
    await cell.create()
    await allocate_each(cell, range(2))
    async with running(cell.relay(), ["a", *(f"idle-{number}" for number in range(20))]):
        await idle(cell)
        log.calls.clear()
        log.cut(Partition(assignments("a").name), 1)
        cell.clock.advance(30)
        await idle(cell)
        assert await cell.relayed("a") == [1, 3], "the check has run"
        assert not log.calls


async def test_lost_copies_are_copied_again_within_the_look_back_only(cell: RelayCell) -> None:
    await allocate_each(cell, range(6))
    async with running(cell.relay(limits=ShellLimits(relay_look_back=5)), ["a"]):
        await idle(cell)
        cell.log.cut(Partition(assignments("a").name), 0)
        cell.clock.advance(30)
        await idle(cell)
        assert await cell.relayed("a") == [7, 9, 11]
