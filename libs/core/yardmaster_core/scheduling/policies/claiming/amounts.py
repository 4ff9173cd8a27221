"""Amounts of GPUs (gpu_milli), CPUs (cpu_milli) and memory (MiB) together."""

from collections.abc import Iterable
from typing import Final

from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.reasons import AMOUNTS

#: gpu_milli, cpu_milli, memory_mib.
Amounts = tuple[int, int, int]
#: The same; None: unlimited.
Bounds = tuple[int | None, int | None, int | None]

NOTHING: Final[Amounts] = (0, 0, 0)
#: Some of each resource.
EVERY: Final[Amounts] = (1, 1, 1)
UNLIMITED: Final[Bounds] = (None, None, None)
RESOURCES: Final = range(3)
GPU, CPU, MEMORY = RESOURCES
#: Shares beyond what is deserved are multiples of these.
UNITS: Final[Amounts] = (WHOLE, 1, 1)
#: How the names of numbers about each resource end.
SUFFIXES: Final = AMOUNTS


def plus(a: Amounts, b: Amounts) -> Amounts:
    """Return the sum."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def minus(a: Amounts, b: Amounts) -> Amounts:
    """Return the difference."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def times(a: Amounts, factor: int) -> Amounts:
    """Return a multiple."""
    return a[0] * factor, a[1] * factor, a[2] * factor


def requested(pool: Pool, shape: Shape) -> Amounts:
    """Return what a task of `shape` requests of a pool in all; on whole nodes with the CPUs and
    memory of one, and of GPU memory as its part of the smallest GPUs.
    """
    gpu = pool.most_milli(shape) if shape.gpu_memory_mib else shape.total_gpu_milli
    return gpu, shape.cpu_milli * shape.replicas, shape.memory_mib * shape.replicas


def limited(pool: Pool, shape: Shape) -> Amounts:
    """Return the same for checks of limits: of GPU memory as its part of the largest GPUs."""
    gpu = pool.least_milli(shape) if shape.gpu_memory_mib else shape.total_gpu_milli
    return gpu, shape.cpu_milli * shape.replicas, shape.memory_mib * shape.replicas


def held(pool: Pool, task: Task) -> Amounts:
    """Return the same for a running task: of GPU memory as it is placed."""
    shape = task.job.shape
    gpu = pool.held_milli(task) if shape.gpu_memory_mib else shape.total_gpu_milli
    return gpu, shape.cpu_milli * shape.replicas, shape.memory_mib * shape.replicas


def placed(placements: Iterable[Placement]) -> Amounts:
    """Return what replicas take together."""
    gpu = cpu = memory = 0
    for placement in placements:
        gpu += placement.gpu_milli * len(placement.slots)
        cpu += placement.cpu_milli
        memory += placement.memory_mib
    return gpu, cpu, memory


def exceeded(amounts: Amounts, bounds: Bounds, *, of: Amounts = EVERY) -> int | None:
    """Return the first resource of which `amounts` has more than `bounds`, and `of` has any; else
    None.
    """
    for resource in RESOURCES:
        bound = bounds[resource]
        if bound is not None and amounts[resource] > bound and of[resource]:
            return resource
    return None


def within(amounts: Amounts, bounds: Bounds) -> Amounts:
    """Return the smaller of the amount and the bound of each resource."""
    gpu, cpu, memory = (
        amount if bound is None else min(amount, bound)
        for amount, bound in zip(amounts, bounds, strict=True)
    )
    return gpu, cpu, memory
