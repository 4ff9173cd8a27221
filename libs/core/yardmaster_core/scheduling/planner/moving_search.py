"""Search for victims node by node; a victim may get other slots in exchange for its own.

Victims are added one after another, in the policy's order. As soon as the nodes of the newest one
would hold the task without the victims on them, that set is tried: victims that turn out
unnecessary keep running, the others are moved where they fit on other slots, and the policy judges
the rest. If it refuses, the search continues. A victim that is moved to slots that are not free yet
has to wait for them, so it is judged like one that stops; and nothing is moved there only to bring
tasks together. Where victims with parts of GPUs are refused, sets for single GPUs are tried last
(`sets_by_gpu`).

The steps follow the solver of KAI-Scheduler at d5bc503a (actions/common/solvers), on counts of
replicas instead of simulated allocations. Adding a victim costs a step per replica; a try costs a
step per victim on those nodes, and for a gang one per node that may hold a replica.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
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
from yardmaster_core.scheduling.planner.policy import PoolView, PreemptionAction, VictimSelection
from yardmaster_core.scheduling.planner.victim_search import HeldReplicas, VictimSearch, kept
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape, on_larger_gpus
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.events.decisions import Placement

#: Stands for the ordinal of a node, for victims on all nodes together.
ALL_NODES: Final = -1
#: Sets of victims that are tried for one task and action.
MAX_TRIES: Final = 64


@dataclass(frozen=True, slots=True)
class Preemption:
    """The slots of a task once its victims are gone.

    `victims`: in the policy's order; those that do not run lose reserved slots. `moved`: the
    victims that get other slots, with these slots.
    """

    placement: list[ReplicaSlots]
    victims: list[Task]
    moved: dict[Task, list[ReplicaSlots]]


class MovingSearch(VictimSearch):
    """Searches victims in one pool, on its future capacity, during one cycle."""

    def __init__(
        self,
        draft: Draft,
        pool: Pool,
        strategy: PlacementStrategy,
        placed_shape: Callable[[Task], Shape],
    ) -> None:
        super().__init__(draft, pool, strategy, placed_shape)
        self._free = pool.free
        #: By task: how many sets of victims were tried without success.
        self.tries: Counter[Task] = Counter()
        #: Whether the policy refused the last set of victims that was tried.
        self._refused = False

    def preemption(
        self,
        view: PoolView,
        task: Task,
        action: PreemptionAction,
        victims: Iterable[Task],
        key: str,
    ) -> Preemption | None:
        """Return the first set of victims that suffices and that the action permits, or None.

        `key` names the task and its attempt for strategies that use random numbers.
        """
        selection = action.selection
        if selection is None:
            gains = self._gains(task, None)
            return self._search(view, task, action, victims, key, gains, [])
        seen: list[Task] = []
        new_selection, tries = partial(selection, view, task), self.tries[task]
        gains = self._gains(task, new_selection)
        found = self._search(view, task, action, victims, key, gains, seen)
        left = MAX_TRIES - (self.tries[task] - tries)
        if found is None and gains.refused_parts:
            sets = islice(sets_by_gpu(gains, seen, new_selection), left)
            found = self._first_of(sets, view, task, action, key)
        if found is None and self._future.free_milli:
            # Victims that must not be stopped may still be moved to free slots.
            gains = self._gains(task, None)
            found = self._search(view, task, action, seen, key, gains, [])
        return found

    def _gains(self, task: Task, new_selection: Callable[[], VictimSelection] | None) -> "Gains":
        nodes = self._draft.state.nodes
        return Gains(self._future, self._placed_shape(task), nodes, new_selection)

    def _search(
        self,
        view: PoolView,
        task: Task,
        action: PreemptionAction,
        victims: Iterable[Task],
        key: str,
        gains: "Gains",
        seen: list[Task],
    ) -> Preemption | None:
        """Search among the victims that are added to `gains`; `seen` gets all of them."""
        tries = 0
        for victim in victims:
            seen.append(victim)
            for some in gains.add(victim):
                found = self._try_both_ways(view, task, action, some, key)
                tries += 1
                if found is not None:
                    return found
                self.tries[task] += 1
                if tries == MAX_TRIES:
                    return None
        return None

    def _first_of(
        self,
        sets: Iterable[Sequence[Task]],
        view: PoolView,
        task: Task,
        action: PreemptionAction,
        key: str,
    ) -> Preemption | None:
        """Return the first of these sets of victims that suffices and is permitted, or None."""
        for some in sets:
            found = self._try_both_ways(view, task, action, some, key)
            if found is not None:
                return found
            self.tries[task] += 1
        return None

    def _try_both_ways(
        self, view: PoolView, task: Task, action: PreemptionAction, some: Sequence[Task], key: str
    ) -> Preemption | None:
        """Try a set of victims; if the policy refuses those that the task needs, try to keep the
        earlier victims instead of the later ones.
        """
        found = None
        changes, free_changes = self._future.changes, self._free.changes
        for earlier_first in (False, True):
            self._refused = False
            with self._draft.trial():
                found = self._try_moving(view, task, action, some, key, earlier_first=earlier_first)
            # The trial is rolled back, so the indexes are unchanged.
            self._future.changes, self._free.changes = changes, free_changes
            if not self._refused:
                break
        return found

    def _try_moving(
        self,
        view: PoolView,
        task: Task,
        action: PreemptionAction,
        some: Sequence[Task],
        key: str,
        *,
        earlier_first: bool,
    ) -> Preemption | None:
        shape = self._placed_shape(task)
        for victim in some:
            self._remove(victim)
        moves = action.max_moves is not None
        needed = self._needed(view, shape, some, moves=moves, earlier_first=earlier_first)
        if not needed:
            return None  # it fits on what is being released
        # rule: moves: max_moves
        if action.max_moves is not None and len(needed) > action.max_moves:
            return None
        placement = place(self._future, shape, self._strategy, key)
        if placement is None:
            return None
        self._reserve_in_both(shape, placement)
        moved: dict[Task, list[ReplicaSlots]] = {}
        waiting: set[Task] = set()
        # The most valuable first.
        for victim in reversed(needed):
            as_held = self._shape_as_held(victim)
            # A task with reserved slots runs nowhere: it has nothing to move.
            other = self._free_placement(victim, as_held) if victim.run is not None else None
            # rule: moves: every task has a new place
            if other is None and moves:
                return None
            if other is None and victim.run is not None:
                other = self._find_placement(as_held)
                waiting.add(victim)
            if other is not None:
                self._reserve_in_both(as_held, other)
                moved[victim] = other
        waiting.intersection_update(moved)
        # rule: moves: moved tasks are not judged
        gone = [v for v in needed if v in waiting or v not in moved or action.judges_moved]
        stopped = [victim for victim in gone if victim not in waiting]
        judged = [stopped] if stopped else []
        # Those that wait for their slots are judged as if they were stopped, too.
        if waiting:
            judged.append(gone)
        if action.permits is not None and not all(
            action.permits(view, task, together) for together in judged
        ):
            self._refused = True
            return None
        return Preemption(placement, needed, moved)

    def _free_placement(self, victim: Task, shape: Shape) -> list[ReplicaSlots] | None:
        """Return a placement, of the future capacity, on slots that are free now or that the victim
        itself holds; or None.
        """
        nodes, free = self._draft.state.nodes, self._free
        with self._draft.trial():
            for held in kept(victim):
                own = held.slots, held.gpu_milli, held.cpu_milli, held.memory_mib
                free.release(nodes[held.node].free, *own)
                self._record_undo((free.take, (nodes[held.node].free, *own)))
            placement = place(free, shape, self._strategy)
        if placement is None:
            return None
        return [(self._future.capacities[node.ordinal], slots) for node, slots in placement]

    def _reserve_in_both(self, shape: Shape, placement: Sequence[ReplicaSlots]) -> None:
        """Reserve slots of the future and of the free capacity until the trial is rolled back."""
        self.reserve(shape, placement)
        free = self._free
        for capacity, slots in placement:
            node, milli = free.capacities[capacity.ordinal], capacity.milli_of(shape)
            amounts = node, slots, milli, shape.cpu_milli, shape.memory_mib
            free.take(*amounts)
            self._record_undo((free.release, amounts))

    def _shape_as_held(self, victim: Task) -> Shape:
        """Return the request of a task that moves: by memory, on no smaller GPUs than it holds now,
        so that it exceeds no limit.
        """
        shape, run = victim.job.shape, victim.run
        if not shape.gpu_memory_mib or run is None:
            return shape
        nodes = self._draft.state.nodes
        held_mib = max(nodes[placement.node].gpu_memory_mib for placement in run.placements)
        return on_larger_gpus(shape, max(held_mib, shape.gpu_memory_mib))

    def _needed(
        self,
        view: PoolView,
        shape: Shape,
        some: Sequence[Task],
        *,
        moves: bool,
        earlier_first: bool,
    ) -> list[Task]:
        """Return the victims that the task needs; the others are put back, one after another.

        The most valuable victim is tried first, or the least valuable with `earlier_first`. If all
        must be moved, the largest is tried first, because smaller ones find other slots more
        easily.
        """
        if shape.whole_nodes:
            return self._needed_on_whole_nodes(shape, list(some))
        held = HeldReplicas(self._future, shape)
        needed: set[Task] = set()
        back = list(some) if earlier_first else list(reversed(some))
        if moves:
            back.sort(key=lambda victim: -view.pool.held_milli(victim))
        for victim in back:
            ordinals = self._ordinals(victim)
            self._remove(victim, undo=True)
            held.update(ordinals)
            # rule: moves: unnecessary victims keep running
            if held.total < shape.replicas:
                self._remove(victim)
                held.update(ordinals)
                needed.add(victim)
        return [victim for victim in some if victim in needed]

    def _needed_on_whole_nodes(self, shape: Shape, some: list[Task]) -> list[Task]:
        # Without the last ones the policy may have refused the others; they are no more needed.
        while some:
            self._remove(some[-1], undo=True)
            if self._find_placement(shape) is None:
                self._remove(some[-1])
                return self._drop_unneeded(shape, some)
            some.pop()
        return []


class Gains:
    """The capacity of the nodes without the victims that were added so far.

    `new_selection` returns the victims that may be preempted together: for a task with one replica
    those of each node by themselves, for a gang those of all nodes. Victims that may not be
    preempted together with those before them make a second set, which is tried by itself: the first
    ones may not help. A third set is not made, so that each victim costs at most two steps.
    """

    def __init__(
        self,
        index: CapacityIndex,
        shape: Shape,
        nodes: dict[str, Node],
        new_selection: Callable[[], VictimSelection] | None = None,
        *,
        second_set: bool = True,
    ) -> None:
        self.index = index
        self.shape = shape
        self.nodes = nodes
        self._allowed = index.available & index.matching(shape)
        #: Capacities are computed only of nodes on which the GPUs suffice.
        self._capacities: dict[int, NodeCapacity] = {}
        #: The free gpu_milli once the victims are gone; and the placements `_capacities` lacks.
        self._milli: dict[int, int] = {}
        self._gained: dict[int, list[Placement]] = {}
        self._victims: dict[int, list[Task]] = {}
        #: The number of replicas that all nodes hold, and that of each node with released slots.
        self._total = -1
        self._held: dict[int, int] = {}
        self._all: list[Task] = []
        self._new_selection = new_selection
        self._selections: dict[int, VictimSelection] = {}
        self._by_node = shape.replicas == 1 and not shape.whole_nodes
        #: The nodes where a victim with a part of a GPU may not be preempted with those before it.
        self.refused_parts: set[int] = set()
        self._second: Gains | None = None
        if second_set and new_selection is not None:
            self._second = Gains(index, shape, nodes, new_selection, second_set=False)
        #: Whether the last victim may not be preempted together with those before it.
        self._refused = False

    def _selects(self, victim: Task, at: int) -> bool:
        """Whether a victim may be preempted in addition to those at a node, or of a gang's."""
        if self._new_selection is None:
            return True
        selection = self._selections.get(at)
        if selection is None:
            selection = self._selections[at] = self._new_selection()
        return selection.add(victim)

    def add(self, victim: Task) -> Iterable[Sequence[Task]]:
        """Add a victim; return the sets of victims without which the task may fit now."""
        self._refused = False
        found = self._sets_with(victim)
        if self._refused and self._second is not None:
            return [*found, *self._second.add(victim)]
        return found

    def _sets_with(self, victim: Task) -> Iterable[Sequence[Task]]:
        """Add a victim to the first set, as `add`."""
        ordinals = self._gain(victim)
        shape = self.shape
        if shape.whole_nodes:
            if any(helps(self._capacities[ordinal], shape) for ordinal in ordinals):
                return [list(self._all)]
            return []
        if shape.replicas == 1:
            return [
                list(self._victims[ordinal])
                for ordinal in ordinals
                if self._capacities[ordinal].holds(shape)
            ]
        return [self._on_ready_nodes()] if self._count(ordinals) >= shape.replicas else []

    def _gain(self, victim: Task) -> list[int]:
        """Count the slots that a victim releases; return the nodes that may hold a replica now."""
        ordinals: dict[int, None] = {}
        refused: set[int] = set()
        for held in kept(victim):
            ordinal = self.nodes[held.node].ordinal
            if not self._allowed >> ordinal & 1 or ordinal in refused:
                continue
            new = ordinal not in ordinals if self._by_node else not ordinals
            if new and not self._selects(victim, ordinal if self._by_node else ALL_NODES):
                self._refused = True
                if not self._by_node:
                    return []
                refused.add(ordinal)
                if self.shape.gpus and held.gpu_milli < WHOLE:
                    self.refused_parts.add(ordinal)
                continue
            if ordinal not in self._gained:
                self._gained[ordinal] = []
                self._milli[ordinal] = self.index.capacities[ordinal].gpu_milli
            self._gained[ordinal].append(held)
            self._milli[ordinal] += held.gpu_milli * len(held.slots)
            if ordinal not in ordinals:
                ordinals[ordinal] = None
                self._victims.setdefault(ordinal, []).append(victim)
        if ordinals:
            self._all.append(victim)
        least = 0 if self.shape.whole_nodes else self.shape.replica_gpu_milli
        enough = [ordinal for ordinal in ordinals if self._milli[ordinal] >= least]
        for ordinal in enough:
            self._update(ordinal)
        return sorted(enough)

    def _update(self, ordinal: int) -> None:
        """Compute the capacity of a node without its victims."""
        capacity = self._capacities.get(ordinal)
        if capacity is None:
            capacity = copy(self.index.capacities[ordinal])
            capacity.slots = list(capacity.slots)
            self._capacities[ordinal] = capacity
        for held in self._gained[ordinal]:
            for slot in held.slots:
                capacity.slots[slot] += held.gpu_milli
            capacity.gpuless_left += not held.slots
            capacity.cpu_milli += held.cpu_milli
            capacity.memory_mib += held.memory_mib
        self._gained[ordinal].clear()
        capacity.recount()

    def _count(self, ordinals: Iterable[int]) -> int:
        """Count again how many replicas these nodes can hold; return the sum over all nodes."""
        shape = self.shape
        if self._total < 0:
            self._total = HeldReplicas(self.index, shape).total
        for ordinal in ordinals:
            before = self._held.get(ordinal)
            if before is None:
                before = replicas_on(self.index.capacities[ordinal], shape)
            now = self._held[ordinal] = replicas_on(self._capacities[ordinal], shape)
            self._total += now - before
        return self._total

    def _on_ready_nodes(self) -> list[Task]:
        ready = {
            victim
            for ordinal, held in self._held.items()
            if held
            for victim in self._victims[ordinal]
        }
        return [victim for victim in self._all if victim in ready]


def sets_by_gpu(
    gains: Gains, victims: Sequence[Task], new_selection: Callable[[], VictimSelection]
) -> Iterator[list[Task]]:
    """Yield sets of victims of one node without which enough of its GPUs are free enough for a task
    with one replica, on the nodes where `gains` refused a victim with a part of a GPU.

    The victims of a node that come first may hold parts of different GPUs, and together they may
    leave none that is free enough. So here a GPU gives victims only if they suffice for it, in
    addition to those of the GPUs before it; the GPU with the largest free part comes first.
    `victims` are in the policy's order. At most `MAX_TRIES` GPUs are considered.
    """
    held, shape = _held_by_gpu(gains, victims), gains.shape
    attempts = MAX_TRIES
    for ordinal, gpus in held.items():
        capacity = gains.index.capacities[ordinal]
        milli = capacity.milli_of(shape)
        missing = shape.gpus - sum(free >= milli for free in capacity.slots)
        some: list[Task] = []
        for slot in sorted(gpus, key=lambda slot: -capacity.slots[slot]):
            free, holders = capacity.slots[slot], gpus[slot]
            if free >= milli or free + sum(holders.values()) < milli:
                continue
            if not attempts:
                return
            attempts -= 1
            more = _more_victims(new_selection(), some, holders, milli - free)
            if more is None:
                continue
            missing -= 1
            if missing <= 0:
                yield [*some, *more]
            else:
                some += more


def _held_by_gpu(gains: Gains, victims: Sequence[Task]) -> dict[int, dict[int, dict[Task, int]]]:
    """Return what victims hold, by node, GPU and victim, of the nodes where `gains` refused one."""
    found: dict[int, dict[int, dict[Task, int]]] = {}
    for victim in victims:
        for held in kept(victim):
            ordinal = gains.nodes[held.node].ordinal
            for slot in held.slots if ordinal in gains.refused_parts else ():
                holders = found.setdefault(ordinal, {}).setdefault(slot, {})
                holders[victim] = holders.get(victim, 0) + held.gpu_milli
    return found


def _more_victims(
    selection: VictimSelection, some: Sequence[Task], holders: Mapping[Task, int], missing: int
) -> list[Task] | None:
    """Return those of the holders of a GPU that release what is missing of it, if they may be
    preempted in addition to some; else None.
    """
    missing -= sum(holders.get(victim, 0) for victim in some if selection.add(victim))
    more: list[Task] = []
    for victim, milli in holders.items():
        if missing <= 0:
            break
        if victim not in some and selection.add(victim):
            more.append(victim)
            missing -= milli
    return more if missing <= 0 else None
