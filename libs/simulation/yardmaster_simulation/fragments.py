"""Fragmentation: the part of the free GPUs that the requested tasks cannot use.

The measure is the core's measure (`Workload.useless`), averaged over all requests so far. Tasks
without GPUs are excluded, and node types are ignored. At most `CLASSES` sizes represent all
requests. These sizes are chosen again each time the number of tasks has grown by a quarter. Between
two choices, the measure is computed only for nodes that changed.
"""

from typing import Final

from yardmaster_core.scheduling.state.shapes import WHOLE
from yardmaster_core.scheduling.state.workload import Class, Workload
from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import Layout

#: The most sizes that represent all requests.
CLASSES: Final = 32

#: GPU slots of a replica, gpu_milli of each, CPU, memory, whether its layout is whole nodes.
Size = tuple[int, int, int, int, bool]


class FreeNode:
    """Free capacity of a node that is up: gpu_milli of each GPU slot, CPU and memory."""

    __slots__ = ("cpu_milli", "memory_mib", "slots", "unusable")

    def __init__(self, event: NodeJoinedV1) -> None:
        self.slots = [WHOLE] * event.gpus
        self.cpu_milli = event.cpu_milli
        self.memory_mib = event.memory_mib
        #: The last result of `Demand.unusable`.
        self.unusable = 0

    def allocate(self, placement: Placement, sign: int = 1) -> None:
        """Allocate a replica's placement; release it with `sign` -1."""
        self.cpu_milli -= sign * placement.cpu_milli
        self.memory_mib -= sign * placement.memory_mib
        for slot in placement.slots:
            self.slots[slot] -= sign * placement.gpu_milli


class Demand:
    """The sizes of all requests so far, and a few classes that represent them."""

    __slots__ = ("_counts", "_workloads", "classes", "next_total", "total", "weight")

    def __init__(self) -> None:
        self._counts: dict[Size, int] = {}
        #: Tasks so far, and the number of tasks at which the classes are chosen again.
        self.total = 0
        self.next_total = 1
        #: The chosen sizes with their weights; the sum of the weights is `weight`.
        self.classes: list[tuple[Size, int]] = []
        self.weight = 1
        #: The classes as a workload, by the number of GPUs of a node.
        self._workloads: dict[int, Workload] = {}

    def add(self, spec: AdmittedSpec) -> None:
        """Add the tasks of an admitted job."""
        asks = spec.resources
        if not asks.gpus:
            return
        size: Size = (
            *(asks.gpus, asks.gpu_milli, asks.cpu_milli, asks.memory_mib),
            spec.layout is Layout.WHOLE_NODES and asks.gpus > 1,
        )
        self._counts[size] = self._counts.get(size, 0) + spec.tasks
        self.total += spec.tasks

    def choose(self) -> None:
        """Choose the classes from all requests so far."""
        self.next_total = self.total + self.total // 4 + 1
        self._workloads.clear()
        # The smallest sizes come first: by GPU, then CPU, then memory.
        sizes = sorted(
            (size[0] * size[1], size[2], size[3], size, count)
            for size, count in self._counts.items()
        )
        if len(sizes) <= CLASSES:
            self.classes = [(size, count) for *_, size, count in sizes]
            self.weight = self.total
            return
        # Cut all tasks, sorted by size, into CLASSES equal parts; a part's middle represents it.
        found: dict[Size, int] = {}
        seen = 0
        for *_, size, count in sizes:
            before, seen = seen, seen + count
            middles = _middles(seen, self.total) - _middles(before, self.total)
            if middles:
                found[size] = middles
        self.classes = list(found.items())
        self.weight = CLASSES

    def unusable(self, node: FreeNode) -> int:
        """Sum over the classes: the free gpu_milli that a class cannot use, times its weight."""
        gpus = len(node.slots)
        workload = self._workloads.get(gpus)
        if workload is None:
            workload = self._workloads[gpus] = self._workload(gpus)
        return workload.useless(tuple(sorted(node.slots)), node.cpu_milli, node.memory_mib, "")

    def _workload(self, all_gpus: int) -> Workload:
        """The classes as a workload for a node of `all_gpus` GPUs.

        A class with the layout of whole nodes requests at most all GPUs of the node.
        """
        counts: dict[Class, int] = {}
        for (gpus, milli, cpu, memory, on_whole_nodes), weight in self.classes:
            needed = min(gpus, all_gpus) if on_whole_nodes else gpus
            requested = (cpu, memory, needed, milli, ())
            counts[requested] = counts.get(requested, 0) + weight
        return Workload(counts)


def _middles(count: int, total: int) -> int:
    """Count the middles of `CLASSES` equal parts of `total` that are among the first `count`."""
    return (2 * count * CLASSES + total - 1) // (2 * total)
