"""The turns in which replicas start: a limit of starts at once, so that a node stays responsive.

The start of a process costs a fraction of a second of CPU. Hundreds of starts at once would let the
heartbeats of the agent wait for so long that the cell counts the node as lost.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import Gauge


class StartTurns:
    """At most `limit` processes, and as many containers, start at once; the others wait in order.

    Containers have turns of their own, because their starts wait for an engine that is away.
    """

    def __init__(self, limit: int, waiting: Gauge) -> None:
        """`waiting` shows how many replicas wait for their turn."""
        self._waiting = waiting
        self._processes = asyncio.Semaphore(limit)
        self._containers = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def turn(self, *, in_container: bool) -> AsyncIterator[None]:
        """Wait for the turn of one replica, which lasts for the block."""
        turns = self._containers if in_container else self._processes
        with self._waiting.track_inprogress():
            await turns.acquire()
        try:
            yield
        finally:
            turns.release()
