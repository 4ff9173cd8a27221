"""Waiting for something or for time, whichever comes first, on the clock port."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from yardmaster_runtime.clock import Clock

T = TypeVar("T")


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when `seconds` pass first.

    Raises:
        TimeoutError: they did.
        Exception: what `work` raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work)
            timer = group.create_task(clock.sleep(seconds))
            working.add_done_callback(lambda _: timer.cancel())
            timer.add_done_callback(lambda _: working.cancel())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    if working.cancelled():
        raise TimeoutError
    return working.result()


async def happens_within(clock: Clock, seconds: float, event: asyncio.Event) -> bool:
    """Whether the event is set before `seconds` have passed."""
    try:
        await within(clock, seconds, event.wait())
    except TimeoutError:
        return event.is_set()
    return True
