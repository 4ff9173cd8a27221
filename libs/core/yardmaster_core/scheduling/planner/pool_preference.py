"""The preference between pools, for tasks that may use several.

A task lists its pools, the preferred one first, and the planner considers its group in each of
them. So before a pool starts the task or preempts others for it, the results of the other pools
must be known. The pools of a cycle answer such questions through `PlannedPool`.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from yardmaster_core.scheduling.state.tasks import Group, Task


class PlannedPool(Protocol):
    """One pool in the running cycle, as the other pools see it."""

    #: Whether tasks that list the pool wait for it, also while a later one has free capacity.
    strict_order: bool
    #: Whether the policy finds the groups that fit, without anything that wakes them.
    offers_groups: bool

    def will_consider(self, group: Group) -> bool:
        """Whether the group is awake in this pool and has no result yet."""
        ...

    def can_start(self, task: Task) -> bool:
        """Whether the task can start in this pool at once."""
        ...

    def consider_again(self, group: Group) -> None:
        """Consider the group in this pool, even if it has a result."""
        ...


class PoolPreference:
    """Decides in which of its pools a task is served; `planned` are the pools, by name."""

    def __init__(self) -> None:
        self.planned: dict[str, PlannedPool] = {}

    def is_undecided(self, group: Group, pool: str) -> bool:
        """Whether a pool that the group prefers to `pool` has no result for the group yet."""
        pools = group.shape.pools
        if pools[0] == pool:
            return False
        return any(other.will_consider(group) for other in self._preferred(pools, pool))

    def is_strict_before(self, task: Task, pool: str) -> bool:
        """Whether a pool that the task prefers to `pool` is used in strict order."""
        return any(other.strict_order for other in self._preferred(task.shape.pools, pool))

    def starts_in_preferred(self, task: Task, pool: str) -> bool:
        """Whether a pool that the task prefers to `pool` can start the task at once."""
        return any(other.can_start(task) for other in self._preferred(task.shape.pools, pool))

    def consider_in_preferred(self, group: Group, task: Task, pool: str) -> bool:
        """Have the group considered in the first pool that it prefers to `pool`, that can start its
        task at once, and in which nothing wakes the groups that fit; return whether there is one.
        """
        for other in self._preferred(group.shape.pools, pool):
            if other.offers_groups and other.can_start(task):
                other.consider_again(group)
                return True
        return False

    def starts_in_later(self, task: Task, pool: str) -> bool:
        """Whether a pool that the task prefers less than `pool` can start the task at once.

        Then `pool` preempts nothing for it and reserves no slots, unless it is used in strict
        order.
        """
        # rule: pools: strict
        if self.planned[pool].strict_order:
            return False
        pools = task.shape.pools
        later = pools[pools.index(pool) + 1 :]
        # rule: pools: idle later pool before victims
        return any(other.can_start(task) for other in self._among(later))

    def must_keep_reservation(self, task: Task, pool: str) -> bool:
        """Whether the slots reserved for the task are in a pool that comes before `pool` in strict
        order.
        """
        reservation = task.reserved
        if reservation is None:
            return False
        pools = task.shape.pools
        reserving = self.planned.get(reservation.pool_name)
        return (
            reserving is not None
            and reserving.strict_order
            and reservation.pool_name in pools[: pools.index(pool)]
        )

    def _preferred(self, pools: Sequence[str], pool: str) -> Iterator[PlannedPool]:
        """Yield the planned pools before `pool` in the list `pools`."""
        return self._among(pools[: pools.index(pool)])

    def _among(self, names: Sequence[str]) -> Iterator[PlannedPool]:
        """Yield the planned pools of these names; a pool without configuration is not planned."""
        return (self.planned[name] for name in names if name in self.planned)
