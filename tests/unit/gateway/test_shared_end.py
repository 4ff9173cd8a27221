"""The end of a partition, requested once for all callers that wait for it."""

import asyncio

import pytest

from tests.support.views import telemetry
from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.forwarding import ForwardingLog
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_gateway.submissions.shared_end import SharedEnd
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import REQUESTS

PLACE = Partition(REQUESTS.name)


class SlowEnds(ForwardingLog):
    """A broker that determines the end when the request arrives, and answers later."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.answers: list[asyncio.Event] = []
        self.failing = False
        self.arrived = asyncio.Event()

    async def end(self, partition: Partition) -> int:
        end, failing = await super().end(partition), self.failing
        self.answers.append(asyncio.Event())
        self.arrived.set()
        await self.answers[-1].wait()
        if failing:
            raise LogUnavailable(found="no broker")
        return end

    async def next_request(self) -> asyncio.Event:
        """Wait for a request; setting the event answers it."""
        await self.arrived.wait()
        self.arrived.clear()
        return self.answers[-1]


@pytest.fixture
async def log() -> SlowEnds:
    log = MemoryLog(SystemClock())
    await log.create_topics([REQUESTS])
    return SlowEnds(log)


@pytest.fixture
def end(log: SlowEnds) -> SharedEnd:
    return SharedEnd(log, PLACE, telemetry("gateway"))


async def test_calls_during_a_request_share_the_next_one(log: SlowEnds, end: SharedEnd) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(end.read())
        answer = await log.next_request()
        others = [group.create_task(end.read()) for _ in range(50)]
        await asyncio.sleep(0)
        answer.set()
        (await log.next_request()).set()
    assert first.result() == 0
    assert [each.result() for each in others] == [0] * 50
    assert len(log.answers) == 2


async def test_a_call_never_gets_an_end_from_before_it(log: SlowEnds, end: SharedEnd) -> None:
    async with asyncio.TaskGroup() as group:
        early = group.create_task(end.read())
        answer = await log.next_request()
        await log.append(PLACE, [Record(b"main", b"1")])
        late = group.create_task(end.read())
        await asyncio.sleep(0)
        answer.set()
        (await log.next_request()).set()
    assert (early.result(), late.result()) == (0, 1)


async def test_calls_that_share_a_failed_request_fail_together(
    log: SlowEnds, end: SharedEnd
) -> None:
    first = asyncio.create_task(end.read())
    answer = await log.next_request()
    log.failing = True
    others = [asyncio.create_task(end.read()) for _ in range(5)]
    await asyncio.sleep(0)
    answer.set()
    answer = await log.next_request()
    log.failing = False
    answer.set()
    found = await asyncio.gather(first, *others, return_exceptions=True)
    assert found[0] == 0
    assert [type(each) for each in found[1:]] == [LogUnavailable] * 5
    assert len(log.answers) == 2
    later = asyncio.create_task(end.read())
    (await log.next_request()).set()
    assert await later == 0


async def test_a_cancelled_caller_leaves_the_request_to_the_next_one(
    log: SlowEnds, end: SharedEnd
) -> None:
    first = asyncio.create_task(end.read())
    await log.next_request()
    second = asyncio.create_task(end.read())
    await asyncio.sleep(0)
    first.cancel()
    (await log.next_request()).set()
    assert await second == 0
    with pytest.raises(asyncio.CancelledError):
        await first
