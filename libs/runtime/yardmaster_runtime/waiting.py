"""Runs several coroutines as one, or one with a time limit; every task has an owner.

A plain TaskGroup raises a group of one error for one failure. When its caller is cancelled while a
task fails, it raises the failure and loses the cancellation. Here failures are kept until all tasks
have ended, so a cancellation of the caller is never lost.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from yardmaster_runtime.clock import Clock

T = TypeVar("T")
Work = Coroutine[Any, Any, object]


async def together(*work: Work) -> None:
    """Run all until all have ended; the first failure cancels the others and is raised."""
    await _run(work, first=False)


async def first_of(*work: Work) -> None:
    """Run all until one has ended, then cancel the others; a failure is raised."""
    await _run(work, first=True)


async def _run(work: tuple[Work, ...], *, first: bool) -> None:
    """Run all until all have ended; with `first`, cancel the others when one has ended.

    Raises: the only failure, or a group of several.
    """
    failures: list[Exception] = []
    tasks: list[asyncio.Task[None]] = []

    async def watched(one: Work) -> None:
        try:
            await one
        except Exception as error:  # noqa: BLE001 raised below, when all have ended
            failures.append(_alone(error))
        if first or failures:
            for task in tasks:
                if task is not asyncio.current_task():
                    task.cancel()

    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(watched(one)) for one in work]
    finally:
        # Python warns that a coroutine that was cancelled before it started was never awaited.
        for one in work:
            one.close()
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup("several failed at once", failures)


def _alone(error: Exception) -> Exception:
    """Unwrap a group of one error, as a nested TaskGroup raises it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it after `seconds`.

    Raises:
        TimeoutError: `work` took longer.
        Exception: the error of `work`.
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
    """Wait for the event; False when `seconds` passed first."""
    try:
        await within(clock, seconds, event.wait())
    except TimeoutError:
        return event.is_set()
    return True
