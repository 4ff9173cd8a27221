"""Limits how often one replica's progress and checkpoints are reported.

A task may report in a tight loop, and `node-events` is kept forever. So each kind of report is sent
at most once per interval; of the reports made meanwhile only the newest is sent.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn, Protocol

from yardmaster_node_agent.executors.port import FetchProgress
from yardmaster_runtime.clock import Clock

#: Seconds from one report of a pull to the next, for the first `FAST_REPORTS` reports and after.
FAST_S: Final = 5.0
SLOW_S: Final = 30.0
FAST_REPORTS: Final = 12
#: The most reports of one pull, which then has lasted for more than 8 hours.
MAX_REPORTS: Final = 1000


class PullReports:
    """Limits the reports of a pull: each is due some time after the last one.

    Nothing is reported later than it was offered. So there is no report without bytes that have
    just arrived, and a stalled pull is not mistaken for a slow one.
    """

    def __init__(self, clock: Clock, send: Callable[[FetchProgress], None]) -> None:
        self._clock = clock
        self._send = send
        self._sent = 0
        self._due_s = clock.monotonic_s()

    def offer(self, progress: FetchProgress) -> None:
        """Send the report if it is due, else drop it."""
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s or self._sent >= MAX_REPORTS:
            return
        self._sent += 1
        self._due_s = now_s + (FAST_S if self._sent < FAST_REPORTS else SLOW_S)
        self._send(progress)


class Count(Protocol):
    """The part of a counter that this module uses."""

    def inc(self) -> None:
        """Add one."""


class PacedReport:
    """Limits one kind of report of one replica; `send` must report the newest value.

    At most one report is pending. A newer report replaces it, and `coalesced` counts this. `run`
    must run, or pending reports are sent only by `flush` and `hurry`.
    """

    def __init__(
        self, clock: Clock, interval_s: float, send: Callable[[], None], coalesced: Count
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._send = send
        self._coalesced = coalesced
        self._due_s = clock.monotonic_s()
        self._pending = False
        self._changed = asyncio.Event()

    def offer(self) -> None:
        """Send the report now if the interval has passed, else at the end of the interval."""
        if self._pending:
            self._coalesced.inc()
        self._pending = True
        if self._clock.monotonic_s() >= self._due_s:
            self.flush()
        else:
            self._changed.set()

    def flush(self) -> None:
        """Send the pending report, if there is one."""
        if self._pending:
            self._pending = False
            self._due_s = self._clock.monotonic_s() + self._interval_s
            self._send()

    def hurry(self) -> None:
        """Send the pending report now, and send the next report as soon as it is offered."""
        self.flush()
        self._due_s = self._clock.monotonic_s()

    async def run(self) -> NoReturn:
        """Send each pending report when its interval has passed."""
        while True:
            while not self._pending:
                self._changed.clear()
                await self._changed.wait()
            left_s = self._due_s - self._clock.monotonic_s()
            if left_s > 0:
                await self._clock.sleep(left_s)
            elif self._pending:
                self.flush()
