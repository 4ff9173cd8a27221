"""The cache of the newest submissions."""

import asyncio

from tests.support import logs
from tests.support.views import telemetry
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.forwarding import ForwardingLog
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_gateway.submissions.recent_submissions import RecentSubmissions, RecordedSubmission
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.topics import REQUESTS

PLACE = Partition(REQUESTS.name)


def record(job: str, seq: int, *, source: str = "gateway/g", epoch: int = 1) -> Record:
    event = logs.submitted(job)
    envelope = Envelope(
        type=event.TYPE,
        version=event.VERSION,
        source=source,
        epoch=epoch,
        seq=seq,
        subject=job,
        time_ms=1,
        actor=Actor(kind=ActorKind.USER, id="ana"),
        data=event,
    )
    return encode(envelope, "main")


async def a_log(*records: Record) -> MemoryLog:
    log = MemoryLog(SystemClock())
    await log.create_topics([REQUESTS])
    if records:
        await log.append(PLACE, records)
    return log


def recent_of(log: EventLog) -> RecentSubmissions:
    return RecentSubmissions(log, PLACE, telemetry("gateway"), max_requests=10)


class CountingLog(ForwardingLog):
    """Counts the requests for the end."""

    ends = 0

    async def end(self, partition: Partition) -> int:
        self.ends += 1
        await asyncio.sleep(0)  # as a network does, so that others call meanwhile
        return await super().end(partition)


def job(number: int) -> str:
    return f"{number:012d}"


async def test_a_submission_is_found_as_soon_as_it_is_in_the_log() -> None:
    log = await a_log()
    recent = recent_of(log)
    assert await recent.find(job(1)) is None
    await log.append(PLACE, [Record(b"main", b"nonsense"), record(job(1), 0)])
    found = await recent.find(job(1))
    assert found is not None
    assert found == RecordedSubmission(logs.submitted(job(1)).body_digest, 1, 1, "nlp", found.actor)
    await log.append(PLACE, [record(job(1), 1)])
    assert await recent.find(job(1)) == found, "the first one counts"


async def test_only_the_newest_requests_are_kept() -> None:
    log = await a_log(*(record(job(number), number) for number in range(50)))
    recent = recent_of(log)
    assert await recent.find(job(39)) is None
    assert await recent.find(job(40)) is not None
    await log.append(PLACE, [record(job(50), 50)])
    assert await recent.find(job(40)) is None
    assert await recent.find(job(41)) is not None


async def test_a_late_record_is_not_a_submission_because_quota_refuses_it_as_repeated() -> None:
    log = await a_log(record(job(1), 5), record(job(2), 4), record(job(3), 9, source="gateway/h"))
    recent = recent_of(log)
    assert await recent.find(job(2)) is None
    assert await recent.find(job(3)) is not None
    await log.append(PLACE, [record(job(2), 0, epoch=2)])
    assert await recent.find(job(2)) is not None


async def test_a_forged_epoch_far_ahead_hides_no_later_submission_of_the_source() -> None:
    log = await a_log(record(job(1), 0, epoch=2**53 - 1), record(job(2), 0))
    recent = recent_of(log)
    assert await recent.find(job(1)) is None, "quota refuses it"
    assert await recent.find(job(2)) is not None


async def test_after_an_append_the_own_offset_says_how_far_to_read() -> None:
    log = CountingLog(await a_log(record(job(1), 0, source="gateway/h"), record(job(1), 1)))
    recent = recent_of(log)
    first = await recent.find(job(1), before=2)
    assert first is not None
    assert first.offset == 0, "another gateway was first"
    assert log.ends == 0


async def test_callers_at_once_read_each_record_once() -> None:
    log = CountingLog(await a_log(*(record(job(number), number) for number in range(10))))
    recent = recent_of(log)
    found = await asyncio.gather(*(recent.find(job(number)) for number in range(10)))
    assert [each.offset for each in found if each is not None] == list(range(10))
    assert log.ends <= 2
