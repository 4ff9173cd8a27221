"""The relay: copies the counted decisions to the topics of the nodes that must act on them.

It reads counted cycles from the log, so a fenced leader's batch reaches no agent. A copy has the
record's key, value and headers, and the header `yard_offset`, its offset in `decisions`. A copy of
a stop also names the attempt's replicas that have not started on the node, so that an agent that
missed their assignment releases them. A decision may be copied more than once; agents ignore
repeats. The relay stores its position only in its copies: a new relay continues with the cycle of
the highest `yard_offset`, and copies that whole cycle again, because its predecessor may have
copied it to some nodes only.

A node whose topic refuses appends does not delay other nodes: after `relay_tries` attempts the node
is *behind*. The relay keeps the first batch that the node misses and retries it; once the topic
accepts that batch, the relay reads the later ones from the log again. Meanwhile copies for other
nodes carry the header `yard_behind`, the lowest offset that a node misses, and a new relay
continues from there.

A missing topic is created, except that of a retired node (`needs_topic`), which an operator may
have deleted: no agent reads it.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_eventlog.reader import Cursor, first_offset
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.fence import last_cut
from yardmaster_runtime.telemetry.tracing import OFF, batch_span, contexts, ending
from yardmaster_runtime.waiting import first_of, happens_within, together
from yardmaster_scheduler.copies import (
    BEHIND_HEADER,
    GENERATION_HEADER,
    NO_COPY,
    TopicEnds,
    nodes_to_notify,
    relayed,
)
from yardmaster_scheduler.decided_cycles import DecidedCycles
from yardmaster_scheduler.metrics import ShellMetrics
from yardmaster_scheduler.settings import ShellLimits
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import YardmasterError
from yardmaster_schemas.events.admissions import NodeEnrolledV1
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    PreemptionRequestedV1,
    StopRequestedV1,
)
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.relayed import RelayedFrom
from yardmaster_schemas.topics import DECISIONS, assignments

MACHINE: Final = "scheduler"
#: The most decisions that are kept decoded after the leader has decoded them, until the relay reads
#: them. The relay decodes older ones again.
MAX_DECODED: Final = 20_000
#: The most records of `decisions` that are read to copy lost copies again. A reader can start only
#: at a snapshot, so it may have to read many records before the first lost one.
MOST_READ: Final = 200_000
#: Errors that one node's topic may cause alone.
_FAILURES: Final = (AppendOutcomeUnknown, BatchTooLarge, LogUnavailable, UnknownTopic)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A cycle's copies for one node; `first` and `last` are offsets of records in `decisions`."""

    first: int
    last: int
    records: Sequence[Record]


#: Decisions that end an attempt.
_STOPS: Final = (PreemptionRequestedV1, StopRequestedV1, AllocationRevokedV1)
#: A function of task id and attempt number. It returns, by node, the node's incarnation and the
#: replicas of the attempt that have not started there; nothing if the attempt is not open.
Unstarted = Callable[[str, int], Mapping[str, tuple[str, Sequence[int]]]]


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
        needs_topic: Callable[[str], bool] = lambda _node: True,
    ) -> None:
        """`nodes_log`: a handle for the nodes' topics, whose failures do not affect `log`.

        `needs_topic`: whether an agent of a node may read its topic, now or later.
        """
        self._log = log
        self._nodes_log = nodes_log or log
        self._cell = cell
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._number = partition
        #: Partitions of every node's topic: a node may belong to any cell, and may move.
        self._partitions = max(partitions, partition + 1)
        self._snapshots = snapshots
        self._unstarted = unstarted
        self._needs_topic = needs_topic
        self._slots = asyncio.Semaphore(limits.max_appends)
        #: Limits the appends to nodes that are behind, apart from those to all other nodes, which
        #: then need not wait for them.
        self._late_slots = asyncio.Semaphore(limits.max_appends)
        #: A lock per node: with one append to its topic at a time, the end never seems to decrease.
        self._appending: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ends = TopicEnds()
        self._any_lost = asyncio.Event()
        #: Nodes whose topic exists. The topics of nodes in `_joined` must still be created.
        self._known: set[str] = set()
        self._joined: dict[str, None] = {}
        self._wake = asyncio.Event()
        #: Decisions that the leader has decoded, by offset.
        self._decoded: OrderedDict[int, Envelope[Event]] = OrderedDict()
        #: Nodes whose topic refuses appends, each with the first batch that it misses.
        self._behind: dict[str, _Batch] = {}
        self._any_behind = asyncio.Event()
        #: The dump of a reader at a position before every record that a node misses.
        self._origin: Mapping[str, Any] | None = None
        #: Offset of the newest cycle that was copied to the nodes that are not behind.
        self._handled = -1
        #: Copies of cycles up to this offset may have been lost; those of later cycles were not.
        self._lost_through = NO_COPY

    def on_cycle(self, accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        """Note a cycle that the leader committed: nodes that it joined or enrolled get a topic.

        A joined node needs the topic before a task is placed there, an enrolled node so that its
        agent can start. The cycle's decisions are kept, so that they are decoded only once.
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

        `nodes`: the nodes in the state. `origin`: the dump of a reader of `decisions` to start
        from, if it is early enough.

        Raises:
            ForeignRecord, ChainBroken, LogTruncated, LogUnavailable, LogClosed.
        """
        known = sorted(nodes)
        self._joined.update(dict.fromkeys(filter(self._needs_topic, known)))
        self._origin = origin
        follow = self._follow(known)
        await first_of(
            follow, self._make_topics(), self._catch_up_forever(), self._restore_copies_forever()
        )
        raise AssertionError("none of them ends")

    async def _follow(self, nodes: Sequence[str]) -> NoReturn:
        """Copy each counted cycle to all nodes that are not behind."""
        cut = await last_cut(self._log, self._number)
        self._ends.generation = 0 if cut is None else cut.generation
        reached = await self._highest_relayed(nodes)
        self._suspect_older(reached)
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
        """Copy one cycle; return when every copy is in the log or its node is behind."""
        copies = self._copies(counted, records)
        # No task switch between these two lines: a node catches up as far as `_handled`.
        self._handled = counted.offset
        batches = {node: batch for node, batch in copies.items() if node not in self._behind}
        if batches:
            with ending(self._span(counted)):
                await together(*(self._copy(node, batch) for node, batch in batches.items()))

    def _copies(self, counted: CountedCycle, records: Mapping[int, Record]) -> Mapping[str, _Batch]:
        """Return a cycle's copies by node."""
        copies: dict[str, list[Record]] = {}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for offset, envelope in counted.decisions:
            event = envelope.data
            unstarted: Mapping[str, tuple[str, Sequence[int]]] = {}
            if isinstance(event, _STOPS):
                unstarted = self._unstarted(event.task_id, event.attempt)
            for node in nodes_to_notify(event):
                record = records[offset]
                incarnation, replicas = unstarted.get(node, ("", ()))
                header = RelayedFrom(offset, incarnation, tuple(replicas)).header()
                headers = (*record.headers, header, *self._of_generation())
                copy = Record(record.key, record.value, headers)
                copies.setdefault(node, []).append(copy)
                first.setdefault(node, offset)
                last[node] = offset
        return {node: _Batch(first[node], last[node], batch) for node, batch in copies.items()}

    def _of_generation(self) -> tuple[tuple[str, bytes], ...]:
        """The header with the generation of the log; none in a log that was never cut."""
        generation = self._ends.generation
        return ((GENERATION_HEADER, str(generation).encode()),) if generation else ()

    def _span(self, counted: CountedCycle) -> Span:
        """A span from reading a cycle to its last copy, linked to its decisions' traces."""
        telemetry = self._metrics.telemetry
        if telemetry.tracer is OFF:
            return INVALID_SPAN
        linked = contexts(one for _, one in counted.decisions if nodes_to_notify(one.data))
        return batch_span(
            telemetry.tracer,
            "scheduler relay",
            linked,
            start_ms=telemetry.now_ms(),
            attributes={"yard.cell": self._cell, "yard.cycle": counted.commit.cycle},
        )

    async def _copy(self, node: str, batch: _Batch) -> None:
        """Append to a node's topic; after `relay_tries` failures the node is behind.

        A retry may append the copies twice, which is safe.
        """
        for tries in range(1, self._limits.relay_tries + 1):
            error = await self._try_append(node, batch, self._slots)
            if error is None:
                return
            topic = assignments(node).name
            self._metrics.telemetry.warn(
                "relay_retry", topic=topic, tries=tries, code=error.code, found=str(error)
            )
            if tries < self._limits.relay_tries:
                await self._clock.sleep(self._limits.relay_pause_s)
        self._set_behind(node, batch)
        self._metrics.telemetry.warn("relay_behind", node=node, offset=batch.first)

    def _set_behind(self, node: str, batch: _Batch) -> None:
        self._behind[node] = batch
        self._any_behind.set()
        self._metrics.relay_behind.set(len(self._behind))

    async def _try_append(
        self, node: str, batch: _Batch, slots: asyncio.Semaphore
    ) -> YardmasterError | None:
        """Append once; return the error, if any."""
        records = batch.records
        if self._behind:
            first = min(missed.first for missed in self._behind.values())
            header = (BEHIND_HEADER, str(first).encode())
            records = [Record(r.key, r.value, (*r.headers, header)) for r in records]
        try:
            async with self._appending[node], slots:
                await self._append(node, records)
        except _FAILURES as error:
            self._metrics.relay_retries.inc()
            return error
        self._metrics.relayed.inc(len(records))
        return None

    async def _append(self, node: str, records: Sequence[Record]) -> None:
        """Append copies to a node's topic, in several batches if one is too large.

        A missing topic is created first; if the node needs no topic, nothing is appended.
        """
        partition = self._partition_of(node)
        try:
            offset = await self._nodes_log.append(partition, records)
        except BatchTooLarge:
            if len(records) == 1:
                raise
            half = len(records) // 2
            await self._append(node, records[:half])
            await self._append(node, records[half:])
            return
        except UnknownTopic:
            self._known.discard(node)
            if not self._needs_topic(node):
                return
            await self._nodes_log.create_topics([assignments(node)], self._partitions)
            offset = await self._nodes_log.append(partition, records)
            self._known.add(node)
        if self._ends.appended(node, offset, len(records)):
            self._on_loss(node, f"it continues at offset {offset}")

    # Topics

    async def _make_topics(self) -> NoReturn:
        """Create topics of new nodes; a failure does not delay the relaying."""
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
            # Keep the nodes that joined meanwhile.
            self._joined = {node: None for node in self._joined if node not in self._known}
            self._metrics.topics.set(len(self._known))
            if not self._joined:
                await self._wake.wait()

    # Nodes that are behind

    async def _catch_up_forever(self) -> NoReturn:
        while True:
            await self._any_behind.wait()
            await self._clock.sleep(self._limits.relay_pause_s)
            await self._catch_up()
            if not self._behind:
                self._any_behind.clear()

    async def _catch_up(self) -> None:
        """Append to the topics of nodes that are behind all copies that they miss, in order.

        A node whose topic still refuses its first missing batch stays behind.
        """
        #: Nodes that accept appends again, each with the first offset of its newest batch.
        recovered: dict[str, int] = {}

        async def copy(node: str, batch: _Batch) -> None:
            if await self._try_append(node, batch, self._late_slots) is None:
                recovered[node] = batch.first
            else:
                self._set_behind(node, batch)
                recovered.pop(node, None)

        await together(*(copy(node, batch) for node, batch in [*self._behind.items()]))
        if not recovered:
            return
        cycles = self._cycles(await self._reader_before(min(recovered.values()), self._origin))
        while recovered and (found := await cycles.next_with_records()) is not None:
            counted, records = found
            copies = self._copies(counted, records)
            due = [
                node
                for node, newest in recovered.items()
                if node in copies and copies[node].first > newest
            ]
            await together(*(copy(node, copies[node]) for node in due))
            if counted.offset >= self._handled:
                for node in recovered:
                    del self._behind[node]
                self._metrics.relay_behind.set(len(self._behind))
                self._metrics.telemetry.info("relay_caught_up", nodes=len(recovered))
                return

    # Topics that lost copies

    def _on_loss(self, node: str, found: str) -> None:
        """Report that a node's topic lost copies, and wake the task that copies them again."""
        self._lost_through = max(self._lost_through, self._handled)
        self._metrics.copies_lost.inc()
        self._metrics.telemetry.error("copies_lost", topic=assignments(node).name, found=found)
        self._any_lost.set()

    async def _restore_copies_forever(self) -> NoReturn:
        """Look for lost copies at each `relay_check_s`, and copy them again."""
        while True:
            await happens_within(self._clock, self._limits.relay_check_s, self._any_lost)
            self._any_lost.clear()
            try:
                await self._find_losses()
            except LogUnavailable as error:
                self._metrics.telemetry.warn("copies_not_checked", found=str(error))
            if self._ends.suspects:
                await self._copy_again()

    async def _find_losses(self) -> None:
        """Compare the end of each node's topic with the end that the relay has seen before.

        Raises: LogUnavailable.
        """
        ends = self._ends.known()  # before the call, after which they may be higher
        partitions = {node: self._partition_of(node) for node in ends}
        newest = await self._nodes_log.newest([*partitions.values()])
        # A topic that cannot be read now is left out.
        last = {node: newest[at] for node, at in partitions.items() if at in newest}
        # The topics of these nodes were deleted, or all their copies have expired.
        empty = [node for node, record in last.items() if record is None]
        for node in [node for node in empty if not self._needs_topic(node)]:
            self._known.discard(node)
            self._ends.forget(node)
            empty.remove(node)
        if empty:
            await self._nodes_log.create_topics([*map(assignments, empty)], self._partitions)
        ends_now = {node: record.offset + 1 for node, record in last.items() if record is not None}

        async def look(node: str) -> None:
            try:
                async with self._late_slots:
                    ends_now[node] = await self._nodes_log.end(partitions[node])
            except (LogUnavailable, UnknownTopic) as error:
                self._metrics.telemetry.warn("copies_not_checked", node=node, found=str(error))

        await together(*map(look, empty))
        for node, end in ends_now.items():
            if end < ends[node]:
                self._ends.found(node, last[node], end)
                self._on_loss(node, f"it ends at {end}, and ended at {ends[node]} before")

    async def _copy_again(self) -> None:
        """Append to the topics of all suspects the copies that the topics lack.

        Only the newest `relay_look_back` records of `decisions` are copied again.
        """
        lacking, self._ends.suspects = self._ends.suspects, {}
        through = self._lost_through
        start = max(0, min(lacking.values()) + 1, through - self._limits.relay_look_back)
        reader = await self._reader_before(start, self._origin)
        if through - reader.next > MOST_READ:
            self._metrics.telemetry.warn("copies_not_restored", nodes=len(lacking), start=start)
            return
        cycles = self._cycles(reader)
        copied = 0

        async def copy(node: str, batch: _Batch) -> None:
            nonlocal copied
            if await self._try_append(node, batch, self._late_slots) is None:
                copied += len(batch.records)
            else:
                self._ends.suspects.setdefault(node, lacking.pop(node))

        while (found := await cycles.next_with_records()) is not None:
            counted, records = found
            if counted.offset > through:
                break
            if counted.offset >= start:
                due = {
                    node: batch
                    for node, batch in self._copies(counted, records).items()
                    if node in lacking and batch.last > lacking[node]
                }
                await together(*(copy(node, batch) for node, batch in due.items()))
            # Let the cycles of the leader run, which share this event loop.
            await self._clock.sleep(0)
        if copied:
            self._metrics.copied_again.inc(copied)
            self._metrics.telemetry.info("copied_again", decisions=copied, nodes=len(lacking))

    # Where to continue

    def _cycles(self, reader: CommitReader) -> DecidedCycles:
        partition = Partition(DECISIONS.name, self._number)
        cursor = Cursor(self._log, partition, reader.next, self._limits.max_read)
        return DecidedCycles(self._log, cursor, reader, self._decoded)

    async def _highest_relayed(self, nodes: Sequence[str]) -> int:
        """Return the offset in `decisions` from which a new relay continues; -1 without copies.

        It is the highest `yard_offset` of the log's generation in any node's topic, or the lowest
        offset that a node missed, if the newest copies name one (`yard_behind`). A topic that
        cannot be read now is left out if another topic has copies: then the relay may start too
        early, which is safe, but never too late.
        """
        partitions = [self._partition_of(node) for node in nodes]
        while True:
            try:
                newest = await self._nodes_log.newest(partitions)
            except LogUnavailable:
                newest = {}
            highest, behind = max(
                (relayed(last, self._ends.generation) for last in newest.values()),
                default=(NO_COPY, 1),
            )
            unread = [partition.topic for partition in partitions if partition not in newest]
            if not unread or highest >= 0:
                for node in filter(self._needs_topic, nodes):
                    if (partition := self._partition_of(node)) in newest:
                        self._ends.found(node, newest[partition])
                return -behind
            self._metrics.telemetry.warn("relay_unread", topics=len(unread), first=unread[0])
            await self._clock.sleep(self._limits.relay_pause_s)

    def _suspect_older(self, reached: int) -> None:
        """Keep only the suspects whose newest copy is older than `reached`, and wake their task.

        `reached` is the offset from which the relay continues. A topic whose newest copy is older
        may have lost copies, which `_restore_copies_forever` then appends again.
        """
        self._lost_through = reached
        suspects = self._ends.suspects
        for node in [node for node, newest in suspects.items() if newest >= reached]:
            del suspects[node]
        if suspects:
            self._any_lost.set()

    async def _reader_before(self, reached: int, origin: Mapping[str, Any] | None) -> CommitReader:
        """Return a reader at or before the start of the cycle that contains `reached`.

        If the records before it have expired, return the earliest reader that can still read on.
        """
        earliest = start = CommitReader(MACHINE, self._cell, DECISIONS.name)
        if origin is not None:
            reader = CommitReader.load(origin)
            if reader.next <= reached:
                return reader
            earliest = reader
        first = await first_offset(self._log, Partition(DECISIONS.name, self._number))
        for cycle in await self._snapshot_cycles():
            earlier = await self._reader_of(cycle)
            if earlier is None or earlier.next < first:
                continue
            if earlier.next <= reached:
                return earlier
            earliest = earlier
        return earliest if first else start

    async def _snapshot_cycles(self) -> Sequence[int]:
        try:
            return await self._snapshots.cycles(MACHINE, self._cell) if self._snapshots else ()
        except SnapshotsUnavailable:
            return ()

    async def _reader_of(self, cycle: int) -> CommitReader | None:
        """Return the reader in a snapshot; None if the snapshot is unusable.

        Loading an unusable snapshot has logged a warning already.
        """
        assert self._snapshots is not None
        try:
            snapshot = await self._snapshots.load(MACHINE, self._cell, cycle)
            return CommitReader.load(from_json(snapshot.payload)["reader"])
        except (SnapshotCorrupt, SnapshotUnreadable, SnapshotsUnavailable):
            return None
        except (ValueError, KeyError, TypeError):
            return None

    def _partition_of(self, node: str) -> Partition:
        return Partition(assignments(node).name, self._number)
