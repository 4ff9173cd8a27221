"""Time as a port: no other module reads the system's clock or sleeps.

A process that appends to a log lives in the log's time: the newest append time that the log
acknowledged, plus the time elapsed since then. So a host clock that is wrong, or that is set while
the process runs, changes no time that the process writes or compares.
"""

import asyncio
import heapq
import time
from typing import Final, Protocol

#: The log's clock counts as set back if all appends during `SET_BACK_AFTER_MS` were behind by more
#: than `BEHIND_MS`. A single append may be behind because its broker's clock is slow, or because
#: its acknowledgment arrived late.
BEHIND_MS: Final = 1_000
SET_BACK_AFTER_MS: Final = 10_000
#: Only Linux has a clock that also counts while the machine is suspended.
_ELAPSED: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time, elapsed time, sleeping."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00Z; may jump in both directions."""

    def follow(self, appended_ms: int) -> int:
        """Adjust to the log's clock, which has just stamped a record with `appended_ms`.

        Returns: the milliseconds by which the host's clock is ahead of the log's.
        """

    def resume(self, reached_ms: int) -> None:
        """Continue the time of a log whose newest append was at `reached_ms`: start no earlier.

        If `reached_ms` is ahead of the host's clock, this clock passes at half speed until the
        host's clock has caught up.
        """

    def ahead_ms(self) -> int:
        """Milliseconds by which this clock is ahead of the log's clock, which was set back."""

    def monotonic_s(self) -> float:
        """Seconds since an unspecified start; never decreases."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class SystemClock:
    """The log's time after the first call of `follow`; before, the operating system's clock.

    The time never decreases once this clock follows a log. If the log has several brokers, the
    broker clock that is furthest ahead counts. If the log's clock is set back, this clock passes at
    half speed until the log's clock has caught up.
    """

    def __init__(self) -> None:
        #: The log's time when `_elapsed_ms` was 0; None without an append.
        self._start_ms: int | None = None
        #: The time when the clock began to pass at half speed, and `_elapsed_ms` at that moment.
        self._slow_from: tuple[int, int] = (0, 0)
        #: While appends are behind: `_elapsed_ms` at the first of them, and the highest
        #: `_start_ms` that one of them would give.
        self._behind: tuple[int, int] | None = None

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00Z."""
        if self._start_ms is None:
            return time.time_ns() // 1_000_000
        elapsed_ms = _elapsed_ms()
        return max(self._start_ms + elapsed_ms, self._slow_ms(elapsed_ms))

    def follow(self, appended_ms: int) -> int:
        """Follow the log's clock; return by how many milliseconds the host's clock is ahead."""
        elapsed_ms = _elapsed_ms()
        start_ms = appended_ms - elapsed_ms
        if self._start_ms is None or start_ms >= self._start_ms - BEHIND_MS:
            self._start_ms = max(start_ms, self._start_ms or start_ms)
            self._behind = None
        elif self._behind is None:
            self._behind = (elapsed_ms, start_ms)
        else:
            since_ms, highest_ms = self._behind
            self._behind = (since_ms, max(start_ms, highest_ms))
            if elapsed_ms - since_ms >= SET_BACK_AFTER_MS:
                self._set_back(self._behind[1], elapsed_ms)
        return time.time_ns() // 1_000_000 - appended_ms

    def resume(self, reached_ms: int) -> None:
        """Start at the host's time or, if later, at `reached_ms` and pass at half speed."""
        elapsed_ms = _elapsed_ms()
        host_ms = time.time_ns() // 1_000_000
        reached_ms = max(reached_ms, 0 if self._start_ms is None else self.now_ms())
        if reached_ms > host_ms:
            self._slow_from = (reached_ms, elapsed_ms)
        self._start_ms = host_ms - elapsed_ms

    def ahead_ms(self) -> int:
        """Milliseconds by which this clock is ahead of the log's clock, which was set back."""
        if self._start_ms is None:
            return 0
        elapsed_ms = _elapsed_ms()
        return max(0, self._slow_ms(elapsed_ms) - self._start_ms - elapsed_ms)

    def _set_back(self, start_ms: int, elapsed_ms: int) -> None:
        """Let this clock pass at half speed from now on, until the log's clock has caught up."""
        self._slow_from = (self.now_ms(), elapsed_ms)
        self._start_ms = start_ms
        self._behind = None

    def _slow_ms(self, elapsed_ms: int) -> int:
        """The time at `elapsed_ms` if this clock passes at half speed since `_slow_from`."""
        now_ms, since_ms = self._slow_from
        return now_ms + (elapsed_ms - since_ms) // 2

    def monotonic_s(self) -> float:
        """Seconds since the machine started."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)


def _elapsed_ms() -> int:
    """Milliseconds since the machine started, with the time for which it was suspended."""
    return time.clock_gettime_ns(_ELAPSED) // 1_000_000


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

    def follow(self, appended_ms: int) -> int:
        """Follow no log: only `advance` moves the clock."""
        return self._now_ms - appended_ms

    def resume(self, reached_ms: int) -> None:
        """Do nothing: only `advance` moves the clock."""

    def ahead_ms(self) -> int:
        """0, as `now_ms` is the log's time."""
        return 0

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
