"""Search for victims: which running tasks to preempt so that a pending task fits.

Removing a victim is tried on the pool's index of future capacity and rolled back afterwards.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.placement import (
    PlacementStrategy,
    ReplicaSlots,
    helps,
    place,
    replicas_on,
)
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.journal import Undo
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.events.decisions import Placement

#: The most tasks that are tried as victims of a task at a limit.
MAX_AT_LIMIT: Final = 256

#: Arguments of `CapacityIndex.take` and `release`: capacity, slots, gpu_milli, cpu_milli and
#: memory_mib.
SlotAmounts = tuple[NodeCapacity, tuple[int, ...], int, int, int]


class VictimSearch:
    """Searches victims in one pool, on its future capacity, during one cycle."""

    def __init__(
        self,
        draft: Draft,
        pool: Pool,
        strategy: PlacementStrategy,
        placed_shape: Callable[[Task], Shape],
    ) -> None:
        """`placed_shape` gives the shape by which a task is placed."""
        self._draft = draft
        self._placed_shape = placed_shape
        self._future = pool.future
        self._strategy = strategy

    def for_task(
        self, task: Task, victims: Iterable[Task], *, drop_unneeded: bool = True
    ) -> list[Task]:
        """Return the shortest prefix of `victims` whose removal lets the task fit; empty: none
        does. Tasks with reserved slots may be among them: these slots are removed.

        `drop_unneeded` removes the victims that turned out unnecessary from the result.
        """
        changes = self._future.changes
        with self._draft.trial():
            needed = self._try(self._placed_shape(task), victims, drop_unneeded=drop_unneeded)
        # The trial is rolled back, so the index is unchanged.
        self._future.changes = changes
        return needed

    def under_limit(
        self, task: Task, victims: Iterable[Task], limits_hold: Callable[[list[Task]], bool]
    ) -> list[Task] | None:
        """Return the shortest prefix of `victims`, at most `MAX_AT_LIMIT`, without which the task
        fits and the limits hold, without those that turned out unnecessary; empty: the end of the
        tasks that stop already suffices. None: no prefix suffices.
        """
        shape, tried, hold = self._placed_shape(task), list[Task](), limits_hold([])
        if hold and self._find_placement(shape) is not None:
            return tried
        suffice = False
        changes = self._future.changes
        with self._draft.trial():
            for victim in islice(victims, MAX_AT_LIMIT):
                self._remove(victim)
                tried.append(victim)
                # Once they hold, they also do without more victims; only capacity may be missing.
                may_fit = not hold or self._helps_on(victim, shape)
                hold = hold or limits_hold(tried)
                suffice = hold and may_fit and self._find_placement(shape) is not None
                if suffice:
                    break
            # The most valuable first.
            for victim in tried[-2::-1] if suffice else ():
                others = [other for other in tried if other is not victim]
                self._remove(victim, undo=True)
                if limits_hold(others) and self._find_placement(shape) is not None:
                    tried = others
                else:
                    self._remove(victim)
        # The trial is rolled back, so the index is unchanged.
        self._future.changes = changes
        return tried if suffice else None

    def _try(
        self, shape: Shape, victims: Iterable[Task], *, drop_unneeded: bool = True
    ) -> list[Task]:
        if not shape.whole_nodes:
            return self._try_by_count(shape, victims, drop_unneeded=drop_unneeded)
        tried: list[Task] = []
        for victim in victims:
            self._remove(victim)
            tried.append(victim)
            if self._helps_on(victim, shape) and self._find_placement(shape) is not None:
                return self._drop_unneeded(shape, tried) if drop_unneeded else tried
        return []

    def _try_by_count(
        self, shape: Shape, victims: Iterable[Task], *, drop_unneeded: bool
    ) -> list[Task]:
        """`_try` for a task whose replicas need not be alone on their nodes.

        Then the number of replicas that a node holds does not depend on the other nodes, so their
        sum tells whether the task fits. Costs one step for each victim and node of it.
        """
        held = HeldReplicas(self._future, shape)
        tried: list[Task] = []
        for victim in victims:
            self._remove(victim)
            held.update(self._ordinals(victim))
            tried.append(victim)
            if held.total >= shape.replicas:
                break
        else:
            return []
        if not drop_unneeded:
            return tried
        needed = [tried[-1]]
        # The most valuable first.
        for victim in reversed(tried[:-1]):
            ordinals = self._ordinals(victim)
            self._remove(victim, undo=True)
            held.update(ordinals)
            if held.total < shape.replicas:
                self._remove(victim)
                held.update(ordinals)
                needed.append(victim)
        return needed[::-1]

    def reserve(self, shape: Shape, placement: Iterable[ReplicaSlots]) -> None:
        """Reserve slots of the future capacity for a task, until the end of the cycle."""
        for capacity, slots in placement:
            milli = capacity.milli_of(shape)
            self._take((capacity, slots, milli, shape.cpu_milli, shape.memory_mib))

    def _find_placement(self, shape: Shape) -> list[ReplicaSlots] | None:
        return place(self._future, shape, self._strategy)

    def _helps_on(self, victim: Task, shape: Shape) -> bool:
        capacities = self._future.capacities
        return any(helps(capacities[ordinal], shape) for ordinal in self._ordinals(victim))

    def _drop_unneeded(self, shape: Shape, tried: list[Task]) -> list[Task]:
        """Drop each victim that the task does not need, the most valuable first."""
        needed = [tried[-1]]
        capacities = self._future.capacities
        used: set[int] = set()
        for victim in reversed(tried[:-1]):
            if not used:
                used = self._used(shape)
            ordinals = self._ordinals(victim)
            self._remove(victim, undo=True)
            if used.isdisjoint(ordinals):
                # Only a node that still fits a replica could now be the better choice.
                if any(capacities[ordinal].holds(shape) for ordinal in ordinals):
                    used = set()
                continue
            after = self._used(shape)
            if after:
                used = after
            else:
                self._remove(victim)
                needed.append(victim)
        return needed[::-1]

    def _used(self, shape: Shape) -> set[int]:
        """Return the ordinals of the nodes on which the task would be placed."""
        return {capacity.ordinal for capacity, _ in self._find_placement(shape) or ()}

    def _ordinals(self, victim: Task) -> list[int]:
        nodes, capacities = self._draft.state.nodes, self._future.capacities
        return [
            ordinal
            for placement in kept(victim)
            if (ordinal := nodes[placement.node].ordinal) in capacities
        ]

    def _remove(self, victim: Task, *, undo: bool = False) -> None:
        nodes = self._draft.state.nodes
        for held in kept(victim):
            future = nodes[held.node].future
            amounts = future, held.slots, held.gpu_milli, held.cpu_milli, held.memory_mib
            if undo:
                self._take(amounts)
            else:
                self._give(amounts)

    def _take(self, amounts: SlotAmounts) -> None:
        self._future.take(*amounts)
        self._record_undo((self._future.release, amounts))

    def _give(self, amounts: SlotAmounts) -> None:
        self._future.release(*amounts)
        self._record_undo((self._future.take, amounts))

    def _record_undo(self, undo: Undo) -> None:
        self._draft.undo_log.append(undo)


def kept(task: Task) -> Sequence[Placement]:
    """Return what is reserved for a task; else what it holds, without released replicas."""
    if task.reserved is not None:
        return task.reserved.placements
    run = task.run
    assert run is not None
    if run.open == len(run.placements):
        return run.placements
    return [
        placement
        for replica, placement in enumerate(run.placements)
        if run.replicas[replica] < ReplicaState.RELEASED
    ]


class HeldReplicas:
    """How many replicas of a shape the nodes of an index hold, while their capacity changes."""

    def __init__(self, index: CapacityIndex, shape: Shape) -> None:
        self._index = index
        self._shape = shape
        self._allowed = index.available & index.matching(shape)
        self._by_node: dict[int, int] = {}
        #: The sum over all nodes.
        self.total = 0
        mask = index.promising(shape)
        while mask:
            lowest = mask & -mask
            self._update(lowest.bit_length() - 1)
            mask ^= lowest

    def update(self, ordinals: Iterable[int]) -> None:
        """Count the replicas on these nodes again."""
        for ordinal in ordinals:
            if self._allowed >> ordinal & 1:
                self._update(ordinal)

    def _update(self, ordinal: int) -> None:
        now = replicas_on(self._index.capacities[ordinal], self._shape)
        self.total += now - self._by_node.get(ordinal, 0)
        self._by_node[ordinal] = now
