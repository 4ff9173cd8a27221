"""Observations of the shell that no lasting topic records; they wait for the next cycle."""

import asyncio
from collections import deque
from collections.abc import Sequence

from yardmaster_core.machine import Decision
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics


class Observations:
    """A bounded queue; an observation leaves it when a counted cycle has recorded it.

    An observer repeats an observation while it holds, so nothing is lost when an observation is
    dropped, or when a leader fails before it recorded one.
    """

    def __init__(self, limit: int, metrics: RuntimeMetrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self._waiting: deque[Decision] = deque()
        #: Set while an urgent observation waits, which starts a cycle.
        self.urgent = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, observed: Decision, *, urgent: bool = True) -> bool:
        """Enqueue an observation; False when the queue is full or contains it already.

        One that is not urgent waits for a cycle that another event starts.
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
        """Return the oldest `limit` observations; they stay queued until `recorded`."""
        return tuple(self._waiting)[:limit]

    def recorded(self, count: int) -> None:
        """Remove the oldest `count`: a counted cycle has recorded them."""
        for _ in range(count):
            self._waiting.popleft()
        self._metrics.observations_waiting.set(len(self._waiting))
        if not self._waiting:
            self.urgent.clear()

    def clear(self) -> None:
        """Remove all: a new leader makes its own observations."""
        self._waiting.clear()
        self._metrics.observations_waiting.set(0)
        self.urgent.clear()
