"""The relay: copies what counts in `decisions` to the topics of the nodes that must act on it.

It follows the log, so a fenced leader's batch reaches no agent. A copy has the record's key, value
and headers, and `yard_offset`, its offset in `decisions`. A copy of a stop also names the attempt's
replicas that have not started there, so that an agent that missed their assignment releases them.
Copies may come more than once; agents
know an attempt they have. Its position is in what it wrote: it goes on with the cycle of the
highest `yard_offset` there is, and copies that whole cycle again, since it may have been copied to
some nodes only.

A node whose topic takes nothing holds up no other: after `relay_tries` it is *behind*. Kept of it
is the first batch that it misses, which is tried again and again; the rest is read from the log
anew once its topic takes that one. Copies made meanwhile say in `yard_behind` from which offset on
a node misses something, and whoever takes over goes on from there.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from opentelemetry.trace import INVALID_SPAN, Span
from pydantic_core import from_json

from yardmaster_core.commit import CommitReader, CountedCycle
from yardmaster_core.errors import SnapshotUnreadable
from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    BatchTooLarge,
    LogUnavailable,
    SnapshotCorrupt,
    SnapshotsUnavailable,
    UnknownTopic,
)
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_eventlog.reader import Cursor
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.cycle_reader import CycleReader
from yardmaster_runtime.telemetry.tracing import OFF, batch_span, contexts, ending
from yardmaster_runtime.waiting import first_of, together
from yardmaster_scheduler.metrics import ShellMetrics
from yardmaster_scheduler.settings import ShellLimits
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import YardmasterError
from yardmaster_schemas.events.admissions import NodeEnrolledV1
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    NodeLostV1,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
)
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.relayed import OFFSET_HEADER, RelayedFrom, relayed_from
from yardmaster_schemas.topics import DECISIONS, assignments

BEHIND_HEADER: Final = "yard_behind"
MACHINE: Final = "scheduler"
#: Decisions that the leader has decoded and the relay has not come to yet; older ones are decoded
#: again.
MAX_DECODED: Final = 20_000
#: What a node's topic may answer, and another's not.
_FAILURES: Final = (AppendOutcomeUnknown, BatchTooLarge, LogUnavailable, UnknownTopic)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A cycle's copies for one node; `first` is the offset of the first of them."""

    first: int
    records: Sequence[Record]


#: Decisions that end an attempt.
_STOPS: Final = (PreemptionRequestedV1, StopRequestedV1, AllocationRevokedV1)
#: By node: the incarnation and the replicas of an attempt that have not started there yet. Empty
#: when that attempt is not open.
Unstarted = Callable[[str, int], Mapping[str, tuple[str, Sequence[int]]]]


def concerned(event: Event) -> Iterable[str]:
    """The nodes whose agents must act on a decision, each once."""
    match event:
        case SlotsAllocatedV1():
            return dict.fromkeys(placement.node for placement in event.placements)
        case PreemptionRequestedV1() | StopRequestedV1() | AllocationRevokedV1():
            return dict.fromkeys(event.nodes)
        case NodeLostV1():
            return (event.node,)
        case _:
            return ()


class Relay:
    """Relays one cell's decisions while its leader leads."""

    def __init__(
        self,
        log: EventLog,
        cell: str,
        *,
        clock: Clock,
        limits: ShellLimits,
        metrics: ShellMetrics,
        partition: int = 0,
        partitions: int = 1,
        nodes_log: EventLog | None = None,
        snapshots: SnapshotStore | None = None,
        unstarted: Unstarted = lambda _task, _attempt: {},
    ) -> None:
        """`nodes_log`: a handle for the nodes' topics, whose failures are not `log`'s."""
        self._log = log
        self._nodes_log = nodes_log or log
        self._cell = cell
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._number = partition
        #: Of every node's topic: a node may be named in any cell, and may move.
        self._partitions = max(partitions, partition + 1)
        self._snapshots = snapshots
        self._unstarted = unstarted
        self._slots = asyncio.Semaphore(limits.max_appends)
        #: For nodes that are behind: those that are not do not wait for them.
        self._late_slots = asyncio.Semaphore(limits.max_appends)
        #: Nodes whose topic is there; those in `_joined` are to get one.
        self._known: set[str] = set()
        self._joined: dict[str, None] = {}
        self._wake = asyncio.Event()
        #: By offset: decisions that the leader has read back.
        self._decoded: OrderedDict[int, Envelope[Event]] = OrderedDict()
        #: Nodes whose topic takes nothing, each with the first batch that it misses.
        self._behind: dict[str, _Batch] = {}
        self._lag = asyncio.Event()
        #: A reader from before anything that a node misses.
        self._origin: Mapping[str, Any] | None = None
        #: The end of the newest cycle that was given to the nodes that are not behind.
        self._handled = -1

    def heard(self, accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        """A cycle counts; nodes that joined or were enrolled in it get a topic.

        Who joined, before anything is placed there; who is enrolled, so that its agent can start.
        What was decided in it need not be decoded a second time.
        """
        self._decoded.update(counted.decisions)
        while len(self._decoded) > MAX_DECODED:
            self._decoded.popitem(last=False)
        for envelope in accepted:
            event = envelope.data
            if isinstance(event, NodeJoinedV1 | NodeEnrolledV1) and event.node not in self._known:
                self._joined[event.node] = None
                self._wake.set()

    async def run(self, nodes: Iterable[str], origin: Mapping[str, Any] | None) -> NoReturn:
        """Relay until cancelled.

        `nodes`: those that the state knows. `origin`: the dump of a reader of `decisions` to start
        from, where that is early enough.

        Raises:
            ForeignRecord, ChainBroken, LogTruncated, LogUnavailable, LogClosed.
        """
        self._joined.update(dict.fromkeys(nodes))
        self._origin = origin
        follow = self._follow(sorted(self._joined))
        await first_of(follow, self._make_topics(), self._catch_up_for_ever())
        raise AssertionError("none of them ends")

    async def _follow(self, nodes: Sequence[str]) -> NoReturn:
        """Give each cycle that counts to all nodes that are not behind."""
        reached = await self._highest_relayed(nodes)
        reader = await self._reader_before(reached, self._origin)
        cycles = self._cycles(reader)
        self._metrics.telemetry.info("relay_started", reached=reached, start=reader.next)
        while True:
            found = await cycles.next_with_records(buffered_only=True)
            if found is None:
                if not self._behind:
                    self._origin = reader.dump()
                await cycles.wait(self._limits.idle_wait_s)
                continue
            counted, records = found
            if counted.offset >= reached:
                await self._relay(counted, records)
            self._metrics.relay_lag.set(cycles.ahead)

    async def _relay(self, counted: CountedCycle, records: Mapping[int, Record]) -> None:
        """Copy one cycle; returns when every copy is in the log, or its node is behind."""
        copies = self._copies(counted, records)
        # Between these two nobody else runs: a node that catches up does so as far as this says.
        self._handled = counted.offset
        given = {node: batch for node, batch in copies.items() if node not in self._behind}
        if given:
            with ending(self._span(counted)):
                await together(*(self._give(node, batch) for node, batch in given.items()))

    def _copies(self, counted: CountedCycle, records: Mapping[int, Record]) -> Mapping[str, _Batch]:
        """What each node is to get of a cycle."""
        copies: dict[str, list[Record]] = {}
        first: dict[str, int] = {}
        for offset, envelope in counted.decisions:
            event = envelope.data
            unstarted: Mapping[str, tuple[str, Sequence[int]]] = {}
            if isinstance(event, _STOPS):
                unstarted = self._unstarted(event.task_id, event.attempt)
            for node in concerned(event):
                record = records[offset]
                incarnation, replicas = unstarted.get(node, ("", ()))
                header = RelayedFrom(offset, incarnation, tuple(replicas)).header()
                copy = Record(record.key, record.value, (*record.headers, header))
                copies.setdefault(node, []).append(copy)
                first.setdefault(node, offset)
        return {node: _Batch(first[node], batch) for node, batch in copies.items()}

    def _span(self, counted: CountedCycle) -> Span:
        """From reading a cycle back to its last copy, for those of its decisions with a context."""
        telemetry = self._metrics.telemetry
        if telemetry.tracer is OFF:
            return INVALID_SPAN
        linked = contexts(one for _, one in counted.decisions if concerned(one.data))
        return batch_span(
            telemetry.tracer,
            "scheduler relay",
            linked,
            start_ms=telemetry.now_ms(),
            attributes={"yard.cell": self._cell, "yard.cycle": counted.commit.cycle},
        )

    async def _give(self, node: str, batch: _Batch) -> None:
        """Append to a node's topic: to repeat is safe, to leave out is not. Or it is behind."""
        for tries in range(1, self._limits.relay_tries + 1):
            error = await self._taken(node, batch, self._slots)
            if error is None:
                return
            topic = assignments(node).name
            self._metrics.telemetry.warn(
                "relay_retry", topic=topic, tries=tries, code=error.code, found=str(error)
            )
            if tries < self._limits.relay_tries:
                await self._clock.sleep(self._limits.relay_pause_s)
        self._miss(node, batch)
        self._metrics.telemetry.warn("relay_behind", node=node, offset=batch.first)

    def _miss(self, node: str, batch: _Batch) -> None:
        self._behind[node] = batch
        self._lag.set()
        self._metrics.relay_behind.set(len(self._behind))

    async def _taken(
        self, node: str, batch: _Batch, slots: asyncio.Semaphore
    ) -> YardmasterError | None:
        """Append once; what went wrong."""
        records = batch.records
        if self._behind:
            first = min(missed.first for missed in self._behind.values())
            header = (BEHIND_HEADER, str(first).encode())
            records = [Record(r.key, r.value, (*r.headers, header)) for r in records]
        try:
            async with slots:
                await self._append(node, records)
        except _FAILURES as error:
            self._metrics.relay_retries.inc()
            return error
        self._metrics.relayed.inc(len(records))
        return None

    async def _append(self, node: str, records: Sequence[Record]) -> None:
        place = self._place(node)
        try:
            await self._nodes_log.append(place, records)
        except BatchTooLarge:
            if len(records) == 1:
                raise
            half = len(records) // 2
            await self._append(node, records[:half])
            await self._append(node, records[half:])
        except UnknownTopic:
            self._known.discard(node)
            await self._nodes_log.create_topics([assignments(node)], self._partitions)
            await self._nodes_log.append(place, records)
            self._known.add(node)

    # Topics

    async def _make_topics(self) -> NoReturn:
        """Make the topics of nodes that join; brokers that refuse one hold up no relaying."""
        while True:
            self._wake.clear()
            new = [node for node in self._joined if node not in self._known]
            try:
                if new:
                    topics = [assignments(node) for node in new]
                    await self._nodes_log.create_topics(topics, self._partitions)
            except LogUnavailable as error:
                self._metrics.telemetry.warn(
                    "topics_not_made", nodes=len(new), first=new[0], found=str(error)
                )
                await self._clock.sleep(self._limits.relay_pause_s)
                continue
            self._known.update(new)
            # What joined meanwhile stays.
            self._joined = {node: None for node in self._joined if node not in self._known}
            self._metrics.topics.set(len(self._known))
            if not self._joined:
                await self._wake.wait()

    # Nodes that are behind

    async def _catch_up_for_ever(self) -> NoReturn:
        while True:
            await self._lag.wait()
            await self._clock.sleep(self._limits.relay_pause_s)
            await self._catch_up()
            if not self._behind:
                self._lag.clear()

    async def _catch_up(self) -> None:
        """Give nodes that are behind what they miss, in order, where their topics take it now."""
        #: The newest offset that each has now.
        back: dict[str, int] = {}

        async def give(node: str, batch: _Batch) -> None:
            if await self._taken(node, batch, self._late_slots) is None:
                back[node] = batch.first
            else:
                self._miss(node, batch)
                back.pop(node, None)

        await together(*(give(node, batch) for node, batch in [*self._behind.items()]))
        if not back:
            return
        cycles = self._cycles(await self._reader_before(min(back.values()), self._origin))
        while back and (found := await cycles.next_with_records()) is not None:
            counted, records = found
            copies = self._copies(counted, records)
            due = [node for node in back if node in copies and copies[node].first > back[node]]
            await together(*(give(node, copies[node]) for node in due))
            if counted.offset >= self._handled:
                for node in back:
                    del self._behind[node]
                self._metrics.relay_behind.set(len(self._behind))
                self._metrics.telemetry.info("relay_caught_up", nodes=len(back))
                return

    # Where to go on

    def _cycles(self, reader: CommitReader) -> "_Cycles":
        place = Partition(DECISIONS.name, self._number)
        cursor = Cursor(self._log, place, reader.next, self._limits.max_read)
        return _Cycles(self._log, cursor, reader, self._decoded)

    async def _highest_relayed(self, nodes: Sequence[str]) -> int:
        """Where what was relayed ends: the highest `yard_offset` in any node's topic, -1 without.

        Lower where a node was behind then. A topic that cannot be read now is left out where
        others say something: that takes the relay back too far rather than not far enough.
        """
        places = [self._place(node) for node in nodes]
        while True:
            try:
                newest = await self._nodes_log.newest(places)
            except LogUnavailable:
                newest = {}
            highest, behind = max(map(_relayed, newest.values()), default=(-1, 1))
            unread = [place.topic for place in places if place not in newest]
            if not unread or highest >= 0:
                return -behind
            self._metrics.telemetry.warn("relay_unread", topics=len(unread), first=unread[0])
            await self._clock.sleep(self._limits.relay_pause_s)

    async def _reader_before(self, reached: int, origin: Mapping[str, Any] | None) -> CommitReader:
        """A reader that starts no later than the cycle in which `reached` lies."""
        if origin is not None:
            reader = CommitReader.load(origin)
            if reader.next <= reached:
                return reader
        for cycle in await self._snapshot_cycles():
            earlier = await self._reader_of(cycle)
            if earlier is not None and earlier.next <= reached:
                return earlier
        return CommitReader(MACHINE, self._cell, DECISIONS.name)

    async def _snapshot_cycles(self) -> Sequence[int]:
        try:
            return await self._snapshots.cycles(MACHINE, self._cell) if self._snapshots else ()
        except SnapshotsUnavailable:
            return ()

    async def _reader_of(self, cycle: int) -> CommitReader | None:
        """The reader in a snapshot; None where it cannot be used, as was said at the restore."""
        assert self._snapshots is not None
        try:
            snapshot = await self._snapshots.load(MACHINE, self._cell, cycle)
            return CommitReader.load(from_json(snapshot.payload)["reader"])
        except (SnapshotCorrupt, SnapshotUnreadable, SnapshotsUnavailable):
            return None
        except (ValueError, KeyError, TypeError):
            return None

    def _place(self, node: str) -> Partition:
        return Partition(assignments(node).name, self._number)


def _relayed(last: StoredRecord | None) -> tuple[int, int]:
    """The offset that a topic's newest copy says, and minus that from which on to go on."""
    headers = dict(last.record.headers) if last is not None else {}
    offset = relayed_from(headers.get(OFFSET_HEADER, b"")).offset
    behind = int(text) if (text := headers.get(BEHIND_HEADER, b"")).isdigit() else -1
    return offset, -(behind if behind >= 0 else offset)


class _Cycles(CycleReader):
    """The counted cycles of `decisions`, each with its records."""

    def __init__(
        self,
        log: EventLog,
        cursor: Cursor,
        reader: CommitReader,
        decoded: MutableMapping[int, Envelope[Event]],
    ) -> None:
        super().__init__(cursor, reader)
        self._log = log
        self._decoded = decoded
        self._records: dict[int, Record] = {}

    @property
    def ahead(self) -> int:
        """Number of records that were read and not yet returned."""
        return len(self.cursor)

    def feed(
        self, stored: StoredRecord, envelope: Envelope[Event] | None = None
    ) -> CountedCycle | None:
        """Keep the record until its cycle is complete; the leader has decoded some already."""
        self._records[stored.offset] = stored.record
        return super().feed(stored, envelope or self._decoded.pop(stored.offset, None))

    async def next_with_records(
        self, *, buffered_only: bool = False
    ) -> tuple[CountedCycle, Mapping[int, Record]] | None:
        """Return the next cycle and its records by offset; None where the log has no more now."""
        counted = await self.next(buffered_only=buffered_only)
        if counted is None:
            return None
        records, self._records = self._records, {}
        return counted, records

    async def wait(self, timeout_s: float) -> None:
        """Wait for more, not for ever."""
        await self._log.wait({self.cursor.partition: self.cursor.end}, timeout_s)
