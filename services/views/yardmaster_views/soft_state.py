"""What the views show beside what is decided: heartbeats, and where output lies.

No cycle takes it and no position counts it; its topics expire. So it is noted, as far as nodes may
say so, and goes on from the writer's notes. A note counts only where the views and the notes are as
its writer left them: one that was late would set back what another noted, or what was erased.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Counter

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import OffsetGone
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_projections.rows import JobRow, OutputRow, SeenRow
from yardmaster_projections.store import Change, Put, RowKey, ViewStore
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.expiring import NodeHeartbeatV1, TaskOutputV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.sources import written_by_agent
from yardmaster_schemas.topics import HEARTBEATS, TASK_LOGS

TOPICS: Final = (HEARTBEATS.name, TASK_LOGS.name)
Said = NodeHeartbeatV1 | TaskOutputV1


class SoftState:
    """Notes one partition's heartbeats and output; `start`, then `take` again and again."""

    def __init__(
        self, log: EventLog, store: ViewStore, partition: int, skipped: Counter, max_read: int
    ) -> None:
        self._log = log
        self._store = store
        self._number = partition
        self._max_read = max_read
        self._skipped = skipped
        self._next: dict[str, int] = dict.fromkeys(TOPICS, 0)
        #: The notes as they are in the store; None: not there.
        self._noted: dict[str, object] = dict.fromkeys(TOPICS)

    def start(self, notes: Mapping[str, object]) -> None:
        """Go on where the writer's notes say."""
        for topic in TOPICS:
            self._noted[topic] = offset = notes.get(topic)
            self._next[topic] = offset if isinstance(offset, int) else 0

    def ends(self) -> Mapping[Partition, int]:
        """The next record of each topic."""
        return {Partition(topic, self._number): offset for topic, offset in self._next.items()}

    async def catch_up(self, before: Position, *, buffered_only: bool = False) -> None:
        """Note all that is there, or at hand; `before` is where the views are.

        Raises:
            ViewsMoved: the views, or what is noted, are elsewhere; `start` again.
            ViewsUnavailable, LogError.
        """
        for topic in TOPICS:
            while await self._take(topic, before, buffered_only=buffered_only):
                pass

    async def _take(self, topic: str, before: Position, *, buffered_only: bool) -> bool:
        """Note the next records of a topic; False when there is nothing new."""
        offset = self._next[topic]
        partition = Partition(topic, self._number)
        try:
            records = await self._log.read(
                partition, offset, max_records=self._max_read, buffered_only=buffered_only
            )
        except OffsetGone as gone:
            start = gone.fields.get("start")
            self._next[topic] = start if isinstance(start, int) else offset + 1
            return True
        if not records:
            return False
        said = list(self._said(topic, records))
        outputs, erased = await self._outputs(one for _, one in said)
        changes: dict[str, Change] = {}
        for stored, one in said:
            if isinstance(one, NodeHeartbeatV1):
                # The log's own time: an agent's clock is shown nowhere as the time of day.
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
        upto = records[-1].offset + 1
        noted = {topic: self._noted[topic]}
        await self._store.note(list(changes.values()), {topic: upto}, before=before, noted=noted)
        self._next[topic] = self._noted[topic] = upto
        return True

    def _said(
        self, topic: str, records: Sequence[StoredRecord]
    ) -> Iterator[tuple[StoredRecord, Said]]:
        """What is a node's to say."""
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
                self._skipped.labels(topic).inc()

    async def _outputs(self, said: Iterator[Said]) -> tuple[dict[str, OutputRow], frozenset[str]]:
        """The rows, as they are, of the output that some records hold; jobs that are erased."""
        wanted: dict[RowKey, None] = {}
        for one in said:
            if isinstance(one, TaskOutputV1):
                wanted[OutputRow, f"{one.task_id}/{one.attempt}"] = None
                wanted[JobRow, _job(one)] = None
        if not wanted:
            return {}, frozenset()
        rows = (await self._store.get_all(list(wanted))).rows
        outputs = {row.key: row for row in rows if isinstance(row, OutputRow)}
        jobs = (row for row in rows if isinstance(row, JobRow))
        return outputs, frozenset(row.key for row in jobs if row.facts.erased)


def _job(said: TaskOutputV1) -> str:
    return said.task_id.partition(".")[0]
