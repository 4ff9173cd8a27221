"""The log's records as API answers: those at given offsets, or all after a position.

Records are in causal order (`yardmaster_eventlog.order`).
"""

from collections.abc import Sequence
from typing import Any

from yardmaster_eventlog.order import LogOrder
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_eventlog.reader import decoded, first_offset, record_at
from yardmaster_schemas.api import EventRecord
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.plain import dump
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import REQUESTS


def event_record(
    stored: StoredRecord, envelope: Envelope[Event], position: Position
) -> EventRecord:
    """A record and its decoded envelope as an API answer."""
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
    """Return the records at the given (topic, offset) pairs by time; expired ones are left out."""
    found: list[tuple[int, int, EventRecord]] = []
    for rank, (topic, offset) in enumerate(places):
        stored = await record_at(log, Partition(topic, partition), offset)
        if stored is None:
            continue
        # Claims that cannot be decoded are left out: the scheduler refused them without effect.
        envelope = decoded(stored)
        if envelope is not None:
            position = Position(cell=cell).at(topic, offset + 1)
            found.append((stored.appended_ms, rank, event_record(stored, envelope, position)))
    return [record for _, _, record in sorted(found, key=lambda one: one[:2])]


async def page_after(
    log: EventLog, start: Position, partition: int, limit: int
) -> tuple[list[EventRecord], Position]:
    """At most `limit` records of a cell's log after a position, and the position after them.

    Claims that no cycle has consumed yet are not included, because they have no effect so far.

    Raises:
        ReadPastEnd: the log does not contain the position.
        OffsetGone: records after the position have expired; see `oldest_after`.
    """
    order = LogOrder(log, start, partition, unconsumed=(REQUESTS.name,))
    records: list[EventRecord] = []
    async for entry in order.entries():
        if entry.envelope is not None:
            records.append(event_record(entry.stored, entry.envelope, entry.position))
        if len(records) >= limit:
            break
    return records, order.position


async def oldest_after(log: EventLog, start: Position, partition: int) -> Position:
    """Return the lowest position at or after `start` whose following records are all in the log."""
    position = Position.start(start.cell)
    for topic, _ in position.parts():
        first = await first_offset(log, Partition(topic, partition))
        position = position.at(topic, max(start.of(topic) or 0, first))
    return position
