"""Time as a port: no other module reads the system's clock or sleeps."""

import asyncio
import heapq
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, elapsed time, sleeping."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00Z; may jump in both directions."""

    def monotonic_s(self) -> float:
        """Seconds since an unspecified start; never decreases."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class SystemClock:
    """The operating system's clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00Z."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since the machine started."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock for tests that only `advance` moves.

    It starts at an unusual time, so that code that mixes two clocks fails at once.
    """

    def __init__(self, now_ms: int = 1_700_000_000_123) -> None:
        self._now_ms = now_ms
        self._start_ms = now_ms - 77_000
        self._sleepers: list[tuple[int, int, asyncio.Event]] = []
        self._count = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        """Seconds since 77 s before the clock was made."""
        return (self._now_ms - self._start_ms) / 1000

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved the clock by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.Event()
        self._count += 1
        heapq.heappush(self._sleepers, (self._now_ms + int(seconds * 1000), self._count, wake))
        await wake.wait()

    def advance(self, seconds: float) -> None:
        """Move the clock and wake the sleepers whose time has come."""
        self._now_ms += int(seconds * 1000)
        while self._sleepers and self._sleepers[0][0] <= self._now_ms:
            heapq.heappop(self._sleepers)[2].set()
