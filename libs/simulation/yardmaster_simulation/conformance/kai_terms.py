"""Convert KAI-Scheduler's amounts, priorities, kinds and quotas into those of the core.

KAI's requests of memory are in 10^9 bytes, and its quotas are in 10^6 bytes. If both were rounded
to MiB, equal amounts could become unequal. So 10^6 bytes become 1 MiB. In scenarios with smaller
amounts, 1 byte becomes 1 MiB.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from yardmaster_schemas.events.requests import Kind, Quota
from yardmaster_schemas.resources import Resources
from yardmaster_simulation.conformance.kai_form import UNLIMITED, Job, Node, PoolQuota, Task
from yardmaster_simulation.conformance.scenarios import Skip

MEGABYTE: Final = 10**6
#: A whole GPU in gpu_milli.
WHOLE: Final = 1000
LOWEST_PRIORITY: Final = 99


@dataclass(frozen=True, slots=True)
class Units:
    """How many bytes become 1 MiB, and whether the memory of all GPUs is known."""

    bytes_per_mib: int
    gpu_memory_known: bool

    def memory_mib(self, amount_bytes: int) -> int:
        """Return the amount in the scenario's unit."""
        return amount_bytes // self.bytes_per_mib

    def quota_mib(self, megabytes: int) -> int:
        """Return the amount of a quota (in units of 10^6 bytes) in the scenario's unit."""
        return megabytes * (MEGABYTE // self.bytes_per_mib)


def units_of(nodes: Sequence[Node], tasks: Iterable[Task]) -> Units:
    """Return the units in which all amounts are whole numbers."""
    amounts = [*(node.mem_bytes for node in nodes), *(task.mem_bytes for task in tasks)]
    whole = all(amount % MEGABYTE == 0 for amount in amounts)
    known = all(node.gpu_memory_mib for node in nodes if node.gpus)
    return Units(MEGABYTE if whole else 1, known)


def resources_of(task: Task, units: Units) -> Resources:
    """Return what a task requests.

    Raises:
        Skip: the task requests GPU memory, but the scenario omits the memory of some GPUs.
    """
    gpu_memory_mib = 0
    if task.gpu_fraction is not None:
        gpus, gpu_milli = task.gpu_devices or 1, milli(task.gpu_fraction)
    elif task.gpu_memory_mib is not None:
        if not units.gpu_memory_known:
            raise Skip("GPU memory is requested, and a node does not say how much its GPUs have")
        gpus, gpu_milli = task.gpu_devices or 1, 0
        gpu_memory_mib = task.gpu_memory_mib
    else:
        gpus = task.gpus or 0
        gpu_milli = WHOLE if gpus else 0
    return Resources(
        gpus=gpus,
        gpu_milli=gpu_milli,
        cpu_milli=task.cpu_millis,
        memory_mib=units.memory_mib(task.mem_bytes),
        gpu_memory_mib=gpu_memory_mib,
    )


def milli(gpus: Decimal) -> int:
    """Return GPUs in gpu_milli."""
    return round(gpus * WHOLE)


def priorities_of(jobs: Iterable[Job]) -> Mapping[int, int]:
    """Return the core's priority for each priority in KAI; the highest becomes 1."""
    ranked = sorted({job.priority for job in jobs}, reverse=True)
    if len(ranked) > LOWEST_PRIORITY:
        raise Skip(f"jobs have more than {LOWEST_PRIORITY} priorities")
    return {priority: rank for rank, priority in enumerate(ranked, 1)}


def kind_of(job: Job) -> Kind:
    """Return the kind of a job by its priority class."""
    name = job.priority_class or ""
    if name.startswith("build"):
        return Kind.INTERACTIVE
    return Kind.INFERENCE if name == "inference" else Kind.TRAINING


def quota_of(queue: PoolQuota, units: Units) -> Quota:
    """Return the quota of a queue in a pool."""
    gpus, most = queue.deserved_gpus, queue.max_allowed_gpus
    return Quota(
        deserved_milli=None if gpus == UNLIMITED else milli(gpus),
        deserved_unlimited=gpus == UNLIMITED,
        deserved_cpu_milli=_bound(queue.deserved_cpu_millis),
        deserved_memory_mib=_memory_bound(queue.deserved_mem_mb, units),
        limit_milli=None if most == UNLIMITED else milli(most),
        limit_cpu_milli=_bound(queue.max_allowed_cpu_millis),
        limit_memory_mib=_memory_bound(queue.max_allowed_mem_mb, units),
        # A department that KAI creates implicitly has a weight of -1. It has no siblings, so its
        # weight has no effect.
        over_quota_weight=max(0, queue.over_quota_weight),
        over_quota=queue.over_quota,
    )


def _bound(amount: int) -> int | None:
    return None if amount == UNLIMITED else amount


def _memory_bound(megabytes: int, units: Units) -> int | None:
    return None if megabytes == UNLIMITED else units.quota_mib(megabytes)
