"""Where a task is placed: strategies that order rooms, and the placing of whole gangs.

A strategy is a function from an index, a shape and a set of nodes to those of their rooms that hold
one replica, best first. Every pool may use every strategy, whatever its policy. Which one it is
decides where a task is placed, never whether.

Replicas of a gang are equal, so filling one room after another finds a place for all of them
whenever there is one: what a room can hold does not depend on the others.

A task on whole nodes goes to one node that holds all of it, chosen by the strategy, else as a gang
over idle nodes of equal size, largest first, whose size divides what it uses_workload for (after
Determined; tasks without GPUs do not keep a node from being idle). A pool may allow unequal ones:
the largest that still fit, one after another.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Final

from yardmaster_core.errors import UnknownPlacement
from yardmaster_core.scheduling.planner.fragmentation import growth, slots_of_least_growth
from yardmaster_core.scheduling.planner.seeded_random import SeededRandom, nth_bit
from yardmaster_core.scheduling.state.capacity_index import STEP, CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_schemas.events.requests import PoolConfig

NodeOrder = Callable[[CapacityIndex, Shape, int], Iterator[NodeCapacity]]
#: The slots that one replica gets in a room that holds it.
SlotPick = Callable[[CapacityIndex, NodeCapacity, Shape], tuple[int, ...]]

#: What a GPU counts for in `tight_fit`, in CPUs.
CPUS_OF_A_GPU: Final = 16


def _fullest(_: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> tuple[int, ...]:
    return capacity.pick(shape)


@dataclass(frozen=True, slots=True)
class PlacementStrategy:
    """A way to choose rooms, and slots there. `sticky`: the room just chosen is the choice for an
    equal task while it holds one. `per_replica`: a choice is made for each replica of a gang.
    `unequal`: gangs on whole nodes may be laid over nodes of unequal size. `seeded`: what it
    generator from a seed is seeded for each task anew. `uses_workload`: it goes by what tasks of
    the pool asked for so far.
    """

    name: str
    capacities: NodeOrder
    pick: SlotPick = _fullest
    sticky: bool = False
    per_replica: bool = False
    uses_workload: bool = False
    unequal: bool = False
    seeded: Callable[[SeededRandom], tuple[NodeOrder, SlotPick]] | None = None
    seed: int = 0

    def for_one(self, key: str) -> "PlacementStrategy":
        """The strategy for one task, known by `key`."""
        if self.seeded is None:
            return self
        capacities, pick = self.seeded(SeededRandom(f"{self.name}/{self.seed}/{key}"))
        return replace(self, capacities=capacities, pick=pick)


#: One replica's place: the room and its slots.
ReplicaSlots = tuple[NodeCapacity, tuple[int, ...]]


def _capacities(index: CapacityIndex, shape: Shape, mask: int) -> Iterator[NodeCapacity]:
    capacities = index.capacities
    while mask:
        lowest = mask & -mask
        capacity = capacities[lowest.bit_length() - 1]
        if capacity.holds(shape):
            yield capacity
        mask ^= lowest


def _by_free(
    index: CapacityIndex, shape: Shape, mask: int, counts: Iterable[int]
) -> Iterator[NodeCapacity]:
    for count in counts:
        found = index.whole[count] & mask
        if found:
            yield from _capacities(index, shape, found)


def best_fit(index: CapacityIndex, shape: Shape, within: int = -1) -> Iterator[NodeCapacity]:
    """Rooms with the fewest free GPUs first, so that whole nodes stay free for those who need them.

    A share of a GPU goes to the fullest shared slot that has room, then to the fullest node. A task
    without GPUs goes to the fullest node in use, then to the idle node with the most of its kind.
    """
    mask = index.candidates(shape) & within
    if not mask:
        return
    if not shape.gpus:
        for _, found in sorted(_gpuless(index, mask, _free).items()):
            yield from _capacities(index, shape, found)
        return
    if shape.gpu_milli < WHOLE and shape.gpus == 1:
        top = len(index.shared) - 1
        for level in range(shape.gpu_milli // STEP, top + 1):
            found = index.shared[level] & mask
            if level < top:
                found &= ~index.shared[level + 1]
            yield from _capacities(index, shape, found)
    least = shape.gpus if shape.gpu_milli == WHOLE else 0
    yield from _by_free(index, shape, mask, range(least, len(index.whole)))


def worst_fit(index: CapacityIndex, shape: Shape, within: int = -1) -> Iterator[NodeCapacity]:
    """Rooms with the largest part of their GPUs free first, so that load spreads.

    For a task without GPUs that of a node with no GPU in use is the part of its places that is left
    for such tasks.
    """
    mask = index.candidates(shape) & within
    if not mask:
        return
    if shape.gpus:
        levels = _parts(index, mask, shape.gpus if shape.gpu_milli == WHOLE else 0)
    else:
        levels = _gpuless(index, mask, _part)
    for _, found in sorted(levels.items(), reverse=True):
        yield from _capacities(index, shape, found)


def _parts(index: CapacityIndex, mask: int, least: int) -> dict[Fraction, int]:
    # Nodes by which part of their GPUs is free; none of them has fewer than `least`.
    found: dict[Fraction, int] = {}
    for count in range(least, len(index.whole)):
        if having := index.whole[count] & mask:
            for size, of_size in index.of_size.items():
                if both := having & of_size:
                    part = _part(count, size)
                    found[part] = found.get(part, 0) | both
    return found


def _gpuless(
    index: CapacityIndex, mask: int, score: Callable[[int, int], Fraction]
) -> dict[Fraction, int]:
    # Nodes by the score of what is free: GPUs, but on an idle node places for tasks without any.
    idle = mask & index.idle
    found: dict[Fraction, int] = {}
    for count, having in enumerate(index.whole):
        if used := having & mask & ~idle:
            for size, of_size in index.of_size.items():
                if both := used & of_size:
                    key = score(count, size)
                    found[key] = found.get(key, 0) | both
    for places, having in index.gpuless.items():
        if both := having & idle:
            key = score(places, index.max_gpuless)
            found[key] = found.get(key, 0) | both
    return found


def _free(free: int, _: int) -> Fraction:
    return Fraction(free)


def _part(free: int, total: int) -> Fraction:
    return Fraction(free, total) if total else Fraction(0)


def tight_fit(index: CapacityIndex, shape: Shape, within: int = -1) -> Iterator[NodeCapacity]:
    """Rooms with the least left of GPUs and CPU together first."""
    return index.ranked(shape, within, _left)


def _left(_: CapacityIndex, capacity: NodeCapacity, __: Shape) -> int:
    # What a task takes of it is the same everywhere.
    return capacity.gpu_milli * CPUS_OF_A_GPU + capacity.cpu_milli


def fgd(index: CapacityIndex, shape: Shape, within: int = -1) -> Iterator[NodeCapacity]:
    """Rooms first in which the task adds the least to what nobody could use."""
    return index.ranked(shape, within, growth)


def random(
    index: CapacityIndex, shape: Shape, within: int = -1, *, generator: SeededRandom | None = None
) -> Iterator[NodeCapacity]:
    """Rooms in an order in which each is as likely as any other to come next."""
    generator = generator or SeededRandom(shape.id)
    mask = index.promising(shape) & within
    capacities = index.capacities
    count = mask.bit_count()
    while count:
        # One that turns out not to hold it is as if it had never been among them.
        ordinal = nth_bit(mask, generator.below(count))
        mask ^= 1 << ordinal
        count -= 1
        if capacities[ordinal].holds(shape):
            yield capacities[ordinal]


def _random_slots(
    generator: SeededRandom, _: CapacityIndex, capacity: NodeCapacity, shape: Shape
) -> tuple[int, ...]:
    # Whole GPUs of a node are all alike, and a gang of several shares has to take the emptiest.
    if shape.gpu_milli in (0, WHOLE) or (shape.replicas > 1 and shape.gpus > 1):
        return capacity.pick(shape)
    fitting = [slot for slot, free in enumerate(capacity.slots) if free >= shape.gpu_milli]
    drawn = (fitting.pop(generator.below(len(fitting))) for _ in range(shape.gpus))
    return tuple(sorted(drawn))


def _random_of(generator: SeededRandom) -> tuple[NodeOrder, SlotPick]:
    return partial(random, generator=generator), partial(_random_slots, generator)


PLACEMENTS: Final[Mapping[str, PlacementStrategy]] = {
    s.name: s
    for s in (
        PlacementStrategy("best_fit", best_fit, sticky=True),
        PlacementStrategy("worst_fit", worst_fit),
        PlacementStrategy("tight_fit", tight_fit, sticky=True),
        PlacementStrategy("random", random, per_replica=True, seeded=_random_of),
        PlacementStrategy("fgd", fgd, slots_of_least_growth, per_replica=True, uses_workload=True),
    )
}


def strategy_named(name: str) -> PlacementStrategy:
    """The placement strategy of that name.

    Raises:
        UnknownPlacement.
    """
    try:
        return PLACEMENTS[name]
    except KeyError:
        raise UnknownPlacement(name=name, known=", ".join(PLACEMENTS)) from None


def strategy_of(config: PoolConfig) -> PlacementStrategy:
    """How tasks are placed in a pool.

    Raises:
        UnknownPlacement.
    """
    strategy = strategy_named(config.placement)
    return replace(strategy, unequal=config.unequal_gangs, seed=config.seed)


def any_place(index: CapacityIndex, shape: Shape, config: PoolConfig) -> list[ReplicaSlots] | None:
    """A place in a pool configured so for a task that only uses_workload whether there is one."""
    strategy = PLACEMENTS["best_fit"]
    return place(index, shape, replace(strategy, unequal=config.unequal_gangs))


def place(
    index: CapacityIndex,
    shape: Shape,
    strategy: PlacementStrategy,
    also: CapacityIndex | None = None,
    key: str = "",
    avoid: int = 0,
) -> list[ReplicaSlots] | None:
    """A place for every replica, or None; the indexes are left as they were.

    With `also`, each room must have the space in that index too (what is free now, and not
    promised). `key` names the task that the place is for, to strategies that draw. `avoid` is a set
    of nodes (one bit each) that are not taken.
    """
    strategy = strategy.for_one(key or shape.id)
    if shape.replicas == 1:
        for capacity in strategy.capacities(index, shape, _within(also, shape) & ~avoid):
            if also is None or also.capacities[capacity.ordinal].holds(shape):
                return [(capacity, strategy.pick(index, capacity, shape))]
        return _on_idle_nodes(index, shape, strategy, also, avoid) if shape.whole_nodes else None
    if shape.total_gpu_milli > index.free_milli:
        return None
    before = [(view, view.changes) for view in (index, also) if view is not None]
    places: list[ReplicaSlots] = []
    used: list[tuple[CapacityIndex, NodeCapacity, tuple[int, ...]]] = []
    while len(places) < shape.replicas:
        capacities = strategy.capacities(index, shape, _within(also, shape) & ~avoid)
        chosen = _first(capacities, shape, also)
        if chosen is None:
            break
        views = [(index, chosen)]
        if also is not None:
            views.append((also, also.capacities[chosen.ordinal]))
        most = len(places) + 1 if strategy.per_replica else shape.replicas
        while len(places) < most and all(one.holds(shape) for _, one in views):
            picked = strategy.pick(index, chosen, shape)
            places.append((chosen, picked))
            for view, one in views:
                slots = picked if view is index else one.pick(shape)
                view.take(one, slots, shape.gpu_milli, shape.cpu_milli, shape.memory_mib)
                used.append((view, one, slots))
    for view, one, slots in reversed(used):
        view.release(one, slots, shape.gpu_milli, shape.cpu_milli, shape.memory_mib)
    for view, changes in before:
        view.changes = changes
    return places if len(places) == shape.replicas else None


def _within(also: CapacityIndex | None, shape: Shape) -> int:
    # The nodes that are worth a look in the other index: it may have room on few of them.
    return -1 if also is None else also.promising(shape)


def _on_idle_nodes(
    index: CapacityIndex,
    shape: Shape,
    strategy: PlacementStrategy,
    also: CapacityIndex | None,
    avoid: int,
) -> list[ReplicaSlots] | None:
    groups = _idle_nodes(index, shape, also, avoid)
    counts = {size: found.bit_count() for size, found in groups.items()}
    nodes = nodes_for(shape.gpus, counts, unequal=strategy.unequal)
    if nodes is None:
        return None
    return [
        (capacity, tuple(i for i, free in enumerate(capacity.slots) if free == WHOLE))
        for size, count in nodes
        for capacity in islice(_each(index, groups[size]), count)
    ]


def idle_sizes(index: CapacityIndex, shape: Shape) -> dict[int, int]:
    """How many idle nodes of a size a gang on whole nodes may take, largest first."""
    groups = _idle_nodes(index, shape, None)
    return {size: found.bit_count() for size, found in groups.items()}


def _idle_nodes(
    index: CapacityIndex, shape: Shape, also: CapacityIndex | None, avoid: int = 0
) -> dict[int, int]:
    mask = index.candidates(shape) & index.idle & ~avoid
    if also is not None:
        mask &= also.candidates(shape) & also.idle
    # Only which CPU and memory are free has to be looked at one by one.
    exact = not shape.cpu_milli and not shape.memory_mib
    groups: dict[int, int] = {}
    for size in range(len(index.whole) - 1, 0, -1):
        found = index.whole[size] & mask
        if found and not exact:
            found = _supporting(index, also, shape, found)
        if found:
            groups[size] = found
    return groups


def _each(index: CapacityIndex, mask: int) -> Iterator[NodeCapacity]:
    while mask:
        lowest = mask & -mask
        yield index.capacities[lowest.bit_length() - 1]
        mask ^= lowest


def _supporting(index: CapacityIndex, also: CapacityIndex | None, shape: Shape, mask: int) -> int:
    for capacity in _each(index, mask):
        enough = capacity.supports(shape)
        if enough and also is not None:
            enough = also.capacities[capacity.ordinal].supports(shape)
        if not enough:
            mask ^= 1 << capacity.ordinal
    return mask


def nodes_for(
    gpus: int, counts: Mapping[int, int], *, unequal: bool
) -> list[tuple[int, int]] | None:
    """How many nodes of which sizes hold `gpus` together, all of each; None: there is no such set.

    `counts` says how many idle nodes there are of a size, largest first. Of equal size where that
    is possible; else, with `unequal`, as many of each as still fit, largest first, without looking
    back: that finds a way whenever there is one where each size divides the next.
    """
    for size, count in counts.items():
        if gpus % size == 0 and gpus <= count * size:
            return [(size, gpus // size)]
    if not unequal:
        return None
    taken = []
    for size, count in counts.items():
        if number := min(gpus // size, count):
            taken.append((size, number))
            gpus -= size * number
    return None if gpus else taken


def helps(capacity: NodeCapacity, shape: Shape) -> bool:
    """Whether a room may be a part of a place for `shape`, as what is free there is now."""
    return capacity.holds(shape) or (
        shape.whole_nodes and capacity.idle and capacity.supports(shape)
    )


def _first(
    capacities: Iterator[NodeCapacity], shape: Shape, also: CapacityIndex | None
) -> NodeCapacity | None:
    for capacity in capacities:
        if also is None or also.capacities[capacity.ordinal].holds(shape):
            return capacity
    return None


def places_in(capacities: Iterable[NodeCapacity], shape: Shape) -> int:
    """How many replicas of `shape` those rooms hold together, each on its own; stops at all of
    them.
    """
    total = 0
    for capacity in capacities:
        total += _fold(capacity, shape)
        if total >= shape.replicas:
            break
    return total


def _shared_fold(shares: list[int], gpus: int) -> int:
    # Each replica takes one share of `gpus` different slots, so of no slot more than there are
    # replicas.
    most = sum(shares) // gpus
    while sum(min(count, most) for count in shares) < most * gpus:
        most -= 1
    return most


def _fold(capacity: NodeCapacity, shape: Shape) -> int:
    most = shape.replicas
    if not shape.gpus:
        most = min(most, capacity.gpuless_left)
    else:
        milli = shape.gpu_milli
        if milli == WHOLE:
            most = min(most, capacity.whole // shape.gpus)
        else:
            most = min(most, _shared_fold([free // milli for free in capacity.slots], shape.gpus))
    if shape.cpu_milli:
        most = min(most, capacity.cpu_milli // shape.cpu_milli)
    if shape.memory_mib:
        most = min(most, capacity.memory_mib // shape.memory_mib)
    return most
