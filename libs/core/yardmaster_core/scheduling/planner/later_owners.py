"""The tasks with reserved slots that come behind another task in the policy's order.

The order is fixed (`Preemption.precedence`), and a task takes over only slots of tasks with larger
places. So no two tasks take slots from each other, and each reservation that moves goes to a task
that comes earlier.
"""

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import Any

from yardmaster_core.scheduling.planner.policy import OrderKey, Policy, PoolView
from yardmaster_core.scheduling.state.shapes import Fit
from yardmaster_core.scheduling.state.tasks import Task

#: The place of a task in the order of its scope, and the task.
_Row = tuple[OrderKey, Any, Task]


class LaterOwners:
    """The owners of reserved slots of one pool, during one cycle."""

    def __init__(self, view: PoolView, policy: Policy) -> None:
        self._view = view
        self._precedence = policy.preemption.precedence
        self._changes = -1
        #: By scope, and by whether they request GPUs: the owners, in order.
        self._rows: dict[tuple[Hashable, int], list[_Row]] = {}
        #: Scope and fit -> the change count of the capacity and the number of owners behind a task
        #: that did not suffice then.
        self._insufficient: dict[tuple[Hashable, Fit], tuple[int, int]] = {}

    def of(self, task: Task) -> Sequence[Task]:
        """Return the tasks whose reserved slots `task` may take over, the last in the order first.

        A task without GPUs takes over none of tasks with GPUs, nor slots of a task that is moved.
        """
        pool = self._view.pool
        if not pool.reserved:
            return ()
        found = self._precedence(self._view, task)
        if found is None:
            return ()
        scope, place = found
        if self._changes != pool.future.changes:
            self._sort()
        behind: list[_Row] = []
        for queue_class in range(task.job.shape.queue_class + 1):
            rows = self._rows.get((scope, queue_class))
            if rows is not None and rows[-1][0] > place:
                behind += rows[bisect_right(rows, place, key=_place) :]
        behind.sort(key=_place_and_key, reverse=True)
        return [owner for *_, owner in behind]

    def known_insufficient(self, task: Task, owners: Sequence[Task]) -> bool:
        """Whether the slots of as many owners did not suffice for an equal request.

        Those behind a task are the last in the order, so fewer of them are a part of the others.
        """
        changes, number = self._insufficient.get(self._key(task), (-1, 0))
        return changes == self._view.pool.future.changes and len(owners) <= number

    def note_insufficient(self, task: Task, owners: Sequence[Task]) -> None:
        """Note that the slots of these owners do not suffice for a task."""
        self._insufficient[self._key(task)] = self._view.pool.future.changes, len(owners)

    def _key(self, task: Task) -> tuple[Hashable, Fit]:
        found = self._precedence(self._view, task)
        assert found is not None
        return found[0], task.job.shape.fit

    def _sort(self) -> None:
        pool = self._view.pool
        self._changes = pool.future.changes
        self._rows = {}
        for owner in pool.reserved:
            found = self._precedence(self._view, owner) if owner.run is None else None
            if found is not None:
                scope, place = found
                rows = self._rows.setdefault((scope, owner.job.shape.queue_class), [])
                rows.append((place, owner.key, owner))
        for rows in self._rows.values():
            rows.sort(key=_place_and_key)


_place = itemgetter(0)
_place_and_key = itemgetter(0, 1)
