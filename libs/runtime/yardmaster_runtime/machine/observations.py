"""What the shell observed and no lasting topic holds: it waits here for the next cycle."""

import asyncio
from collections import deque
from collections.abc import Sequence

from yardmaster_core.machine import Decision
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics


class Observations:
    """A bounded queue; what a cycle recorded is let go of once the cycle counts.

    Whoever observes says so again while it still holds, so what is dropped, or was not recorded
    when a leader fell, is not lost.
    """

    def __init__(self, limit: int, metrics: RuntimeMetrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self._waiting: deque[Decision] = deque()
        #: Set while something waits that calls for a cycle by itself.
        self.urgent = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, observed: Decision, *, urgent: bool = True) -> bool:
        """Have something recorded; False when the queue is full or holds it already.

        What is not urgent waits for a cycle that comes anyway.
        """
        if observed in self._waiting:
            return False
        if len(self._waiting) >= self._limit:
            self._metrics.observations_dropped.inc()
            return False
        self._waiting.append(observed)
        self._metrics.observations_waiting.set(len(self._waiting))
        if urgent:
            self.urgent.set()
        return True

    def first(self, limit: int) -> Sequence[Decision]:
        """The oldest that wait, at most `limit`; they stay until `recorded`."""
        return tuple(self._waiting)[:limit]

    def recorded(self, count: int) -> None:
        """The oldest `count` are in a cycle that counts."""
        for _ in range(count):
            self._waiting.popleft()
        self._metrics.observations_waiting.set(len(self._waiting))
        if not self._waiting:
            self.urgent.clear()

    def clear(self) -> None:
        """Forget all: a new leader observes for itself."""
        self._waiting.clear()
        self._metrics.observations_waiting.set(0)
        self.urgent.clear()
