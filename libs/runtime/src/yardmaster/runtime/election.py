"""Who should lead: a seam, for convenience only. That no two count is in the log's terms."""

import asyncio
from typing import Protocol


class Election(Protocol):
    """One candidate's view of an election."""

    async def won(self) -> None:
        """Wait until this candidate should lead."""

    async def lost(self) -> None:
        """Wait until it should lead no longer."""

    def step_back(self) -> None:
        """Another leader was seen: do not win again by oneself."""


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
