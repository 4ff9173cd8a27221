"""Elections: which candidate should lead. Only the terms in the log decide which cycles count."""

import asyncio
from typing import Protocol

from yardmaster_eventlog.membership import Membership
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.waiting import first_of


class Election(Protocol):
    """One candidate's view of an election; `tests/contract/test_election.py` holds its promises."""

    async def won(self) -> None:
        """Wait until this candidate should lead."""

    async def lost(self) -> None:
        """Wait until this candidate should no longer lead."""

    def on_fenced(self) -> None:
        """Another leader was seen: do not win again without a new decision of the election."""

    def on_restore(self) -> None:
        """The candidate starts a restore; another one may lead meanwhile."""

    def withdraw(self) -> None:
        """The candidate's machine has stopped: this candidate never leads again."""


class SoleCandidate:
    """The election of a cell with one candidate, which leads at once.

    Only another process on the same log can fence it. A fenced candidate stays standby until its
    process restarts, because otherwise the two would take the cell from each other for ever.
    """

    def __init__(self) -> None:
        self._may_lead = asyncio.Event()
        self._may_lead.set()

    async def won(self) -> None:
        """Return at once, or never after `on_fenced` or `withdraw`."""
        await self._may_lead.wait()

    async def lost(self) -> None:
        """Never return."""
        await asyncio.Event().wait()

    def on_fenced(self) -> None:
        """Stay standby."""
        self._may_lead.clear()

    def on_restore(self) -> None:
        """Do nothing: there is no other candidate."""

    def withdraw(self) -> None:
        """Stay standby."""
        self._may_lead.clear()


class GroupElection:
    """The election of one cell in a consumer group: the owner of the cell's partition leads.

    A candidate offers to lead once it is a standby, so the group assigns no cell to a replica that
    still has to restore its state.

    A fenced candidate wins again after the group's next assignment, or after `pause_s` if the group
    confirms that it still owns the partition. So two replicas that both believe to own the cell do
    not take it from each other for ever: the group does not confirm the one that it removed. And a
    cell does not stay without a leader when the replica that took it over is gone.
    """

    def __init__(
        self, membership: Membership, partition: int, clock: Clock, *, pause_s: float
    ) -> None:
        self._membership = membership
        self._partition = partition
        self._clock = clock
        self._pause_s = pause_s
        #: Number of the assignment under which this candidate was fenced.
        self._fenced_under = 0

    async def won(self) -> None:
        """Wait until the group assigns the partition to this member."""
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
        """Wait until the group assigns the partition to another member."""
        assigned = self._membership.assigned
        while self._partition in assigned.partitions:
            assigned = await self._membership.changed(assigned)

    def on_fenced(self) -> None:
        """Do not trust the current assignment without a confirmation."""
        self._fenced_under = self._membership.assigned.number

    def on_restore(self) -> None:
        """Offer the partition to other members, and do not trust the current assignment."""
        self.on_fenced()
        self._membership.withdraw(self._partition)

    def withdraw(self) -> None:
        """Offer the partition to other members."""
        self._membership.withdraw(self._partition)


class ManualElection:
    """An election that a test or an operator's tool decides."""

    def __init__(self) -> None:
        self._leads = asyncio.Event()
        self._lost = asyncio.Event()
        self._lost.set()

    def elect(self) -> None:
        """Let the candidate lead."""
        self._lost.clear()
        self._leads.set()

    def depose(self) -> None:
        """End the candidate's leadership."""
        self._leads.clear()
        self._lost.set()

    async def won(self) -> None:
        """Wait for `elect`."""
        await self._leads.wait()

    async def lost(self) -> None:
        """Wait for `depose`."""
        await self._lost.wait()

    def on_fenced(self) -> None:
        """Like `depose`."""
        self.depose()

    def on_restore(self) -> None:
        """Do nothing: the candidate stays elected until `depose`."""

    def withdraw(self) -> None:
        """Like `depose`."""
        self.depose()
