"""`EventLog.wait` for every adapter: which records wake a call, and the timeout.

The end of a partition only grows, and a call waits at an offset up to which its caller has read. So
an end that is read from the log after the call has begun cannot be before that offset, unless the
log lost records: `see` accepts only such ends, and reports a loss.

An end that was read before the call began may be older than the records that the caller has read
since, because another thread or handle has committed in between. For example, an acknowledgment may
arrive after its record and the next one were read. `wake` accepts such ends, from which no loss can
be concluded.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from yardmaster_eventlog.errors import LogError, LogTruncated
from yardmaster_eventlog.port import Clock, Partition
from yardmaster_eventlog.seen import is_kept


class Waiter:
    """One call of `EventLog.wait`: it wakes when one of its partitions grows past a given end."""

    __slots__ = ("_ends", "_wake", "error", "grown")

    def __init__(self, ends: Mapping[Partition, int]) -> None:
        self._ends: Final = dict(ends)
        self._wake: Final = asyncio.Event()
        self.grown = False
        self.error: LogError | None = None

    def wake(self, partition: Partition, end: int) -> None:
        """Wake the call if `end`, which may be out of date, is beyond the offset it waits for."""
        if end > self._ends.get(partition, end):
            self.grown = True
            self._wake.set()

    def see(self, partition: Partition, end: int) -> None:
        """Wake the call if the partition has grown; fail it if a partition that is kept is shorter.

        `end`: read from the log after this call had begun.
        """
        self.wake(partition, end)
        if end < (awaited := self._ends.get(partition, end)):
            if not is_kept(partition):
                self.grown = True
                self._wake.set()  # its reader continues at the end
                return
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
