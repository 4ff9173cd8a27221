"""Reading one record by its position, and the details that a request refers to."""

import pytest

from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.errors import DetailsUnreadable
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.reader import details_digest, read_details, record_at
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.events.details import RequestNotedV1
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.topics import DETAILS

PLACE = Partition(DETAILS.name)


def a_note() -> Record:
    event = RequestNotedV1(subject="job", text="too slow", salt="0" * 32)
    envelope = Envelope(
        type=event.TYPE,
        version=event.VERSION,
        source="gateway/a.b",
        epoch=1,
        seq=0,
        subject="job",
        time_ms=0,
        actor=Actor(kind=ActorKind.USER, id="ana"),
        data=event,
    )
    return encode(envelope, "note." + event.salt)


async def a_log(*records: Record) -> MemoryLog:
    log = MemoryLog(ManualClock())
    await log.create_topics([DETAILS])
    for record in records:
        await log.append(PLACE, [record])
    return log


async def test_details_are_read_by_their_position() -> None:
    note = a_note()
    log = await a_log(note)
    ref = DetailsRef(offset=0, digest=details_digest(note.value))
    assert isinstance((await read_details(log, ref)).data, RequestNotedV1)


@pytest.mark.parametrize(
    ("record", "offset", "found"),
    [
        (a_note(), 0, "do not match their digest"),
        (a_note(), 7, "were erased"),
        (Record(b"job", None), 0, "were erased"),
    ],
)
async def test_details_that_are_not_what_the_request_recorded_are_refused(
    record: Record, offset: int, found: str
) -> None:
    log = await a_log(record)
    with pytest.raises(DetailsUnreadable, match=found):
        await read_details(log, DetailsRef(offset=offset, digest="0" * 64))


async def test_details_that_cannot_be_decoded_are_refused() -> None:
    log = await a_log(Record(b"job", b"{}"))
    ref = DetailsRef(offset=0, digest=details_digest(b"{}"))
    with pytest.raises(DetailsUnreadable, match="malformed"):
        await read_details(log, ref)


async def test_a_position_without_a_record_gives_none() -> None:
    log = await a_log(a_note(), Record(b"gone", None))
    assert (await record_at(log, PLACE, 0)) is not None
    assert [await record_at(log, PLACE, offset) for offset in (1, 2, 9)] == [None] * 3
