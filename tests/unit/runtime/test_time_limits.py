"""Waiting for something or for time."""

import asyncio

import pytest

from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.waiting import happens_within, within


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def fail() -> int:
    raise KeyError("the work's own")


async def run_ready_tasks() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_work_that_ends_in_time_returns_its_result() -> None:
    assert await within(ManualClock(), 5, answer()) == 42


async def test_work_that_fails_raises_its_own_error() -> None:
    with pytest.raises(KeyError, match="own"):
        await within(ManualClock(), 5, fail())


async def test_work_that_takes_longer_is_cancelled() -> None:
    clock = ManualClock()
    cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def too_long() -> None:
        with pytest.raises(TimeoutError):
            await within(clock, 5, forever())

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(too_long())
        await run_ready_tasks()
        clock.advance(4.9)
        await run_ready_tasks()
        assert not waiting.done()
        clock.advance(0.2)
    assert cancelled.is_set()


async def test_an_event_is_awaited_for_a_limited_time() -> None:
    clock, event = ManualClock(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        late = group.create_task(happens_within(clock, 1, event))
        await run_ready_tasks()
        clock.advance(2)
        assert not await late
    event.set()
    assert await happens_within(clock, 1, event)
