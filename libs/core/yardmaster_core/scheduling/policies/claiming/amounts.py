"""Amounts of GPUs (gpu_milli), CPUs (cpu_milli) and memory (MiB) together."""

from collections.abc import Iterable
from typing import Final

from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_core.scheduling.state.tasks import Attempt, Task
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.reasons import AMOUNTS

#: gpu_milli, cpu_milli, memory_mib.
Amounts = tuple[int, int, int]
#: Bounds of gpu_milli, cpu_milli, memory_mib; None: unlimited.
Bounds = tuple[int | None, int | None, int | None]

NOTHING: Final[Amounts] = (0, 0, 0)
#: Has each resource, for functions that skip each resource with an amount of 0.
EVERY: Final[Amounts] = (1, 1, 1)
UNLIMITED: Final[Bounds] = (None, None, None)
RESOURCES: Final = range(3)
GPU, CPU, MEMORY = RESOURCES
#: Shares beyond what is deserved are multiples of these amounts.
UNITS: Final[Amounts] = (WHOLE, 1, 1)
#: The endings of the names of numbers about each resource.
SUFFIXES: Final = AMOUNTS


def plus(a: Amounts, b: Amounts) -> Amounts:
    """Return the sum of two amounts."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def minus(a: Amounts, b: Amounts) -> Amounts:
    """Return the difference of two amounts."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def times(a: Amounts, factor: int) -> Amounts:
    """Return a multiple of amounts."""
    return a[0] * factor, a[1] * factor, a[2] * factor


def requested(pool: Pool, shape: Shape) -> Amounts:
    """Return the amounts that a task of `shape` requests in a pool, all its replicas together.

    A request of GPU memory counts as its part of the pool's smallest GPUs. Of whole nodes, the
    CPUs and memory of each replica count.
    """
    # rule: GPU memory: shares count the smallest GPUs
    gpu = pool.most_milli(shape) if shape.gpu_memory_mib else shape.total_gpu_milli
    return gpu, shape.cpu_milli * shape.replicas, shape.memory_mib * shape.replicas


def requested_for_limits(
    pool: Pool, shape: Shape, task: Task, gpu_milli: int | None = None
) -> Amounts:
    """Return the amounts that a pending task of `shape` requests, for comparison with limits and
    deserved amounts: `gpu_milli`, or the least that it may take now.
    """
    # rule: GPU memory: deserved counts the largest GPUs
    gpu = pool.milli_for_limits(shape, task) if gpu_milli is None else gpu_milli
    return gpu, shape.cpu_milli * shape.replicas, shape.memory_mib * shape.replicas


def least_requested(pool: Pool, shape: Shape) -> Amounts:
    """Return the amounts that a task of `shape` takes at least, wherever it is placed: a request of
    GPU memory counts as its part of the pool's largest GPUs.
    """
    gpu = pool.least_milli(shape) if shape.gpu_memory_mib else shape.total_gpu_milli
    return gpu, shape.cpu_milli * shape.replicas, shape.memory_mib * shape.replicas


def held_by_task(pool: Pool, task: Task) -> Amounts:
    """Return the amounts that a running task holds, without replicas that released theirs; or that
    are reserved for a pending one. GPU memory counts as the part of the GPUs on which the task is
    placed.
    """
    shape, run = task.job.shape, task.run
    if run is None and task.reserved is not None:
        return placed_amounts(task.reserved.placements)
    if run is not None and run.open < len(run.placements):
        return unreleased_amounts(run)
    gpu = pool.held_milli(task) if shape.gpu_memory_mib else shape.total_gpu_milli
    return gpu, shape.cpu_milli * shape.replicas, shape.memory_mib * shape.replicas


def unreleased_amounts(run: Attempt) -> Amounts:
    """Return the amounts that the replicas of an attempt hold that did not release them."""
    return placed_amounts(
        placement
        for replica, placement in enumerate(run.placements)
        if run.replicas[replica] < ReplicaState.RELEASED
    )


def placed_amounts(placements: Iterable[Placement]) -> Amounts:
    """Return the amounts that placed replicas hold together."""
    gpu = cpu = memory = 0
    for placement in placements:
        gpu += placement.gpu_milli * len(placement.slots)
        cpu += placement.cpu_milli
        memory += placement.memory_mib
    return gpu, cpu, memory


def first_exceeded(amounts: Amounts, bounds: Bounds, *, among: Amounts = EVERY) -> int | None:
    """Return the first resource whose amount exceeds its bound, among the resources that `among`
    has; else None.
    """
    for resource in RESOURCES:
        bound = bounds[resource]
        if bound is not None and amounts[resource] > bound and among[resource]:
            return resource
    return None


def within(amounts: Amounts, bounds: Bounds) -> Amounts:
    """Return the smaller of the amount and the bound of each resource."""
    gpu, cpu, memory = (
        amount if bound is None else min(amount, bound)
        for amount, bound in zip(amounts, bounds, strict=True)
    )
    return gpu, cpu, memory
