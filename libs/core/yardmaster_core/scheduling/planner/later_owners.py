"""The tasks with reserved slots that come behind another task in the policy's order.

The order is fixed (`Preemption.precedence`), and a task takes over only slots of tasks with larger
places. So no two tasks take slots from each other, and each reservation that moves goes to a task
that comes earlier.
"""

from bisect import bisect_right, insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any

from yardmaster_core.scheduling.planner.policy import OrderKey, Policy, PoolView
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.shapes import Fit
from yardmaster_core.scheduling.state.tasks import Group, Task

#: The place of a task in the order of its scope, and the task.
_Row = tuple[OrderKey, Any, Task]


class LaterOwners:
    """The owners of reserved slots of one pool, during one cycle."""

    def __init__(self, view: PoolView, policy: Policy) -> None:
        self._view = view
        self._precedence = policy.preemption.precedence
        self._within_project = policy.preemption.within_project
        #: By scope, and by whether they request GPUs: the owners, in order. Those that lost their
        #: reservations in this cycle may still be there.
        self._rows: dict[tuple[Hashable, int], list[_Row]] = {}
        #: The projects whose owners are in `_rows`; None: those of all projects are.
        self._sorted: set[Project | None] = set()
        self._known: set[Task] = set()
        #: Scope and fit -> the change count of the capacity and the number of owners behind a task
        #: that did not suffice then.
        self._insufficient: dict[tuple[Hashable, Fit], tuple[int, int]] = {}

    def of(self, task: Task) -> "OwnersBehind":
        """Return the tasks whose reserved slots `task` may take over, the last in the order first.

        A task without GPUs takes over none of tasks with GPUs, nor slots of a task that is moved.
        """
        pool = self._view.pool
        project = self._project(task)
        owners = pool.reserved if project is None else pool.reserved_by_project.get(project)
        found = self._precedence(self._view, task) if owners else None
        if not owners or found is None:
            return OwnersBehind((), pool)
        scope, place = found
        if project not in self._sorted:
            self._sorted.add(project)
            self._sort(owners)
        slices: list[tuple[list[_Row], int]] = []
        for queue_class in range(task.job.shape.queue_class + 1):
            rows = self._rows.get((scope, queue_class))
            if rows is not None and rows[-1][0] > place:
                slices.append((rows, bisect_right(rows, place, key=_place)))
        return OwnersBehind(slices, pool)

    def by_place(self, groups: Iterable[Group]) -> Iterator[tuple[Hashable, Group]]:
        """Yield the groups that may take over reserved slots with their scope, in the order of each
        scope: a later one takes over slots of a part of the tasks behind an earlier one.
        """
        scopes: dict[Hashable, list[tuple[OrderKey, int, Group]]] = {}
        for number, group in enumerate(groups):
            found = self._precedence(self._view, group.queue.first)
            if found is not None:
                scope, place = found
                scopes.setdefault(scope, []).append((place, number, group))
        for scope, rows in scopes.items():
            rows.sort()
            for *_, group in rows:
                yield scope, group

    def add(self, owner: Task) -> None:
        """Add a task for which slots were reserved in this cycle."""
        if self._project(owner) not in self._sorted or owner in self._known:
            return
        row = self._row(owner)
        if row is not None:
            key, place_and_owner = row
            insort(self._rows.setdefault(key, []), place_and_owner, key=_place_and_key)

    def known_insufficient(self, task: Task, owners: "OwnersBehind") -> bool:
        """Whether the slots of as many owners did not suffice for an equal request.

        Those behind a task are the last in the order, so fewer of them are a part of the others.
        """
        changes, number = self._insufficient.get(self._key(task), (-1, 0))
        return changes == self._view.pool.future.changes and len(owners) <= number

    def note_insufficient(self, task: Task, owners: "OwnersBehind") -> None:
        """Note that the slots of these owners do not suffice for a task."""
        self._insufficient[self._key(task)] = self._view.pool.future.changes, len(owners)

    def _key(self, task: Task) -> tuple[Hashable, Fit]:
        found = self._precedence(self._view, task)
        assert found is not None
        return found[0], task.job.shape.fit_within_limits

    def _project(self, task: Task) -> Project | None:
        return task.job.project if self._within_project else None

    def _sort(self, owners: Iterable[Task]) -> None:
        """Add a row for each owner; none has one yet."""
        changed: set[tuple[Hashable, int]] = set()
        for owner in owners:
            row = self._row(owner)
            if row is not None:
                key, place_and_owner = row
                self._rows.setdefault(key, []).append(place_and_owner)
                changed.add(key)
        for key in changed:
            self._rows[key].sort(key=_place_and_key)

    def _row(self, owner: Task) -> tuple[tuple[Hashable, int], _Row] | None:
        """Return the key and the row of an owner; None: it is moved, and so keeps its slots."""
        self._known.add(owner)
        found = self._precedence(self._view, owner) if owner.run is None else None
        if found is None:
            return None
        scope, place = found
        return (scope, owner.job.shape.queue_class), (place, owner.key, owner)


class OwnersBehind:
    """The owners of reserved slots behind a task, the last in the order first.

    Valid until the next reservation. Making it costs a search in the sorted owners; `len` counts
    those too that lost their reservations in this cycle.
    """

    __slots__ = ("_pool", "_slices")

    def __init__(self, slices: Sequence[tuple[list[_Row], int]], pool: Pool) -> None:
        #: Sorted rows, each list with the index of the first row behind the task.
        self._slices = slices
        self._pool = pool

    def __iter__(self) -> Iterator[Task]:
        reserved = self._pool.reserved
        backwards = [islice(reversed(rows), len(rows) - start) for rows, start in self._slices]
        for *_, owner in merge(*backwards, key=_place_and_key, reverse=True):
            if owner in reserved:
                yield owner

    def __len__(self) -> int:
        return sum(len(rows) - start for rows, start in self._slices)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None


_place = itemgetter(0)
_place_and_key = itemgetter(0, 1)
