"""The memory log and its clock; the rest is in tests/contract/test_event_log.py."""

import asyncio

import pytest

from yardmaster_eventlog.errors import OffsetGone
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.topics import Topic

SHORT = Topic(name="short", key="cell", writers=(), readers=(), retention_ms=60_000)
PLAIN = Topic(name="plain", key="cell", writers=(), readers=())


async def test_records_expire_by_the_clock_and_their_offsets_are_not_used_again() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    await log.create_topics([SHORT])
    at = Partition("short")
    await log.append(at, [Record(b"", b"old")] * 3)
    clock.advance(61)
    assert await log.append(at, [Record(b"", b"new")]) == 3
    assert [stored.offset for stored in await log.read(at, 3)] == [3]
    with pytest.raises(OffsetGone, match="starts at 3"):
        await log.read(at, 0)


async def test_a_wait_is_timed_by_the_clock() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    await log.create_topics([PLAIN])
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(log.wait({Partition("plain"): 0}, 3600))
        for _ in range(5):
            await asyncio.sleep(0)
        clock.advance(3599)
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.advance(1)
        assert await waiting is False


async def test_records_carry_the_clocks_time() -> None:
    clock = ManualClock(1_000_000)
    log = MemoryLog(clock)
    await log.create_topics([PLAIN])
    await log.append(Partition("plain"), [Record(b"", b"")])
    clock.advance(1.5)
    await log.append(Partition("plain"), [Record(b"", b"")])
    found = await log.read(Partition("plain"), 0)
    assert [stored.appended_ms for stored in found] == [1_000_000, 1_001_500]
