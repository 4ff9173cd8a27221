"""Placement strategies, and the placement of whole gangs.

A strategy is a function from a capacity index, a shape and a set of nodes to the nodes that hold
one replica, best first. Every pool may use every strategy, under every policy. The strategy decides
where a task is placed, never whether it fits.

The replicas of a gang are equal, and the number of replicas that one node can hold does not depend
on the other nodes. So filling one node after another finds a placement for all replicas whenever
there is one.

A task on whole nodes goes to one node that holds all of it, chosen by the strategy. Otherwise it
becomes a gang over idle nodes of equal size: the largest size that divides the requested number of
GPUs (as in Determined; tasks without GPUs do not keep a node from being idle). A pool may allow
nodes of unequal size: then the largest nodes that still fit are taken one after another.
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
from yardmaster_schemas.events.requests import GpuPlacement, PoolConfig

#: Yields the nodes of a set (one bit each) that hold one replica of a shape, best first.
NodeOrder = Callable[[CapacityIndex, Shape, int], Iterator[NodeCapacity]]
#: Selects the slots that one replica gets on a node that holds it.
SlotPick = Callable[[CapacityIndex, NodeCapacity, Shape], tuple[int, ...]]

#: How many CPUs one GPU counts as in `tight_fit`.
CPUS_OF_A_GPU: Final = 16


def _fullest(_: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> tuple[int, ...]:
    return capacity.pick(shape)


def _emptiest(_: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> tuple[int, ...]:
    return capacity.pick(shape, spread=True)


#: How a pool chooses the GPUs of a node, instead of its placement.
_PICKS: Final[Mapping[GpuPlacement, SlotPick]] = {
    GpuPlacement.PACKED: _fullest,
    GpuPlacement.SPREAD: _emptiest,
}


@dataclass(frozen=True, slots=True)
class PlacementStrategy:
    """How to choose nodes, and slots on them."""

    name: str
    order: NodeOrder
    pick: SlotPick = _fullest
    #: An equal task goes to the node of the last one while that holds it.
    sticky: bool = False
    #: Each replica of a gang is placed by a choice of its own.
    per_replica: bool = False
    #: Needs the workload requested from the pool so far (`fragmentation.py`).
    uses_workload: bool = False
    #: Gangs on whole nodes may use nodes of unequal size.
    unequal: bool = False
    #: Makes order and pick of one task from random numbers.
    seeded: Callable[[SeededRandom], tuple[NodeOrder, SlotPick]] | None = None
    seed: int = 0
    #: Replaces `pick`, also a pick from random numbers.
    gpu_placement: GpuPlacement | None = None

    def for_task(self, key: str) -> "PlacementStrategy":
        """Return the strategy for one task; `key` names the task and its attempt."""
        if self.seeded is None:
            return self
        order, pick = self.seeded(SeededRandom(f"{self.name}/{self.seed}/{key}"))
        if self.gpu_placement is not None:
            pick = self.pick
        return replace(self, order=order, pick=pick)


#: The node and the slots of one replica.
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
    """Order nodes by free GPUs, fewest first, so that whole nodes stay free for tasks that need
    them.

    A fraction of a GPU goes to the fullest shared slot with capacity, then to the fullest node. A
    task without GPUs goes to the fullest node in use, then to the idle node with the most such
    tasks.
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
        fractions = index.fractions_of(shape)
        for level in range(min((milli for milli, _ in fractions), default=WHOLE) // STEP, top + 1):
            found = index.shared[level] & mask
            if level < top:
                found &= ~index.shared[level + 1]
            if shape.gpu_memory_mib:
                found &= _enough(fractions, level)
            for capacity in _capacities(index, shape, found):
                if capacity.shared >= capacity.milli_of(shape):
                    yield capacity
    least = shape.gpus if shape.gpu_milli == WHOLE else 0
    yield from _by_free(index, shape, mask, range(least, len(index.whole)))


def _enough(fractions: Iterable[tuple[int, int]], level: int) -> int:
    # The nodes where a fraction of that level may be enough.
    enough = 0
    for milli, nodes in fractions:
        if milli // STEP <= level:
            enough |= nodes
    return enough


def worst_fit(index: CapacityIndex, shape: Shape, within: int = -1) -> Iterator[NodeCapacity]:
    """Order nodes by the fraction of their GPUs that is free, largest first, so that load spreads.

    For a task without GPUs on an idle node, the fraction of its places for such tasks counts.
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
    # Nodes (one bit each) by the fraction of their GPUs that is free; each has at least `least`
    # free GPUs.
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
    # Nodes by a score of their free GPUs; idle nodes by their free places for tasks without GPUs.
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
    """Order nodes by free GPUs and CPUs together, least first."""
    return index.in_order(shape, within, _left)


def _left(_: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> int:
    # A task takes the same amount on every node, unless it requests memory of GPUs; so the order
    # before the placement is also the order after it.
    gpu_milli = capacity.gpu_milli
    if shape.gpu_memory_mib:
        gpu_milli -= shape.gpus * capacity.milli_of(shape)
    return gpu_milli * CPUS_OF_A_GPU + capacity.cpu_milli


def fgd(index: CapacityIndex, shape: Shape, within: int = -1) -> Iterator[NodeCapacity]:
    """Order nodes by how much the task increases the capacity that no task could use, least
    first.
    """
    return index.in_order(shape, within, growth)


def random(
    index: CapacityIndex, shape: Shape, within: int = -1, *, generator: SeededRandom | None = None
) -> Iterator[NodeCapacity]:
    """Order nodes at random."""
    generator = generator or SeededRandom(shape.id)
    mask = index.promising(shape) & within
    capacities = index.capacities
    count = mask.bit_count()
    while count:
        # A drawn node that does not hold the task is skipped, which leaves the others equally
        # likely.
        ordinal = nth_bit(mask, generator.below(count))
        mask ^= 1 << ordinal
        count -= 1
        if capacities[ordinal].holds(shape):
            yield capacities[ordinal]


def _random_slots(
    generator: SeededRandom, _: CapacityIndex, capacity: NodeCapacity, shape: Shape
) -> tuple[int, ...]:
    # The whole GPUs of a node are equal, and a gang with several fractions must take the emptiest
    # slots.
    milli = capacity.milli_of(shape)
    if milli in (0, WHOLE) or (shape.replicas > 1 and shape.gpus > 1):
        return capacity.pick(shape)
    fitting = [slot for slot, free in enumerate(capacity.slots) if free >= milli]
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
    """Return the placement strategy of that name.

    Raises:
        UnknownPlacement.
    """
    try:
        return PLACEMENTS[name]
    except KeyError:
        raise UnknownPlacement(name=name, known=", ".join(PLACEMENTS)) from None


def strategy_of(config: PoolConfig) -> PlacementStrategy:
    """Return the placement strategy of a pool.

    Raises:
        UnknownPlacement.
    """
    strategy = strategy_named(config.placement)
    if config.gpu_placement is not None:
        pick = _PICKS[config.gpu_placement]
        strategy = replace(strategy, pick=pick, gpu_placement=config.gpu_placement)
    return replace(strategy, unequal=config.unequal_gangs, seed=config.seed)


def any_placement(
    index: CapacityIndex, shape: Shape, config: PoolConfig
) -> list[ReplicaSlots] | None:
    """Return any placement, without the pool's strategy: for checks whether a task fits."""
    strategy = PLACEMENTS["best_fit"]
    return place(index, shape, replace(strategy, unequal=config.unequal_gangs))


def place(
    index: CapacityIndex,
    shape: Shape,
    strategy: PlacementStrategy,
    key: str = "",
    avoid: int = 0,
) -> list[ReplicaSlots] | None:
    """Return a node and slots for every replica, or None; the index is left unchanged.

    `key` names the task for strategies that use random numbers. `avoid` is a set of nodes (one bit
    each) that are not used.
    """
    strategy = strategy.for_task(key or shape.id)
    if shape.replicas == 1:
        for capacity in strategy.order(index, shape, ~avoid):
            return [(capacity, strategy.pick(index, capacity, shape))]
        return _on_idle_nodes(index, shape, strategy, avoid) if shape.whole_nodes else None
    if shape.total_gpu_milli > index.free_milli:
        return None
    before = index.changes
    placement: list[ReplicaSlots] = []
    while len(placement) < shape.replicas:
        chosen = next(strategy.order(index, shape, ~avoid), None)
        if chosen is None:
            break
        most = len(placement) + 1 if strategy.per_replica else shape.replicas
        amounts = (chosen.milli_of(shape), shape.cpu_milli, shape.memory_mib)
        while len(placement) < most and chosen.holds(shape):
            picked = strategy.pick(index, chosen, shape)
            placement.append((chosen, picked))
            index.take(chosen, picked, *amounts)
    for chosen, picked in reversed(placement):
        amounts = (chosen.milli_of(shape), shape.cpu_milli, shape.memory_mib)
        index.release(chosen, picked, *amounts)
    index.changes = before
    return placement if len(placement) == shape.replicas else None


def _on_idle_nodes(
    index: CapacityIndex,
    shape: Shape,
    strategy: PlacementStrategy,
    avoid: int,
) -> list[ReplicaSlots] | None:
    groups = _idle_nodes(index, shape, avoid)
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
    """Return the number of idle nodes that a gang on whole nodes may use, by node size, largest
    first.
    """
    groups = _idle_nodes(index, shape)
    return {size: found.bit_count() for size, found in groups.items()}


def _idle_nodes(index: CapacityIndex, shape: Shape, avoid: int = 0) -> dict[int, int]:
    mask = index.candidates(shape) & index.idle & ~avoid
    # Only free CPU and memory must be checked node by node.
    exact = not shape.cpu_milli and not shape.memory_mib
    groups: dict[int, int] = {}
    for size in range(len(index.whole) - 1, 0, -1):
        found = index.whole[size] & mask
        if found and not exact:
            found = _supporting(index, shape, found)
        if found:
            groups[size] = found
    return groups


def _each(index: CapacityIndex, mask: int) -> Iterator[NodeCapacity]:
    while mask:
        lowest = mask & -mask
        yield index.capacities[lowest.bit_length() - 1]
        mask ^= lowest


def _supporting(index: CapacityIndex, shape: Shape, mask: int) -> int:
    for capacity in _each(index, mask):
        if not capacity.supports(shape):
            mask ^= 1 << capacity.ordinal
    return mask


def nodes_for(
    gpus: int, counts: Mapping[int, int], *, unequal: bool
) -> list[tuple[int, int]] | None:
    """Return pairs (size, number of nodes) that hold exactly `gpus` together, or None.

    `counts` is the number of idle nodes by size, largest first. Nodes of equal size are preferred.
    Else, with `unequal`, as many of each size as fit are taken, largest first, without
    backtracking; that finds a solution whenever there is one if each size divides the next.
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
    """Whether a node, with its present free capacity, may hold a part of a task of `shape`."""
    return capacity.holds(shape) or (
        shape.whole_nodes and capacity.idle and capacity.supports(shape)
    )


def replicas_that_fit(capacities: Iterable[NodeCapacity], shape: Shape) -> int:
    """Return how many replicas of `shape` the nodes hold, at most all of them."""
    total = 0
    for capacity in capacities:
        total += replicas_on(capacity, shape)
        if total >= shape.replicas:
            break
    return total


def _fractions_on(by_slot: list[int], gpus: int) -> int:
    # Each replica takes a fraction of `gpus` different slots, so no slot serves more fractions than
    # there are replicas.
    most = sum(by_slot) // gpus
    while sum(min(count, most) for count in by_slot) < most * gpus:
        most -= 1
    return most


def replicas_by_gpus(capacity: NodeCapacity, shape: Shape) -> int:
    """Return how many replicas of `shape` the GPUs of a node suffice for, at most all of them.

    For a shape without GPUs, the node's places for such tasks count.
    """
    most = shape.replicas
    if not shape.gpus:
        return min(most, capacity.gpuless_left)
    milli = shape.gpu_milli or capacity.milli_of(shape)
    if milli == WHOLE:
        return min(most, capacity.whole // shape.gpus)
    # A slot that is disabled or reserved, and still held, has less than 0.
    by_slot = [max(0, free // milli) for free in capacity.slots]
    return min(most, _fractions_on(by_slot, shape.gpus))


def replicas_on(capacity: NodeCapacity, shape: Shape) -> int:
    """Return how many replicas of `shape` a node holds, at most all of them."""
    most = replicas_by_gpus(capacity, shape)
    if shape.cpu_milli:
        most = min(most, capacity.cpu_milli // shape.cpu_milli)
    if shape.memory_mib:
        most = min(most, capacity.memory_mib // shape.memory_mib)
    return max(0, most)
