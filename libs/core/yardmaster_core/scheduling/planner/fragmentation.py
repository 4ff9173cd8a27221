"""Fragmentation gradient descent (`fgd`): place a task on the node where the unusable part of the
free capacity grows least.

Source: "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023); see `workload.py` for the measure.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from yardmaster_core.scheduling.state.capacity_index import STEP, CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_core.scheduling.state.workload import Slots

#: Differences below this (gpu_milli) are ignored: nearly equal nodes are ordered by how full they
#: are.
COARSE: Final = 50


def track_workload(pool: Pool) -> None:
    """Let a pool's placement use the workload requested so far."""
    for index in (pool.free, pool.future):
        index.count_on(pool.workload.workload)


def growth(index: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> int:
    """Return the sort key of a node that holds the shape: the growth of its unusable capacity, then
    the order of `best_fit`.
    """
    return min(_ways(index, capacity, shape))[0]


def slots_of_least_growth(index: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> Slots:
    """Return the slots of a node that `fgd` takes."""
    if shape.gpus != 1 or capacity.milli_of(shape) == WHOLE:
        return capacity.pick(shape)
    _, free = min(_ways(index, capacity, shape))
    return (capacity.slots.index(free),)


def _ways(index: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> list[tuple[int, int]]:
    # (sort key, free gpu_milli of the chosen slot or 0) for each way to place one replica.
    workload = index.workload
    slots = tuple(sorted(capacity.slots))
    if slots and slots[0] < 0:
        slots = tuple(sorted(max(0, free) for free in slots))
    before = workload.useless(slots, capacity.cpu_milli, capacity.memory_mib, capacity.node_type)
    cpu_milli = capacity.cpu_milli - shape.cpu_milli
    memory_mib = capacity.memory_mib - shape.memory_mib
    unit = COARSE * workload.total or 1
    ways = []
    for fullness, free, after in _after(capacity, shape, slots):
        more = workload.useless(after, cpu_milli, memory_mib, capacity.node_type) - before
        # Rounded up: no growth is as good as a small decrease.
        ways.append(((-(-more // unit) << 24) + fullness, free))
    return ways


def _after(capacity: NodeCapacity, shape: Shape, slots: Slots) -> Iterable[tuple[int, int, Slots]]:
    milli, gpus = capacity.milli_of(shape), shape.gpus
    if not gpus:
        return (((int(capacity.idle) << 20) + capacity.whole, 0, slots),)
    if milli == WHOLE:
        return ((capacity.whole, 0, (0,) * gpus + slots[:-gpus]),)
    if gpus > 1:
        left = list(capacity.slots)
        for slot in capacity.pick(shape):
            left[slot] -= milli
        return ((capacity.whole, 0, tuple(sorted(max(0, free) for free in left))),)
    ways = []
    last = -1
    for at in range(bisect_left(slots, milli), len(slots)):
        free = slots[at]
        if free != last:
            last = free
            after = sorted((*slots[:at], free - milli, *slots[at + 1 :]))
            fullness = (1 << 20 if free == WHOLE else free // STEP << 12) + capacity.whole
            ways.append((fullness, free, tuple(after)))
    return ways
