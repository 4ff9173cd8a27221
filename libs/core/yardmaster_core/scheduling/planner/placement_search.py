"""Where the tasks of a pool fit in a cycle, and why others do not.

A search without a result is not repeated for tasks with the same request until the capacity
changes.
"""

from yardmaster_core.scheduling.planner.gpu_memory import Exceeds, placed_shape, refused_on
from yardmaster_core.scheduling.planner.placement import PlacementStrategy, ReplicaSlots, place
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.planner.wait_reasons import no_capacity
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.shapes import Fit, Shape
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.scheduling.state.wait_codes import NO_CAPACITY
from yardmaster_schemas.reasons import Wait


class PlacementSearch:
    """Searches placements for the tasks of one pool, during one cycle."""

    def __init__(self, view: PoolView, strategy: PlacementStrategy, exceeds: Exceeds) -> None:
        self._view = view
        self._pool = view.pool
        self._strategy = strategy
        self._exceeds = exceeds
        #: Index and fit -> the index's change count at which no placement existed for that fit.
        self._no_placement_at: dict[tuple[CapacityIndex, Fit], int] = {}
        #: Fit -> the change count, and the wait reason found at that count.
        self._capacity_waits: dict[Fit, tuple[int, Wait]] = {}

    def find(self, index: CapacityIndex, task: Task) -> list[ReplicaSlots] | None:
        """Return a placement for `task`, or None.

        If its equals found none and the index has not changed since, the search is not repeated.
        """
        shape = self.shape_of(task)
        if self._strategy.unequal:
            # With unequal gangs, a task may fit on less capacity and not on more.
            return self._off_failed_nodes(index, task, shape)
        key = (index, shape.fit)
        if self._no_placement_at.get(key) == index.changes:
            return None
        placement = self._off_failed_nodes(index, task, shape)
        if placement is None:
            self._no_placement_at[key] = index.changes
        return placement

    def holds(self, index: CapacityIndex, shape: Shape) -> bool:
        """Whether a task of this shape fits.

        Does not look up the first task of the group, because many tasks may have left the group in
        this cycle.
        """
        key = (index, shape.fit)
        if not self._strategy.unequal and self._no_placement_at.get(key) == index.changes:
            return False
        found = place(index, shape, self._strategy) is not None
        if not found:
            self._no_placement_at[key] = index.changes
        return found

    def _off_failed_nodes(
        self, index: CapacityIndex, task: Task, shape: Shape
    ) -> list[ReplicaSlots] | None:
        """Return a placement that avoids the nodes on which the task's last starts failed, else
        any.

        So those nodes affect where the task is placed, but not whether it fits: it fits wherever
        its equals fit.
        """
        key = self.seed_key(task)
        if avoid := index.ordinals(task.failed_nodes):
            placement = place(index, shape, self._strategy, key, avoid)
            if placement is not None:
                return placement
        return place(index, shape, self._strategy, key)

    def seed_key(self, task: Task) -> str:
        """Return what selects among equal placements of a task where that is random."""
        return f"{task.id}/{task.attempt + 1}" if self._strategy.seeded is not None else ""

    def shape_of(self, task: Task) -> Shape:
        """Return the request of a task, on the GPUs that limits leave it."""
        shape = task.job.shape
        if not shape.gpu_memory_mib:
            return shape
        return placed_shape(self._view, task, self._exceeds)

    def wait(self, task: Task) -> Wait:
        """Return the reason why a task that does not fit waits."""
        shape = self.shape_of(task)
        wait = self._no_capacity(shape)
        if shape is task.job.shape or wait.code in NO_CAPACITY:
            return wait
        # On no node where the limits would let it start: so it waits for a limit.
        smallest = self._pool.free.memories(task.job.shape)[0]
        return refused_on(self._view, task, smallest, self._exceeds) or wait

    def _no_capacity(self, shape: Shape) -> Wait:
        changes = self._pool.free.changes
        known = self._capacity_waits.get(shape.fit)
        if known is None or known[0] != changes:
            known = self._capacity_waits[shape.fit] = (
                changes,
                no_capacity(self._pool, shape),
            )
        return known[1]
