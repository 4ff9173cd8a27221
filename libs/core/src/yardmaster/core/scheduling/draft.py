"""A cycle being decided: events are applied to the state as they are recorded, and taken back at
the end.

So every step of a decision sees what the steps before it did, nothing is copied, and `decide` still
leaves the state as it found it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from yardmaster.core.machine import Decision
from yardmaster.core.scheduling.apply import apply
from yardmaster.core.scheduling.entities import Pool
from yardmaster.core.scheduling.state import ClusterState
from yardmaster.schemas.envelope import Event


class Full(Exception):
    """The cycle holds as many decisions as it may; what is left is decided in the next."""


class Draft:
    """The decisions of a cycle so far; use as a context manager, which takes all of them back."""

    def __init__(self, state: ClusterState, limit: int) -> None:
        self.state = state
        self.limit = limit
        self.decisions: list[Decision] = []
        self._before: list[tuple[Pool, bool, bool, bool]] = []

    def __enter__(self) -> "Draft":
        if self.state.journal is not None:
            raise RuntimeError("a draft is open on this state already")
        self.state.journal = []
        for pool in self.state.pools.values():
            pool.news.clear()
        # Not journaled, since a pass clears it: it is as it was for whoever applies the decisions.
        self._before = [
            (pool, pool.recheck, pool.reshare, pool.reshare_next)
            for pool in self.state.pools.values()
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self.state.undo()
        self.state.journal = None
        for pool, recheck, reshare, reshare_next in self._before:
            pool.news.clear()
            pool.recheck = recheck
            pool.reshare = reshare
            pool.reshare_next = reshare_next

    def room_for(self, decisions: int) -> None:
        """Make sure that so many decisions that belong together still fit.

        Raises:
            Full: they do not (and they are not the first of the cycle).
        """
        wanted = len(self.decisions) + decisions
        if self.decisions and wanted > self.limit:
            raise Full
        self.limit = max(self.limit, wanted)

    def record(self, event: Event, subject: str, cause: str | None) -> None:
        """Decide `event` about `subject`, following from the record `cause`.

        Raises:
            Full: the cycle may hold no more.
        """
        self.room_for(1)
        apply(self.state, event)
        self.decisions.append(Decision(event, subject, cause))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Whatever is changed inside is taken back at the end."""
        journal = self.state.journal
        assert journal is not None
        mark = len(journal)
        try:
            yield
        finally:
            self.state.undo(mark)
