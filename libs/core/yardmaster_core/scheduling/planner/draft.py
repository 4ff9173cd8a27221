"""The draft of a cycle's decisions.

Each decision is applied to the state when it is recorded, so every later step sees it and nothing
is copied. At the end of the draft all decisions are rolled back, unless the draft keeps them: so
`decide` leaves the state unchanged. Trials, reservations and the planner's own bookkeeping are
rolled back in any case: a kept draft differs from the initial state only by the effects of its
decisions.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from yardmaster_core.machine import Decision
from yardmaster_core.scheduling.state.apply import apply
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.journal import Undo
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_schemas.envelope import Event


class CycleFull(Exception):
    """The cycle holds as many decisions as allowed; the rest is decided in the next cycle."""


class Draft:
    """The decisions of a cycle so far.

    Use it as a context manager. At its end all decisions are rolled back, unless `keep` is true.
    `limit` is the number of decisions allowed.
    """

    def __init__(self, state: ClusterState, limit: int, *, keep: bool = False) -> None:
        self.state = state
        self.limit = limit
        self.decisions: list[Decision] = []
        #: Calls that roll back trials, oldest first.
        self.undo_log: list[Undo] = []
        self._keep = keep
        self._before: list[tuple[Pool, bool, Mapping[str, Any]]] = []
        self._recheck_taken: list[Pool] = []

    def __enter__(self) -> "Draft":
        state = self.state
        if state.journal.unpruned is not None:
            raise RuntimeError("a draft is open on this state already")
        state.journal.unpruned = {}
        for pool in state.pools.values():
            pool.woken.clear()
        if not self._keep:
            state.journal.changes = []
            # Not in the journal, because inputs set these too.
            self._before = [
                (pool, pool.recheck, pool.index.dump()) for pool in state.pools.values()
            ]
        return self

    def __exit__(self, *_: object) -> None:
        state = self.state
        self.roll_back()
        state.journal.undo()
        unpruned, state.journal.unpruned = state.journal.unpruned, None
        if self._keep:
            for queue in unpruned or ():
                queue.prune()
            for pool in self._recheck_taken:
                pool.recheck = True
        for pool, recheck, dump in self._before:
            pool.recheck = recheck
            pool.index.load(dump)
        for pool in state.pools.values():
            pool.woken.clear()
            pool.reconsidered.clear()

    def require(self, decisions: int) -> None:
        """Check that `decisions` decisions, which belong together, still fit.

        Raises:
            CycleFull: they do not fit, and they are not the first of the cycle.
        """
        wanted = len(self.decisions) + decisions
        if self.decisions and wanted > self.limit:
            raise CycleFull
        self.limit = max(self.limit, wanted)

    def record(self, event: Event, subject: str, cause: str | None) -> None:
        """Record and apply the decision `event` about `subject`, caused by the record `cause`.

        Raises:
            CycleFull: the cycle holds as many decisions as allowed.
        """
        self.require(1)
        apply(self.state, event)
        self.decisions.append(Decision(event, subject, cause))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """A context whose changes are rolled back at its end."""
        mark = len(self.undo_log)
        try:
            yield
        finally:
            self.roll_back(mark)

    def roll_back(self, mark: int = 0) -> None:
        """Roll back all trials after `mark`."""
        undo_log = self.undo_log
        while len(undo_log) > mark:
            function, arguments = undo_log.pop()
            function(*arguments)

    def take_recheck(self, pool: Pool) -> bool:
        """Whether all groups that wait for capacity in a pool are due to be reconsidered.

        Clears the flag for the rest of the cycle.
        """
        due, pool.recheck = pool.recheck, False
        if due:
            self._recheck_taken.append(pool)
        return due
