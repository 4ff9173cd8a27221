"""Fragmentation computed as in its paper, without caches; the reference for the core."""

from collections.abc import Mapping, Sequence

from yardmaster_core.scheduling.planner.fragmentation import COARSE
from yardmaster_core.scheduling.state.capacity_index import STEP
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_core.scheduling.state.workload import Class


def useless_to(
    requested: Class, slots: Sequence[int], cpu_milli: int, memory_mib: int, node_type: str
) -> int:
    """The free gpu_milli of a node that is useless to a class."""
    cpu, memory, gpus, milli, types = requested
    free = [max(0, slot) for slot in slots]
    fits = (
        gpus > 0
        and cpu_milli >= cpu
        and memory_mib >= memory
        and sum(1 for slot in free if slot >= milli) >= gpus
        and (not types or node_type in types)
    )
    return sum(slot for slot in free if not fits or slot < milli)


def useless(
    counts: Mapping[Class, int],
    slots: Sequence[int],
    cpu_milli: int,
    memory_mib: int,
    node_type: str,
) -> int:
    """The sum over all requested replicas."""
    return sum(
        number * useless_to(requested, slots, cpu_milli, memory_mib, node_type)
        for requested, number in counts.items()
    )


def ways(shape: Shape, capacity: NodeCapacity) -> list[tuple[int, ...]]:
    """Slots that one replica may get: each with a free share, else those any strategy takes."""
    if shape.gpus == 1 and shape.gpu_milli < WHOLE:
        return [(at,) for at, free in enumerate(capacity.slots) if free >= shape.gpu_milli]
    return [capacity.pick(shape)]


def grade(
    counts: Mapping[Class, int], capacity: NodeCapacity, shape: Shape, slots: tuple[int, ...]
) -> tuple[int, ...]:
    """The key by which nodes, and slots on them, are chosen: the smallest."""
    after = list(capacity.slots)
    for slot in slots:
        after[slot] -= shape.gpu_milli
    left = capacity.cpu_milli - shape.cpu_milli, capacity.memory_mib - shape.memory_mib
    before = useless(
        counts, capacity.slots, capacity.cpu_milli, capacity.memory_mib, capacity.node_type
    )
    growth = useless(counts, after, *left, capacity.node_type) - before
    step = COARSE * sum(counts.values()) or 1
    coarse = growth // step + (growth % step > 0)
    if not shape.gpus:
        return coarse, int(capacity.idle), capacity.whole
    if shape.gpus == 1 and shape.gpu_milli < WHOLE:
        free = capacity.slots[slots[0]]
        fullness = (1, 0) if free == WHOLE else (0, free // STEP)
        return (coarse, *fullness, capacity.whole, free)
    return coarse, capacity.whole
