"""The log's records as API answers: those at given offsets, or all after a position.

Records are in causal order: the inputs of a cycle come before its decisions. Records of fenced
leaders are included, because this is the log and not its effect.
"""

from collections.abc import Sequence
from typing import Any, Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_eventlog.reader import record_at
from yardmaster_schemas.api import EventRecord
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.plain import dump
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, NODE_EVENTS, REQUESTS

#: Records per read.
MAX_READ: Final = 500
_INPUTS: Final = {
    ADMISSIONS.name: (REQUESTS.name,),
    DECISIONS.name: (ADMISSIONS.name, NODE_EVENTS.name),
}


def event_record(stored: StoredRecord, position: Position) -> EventRecord | None:
    """A record as an API answer; None if it cannot be decoded (such claims are refused)."""
    try:
        envelope: Envelope[Event] = decode(stored.record)
    except SchemaError:
        return None
    body: Any = dump(envelope.data)
    return EventRecord(
        topic=stored.partition.topic,
        partition=stored.partition.number,
        offset=stored.offset,
        id=envelope.id,
        type=envelope.type,
        version=envelope.version,
        source=envelope.source,
        epoch=envelope.epoch,
        seq=envelope.seq,
        subject=envelope.subject,
        at=rfc3339(envelope.time_ms),
        actor=f"{envelope.actor.kind}/{envelope.actor.id}",
        cause=envelope.cause,
        data=body,
        position=str(position),
    )


async def records_at(
    log: EventLog, cell: str, partition: int, places: Sequence[tuple[str, int]]
) -> list[EventRecord]:
    """The records at the given (topic, offset) pairs, by time, without those no longer kept."""
    found: list[tuple[int, int, EventRecord]] = []
    for rank, (topic, offset) in enumerate(places):
        stored = await record_at(log, Partition(topic, partition), offset)
        if stored is None:
            continue
        record = event_record(stored, Position(cell=cell).at(topic, offset + 1))
        if record is not None:
            found.append((stored.appended_ms, rank, record))
    return [record for _, _, record in sorted(found, key=lambda one: one[:2])]


class History:
    """Reads one page of a cell's log, starting after a position."""

    def __init__(
        self, log: EventLog, cell: str, partition: int, after: Position, limit: int
    ) -> None:
        self._log = log
        self._number = partition
        self._limit = limit
        self.position = Position(
            cell=cell,
            requests=after.requests or 0,
            admissions=after.admissions or 0,
            node_events=after.node_events or 0,
            decisions=after.decisions or 0,
        )
        self.records: list[EventRecord] = []

    def full(self) -> bool:
        """Whether the page has reached its limit."""
        return len(self.records) >= self._limit

    async def read(self) -> list[EventRecord]:
        """The records after the position, at most `limit`.

        Claims that no cycle has consumed yet are not included, because they have no effect so far.

        Raises:
            ReadPastEnd: the log does not contain the position.
        """
        await self._cycles(DECISIONS.name)
        await self._cycles(ADMISSIONS.name)
        await self._plain(REQUESTS.name, await self._end(REQUESTS.name))
        return self.records

    async def _cycles(self, topic: str, until: int | None = None) -> None:
        """Add a machine's complete cycles up to `until`, each after its inputs."""
        while not self.full():
            start = self.position.of(topic) or 0
            if until is not None and start >= until:
                return
            batch, commit = await self._cycle(topic, start)
            if not batch:
                return
            for taken in commit.inputs if commit is not None else ():
                if taken.topic not in _INPUTS[topic]:
                    continue
                if taken.topic == ADMISSIONS.name:
                    await self._cycles(ADMISSIONS.name, taken.next)
                else:
                    await self._plain(taken.topic, taken.next)
            for stored in batch:
                if self.full():
                    return
                self._add(stored)

    async def _cycle(
        self, topic: str, start: int
    ) -> tuple[list[StoredRecord], CycleCommittedV1 | None]:
        """The records of the next cycle, and its commit; no records if it is not committed yet."""
        batch: list[StoredRecord] = []
        while True:
            read = await self._log.read(
                Partition(topic, self._number), start + len(batch), max_records=MAX_READ
            )
            if not read:
                return [], None
            for stored in read:
                batch.append(stored)
                data = decode(stored.record).data
                if isinstance(data, CycleCommittedV1):
                    return batch, data

    async def _plain(self, topic: str, until: int) -> None:
        while not self.full():
            start = self.position.of(topic) or 0
            if start >= until:
                return
            read = await self._log.read(
                Partition(topic, self._number), start, max_records=min(MAX_READ, until - start)
            )
            if not read:
                return
            for stored in read:
                if self.full():
                    return
                self._add(stored)

    async def _end(self, topic: str) -> int:
        return await self._log.end(Partition(topic, self._number))

    def _add(self, stored: StoredRecord) -> None:
        self.position = self.position.at(stored.partition.topic, stored.offset + 1)
        record = event_record(stored, self.position)
        if record is not None:
            self.records.append(record)
