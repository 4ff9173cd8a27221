"""`EventLog.wait` for every adapter: which records wake a call, and the timeout."""

import asyncio
from collections.abc import Mapping
from typing import Final

from yardmaster_eventlog.errors import LogError, LogTruncated
from yardmaster_eventlog.port import Clock, Partition


class Waiter:
    """One call of `EventLog.wait`: it wakes when one of its partitions grows past a given end."""

    __slots__ = ("_ends", "_wake", "error", "grown")

    def __init__(self, ends: Mapping[Partition, int]) -> None:
        self._ends: Final = dict(ends)
        self._wake: Final = asyncio.Event()
        self.grown = False
        self.error: LogError | None = None

    def is_news(self, partition: Partition, end: int) -> bool:
        """Tell whether `end` is beyond the end that the call waits for."""
        return self._ends.get(partition, end) < end

    def see(self, partition: Partition, end: int) -> None:
        """Wake the call if `end` is beyond the end that it waits for.

        An end before it means that the log lost records, because the caller has read that far.
        """
        if self.is_news(partition, end):
            self.grown = True
            self._wake.set()
        elif end < (awaited := self._ends.get(partition, end)):
            found = f"{partition} ends at {end}, but was read to {awaited}"
            self.fail(LogTruncated(found=found, topic=partition.topic))

    def fail(self, error: LogError) -> None:
        """Wake the call, which then raises `error`."""
        self.error = error
        self._wake.set()

    async def woken(self, clock: Clock, timeout_s: float) -> bool:
        """Wait until a partition has grown; return False after `timeout_s` seconds of the clock.

        Raises: the error given to `fail`.
        """
        if timeout_s > 0 and not self._wake.is_set():
            async with asyncio.TaskGroup() as group:
                alarm = group.create_task(self._wake_after(clock, timeout_s))
                await self._wake.wait()
                alarm.cancel()
        if self.error is not None:
            raise self.error
        return self.grown

    async def _wake_after(self, clock: Clock, timeout_s: float) -> None:
        await clock.sleep(timeout_s)
        self._wake.set()
