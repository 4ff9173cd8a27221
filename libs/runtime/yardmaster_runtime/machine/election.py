"""Who should lead: a seam, for convenience only. That no two count is in the log's terms."""

import asyncio
from typing import Protocol

from yardmaster_eventlog.membership import Membership
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.waiting import first_of


class Election(Protocol):
    """One candidate's view of an election."""

    async def won(self) -> None:
        """Wait until this candidate should lead."""

    async def lost(self) -> None:
        """Wait until it should lead no longer."""

    def step_back(self) -> None:
        """Another leader was seen: do not win again by oneself."""

    def rest(self) -> None:
        """The candidate restores anew: another may lead meanwhile; `won` stands again."""

    def withdraw(self) -> None:
        """The candidate's machine has stopped: it can lead no more."""


class SoleCandidate:
    """The election of a cell with one candidate: it leads at once.

    Only another process on the same log can fence it; then it stays standby until it is started
    anew, lest the two take the cell from each other for ever.
    """

    def __init__(self) -> None:
        self._may_lead = asyncio.Event()
        self._may_lead.set()

    async def won(self) -> None:
        """At once; never after it was fenced."""
        await self._may_lead.wait()

    async def lost(self) -> None:
        """Never."""
        await asyncio.Event().wait()

    def step_back(self) -> None:
        """Stay standby."""
        self._may_lead.clear()

    def rest(self) -> None:
        """There is no other."""

    def withdraw(self) -> None:
        """Stay standby."""
        self._may_lead.clear()


class GroupElection:
    """The election of one cell among the members of a group: who has the cell's partition leads.

    A candidate offers to lead as soon as it stands by, so no replica is given a cell whose state it
    has yet to restore.

    One that was fenced wins again when the group has spoken anew, or else after `pause_s` if the
    group then confirms that the partition is still its. So two of which each believes that it has
    the cell do not take it from each other for ever: the one that the group knows nothing of gets
    no answer. And a cell is not left without a leader when the one that took it over is gone.
    """

    def __init__(
        self, membership: Membership, partition: int, clock: Clock, *, pause_s: float
    ) -> None:
        self._membership = membership
        self._partition = partition
        self._clock = clock
        self._pause_s = pause_s
        #: The assignment that stood when another leader was seen.
        self._fenced_under = 0

    async def won(self) -> None:
        """Wait until the group gives the partition to this member."""
        self._membership.offer(self._partition)
        while True:
            assigned = self._membership.assigned
            if self._partition not in assigned.partitions:
                await self._membership.changed(assigned)
            elif assigned.number != self._fenced_under:
                return
            else:
                changed = self._membership.changed(assigned)
                await first_of(changed, self._clock.sleep(self._pause_s))
                if await self._membership.confirmed(self._partition):
                    self._fenced_under = 0

    async def lost(self) -> None:
        """Wait until the group has given the partition to another."""
        assigned = self._membership.assigned
        while self._partition in assigned.partitions:
            assigned = await self._membership.changed(assigned)

    def step_back(self) -> None:
        """Another leader was seen: what the group said before is not believed without asking."""
        self._fenced_under = self._membership.assigned.number

    def rest(self) -> None:
        """Let another member have the partition; what the group said before stands no more."""
        self.step_back()
        self._membership.withdraw(self._partition)

    def withdraw(self) -> None:
        """Let another member have the partition."""
        self._membership.withdraw(self._partition)


class ManualElection:
    """An election that a test, or an operator's tool, decides."""

    def __init__(self) -> None:
        self._leads = asyncio.Event()
        self._lost = asyncio.Event()
        self._lost.set()

    def elect(self) -> None:
        """Let the candidate lead."""
        self._lost.clear()
        self._leads.set()

    def depose(self) -> None:
        """Take leadership away."""
        self._leads.clear()
        self._lost.set()

    async def won(self) -> None:
        """Wait for `elect`."""
        await self._leads.wait()

    async def lost(self) -> None:
        """Wait for `depose`."""
        await self._lost.wait()

    def step_back(self) -> None:
        """As if deposed."""
        self.depose()

    def rest(self) -> None:
        """It is elected until it is deposed."""

    def withdraw(self) -> None:
        """As if deposed."""
        self.depose()
