"""Fragmentation gradient descent: a task goes where it adds the least to what is free and of no use
to those who ask (`workload.py`).
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from yardmaster_core.scheduling.state.capacity_index import STEP, CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_core.scheduling.state.tasks import Job
from yardmaster_core.scheduling.state.workload import Slots, WorkloadCounter

#: Growth of less than this (gpu_milli) makes no difference: nearly equal rooms are told apart by
#: how full they are.
COARSE: Final = 50


def track_workload(jobs: Iterable[Job], pool: Pool) -> None:
    """ReplicaSlots tasks of a pool by what was asked for so far; `jobs` are all that were admitted,
    in that order, gone through only the first time.
    """
    asking = pool.workload
    if asking is None:
        asking = pool.workload = WorkloadCounter()
        for job in jobs:
            if pool.name in job.spec.pools:
                asking.add(job.shape, job.spec.tasks)
    for index in (pool.free, pool.future):
        index.count_on(asking.workload)


def growth(index: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> int:
    """`fgd`'s rank of a room that holds the shape: by how much more of it would be useless, then as
    `best_fit` has it.
    """
    return min(_ways(index, capacity, shape))[0]


def slots_of_least_growth(index: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> Slots:
    """The slots of a room that `fgd` takes."""
    if shape.gpus != 1 or shape.gpu_milli == WHOLE:
        return capacity.pick(shape)
    _, free = min(_ways(index, capacity, shape))
    return (capacity.slots.index(free),)


def _ways(index: CapacityIndex, capacity: NodeCapacity, shape: Shape) -> list[tuple[int, int]]:
    # Ranks of the ways to place one replica, and where it is a share, what is free of the slot.
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
        # Rounded up: what does not grow at all is as good as what shrinks a little.
        ways.append(((-(-more // unit) << 24) + fullness, free))
    return ways


def _after(capacity: NodeCapacity, shape: Shape, slots: Slots) -> Iterable[tuple[int, int, Slots]]:
    milli, gpus = shape.gpu_milli, shape.gpus
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
