"""SlotAmounts would be free were some tasks gone: tried on the pool's own index of the future, and
taken back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.placement import (
    PlacementStrategy,
    ReplicaSlots,
    helps,
    place,
)
from yardmaster_core.scheduling.planner.policy import PreemptionBudget
from yardmaster_core.scheduling.state.cluster import Undo
from yardmaster_core.scheduling.state.entities import Pool, ReplicaState, Task
from yardmaster_core.scheduling.state.indexes import CapacityIndex, NodeCapacity
from yardmaster_core.scheduling.state.shapes import WHOLE, Fit, Shape

SlotAmounts = tuple[NodeCapacity, tuple[int, ...], int, int, int]
#: On one node: which of the victims, the task, and the gpu_milli that it holds there.
NodeVictim = tuple[int, Task, int]


class VictimSearch:
    """A pool's future, for one cycle."""

    def __init__(self, draft: Draft, pool: Pool, choose: PlacementStrategy) -> None:
        self._draft = draft
        self._future = pool.future
        self._choose = choose

    def for_task(
        self, task: Task, victims: Iterable[Task], *, drop_unneeded: bool = True
    ) -> list[Task]:
        """Those of `victims`, tried in their order, with whom gone the task fits; `drop_unneeded`:
        but for those whose going does not help.
        """
        changes = self._future.changes
        with self._draft.trial():
            needed = self._try(task.job.shape, victims, drop_unneeded=drop_unneeded)
        # All is as it was.
        self._future.changes = changes
        return needed

    def for_tasks(
        self, tasks: Iterable[Task], victims: Sequence[Task], budget: PreemptionBudget
    ) -> set[Task]:
        """Of `victims` those with whom gone the tasks fit, up to the first that cannot be helped.

        Of the nodes on which a task, or a part of it, would fit the one comes first for which the
        fewest of `victims`, in their order, have to be gone through. Costs a step for each victim
        and size that is asked for, then amounts is tried.
        """
        changes = self._future.changes
        by_node = VictimsByNode(self._future, self._by_node(victims), budget)
        with self._draft.trial():
            for task in tasks:
                shape = task.job.shape
                places = self._place(shape)
                while places is None:
                    mark = len(self._draft.undo_log)
                    needed = self._try(shape, by_node.victims_for(shape))
                    if not needed:
                        break
                    if budget.spend(needed):
                        by_node.choose(shape, needed)
                        places = self._place(shape)
                        break
                    self._draft.roll_back(mark)
                    by_node.skip_first_node(shape)
                if places is None:
                    break
                self.reserve(shape, places)
        self._future.changes = changes
        return by_node.chosen

    def _by_node(self, victims: Iterable[Task]) -> dict[int, list[NodeVictim]]:
        nodes, capacities = self._draft.state.nodes, self._future.capacities
        found: dict[int, list[NodeVictim]] = {}
        for at, victim in enumerate(victims):
            run = victim.run
            assert run is not None
            for replica, placement in enumerate(run.placements):
                if run.replicas[replica] >= ReplicaState.RELEASED:
                    continue
                ordinal = nodes[placement.node].ordinal
                if ordinal in capacities:
                    milli = placement.gpu_milli * len(placement.slots)
                    found.setdefault(ordinal, []).append((at, victim, milli))
        return found

    def _try(
        self, shape: Shape, victims: Iterable[Task], *, drop_unneeded: bool = True
    ) -> list[Task]:
        tried: list[Task] = []
        for victim in victims:
            self._free(victim)
            tried.append(victim)
            if self._capacity_on(victim, shape) and self._place(shape) is not None:
                return self._drop_unneeded(shape, tried) if drop_unneeded else tried
        return []

    def reserve(self, shape: Shape, places: Iterable[ReplicaSlots]) -> None:
        """Take places for a task out of the future, for the rest of the cycle."""
        for capacity, slots in places:
            self._take((capacity, slots, shape.gpu_milli, shape.cpu_milli, shape.memory_mib))

    def _place(self, shape: Shape) -> list[ReplicaSlots] | None:
        return place(self._future, shape, self._choose)

    def _capacity_on(self, victim: Task, shape: Shape) -> bool:
        capacities = self._future.capacities
        return any(helps(capacities[ordinal], shape) for ordinal in self._ordinals(victim))

    def _drop_unneeded(self, shape: Shape, tried: list[Task]) -> list[Task]:
        """Spare whom it helps nothing to stop, the most valuable first."""
        needed = [tried[-1]]
        capacities = self._future.capacities
        used: set[int] = set()
        for victim in reversed(tried[:-1]):
            if not used:
                used = self._used(shape)
            ordinals = self._ordinals(victim)
            self._free(victim, back=True)
            if used.isdisjoint(ordinals):
                # Only a room that still has a place could now be the better choice.
                if any(capacities[ordinal].holds(shape) for ordinal in ordinals):
                    used = set()
                continue
            after = self._used(shape)
            if after:
                used = after
            else:
                self._free(victim)
                needed.append(victim)
        return needed[::-1]

    def _used(self, shape: Shape) -> set[int]:
        """The rooms where the task would be placed."""
        return {capacity.ordinal for capacity, _ in self._place(shape) or ()}

    def _ordinals(self, victim: Task) -> list[int]:
        run = victim.run
        assert run is not None
        nodes = self._draft.state.nodes
        found = (nodes[placement.node].ordinal for placement in run.placements)
        return [ordinal for ordinal in found if ordinal in self._future.capacities]

    def _free(self, victim: Task, *, back: bool = False) -> None:
        run = victim.run
        assert run is not None
        for replica, placement in enumerate(run.placements):
            if run.replicas[replica] >= ReplicaState.RELEASED:
                continue
            amounts = (
                *(self._draft.state.nodes[placement.node].future, placement.slots),
                *(placement.gpu_milli, placement.cpu_milli, placement.memory_mib),
            )
            if back:
                self._take(amounts)
            else:
                self._give(amounts)

    def _take(self, amounts: SlotAmounts) -> None:
        self._future.take(*amounts)
        self._record_undo((self._future.give, amounts))

    def _give(self, amounts: SlotAmounts) -> None:
        self._future.give(*amounts)
        self._record_undo((self._future.take, amounts))

    def _record_undo(self, undo: Undo) -> None:
        self._draft.undo_log.append(undo)


class VictimsByNode:
    """Where the room that several tasks ask for can come from: victims, node by node.

    A node's place in the heap of those who ask for the same is how far one has to go through the
    victims until a part of the task fits there. SlotAmounts others use of a node only moves it
    back, so a place is looked at again when its turn comes.
    """

    def __init__(
        self, future: CapacityIndex, nodes: Mapping[int, list[NodeVictim]], budget: PreemptionBudget
    ) -> None:
        self._future = future
        self._nodes = nodes
        self._budget = budget
        self._heaps: dict[Fit, list[tuple[int, int]]] = {}
        #: The nodes of which victims were handed out last.
        self._visited: list[tuple[int, int]] = []
        #: Victims that are to be stopped.
        self.chosen: set[Task] = set()

    def victims_for(self, shape: Shape) -> Iterator[Task]:
        """The victims of one node after another, until nobody asks for more."""
        heap = self._heap(shape)
        self._visited = []
        given: set[Task] = set()
        while heap:
            at, ordinal = heappop(heap)
            now = self._victims_needed(shape, ordinal)
            if now is None:
                continue
            if now > at:
                heappush(heap, (now, ordinal))
                continue
            self._visited.append((at, ordinal))
            for number, victim, _ in self._nodes[ordinal]:
                if number <= at and victim not in given and self._usable(victim):
                    given.add(victim)
                    yield victim

    def choose(self, shape: Shape, victims: Iterable[Task]) -> None:
        """Those are to be stopped."""
        self.chosen.update(victims)
        self._return(shape, self._visited)

    def skip_first_node(self, shape: Shape) -> None:
        """The first node that was visited is of no use to who asks for that."""
        self._return(shape, self._visited[1:])

    def _return(self, shape: Shape, visited: list[tuple[int, int]]) -> None:
        for entry in visited:
            heappush(self._heaps[shape.fit], entry)

    def _heap(self, shape: Shape) -> list[tuple[int, int]]:
        heap = self._heaps.get(shape.fit)
        if heap is None:
            fitting = self._future.available & self._future.matching(shape)
            nodes = [ordinal for ordinal in self._nodes if fitting >> ordinal & 1]
            found = ((self._victims_needed(shape, ordinal), ordinal) for ordinal in nodes)
            heap = [(at, ordinal) for at, ordinal in found if at is not None]
            heapify(heap)
            self._heaps[shape.fit] = heap
        return heap

    def _victims_needed(self, shape: Shape, ordinal: int) -> int | None:
        """Up to which victim all of a node's have to go until it has for_task GPUs for a part of
        the task; -1: it has, None: all are not for_task.
        """
        capacity = self._future.capacities[ordinal]
        if helps(capacity, shape):
            return -1
        gpus = min(shape.gpus, capacity.size) if shape.whole_nodes else shape.gpus
        free = capacity.whole * WHOLE if shape.gpu_milli == WHOLE else capacity.gpu_milli
        missing = gpus * shape.gpu_milli - free
        last = None
        for number, victim, milli in self._nodes[ordinal]:
            if self._usable(victim):
                last = number
                missing -= milli
                if 0 >= missing > -milli:
                    return number
        # SlotAmounts it lacks is no GPU: its victims may hold that.
        return last if missing <= 0 else None

    def _usable(self, victim: Task) -> bool:
        return victim not in self.chosen and self._budget.permits(victim)
