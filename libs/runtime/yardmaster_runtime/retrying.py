"""A log that retries: LogUnavailable means that nothing was written, so a retry is safe.

An append of unknown outcome is not retried, because it may still be written.
"""

from collections.abc import Awaitable, Callable

from prometheus_client import Counter

from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.forwarding import ForwardingLog, T
from yardmaster_eventlog.port import EventLog
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.settings import RetryLimits


class RetryingLog(ForwardingLog):
    """Retries the calls of another log with back-off while that log is unavailable."""

    def __init__(self, log: EventLog, clock: Clock, limits: RetryLimits, retries: Counter) -> None:
        super().__init__(log)
        self._clock = clock
        self._limits = limits
        self._retries = retries

    async def _forward(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call; repeat it with back-off while the log is unavailable, up to the limit."""
        backoff = self._limits.backoff()
        tries = 0
        while True:
            tries += 1
            try:
                return await call()
            except LogUnavailable:
                if tries == self._limits.attempts:
                    raise
                self._retries.inc()
                await self._clock.sleep(backoff.next_s())

    async def close(self) -> None:
        """Do nothing: the owner of the inner log closes it."""
