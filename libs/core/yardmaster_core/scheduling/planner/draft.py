"""A cycle being decided: events are applied to the state as they are recorded, and taken back at
the end, unless they are to be kept.

So every step of a decision sees what the steps before it did, nothing is copied, and `decide` still
leaves the state as it found it. What a step only tries, or sets aside for the rest of the cycle, is
taken back in any case, and so is that the planner has looked: of a draft that is kept there is left
what the appliers of its decisions leave.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from yardmaster_core.machine import Decision
from yardmaster_core.scheduling.state.apply import apply
from yardmaster_core.scheduling.state.cluster import ClusterState, Undo
from yardmaster_core.scheduling.state.entities import Pool
from yardmaster_schemas.envelope import Event


class CycleFull(Exception):
    """The cycle holds as many decisions as it may; what is left is decided in the next."""


class Draft:
    """The decisions of a cycle so far; use as a context manager, which takes all of them back
    unless it is told to `keep` them.
    """

    def __init__(self, state: ClusterState, limit: int, *, keep: bool = False) -> None:
        self.state = state
        self.limit = limit
        self.decisions: list[Decision] = []
        #: How to take back what was only undo_log.
        self.undo_log: list[Undo] = []
        self._keep = keep
        self._before: list[tuple[Pool, bool, bool, bool]] = []
        self._recheck_taken: list[Pool] = []
        self._reshare_cleared: list[Pool] = []

    def __enter__(self) -> "Draft":
        state = self.state
        if state.unpruned is not None:
            raise RuntimeError("a draft is open on this state already")
        state.unpruned = {}
        for pool in state.pools.values():
            pool.woken.clear()
        if not self._keep:
            state.journal = []
            # Not journaled, since inputs set it too.
            self._before = [
                (pool, pool.recheck, pool.reshare, pool.reshare_next)
                for pool in state.pools.values()
            ]
        return self

    def __exit__(self, *_: object) -> None:
        state = self.state
        self.roll_back()
        state.undo()
        left, state.unpruned = state.unpruned, None
        if self._keep:
            for line in left or ():
                line.prune()
            for pool in self._recheck_taken:
                pool.recheck = True
            for pool in self._reshare_cleared:
                pool.reshare = True
        for pool, recheck, reshare, reshare_next in self._before:
            pool.recheck = recheck
            pool.reshare = reshare
            pool.reshare_next = reshare_next
        for pool in state.pools.values():
            pool.woken.clear()
            pool.reconsidered.clear()

    def require(self, decisions: int) -> None:
        """Make sure that so many decisions that belong together still fit.

        Raises:
            CycleFull: they do not (and they are not the first of the cycle).
        """
        wanted = len(self.decisions) + decisions
        if self.decisions and wanted > self.limit:
            raise CycleFull
        self.limit = max(self.limit, wanted)

    def record(self, event: Event, subject: str, cause: str | None) -> None:
        """Decide `event` about `subject`, following from the record `cause`.

        Raises:
            CycleFull: the cycle may hold no more.
        """
        self.require(1)
        apply(self.state, event)
        self.decisions.append(Decision(event, subject, cause))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Whatever is changed inside is taken back at the end."""
        mark = len(self.undo_log)
        try:
            yield
        finally:
            self.roll_back(mark)

    def roll_back(self, mark: int = 0) -> None:
        """Take back all that was undo_log after `mark`."""
        undo_log = self.undo_log
        while len(undo_log) > mark:
            function, arguments = undo_log.pop()
            function(*arguments)

    def take_recheck(self, pool: Pool) -> bool:
        """Whether all who wait for room in a pool are to be asked again, which asking settles for
        the rest of the cycle.
        """
        due, pool.recheck = pool.recheck, False
        if due:
            self._recheck_taken.append(pool)
        return due

    def clear_reshare(self, pool: Pool) -> None:
        """What a pool's shares rest on is looked at, which is enough for the rest of the cycle."""
        if pool.reshare:
            pool.reshare = False
            self._reshare_cleared.append(pool)
