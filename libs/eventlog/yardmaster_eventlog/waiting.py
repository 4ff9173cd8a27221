"""Waiting for a record, alike in every log: what is waited for, and waking up in time."""

import asyncio
from collections.abc import Mapping
from typing import Final

from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.port import Clock, Partition


class Waiter:
    """One call of `EventLog.wait`: it wakes when one of its partitions grows past what it knows."""

    __slots__ = ("_ends", "_wake", "error", "grown")

    def __init__(self, ends: Mapping[Partition, int]) -> None:
        self._ends: Final = dict(ends)
        self._wake: Final = asyncio.Event()
        self.grown = False
        self.error: LogError | None = None

    def waits_below(self, partition: Partition, end: int) -> bool:
        """Whether `end` is news; may be asked from any thread."""
        return self._ends.get(partition, end) < end

    def see(self, partition: Partition, end: int) -> None:
        """Wake if `end` is news."""
        if self.waits_below(partition, end):
            self.grown = True
            self._wake.set()

    def fail(self, error: LogError) -> None:
        """Wake, and end with an error."""
        self.error = error
        self._wake.set()

    async def woken(self, clock: Clock, timeout_s: float) -> bool:
        """Whether a partition has grown; False after `timeout_s` seconds of the clock without.

        Raises: what it was told to fail with.
        """
        if timeout_s > 0 and not self._wake.is_set():
            async with asyncio.TaskGroup() as group:
                alarm = group.create_task(self._ring(clock, timeout_s))
                await self._wake.wait()
                alarm.cancel()
        if self.error is not None:
            raise self.error
        return self.grown

    async def _ring(self, clock: Clock, timeout_s: float) -> None:
        await clock.sleep(timeout_s)
        self._wake.set()
