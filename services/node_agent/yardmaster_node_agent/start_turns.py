"""The turns in which replicas start: a limit of starts at once, so that a node stays responsive.

The start of a process costs a fraction of a second of CPU. Hundreds of starts at once would let the
heartbeats of the agent wait for so long that the cell counts the node as lost.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import Gauge

from yardmaster_node_agent.pacing import MAX_REPORTS, SLOW_S
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.waiting import first_of


@dataclass(slots=True)
class _Queue:
    """The replicas of one kind that wait for their turn, in order, and how many have theirs."""

    free: asyncio.Semaphore
    waiting: dict[object, None] = field(default_factory=dict)
    begun: int = 0
    ended: int = 0

    def ahead_of(self, replica: object) -> int:
        """The replicas that start before this one."""
        return self.begun - self.ended + list(self.waiting).index(replica)


class StartTurns:
    """At most `limit` processes, and as many containers, start at once; the others wait in order.

    Containers have turns of their own, because their starts wait for an engine that is away.
    """

    def __init__(self, limit: int, waiting: Gauge, clock: Clock) -> None:
        """`waiting` shows how many replicas wait for their turn."""
        self._waiting = waiting
        self._clock = clock
        self._processes = _Queue(asyncio.Semaphore(limit))
        self._containers = _Queue(asyncio.Semaphore(limit))

    @asynccontextmanager
    async def turn(
        self, *, in_container: bool, report: Callable[[int], None]
    ) -> AsyncIterator[None]:
        """Wait for the turn of one replica, which lasts for the block.

        Meanwhile `report` gets the number of replicas that start before it, every `SLOW_S` seconds
        in which a start has ended: the start timeout is for a node whose starts hang, and not for
        one that has many.
        """
        queue = self._containers if in_container else self._processes
        has_turn = False

        async def wait() -> None:
            nonlocal has_turn
            await queue.free.acquire()
            has_turn = True

        try:
            replica = object()
            queue.waiting[replica] = None
            try:
                with self._waiting.track_inprogress():
                    if queue.free.locked():
                        await first_of(wait(), self._report(queue, replica, report))
                    else:
                        await wait()
            finally:
                del queue.waiting[replica]
                queue.begun += has_turn
            yield
        finally:
            if has_turn:
                queue.ended += 1
                queue.free.release()

    async def _report(self, queue: _Queue, replica: object, report: Callable[[int], None]) -> None:
        ended = queue.ended
        for _ in range(MAX_REPORTS):
            await self._clock.sleep(SLOW_S)
            if queue.ended != ended:
                ended = queue.ended
                report(queue.ahead_of(replica))
        await asyncio.Event().wait()
