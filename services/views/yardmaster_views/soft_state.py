"""The soft state of the views: heartbeats, and the offsets of output.

No cycle consumes these records and no position counts them; their topics expire. Rows are written
together with the next offset as a note, and a new writer starts from the notes. A write is
applied only if the views and the notes are as its writer left them, because a late write would undo
a newer write or an erasure. Only records of agents about their own node are used.

Brokers may lose the newest of these records, which are not synced. Reading then continues at the
end; the rows of lost output stay.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Counter, Gauge

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogTruncated, OffsetGone, ReadPastEnd
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_eventlog.reader import continue_at, what_is_lost
from yardmaster_projections.rows import JobRow, OutputRow, SeenRow
from yardmaster_projections.store import Change, Put, RowKey, ViewStore
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.expiring import NodeHeartbeatV1, TaskOutputV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.sources import written_by_agent
from yardmaster_schemas.topics import HEARTBEATS, TASK_LOGS

TOPICS: Final = (HEARTBEATS.name, TASK_LOGS.name)
Report = NodeHeartbeatV1 | TaskOutputV1


class SoftMetrics:
    """The metrics of soft state, one set per process."""

    def __init__(self, telemetry: Telemetry, skipped: Counter, lag: Gauge) -> None:
        """`skipped` (by topic) and `lag` (by view and topic) are metrics of the followers too."""
        self.telemetry = telemetry
        self.skipped = skipped
        self.lag = lag
        self.lost = telemetry.counter(
            "reports_lost", "Times that a topic of heartbeats or output lost its end.", "topic"
        )


class SoftState:
    """Stores heartbeats and output of a partition; call `start` once, then `catch_up`."""

    def __init__(
        self,
        log: EventLog,
        store: ViewStore,
        partition: int,
        metrics: SoftMetrics,
        *,
        view: str,
        max_read: int,
        position: Callable[[], Position],
        storing: asyncio.Lock,
    ) -> None:
        """`position` returns the position of the views.

        `storing` is locked while this position or the store changes.
        """
        self._log = log
        self._store = store
        self._number = partition
        self._max_read = max_read
        self._metrics = metrics
        self._view = view
        self._position = position
        self._storing = storing
        self._next: dict[str, int] = dict.fromkeys(TOPICS, 0)
        #: The note in the store for each topic; None: the store has no note for it.
        self._noted: dict[str, object] = dict.fromkeys(TOPICS)

    def start(self, notes: Mapping[str, object]) -> None:
        """Start from the offsets in the notes."""
        for topic in TOPICS:
            self._noted[topic] = offset = notes.get(topic)
            self._next[topic] = offset if isinstance(offset, int) else 0

    def ends(self) -> Mapping[Partition, int]:
        """The next offset of each topic."""
        return {Partition(topic, self._number): offset for topic, offset in self._next.items()}

    async def restart(self) -> None:
        """Start from the notes in the store.

        Raises: ViewsUnavailable.
        """
        async with self._storing:
            self.start(await self._store.notes())

    async def measure(self) -> None:
        """Set the metric of the lag: the number of unread records of each topic."""
        for partition, offset in self.ends().items():
            behind = max(0, await self._log.end(partition) - offset)
            self._metrics.lag.labels(self._view, partition.topic).set(behind)

    async def catch_up(self, *, buffered_only: bool = False) -> None:
        """Store all records, or all that are buffered.

        Raises:
            ViewsMoved: another writer changed the views or the notes; `start` again.
            ViewsUnavailable, LogError.
        """
        for topic in TOPICS:
            while await self._take(topic, buffered_only=buffered_only):
                pass

    async def _take(self, topic: str, *, buffered_only: bool) -> bool:
        """Store the next records of a topic; False when there are none."""
        offset = self._next[topic]
        partition = Partition(topic, self._number)
        try:
            records = await self._log.read(
                partition, offset, max_records=self._max_read, buffered_only=buffered_only
            )
        except (OffsetGone, LogTruncated, ReadPastEnd) as error:
            self._next[topic] = await continue_at(self._log, partition, error)
            if not isinstance(error, OffsetGone):
                self._metrics.lost.labels(topic).inc()
                self._metrics.telemetry.error(
                    "reports_lost", topic=topic, found=what_is_lost(error)
                )
            return True
        if not records:
            return False
        reports = list(self._reports(topic, records))
        async with self._storing:
            await self._store_reports(topic, reports, records[-1].offset + 1)
        return True

    async def _store_reports(
        self, topic: str, reports: Sequence[tuple[StoredRecord, Report]], upto: int
    ) -> None:
        """Write the rows of the reports and the next offset `upto` of the topic, in one write."""
        outputs, erased = await self._outputs(one for _, one in reports)
        changes: dict[str, Change] = {}
        for stored, one in reports:
            if isinstance(one, NodeHeartbeatV1):
                # The time of the log: views contain no time of an agent's clock.
                changes[one.node] = Put(SeenRow(node=one.node, at_ms=stored.appended_ms))
            elif _job(one) not in erased:
                key = f"{one.task_id}/{one.attempt}"
                known = outputs.get(key)
                outputs[key] = OutputRow(
                    task_id=one.task_id,
                    attempt=one.attempt,
                    first=stored.offset if known is None else known.first,
                    last=stored.offset if known is None else max(known.last, stored.offset),
                )
                changes[key] = Put(outputs[key])
        noted = {topic: self._noted[topic]}
        await self._store.note(
            list(changes.values()), {topic: upto}, before=self._position(), noted=noted
        )
        self._next[topic] = self._noted[topic] = upto

    def _reports(
        self, topic: str, records: Sequence[StoredRecord]
    ) -> Iterator[tuple[StoredRecord, Report]]:
        """Yield the decoded reports that agents wrote about their own node; count all others."""
        for stored in records:
            try:
                envelope = decode(stored.record)
            except SchemaError:
                envelope = None
            data = None if envelope is None else envelope.data
            if (
                envelope is not None
                and isinstance(data, NodeHeartbeatV1 | TaskOutputV1)
                and written_by_agent(envelope.source, data.node)
            ):
                yield stored, data
            else:
                self._metrics.skipped.labels(topic).inc()

    async def _outputs(
        self, reports: Iterator[Report]
    ) -> tuple[dict[str, OutputRow], frozenset[str]]:
        """Return the rows of the tasks with output in `reports`, and the jobs that are erased."""
        wanted: dict[RowKey, None] = {}
        for one in reports:
            if isinstance(one, TaskOutputV1):
                wanted[OutputRow, f"{one.task_id}/{one.attempt}"] = None
                wanted[JobRow, _job(one)] = None
        if not wanted:
            return {}, frozenset()
        rows = (await self._store.get_all(list(wanted))).rows
        outputs = {row.key: row for row in rows if isinstance(row, OutputRow)}
        jobs = (row for row in rows if isinstance(row, JobRow))
        return outputs, frozenset(row.key for row in jobs if row.facts.erased)


def _job(report: TaskOutputV1) -> str:
    return report.task_id.partition(".")[0]
