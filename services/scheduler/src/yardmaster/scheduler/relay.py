"""The relay: copies what counts in `decisions` to the topics of the nodes that must act on it.

It follows the log, so a fenced leader's batch reaches no agent. A copy has the record's key, value
and headers, and `yard_offset`, where it lies in `decisions`. Copies may come more than once; agents
know an attempt they have. Its position is in what it wrote: it goes on with the cycle of the
highest `yard_offset` there is, and copies that whole cycle again, since it may have been copied to
some nodes only.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from pydantic_core import from_json

from yardmaster.core.commit import CommitReader, CountedCycle
from yardmaster.core.errors import SnapshotUnreadable
from yardmaster.eventlog.errors import (
    AppendOutcomeUnknown,
    BatchTooLarge,
    LogUnavailable,
    OffsetGone,
    SnapshotCorrupt,
    SnapshotsUnavailable,
    UnknownTopic,
)
from yardmaster.eventlog.port import EventLog, Partition, Record
from yardmaster.eventlog.snapshots import SnapshotStore
from yardmaster.runtime.batch import decode_own, digest_of
from yardmaster.runtime.clock import Clock
from yardmaster.runtime.inputs import Cursor, foreign
from yardmaster.runtime.tracing import NO_SPAN, About, Span, batch_span, contexts
from yardmaster.runtime.waiting import first_of, together
from yardmaster.scheduler.metrics import ShellMetrics
from yardmaster.scheduler.settings import ShellLimits
from yardmaster.schemas.envelope import Envelope, Event
from yardmaster.schemas.errors import SchemaError
from yardmaster.schemas.events.admissions import NodeEnrolledV1
from yardmaster.schemas.events.decisions import (
    AllocationRevokedV1,
    NodeLostV1,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
)
from yardmaster.schemas.events.node_events import NodeJoinedV1
from yardmaster.schemas.topics import DECISIONS, assignments

OFFSET_HEADER: Final = "yard_offset"
MACHINE: Final = "scheduler"


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
        snapshots: SnapshotStore | None = None,
    ) -> None:
        self._log = log
        self._cell = cell
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._number = partition
        self._snapshots = snapshots
        self._slots = asyncio.Semaphore(limits.max_appends)
        #: Nodes whose topic is there; those in `_joined` are to get one.
        self._known: set[str] = set()
        self._joined: dict[str, None] = {}
        self._wake = asyncio.Event()

    def heard(self, accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        """A cycle counts; nodes that joined or were enrolled in it get a topic.

        Who joined, before anything is placed there; who is enrolled, so that its agent can start.
        """
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
        await self._create_topics()
        reached = await self._highest_relayed()
        reader = await self._reader_before(reached, origin)
        cursor = Cursor(
            self._log, Partition(DECISIONS.name, self._number), reader.next, self._limits.max_read
        )
        records: dict[int, Record] = {}
        self._metrics.telemetry.info("relay_started", reached=reached, start=reader.next)
        while True:
            await self._create_topics()
            while await cursor.fill(1):
                stored = cursor.pop()
                try:
                    envelope = decode_own(stored.record, self._cell)
                except SchemaError as error:
                    raise foreign(stored, error) from error
                counted = reader.feed(stored.offset, digest_of(stored.record), envelope)
                records[stored.offset] = stored.record
                if counted is None:
                    continue
                if counted.offset >= reached:
                    await self._relay(counted, records)
                records.clear()
                self._metrics.relay_lag.set(len(cursor))
            self._wake.clear()
            if not self._joined:
                await first_of(
                    self._log.wait({cursor.partition: cursor.end}, self._limits.idle_wait_s),
                    self._wake.wait(),
                )

    async def _relay(self, counted: CountedCycle, records: Mapping[int, Record]) -> None:
        """Copy one cycle; returns when every copy is in the log."""
        copies: dict[str, list[Record]] = {}
        for offset, envelope in counted.decisions:
            for node in concerned(envelope.data):
                record = records[offset]
                header = (OFFSET_HEADER, str(offset).encode())
                copy = Record(record.key, record.value, (*record.headers, header))
                copies.setdefault(node, []).append(copy)
        if copies:
            with self._span(counted):
                await together(*(self._put(node, batch) for node, batch in copies.items()))
            self._metrics.relayed.inc(sum(map(len, copies.values())))

    def _span(self, counted: CountedCycle) -> Span:
        """From reading a cycle back to its last copy, for those of its decisions with a context."""
        tracer = self._metrics.telemetry.tracer
        if not tracer.on:
            return NO_SPAN
        linked = contexts(one for _, one in counted.decisions if concerned(one.data))
        about: About = {"yard.cell": self._cell, "yard.cycle": counted.commit.cycle}
        return batch_span(tracer, "scheduler relay", linked, start=tracer.now(), about=about)

    async def _put(self, node: str, batch: Sequence[Record]) -> None:
        """Append to a node's topic, again and again: to repeat is safe, to leave out is not."""
        place = self._place(node)
        while batch:
            try:
                async with self._slots:
                    await self._log.append(place, batch)
                return
            except BatchTooLarge:
                if len(batch) == 1:
                    raise
                half = len(batch) // 2
                await self._put(node, batch[:half])
                batch = batch[half:]
            except UnknownTopic:
                self._known.discard(node)
                self._joined[node] = None
                await self._create_topics()
            except (AppendOutcomeUnknown, LogUnavailable) as error:
                self._metrics.relay_retries.inc()
                self._metrics.telemetry.warn("relay_retry", topic=place.topic, code=error.code)
                await self._clock.sleep(self._limits.relay_pause_s)

    async def _create_topics(self) -> None:
        new = [node for node in self._joined if node not in self._known]
        if new:
            topics = [assignments(node) for node in new]
            await self._log.create_topics(topics, partitions=self._number + 1)
        self._known.update(new)
        # What joined meanwhile stays.
        for node in new:
            self._joined.pop(node, None)
        self._joined = {node: None for node in self._joined if node not in self._known}
        self._metrics.topics.set(len(self._known))

    # Where to go on

    async def _highest_relayed(self) -> int:
        """The highest `yard_offset` in any node's topic; -1 without one."""
        highest = [-1]

        async def look(node: str) -> None:
            async with self._slots:
                highest.append(await self._last_relayed(self._place(node)))

        await together(*(look(node) for node in sorted(self._known)))
        return max(highest)

    async def _last_relayed(self, place: Partition) -> int:
        end = await self._log.end(place)
        if end == 0:
            return -1
        try:
            last = await self._log.read(place, end - 1, max_records=1)
        except OffsetGone:
            return -1
        headers = dict(last[-1].record.headers) if last else {}
        text = headers.get(OFFSET_HEADER, b"")
        return int(text) if text.isdigit() else -1

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
