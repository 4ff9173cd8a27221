"""Follows the log of a cell and projects it into views, each counted record once and in order.

Requests are projected as they arrive. The topics of quota and the scheduler are read through a
`CommitReader`; a cycle is projected as one step, once its commit is in the log. Its inputs are
projected before it, so that a view never contains an effect before its cause, and the claims of
agents that it consumed with it. The commits define the order across topics, so the log is read by
position and not through a consumer group.

A store in this process is written step by step. A remote store is written through a `CachedReader`:
all steps whose records were received already are saved in one write.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from yardmaster_core.commit import CommitReader, CountedCycle
from yardmaster_core.errors import CoreError
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import DetailsUnreadable, LogError, LogTruncated, OffsetGone
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_eventlog.reader import Cursor, read_details
from yardmaster_projections.cached import CachedReader
from yardmaster_projections.errors import NotLoaded
from yardmaster_projections.fold import VIEWS, Fold, FoldStep
from yardmaster_projections.projection.details import Details, details_of
from yardmaster_projections.store import Change, ViewReader, ViewStore
from yardmaster_runtime.cycle_reader import CycleReader
from yardmaster_runtime.errors import LogBeginsLater
from yardmaster_runtime.fence import check_marks
from yardmaster_runtime.machine.beginning import expired_records, later_beginnings
from yardmaster_runtime.store_marks import last_read, marks_of
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.telemetry.tracing import MAX_LINKS, OFF, batch_span, contexts
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.details import JobDetailedV1, RequestNotedV1
from yardmaster_schemas.events.requests import DetailsRef, TaskSubmittedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, NODE_EVENTS, REQUESTS
from yardmaster_views.soft_state import SoftMetrics, SoftState

#: The most records of one read, and the most requests of one step.
MAX_READ: Final = 500
#: A step of requests ends after the submission that brings it to this number of tasks.
MAX_TASKS: Final = 10_000
#: The most changed rows that stay unsaved; with more, the steps are saved.
MAX_UNSAVED: Final = 2_000

_Consumed = tuple[str, int, Envelope[Event], Details]


@dataclass(frozen=True, slots=True)
class Views:
    """A store, and the reader through which its writer reads; in memory, both are one object."""

    store: ViewStore
    reader: ViewReader


class Metrics:
    """The metrics of followers, one set per process; `view` names the projection."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self.steps = telemetry.counter("steps", "Steps projected.", "view", "topic")
        self.writes = telemetry.counter(
            "writes", "Writes to the store, of several steps each.", "view"
        )
        self.skipped = telemetry.counter(
            "records_skipped", "Records that no view contains.", "topic"
        )
        self.lag = telemetry.gauge("lag_records", "Records not projected yet.", "view", "topic")
        self.cached = telemetry.gauge("cached_rows", "Rows in the cache.", "view")
        self.soft = SoftMetrics(telemetry, self.skipped, self.lag)
        self.loaded = telemetry.gauge(
            "loaded_rows", "Rows loaded because they were not cached.", "view"
        )
        self.evicted = telemetry.gauge(
            "evicted_rows", "Rows evicted because the cache was full.", "view"
        )


class Follower:
    """Projects one cell's log into a store: call `start` once, then `catch_up` repeatedly."""

    def __init__(
        self,
        log: EventLog,
        views: Views,
        cell: str,
        partition: int,
        metrics: Metrics,
        *,
        fold: Fold = VIEWS,
        max_unsaved: int = MAX_UNSAVED,
    ) -> None:
        self.cell = cell
        self.name = fold.name
        self._log = log
        self._fold = fold
        self._store = views.store
        self._reader = views.reader
        self._cache = views.reader if isinstance(views.reader, CachedReader) else None
        self._max_unsaved = max_unsaved
        self._number = partition
        self._metrics = metrics
        #: The positions of the projected records, and of the store.
        self._position = self._saved = Position.start(cell)
        self._notes: dict[str, Any] = {}
        #: The position up to which records are projected; None: to the end.
        self._until: Position | None = None
        self._machines: dict[str, CycleReader] = {}
        self._requests = self._cursor(REQUESTS.name, 0)
        self._claims = self._cursor(NODE_EVENTS.name, 0)
        #: Trace contexts of the records projected since the last span.
        self._linked: list[str] = []
        #: Locked while the store and the position of what is stored change.
        self._storing = asyncio.Lock()
        #: Heartbeats and output, if the fold has them.
        self.soft_state = (
            SoftState(
                log,
                views.store,
                partition,
                metrics.soft,
                view=fold.name,
                max_read=MAX_READ,
                position=lambda: self._saved,
                storing=self._storing,
            )
            if fold.soft_state
            else None
        )

    @property
    def position(self) -> Position:
        """The position that this writer stored last."""
        return self._saved

    async def start(self) -> Position:
        """Start from the position of the store, and return it."""
        async with self._storing:
            return await self._start()

    async def _start(self) -> Position:
        """Take over the store as its writer, and set all readers to the store's position.

        Raises: LogTruncated: see `_check_log`.
        """
        position = await self._store.begin()
        notes = await self._store.notes()
        if self._cache is not None:
            self._cache.forget(empty=position == Position.start(self.cell))
        await self._check_log(notes)
        self._position = self._saved = position
        self._notes = {}
        self._requests = self._cursor(REQUESTS.name, position.requests or 0)
        self._claims = self._cursor(NODE_EVENTS.name, position.node_events or 0)
        for topic, machine in ((ADMISSIONS.name, "quota"), (DECISIONS.name, "scheduler")):
            dump = notes.get(topic)
            reader = (
                CommitReader(machine, self.cell, topic) if dump is None else CommitReader.load(dump)
            )
            self._machines[topic] = CycleReader(self._cursor(topic, reader.next), reader)
        if self.soft_state is not None:
            self.soft_state.start(notes)
        return position

    async def _check_log(self, notes: Mapping[str, Any]) -> None:
        """Compare the last records that the store contains with the log.

        Raises: LogTruncated: the views contain records that the log does not have.
        """
        marks = marks_of(notes, self._number)
        await check_marks(self._log, marks, kept_in="the store of the views")

    async def catch_up(
        self,
        until: Position | None = None,
        *,
        steps: int | None = None,
        buffered_only: bool = False,
    ) -> Position:
        """Project records and store the soft state; arguments and errors are those of `project`."""
        await self.project(until, steps=steps, buffered_only=buffered_only)
        if self.soft_state is not None:
            await self.soft_state.catch_up(buffered_only=buffered_only)
        return self._saved

    async def project(
        self,
        until: Position | None = None,
        *,
        steps: int | None = None,
        buffered_only: bool = False,
    ) -> Position:
        """Project all records, or those up to `until`; return the position of the store.

        `steps` is the most steps of each topic, so that a long catch-up reports its progress.
        `buffered_only`: read only records that this process has received already.

        Raises:
            SchemaError, ForeignRecord, ChainBroken, ImpossibleEvent: a machine's topic holds an
                invalid record; nothing of the record's cycle was projected.
            LogError: the log failed; what was projected so far stays.
            LogBeginsLater: records that were not projected yet have expired.
            ViewsMoved: the store is not where this writer left it; `start` again.
            ViewsUnavailable: the store cannot be reached; `start` again once it can.
        """
        self._until = until
        telemetry = self._metrics.telemetry
        start_ms = telemetry.now_ms()
        try:
            for topic, project in (
                (REQUESTS.name, self._project_requests),
                (ADMISSIONS.name, self._project_admissions),
                (DECISIONS.name, self._project_decisions),
            ):
                for _ in count() if steps is None else range(steps):
                    if not self._has_more(topic) or not await project(buffered_only=buffered_only):
                        break
        except OffsetGone:
            await self._save()
            raise await self._begins_later() from None
        except (SchemaError, CoreError, LogError):
            await self._save()
            raise
        await self._save()
        batch_span(
            telemetry.tracer,
            f"{self.name} step",
            self._linked,
            start_ms=start_ms,
            attributes={"yard.cell": self.cell},
        ).end()
        self._linked = []
        return self._saved

    async def project_cycles(self, topic: str, beyond: Callable[[CountedCycle], bool]) -> None:
        """Project a machine's cycles, with their inputs, up to the first one that is `beyond`.

        That cycle is read and dropped, so call this once per topic. Raises: as `project`.
        """
        project = self._project_judged if topic == ADMISSIONS.name else self._project_decided
        try:
            while (counted := await self._machines[topic].next()) and not beyond(counted):
                await project(counted)
        except OffsetGone:
            raise await self._begins_later() from None
        await self._save()

    async def project_requests(self, until: int) -> None:
        """Project the requests before the offset `until`. Raises: as `project`."""
        try:
            while self._requests.offset < until and await self._project_requests(until):
                pass
        except OffsetGone:
            raise await self._begins_later() from None
        await self._save()

    async def _begins_later(self) -> LogBeginsLater:
        """Return the error for records that expired before they were projected."""
        topics = (REQUESTS.name, ADMISSIONS.name, NODE_EVENTS.name, DECISIONS.name)
        partitions = [Partition(topic, self._number) for topic in topics]
        return LogBeginsLater(
            expired=expired_records(await later_beginnings(self._log, partitions)),
            needs=f"The projection {self.name} of cell {self.cell} is at {self._saved}, and needs "
            "every record after that. Restore its store from a copy that was made after it had "
            "projected them, restore the log from a backup, or start with an empty log.",
        )

    async def check(self) -> None:
        """Check that the store is still at the position that this writer stored last.

        Raises:
            ViewsMoved: the store is at another position, or was rebuilt; `start` again.
            ViewsUnavailable.
        """
        await self._store.check(self._saved)

    def ends(self) -> Mapping[Partition, int]:
        """The next offset of every topic that is projected."""
        ends = {self._requests.partition: self._requests.offset}
        for machine in self._machines.values():
            ends[machine.cursor.partition] = machine.cursor.offset
        return ends

    async def measure(self) -> int:
        """Set the metrics of lag and cache; return the number of records not projected yet."""
        lag = 0
        for partition, offset in self.ends().items():
            behind = max(0, await self._log.end(partition) - offset)
            self._metrics.lag.labels(self.name, partition.topic).set(behind)
            lag += behind
        if self._cache is not None:
            self._metrics.cached.labels(self.name).set(len(self._cache))
            self._metrics.loaded.labels(self.name).set(self._cache.loaded)
            self._metrics.evicted.labels(self.name).set(self._cache.evicted)
        return lag

    async def records(self) -> int:
        """The number of records in the topics that positions count."""
        topics = (REQUESTS.name, ADMISSIONS.name, NODE_EVENTS.name, DECISIONS.name)
        return sum([await self._log.end(Partition(topic, self._number)) for topic in topics])

    # --- requests -------------------------------------------------------------------------------

    async def _project_requests(
        self, until: int | None = None, *, buffered_only: bool = False
    ) -> bool:
        """Project the next requests, those before `until`; False when there was none.

        Each request could be a step of its own, so one step ends after `MAX_READ` of them or
        `MAX_TASKS` tasks, whichever comes first. To project all up to `until`, call it again.
        """
        offset = self._requests.offset
        wanted = 1 if until is None else until - offset
        most = MAX_READ if until is None else min(MAX_READ, wanted)
        if self._until is not None:
            most = min(most, (self._until.requests or 0) - offset)
        if wanted <= 0 or most <= 0:
            return False
        found = min(await self._requests.fill(wanted, buffered_only=buffered_only), most)
        if found == 0:
            return False
        consumed: list[_Consumed] = []
        tasks = 0
        stored: StoredRecord | None = None
        for _ in range(found):
            stored = self._requests.pop()
            envelope = self._request_of(stored)
            if envelope is not None:
                details = await self._details(envelope) if self._fold.details else None
                consumed.append((REQUESTS.name, stored.offset, envelope, details))
                tasks += _tasks(envelope.data)
            if tasks >= MAX_TASKS:
                break

        def step() -> FoldStep:
            step = self._fold.step(self._reader)
            for each in consumed:
                step.take(*each)
            return step

        changes = await self._changes(step, consumed)
        position = self._position.at(REQUESTS.name, self._requests.offset)
        await self._apply(REQUESTS.name, changes, position, last_read(stored))
        return True

    def _request_of(self, stored: StoredRecord) -> Envelope[Event] | None:
        """The request in a record; None for an invalid record, which quota refuses."""
        try:
            envelope = decode(stored.record)
        except SchemaError:
            envelope = None
        if (
            envelope is None
            or REQUESTS.name not in envelope.data.TOPICS
            or stored.record.key != self.cell.encode()
        ):
            self._metrics.skipped.labels(REQUESTS.name).inc()
            return None
        return envelope

    async def _details(self, envelope: Envelope[Event]) -> Details:
        """The record in `details` of an event; None when it is erased or is another record."""
        ref: DetailsRef | None = details_of(envelope.data)
        if ref is None:
            return None
        try:
            data = (await read_details(self._log, ref)).data
        except DetailsUnreadable:
            return None
        return data if isinstance(data, JobDetailedV1 | RequestNotedV1) else None

    # --- cycles ---------------------------------------------------------------------------------

    def _has_more(self, topic: str) -> bool:
        if self._until is None:
            return True
        return (self._position.of(topic) or 0) < (self._until.of(topic) or 0)

    async def _project_admissions(self, *, buffered_only: bool = False) -> bool:
        """Project the next counted cycle of quota; False when there is none.

        A cycle is one step, however large it is. The memory of a worker must therefore fit quota's
        largest cycle: `max_decisions` decisions, about jobs of at most 10,000 tasks each.
        """
        counted = await self._machines[ADMISSIONS.name].next(buffered_only=buffered_only)
        if counted is None:
            return False
        await self._project_judged(counted)
        return True

    async def _project_judged(self, counted: CountedCycle) -> None:
        """Project a cycle of quota, after the requests that it consumed."""
        for taken in counted.commit.inputs:
            if taken.topic == REQUESTS.name:
                while self._requests.offset < taken.next:
                    if not await self._project_requests(taken.next):
                        raise self._cut(REQUESTS.name, taken.next, counted)
        position = self._position.at(ADMISSIONS.name, counted.offset + 1)
        await self._apply_cycle(ADMISSIONS.name, counted, [], position, {})

    async def _project_decisions(self, *, buffered_only: bool = False) -> bool:
        """Project the next counted cycle of the scheduler with its claims, if there is one."""
        counted = await self._machines[DECISIONS.name].next(buffered_only=buffered_only)
        if counted is None:
            return False
        await self._project_decided(counted)
        return True

    async def _project_decided(self, counted: CountedCycle) -> None:
        """Project a cycle of the scheduler and its claims, after the cycles of quota before it."""
        claims: list[_Consumed] = []
        notes: Mapping[str, Any] = {}
        position = self._position.at(DECISIONS.name, counted.offset + 1)
        for taken in counted.commit.inputs:
            if taken.topic == ADMISSIONS.name:
                while (self._position.admissions or 0) < taken.next:
                    if not await self._project_admissions():
                        raise self._cut(ADMISSIONS.name, taken.next, counted)
                position = position.at(ADMISSIONS.name, self._position.admissions or 0)
                position = position.at(REQUESTS.name, self._position.requests or 0)
            elif taken.topic == NODE_EVENTS.name:
                claims, notes = await self._read_claims(counted, taken.next)
                position = position.at(NODE_EVENTS.name, taken.next)
        await self._apply_cycle(DECISIONS.name, counted, claims, position, notes)

    async def _read_claims(
        self, counted: CountedCycle, until: int
    ) -> tuple[list[_Consumed], Mapping[str, Any]]:
        """Return the accepted claims before `until`, and the notes that name the last claim."""
        refused = {
            offset
            for one in counted.commit.refused
            if one.topic == NODE_EVENTS.name
            for offset in range(one.first, one.last + 1)
        }
        claims = await self._claims.take(until)
        if self._claims.offset < until:
            raise self._cut(NODE_EVENTS.name, until, counted)
        consumed: list[_Consumed] = []
        for stored in claims:
            if stored.offset in refused:
                self._metrics.skipped.labels(NODE_EVENTS.name).inc()
                continue
            consumed.append((NODE_EVENTS.name, stored.offset, decode(stored.record), None))
        return consumed, last_read(claims[-1] if claims else None)

    @staticmethod
    def _cut(topic: str, until: int, counted: CountedCycle) -> LogTruncated:
        where = f"{topic} ends before offset {until}"
        return LogTruncated(found=f"{where}, which cycle {counted.commit.cycle} has taken")

    async def _apply_cycle(
        self,
        topic: str,
        counted: CountedCycle,
        claims: list[_Consumed],
        position: Position,
        notes: Mapping[str, Any],
    ) -> None:
        """Project a cycle: the claims that it consumed, its decisions, its commit."""
        commit = counted.commit
        decisions = [(topic, offset, envelope, None) for offset, envelope in counted.decisions]

        def step() -> FoldStep:
            step = self._fold.step(self._reader, now_ms=commit.now_ms, cycle=commit.cycle)
            for each in claims:
                step.take(*each)
            step.refuse(commit)
            for each in decisions:
                step.take(*each)
            step.commit(topic, counted.offset, commit)
            return step

        changes = await self._changes(step, [*claims, *decisions])
        notes = {**notes, topic: self._machines[topic].reader.dump()}
        await self._apply(topic, changes, position, notes)

    # --- the store ------------------------------------------------------------------------------

    async def _changes(
        self, make: Callable[[], FoldStep], consumed: Sequence[_Consumed]
    ) -> list[Change]:
        """Return the changes of a step; it is run again until the reader has all rows it needs."""
        if self._metrics.telemetry.tracer is not OFF and len(self._linked) < MAX_LINKS:
            self._linked += contexts(envelope for _, _, envelope, _ in consumed)
        if self._cache is None:
            return make().changes()
        likely = self._fold.likely_read
        await self._cache.want(each for _, _, envelope, _ in consumed for each in likely(envelope))
        while True:
            try:
                return make().changes()
            except NotLoaded as missing:
                await self._cache.load(missing)

    async def _apply(
        self, topic: str, changes: list[Change], position: Position, notes: Mapping[str, Any]
    ) -> None:
        self._metrics.steps.labels(self.name, topic).inc()
        if self._cache is None:
            async with self._storing:
                await self._store.apply(changes, position, notes, before=self._saved)
                self._position = self._saved = position
            return
        self._cache.take(changes)
        self._position = position
        self._notes.update(notes)
        if self._cache.unsaved_count >= self._max_unsaved:
            await self._save()

    async def _save(self) -> None:
        """Write all unsaved changes."""
        if self._cache is None or self._position == self._saved:
            return
        async with self._storing:
            await self._store.apply(
                self._cache.unsaved, self._position, self._notes, before=self._saved
            )
            self._cache.saved()
            self._saved, self._notes = self._position, {}
        self._metrics.writes.labels(self.name).inc()

    # --- the log --------------------------------------------------------------------------------

    def _cursor(self, topic: str, offset: int) -> Cursor:
        return Cursor(self._log, Partition(topic, self._number), offset, MAX_READ)


def _tasks(event: Event) -> int:
    return event.spec.tasks if isinstance(event, TaskSubmittedV1) else 0
