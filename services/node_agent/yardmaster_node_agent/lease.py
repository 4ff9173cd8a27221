"""How long this node may be cut off before what it runs under a fence has to be dead.

Attempts of a pool with `fence: kill` carry a `fence_s` (`yardmaster_core.fencing` says how it comes
about and what it rests on). It counts from the sending of the last *heartbeat* that the log
acknowledged, since heartbeats are all that the leader judges a node by; it is the clock's elapsed
time, which all processes of a machine share. When it has run out

- the agent ends the node's incarnation: everything here is killed, nothing of it is reported, and
  the node joins anew with nothing running, which requeues what it held;
- an agent that is dead or stopped cannot do that. So each heartbeat is noted in a file (`Renewal`)
  which the runner of each such attempt looks at when its own time is up, a second later.

A heartbeat that is acknowledged after the time has run out renews nothing: the node may be lost
already. The same for an attempt that is taken over: in an incarnation that was ever cut off for as
long as the attempt's fence, nothing under that fence starts. The node begins anew instead.
"""

import asyncio
import math
from typing import Final, NoReturn

from yardmaster_node_agent.agent_state import AgentState
from yardmaster_node_agent.executors.port import Executor, Renewal
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.waiting import happens_within

#: Stands for "nobody knows how long": after a restart of the machine, or without the note.
UNKNOWN_S: Final = 1e9


class IncarnationOver(Exception):
    """The node has to begin anew, with nothing running."""


class FenceExpired(IncarnationOver):
    """What runs under a fence has to be dead by now."""


class Lease:
    """What one incarnation of the node holds of the log's word that it was heard."""

    def __init__(self, clock: Clock, executor: Executor, state: AgentState, boot_id: str) -> None:
        self._clock = clock
        self._executor = executor
        self._state = state
        self._changed = asyncio.Event()
        kept = executor.renewal()
        mine = (boot_id, state.head.incarnation)
        if kept is None or (kept.boot_id, kept.incarnation) != mine:
            heard_s = clock.monotonic_s() - UNKNOWN_S
            kept = Renewal(*mine, acknowledged_s=heard_s, longest_gap_s=UNKNOWN_S)
        self._renewal = kept

    @staticmethod
    def begin(clock: Clock, executor: Executor, incarnation: str, boot_id: str) -> None:
        """A new incarnation: nobody can have missed it before its join is sent."""
        executor.renew(Renewal(boot_id, incarnation, clock.monotonic_s(), 0.0))

    @property
    def silent_s(self) -> float:
        """Since the sending of the last heartbeat that was acknowledged."""
        return self._clock.monotonic_s() - self._renewal.acknowledged_s

    def acknowledged(self, sent_s: float) -> None:
        """A heartbeat sent then (the clock's monotonic seconds) was acknowledged just now.

        Raises: FenceExpired: too late for what runs here.
        """
        self.check()
        old = self._renewal
        self._renewal = Renewal(
            old.boot_id,
            old.incarnation,
            max(old.acknowledged_s, sent_s),
            max(old.longest_gap_s, self.silent_s),
        )
        self._executor.renew(self._renewal)

    def take(self, fence_s: int) -> None:
        """An attempt under this fence is about to be taken over.

        Raises: FenceExpired: this incarnation was cut off for that long.
        """
        gap_s = max(self._renewal.longest_gap_s, self.silent_s)
        if gap_s >= fence_s:
            raise FenceExpired(f"assigned a fence of {fence_s} s, was cut off for {_said(gap_s)}")
        self._changed.set()

    def check(self) -> None:
        """Raises: FenceExpired: what is held here has to be dead."""
        fence_s = self._shortest()
        if self.silent_s >= fence_s:
            raise FenceExpired(f"no heartbeat acknowledged for {_said(self.silent_s)}")

    async def watch(self) -> NoReturn:
        """Wait for the end of the time, for ever if it is renewed.

        Raises: FenceExpired.
        """
        while True:
            self._changed.clear()
            self.check()
            left_s = self._shortest() - self.silent_s
            if math.isinf(left_s):
                await self._changed.wait()
            else:
                await happens_within(self._clock, left_s, self._changed)

    def _shortest(self) -> float:
        """The shortest fence of what is held, in seconds; infinity when there is none."""
        held = (r.assignment.fence_s for r in self._state.replicas.values() if r.held)
        return min((fence_s for fence_s in held if fence_s is not None), default=math.inf)


def _said(seconds: float) -> str:
    return "nobody knows how long" if seconds >= UNKNOWN_S else f"{seconds:.1f} s"
