"""Reads of the views that a submission can do without."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from yardmaster_projections.errors import ViewsError
from yardmaster_runtime.clock import Clock

T = TypeVar("T")


async def in_time(read: Awaitable[T], clock: Clock, limit_s: float) -> T | None:
    """Return the result of `read`; None if the views fail or do not answer within `limit_s`.

    Without this limit, a submission would wait for the timeout of the views, which is longer.
    """
    found: T | None = None
    try:
        async with asyncio.TaskGroup() as group:
            timer = group.create_task(_late(clock, limit_s))
            found = await read
            timer.cancel()
    except* (ViewsError, TimeoutError):
        pass
    return found


async def _late(clock: Clock, limit_s: float) -> None:
    await clock.sleep(limit_s)
    raise TimeoutError
