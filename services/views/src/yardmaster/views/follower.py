"""Follows a cell's log into its views: what counts, in the order in which it counts, once.

Requests are projected as they come. Quota's and the scheduler's topics are read through a
`CommitReader`, and a cycle of theirs is projected as one step when its commit is there: before it,
all that it took (so a view never shows an effect before its cause), and with it the agents' claims
that it believed. Output and heartbeats are noted beside, as far as agents may say so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from yardmaster.core.commit import CommitReader, CountedCycle
from yardmaster.eventlog.codec import decode
from yardmaster.eventlog.errors import LogTruncated, OffsetGone, ReadPastEnd
from yardmaster.eventlog.port import EventLog, Partition, StoredRecord
from yardmaster.projections.project import Details, Step, details_of
from yardmaster.projections.rows import OutputRow, SeenRow
from yardmaster.projections.store import Change, Put, ViewReader, ViewStore
from yardmaster.runtime.batch import decode_own, digest_of
from yardmaster.runtime.inputs import Cursor, foreign
from yardmaster.runtime.telemetry import Telemetry
from yardmaster.schemas.envelope import Envelope, Event
from yardmaster.schemas.errors import SchemaError
from yardmaster.schemas.events.details import JobDetailedV1, RequestNotedV1
from yardmaster.schemas.events.expiring import NodeHeartbeatV1, TaskOutputV1
from yardmaster.schemas.events.requests import DetailsRef
from yardmaster.schemas.position import Position
from yardmaster.schemas.topics import (
    ADMISSIONS,
    DECISIONS,
    DETAILS,
    HEARTBEATS,
    NODE_EVENTS,
    REQUESTS,
    TASK_LOGS,
)

#: Records read at once, and the most that one step of `requests` takes.
MAX_READ: Final = 500


@dataclass(frozen=True, slots=True)
class Views:
    """A store and its writer's reader; in memory both are one object."""

    store: ViewStore
    reader: ViewReader


class Follower:
    """One cell's log, projected; `start`, then `catch_up` again and again."""

    def __init__(
        self, log: EventLog, views: Views, cell: str, partition: int, telemetry: Telemetry
    ) -> None:
        self.cell = cell
        self._log = log
        self._store = views.store
        self._reader = views.reader
        self._number = partition
        self._telemetry = telemetry
        self._steps = telemetry.counter("steps", "Steps projected", "topic")
        self._skipped = telemetry.counter("records_skipped", "Records no view shows", "topic")
        self._lag = telemetry.gauge("lag_records", "Records not projected yet", "topic")
        self._position = Position.start(cell)
        self._machines: dict[str, _Machine] = {}
        self._requests = self._cursor(REQUESTS.name, 0)
        self._claims = self._cursor(NODE_EVENTS.name, 0)
        self._beside = {HEARTBEATS.name: 0, TASK_LOGS.name: 0}

    async def start(self) -> None:
        """Go on where the store is; a store that is empty starts at the log's start."""
        self._position = await self._store.position()
        notes = await self._store.notes()
        self._requests = self._cursor(REQUESTS.name, self._position.requests or 0)
        self._claims = self._cursor(NODE_EVENTS.name, self._position.node_events or 0)
        for topic, machine in ((ADMISSIONS.name, "quota"), (DECISIONS.name, "scheduler")):
            dump = notes.get(topic)
            reader = (
                CommitReader(machine, self.cell, topic) if dump is None else CommitReader.load(dump)
            )
            self._machines[topic] = _Machine(self._cursor(topic, reader.next), reader)
        for topic in self._beside:
            self._beside[topic] = int(notes.get(topic, 0))

    async def catch_up(self) -> Position:
        """Project all that is there; returns the position reached.

        Raises:
            SchemaError, ForeignRecord, ChainBroken, ImpossibleEvent: a machine's topic holds what
                it may not; nothing of that cycle was projected.
            LogError: the log failed; what was projected so far stays.
        """
        while await self._take_requests():
            pass
        while await self._take_admissions():
            pass
        while await self._take_decisions():
            pass
        for topic in self._beside:
            while await self._take_beside(topic):
                pass
        await self._measure()
        return self._position

    def ends(self) -> Mapping[Partition, int]:
        """What to wait for: the next record of every topic that brings something new."""
        ends = {self._requests.partition: self._requests.offset}
        for machine in self._machines.values():
            ends[machine.cursor.partition] = machine.cursor.offset
        for topic, offset in self._beside.items():
            ends[self._partition(topic)] = offset
        return ends

    # --- requests -------------------------------------------------------------------------------

    async def _take_requests(self, until: int | None = None) -> bool:
        """Project requests read so far, at least up to `until`; False when there was none."""
        wanted = 1 if until is None else until - self._requests.offset
        count = min(await self._requests.fill(wanted), MAX_READ)
        if count == 0 or wanted <= 0:
            return False
        step = Step(self._reader)
        for _ in range(count):
            stored = self._requests.pop()
            envelope = self._claim(stored)
            if envelope is not None:
                step.take(REQUESTS.name, stored.offset, envelope, await self._details(envelope))
        position = self._position.at(REQUESTS.name, self._requests.offset)
        await self._apply(REQUESTS.name, step.changes(), position, {})
        return True

    def _claim(self, stored: StoredRecord) -> Envelope[Event] | None:
        """A request, or None for a record that is none: quota refuses it, and names it."""
        try:
            envelope = decode(stored.record)
        except SchemaError:
            envelope = None
        if (
            envelope is None
            or REQUESTS.name not in envelope.data.TOPICS
            or stored.record.key != self.cell.encode()
        ):
            self._skipped.labels(REQUESTS.name).inc()
            return None
        return envelope

    async def _details(self, envelope: Envelope[Event]) -> Details:
        """What `details` says beside an event; None when it is erased or another record."""
        ref: DetailsRef | None = details_of(envelope.data)
        if ref is None:
            return None
        try:
            found = await self._log.read(
                Partition(DETAILS.name, ref.partition), ref.offset, max_records=1
            )
        except (OffsetGone, ReadPastEnd):
            return None
        if not found or found[0].offset != ref.offset or found[0].record.value is None:
            return None
        if sha256(found[0].record.value).hexdigest() != ref.digest:
            return None
        try:
            data = decode(found[0].record).data
        except SchemaError:
            return None
        return data if isinstance(data, JobDetailedV1 | RequestNotedV1) else None

    # --- what counts ----------------------------------------------------------------------------

    async def _take_admissions(self) -> bool:
        """Project quota's next counted cycle; False when there is none."""
        counted = await self._machines[ADMISSIONS.name].next()
        if counted is None:
            return False
        for taken in counted.commit.inputs:
            if taken.topic == REQUESTS.name:
                while self._requests.offset < taken.next:
                    if not await self._take_requests(taken.next):
                        raise self._cut(REQUESTS.name, taken.next, counted)
        step = Step(self._reader, now_ms=counted.commit.now_ms, cycle=counted.commit.cycle)
        step.refuse(counted.commit)
        for offset, envelope in counted.decisions:
            step.take(ADMISSIONS.name, offset, envelope)
        step.commit(ADMISSIONS.name, counted.offset, counted.commit)
        position = self._position.at(ADMISSIONS.name, counted.offset + 1)
        await self._apply_cycle(ADMISSIONS.name, step, position)
        return True

    async def _take_decisions(self) -> bool:
        """Project the scheduler's next counted cycle and the claims it took, if there is one."""
        counted = await self._machines[DECISIONS.name].next()
        if counted is None:
            return False
        step = Step(self._reader, now_ms=counted.commit.now_ms, cycle=counted.commit.cycle)
        position = self._position.at(DECISIONS.name, counted.offset + 1)
        for taken in counted.commit.inputs:
            if taken.topic == ADMISSIONS.name:
                while (self._position.admissions or 0) < taken.next:
                    if not await self._take_admissions():
                        raise self._cut(ADMISSIONS.name, taken.next, counted)
                position = position.at(ADMISSIONS.name, self._position.admissions or 0)
                position = position.at(REQUESTS.name, self._position.requests or 0)
            elif taken.topic == NODE_EVENTS.name:
                await self._take_claims(step, counted, taken.next)
                position = position.at(NODE_EVENTS.name, taken.next)
        for offset, envelope in counted.decisions:
            step.take(DECISIONS.name, offset, envelope)
        step.commit(DECISIONS.name, counted.offset, counted.commit)
        await self._apply_cycle(DECISIONS.name, step, position)
        return True

    async def _take_claims(self, step: Step, counted: CountedCycle, until: int) -> None:
        refused = {
            offset
            for one in counted.commit.refused
            if one.topic == NODE_EVENTS.name
            for offset in range(one.first, one.last + 1)
        }
        claims = await self._claims.take(until)
        if self._claims.offset < until:
            raise self._cut(NODE_EVENTS.name, until, counted)
        for stored in claims:
            if stored.offset in refused:
                self._skipped.labels(NODE_EVENTS.name).inc()
                continue
            step.take(NODE_EVENTS.name, stored.offset, decode(stored.record))

    @staticmethod
    def _cut(topic: str, until: int, counted: CountedCycle) -> LogTruncated:
        where = f"{topic} ends before offset {until}"
        return LogTruncated(found=f"{where}, which cycle {counted.commit.cycle} has taken")

    async def _apply_cycle(self, topic: str, step: Step, position: Position) -> None:
        notes = {topic: self._machines[topic].reader.dump()}
        await self._apply(topic, step.changes(), position, notes)

    async def _apply(
        self, topic: str, changes: list[Change], position: Position, notes: Mapping[str, Any]
    ) -> None:
        await self._store.apply(changes, position, notes)
        self._position = position
        self._steps.labels(topic).inc()

    # --- beside ---------------------------------------------------------------------------------

    async def _take_beside(self, topic: str) -> bool:
        """Note heartbeats or where output lies; False when there is nothing new."""
        offset = self._beside[topic]
        try:
            records = await self._log.read(self._partition(topic), offset, max_records=MAX_READ)
        except OffsetGone as gone:
            start = gone.fields.get("start")
            self._beside[topic] = start if isinstance(start, int) else offset + 1
            return True
        if not records:
            return False
        changes: dict[str, Change] = {}
        for stored in records:
            change = await self._noted(stored, changes)
            if change is None:
                self._skipped.labels(topic).inc()
            else:
                changes[change.key] = change
        self._beside[topic] = records[-1].offset + 1
        await self._store.note(list(changes.values()), {topic: self._beside[topic]})
        return True

    async def _noted(self, stored: StoredRecord, before: Mapping[str, Change]) -> Change | None:
        """What a heartbeat or a piece of output says, if it is the node's to say."""
        try:
            envelope = decode(stored.record)
        except SchemaError:
            return None
        data = envelope.data
        if isinstance(data, NodeHeartbeatV1) and envelope.source == f"node/{data.node}":
            # The log's own time: an agent's clock is shown nowhere as the time of day.
            return Put(SeenRow(node=data.node, at_ms=stored.appended_ms))
        if isinstance(data, TaskOutputV1) and envelope.source == f"node/{data.node}":
            key = f"{data.task_id}/{data.attempt}"
            earlier = before.get(key)
            row = earlier.row if earlier is not None else await self._store.get(OutputRow, key)
            return Put(
                OutputRow(
                    task_id=data.task_id,
                    attempt=data.attempt,
                    first=row.first if isinstance(row, OutputRow) else stored.offset,
                    last=stored.offset,
                )
            )
        return None

    # --- the log --------------------------------------------------------------------------------

    async def _measure(self) -> None:
        for partition, offset in self.ends().items():
            end = await self._log.end(partition)
            self._lag.labels(partition.topic).set(max(0, end - offset))

    def _partition(self, topic: str) -> Partition:
        return Partition(topic, self._number)

    def _cursor(self, topic: str, offset: int) -> Cursor:
        return Cursor(self._log, self._partition(topic), offset, MAX_READ)


class _Machine:
    """A machine's topic, read cycle by cycle."""

    def __init__(self, cursor: Cursor, reader: CommitReader) -> None:
        self.cursor = cursor
        self.reader = reader

    async def next(self) -> CountedCycle | None:
        """The next counted cycle; None when the log ends before one."""
        while await self.cursor.fill(1):
            stored = self.cursor.pop()
            try:
                envelope = decode_own(stored.record, self.reader.cell)
            except SchemaError as error:
                raise foreign(stored, error) from error
            counted = self.reader.feed(stored.offset, digest_of(stored.record), envelope)
            if counted is not None:
                return counted
        return None
