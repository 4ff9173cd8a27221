"""The node's lease: how long it may be cut off from the log before its fenced tasks must be dead.

Attempts of a pool with `fence: kill` have a `fence_s` (`yardmaster_core.fencing` explains how it is
computed and what it assumes). The time starts when the last *heartbeat* that the log acknowledged
was sent, because the leader judges a node only by its heartbeats. It is measured on the monotonic
clock, which all processes of a machine share. When the time has expired:

- The agent ends the node's incarnation: it kills all replicas, reports nothing about them, and
  joins as a new incarnation with no running replica. The scheduler then requeues the tasks.
- An agent that is dead or stopped cannot do that. Therefore it stores each acknowledged heartbeat
  in a file (`renewals`). The runner of each fenced attempt reads the file one second after the time
  has expired, and kills the attempt if the lease was not renewed.

A heartbeat that is acknowledged after the time has expired renews nothing, because the node may be
lost already. For the same reason an attempt does not start if this incarnation was ever cut off for
as long as the attempt's fence. The node starts a new incarnation instead.
"""

import asyncio
import math
from typing import Final, NoReturn

from yardmaster_node_agent.agent_state import AgentState
from yardmaster_node_agent.renewals import Renewal, Renewals
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.waiting import happens_within

#: A gap of unknown length: after a restart of the machine, or without a stored renewal.
UNKNOWN_S: Final = 1e9


class IncarnationOver(Exception):
    """The node must start a new incarnation without running replicas."""


class Replaced(IncarnationOver):
    """Another agent has joined as this node."""


class FenceExpired(IncarnationOver):
    """The fence of a replica has expired, so the replica must be dead."""


class Lease:
    """The lease of one incarnation, renewed by each heartbeat that the log acknowledges."""

    def __init__(self, clock: Clock, renewals: Renewals, state: AgentState, boot_id: str) -> None:
        self._clock = clock
        self._renewals = renewals
        self._state = state
        self._changed = asyncio.Event()
        kept = renewals.last()
        mine = (boot_id, state.head.incarnation)
        if kept is None or (kept.boot_id, kept.incarnation) != mine:
            heard_s = clock.monotonic_s() - UNKNOWN_S
            kept = Renewal(*mine, acknowledged_s=heard_s, longest_gap_s=UNKNOWN_S)
        self._renewal = kept

    @staticmethod
    def begin(clock: Clock, renewals: Renewals, incarnation: str, boot_id: str) -> None:
        """Store the first renewal of a new incarnation, as of now.

        Until the incarnation joins, it has no tasks that a cut connection could endanger.
        """
        renewals.store(Renewal(boot_id, incarnation, clock.monotonic_s(), 0.0))

    @property
    def silent_s(self) -> float:
        """Seconds since the last acknowledged heartbeat was sent."""
        return self._clock.monotonic_s() - self._renewal.acknowledged_s

    def acknowledged(self, sent_s: float) -> None:
        """Renew the lease by a heartbeat sent at `sent_s` (monotonic seconds), acknowledged now.

        Raises:
            FenceExpired: the fence of a replica had expired before.
            NotRenewed: the renewal cannot be stored.
        """
        self.check()
        old = self._renewal
        self._renewal = Renewal(
            old.boot_id,
            old.incarnation,
            max(old.acknowledged_s, sent_s),
            max(old.longest_gap_s, self.silent_s),
        )
        self._renewals.store(self._renewal)

    def admit(self, fence_s: int) -> None:
        """Check that an attempt with a fence of `fence_s` seconds may start, and wake `watch`.

        Raises: FenceExpired: this incarnation was once cut off for at least `fence_s`.
        """
        gap_s = max(self._renewal.longest_gap_s, self.silent_s)
        if gap_s >= fence_s:
            raise FenceExpired(f"assigned a fence of {fence_s} s, was cut off for {_said(gap_s)}")
        self._changed.set()

    def check(self) -> None:
        """Check that no replica's fence has expired.

        Raises: FenceExpired: the fence of a replica has expired.
        """
        fence_s = self._shortest()
        if self.silent_s >= fence_s:
            raise FenceExpired(f"no heartbeat acknowledged for {_said(self.silent_s)}")

    async def watch(self) -> NoReturn:
        """Wait until the fence of a replica expires, however often the lease is renewed.

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
        """Return the shortest fence of the replicas that hold slots (s); infinity without any."""
        held = (r.assignment.fence_s for r in self._state.replicas.values() if r.held)
        return min((fence_s for fence_s in held if fence_s is not None), default=math.inf)


def _said(seconds: float) -> str:
    return "an unknown time" if seconds >= UNKNOWN_S else f"{seconds:.1f} s"
