"""Fragmentation: the part of the free GPUs that the requested tasks cannot use.

As in fragmentation gradient descent (Weng et al., USENIX ATC 2023): the free GPU of a node that a
task cannot use, because the node lacks GPUs, CPU or memory for it or the free share of a slot is
too small, averaged over all requests so far. Tasks without GPUs are excluded.
At most `CLASSES` sizes represent all requests. They are chosen again each time the number of tasks
has grown by a quarter, so that in between only changed nodes must be computed.
"""

from typing import Final

from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import Layout

#: The most sizes that represent all requests.
CLASSES: Final = 32
WHOLE: Final = 1000

#: GPU slots of a replica, gpu_milli of each, CPU, memory, whether its layout is whole nodes.
Size = tuple[int, int, int, int, bool]


class FreeNode:
    """Free capacity of a node that is up: whole GPU slots, shares of slots, CPU and memory."""

    __slots__ = ("cpu_milli", "gpus", "memory_mib", "parts", "unusable", "whole")

    def __init__(self, event: NodeJoinedV1) -> None:
        self.gpus = self.whole = event.gpus
        #: Slot -> free gpu_milli, of partly allocated slots.
        self.parts: dict[int, int] = {}
        self.cpu_milli = event.cpu_milli
        self.memory_mib = event.memory_mib
        #: The last result of `Demand.unusable`.
        self.unusable = 0

    def allocate(self, placement: Placement) -> None:
        """Allocate a replica's placement."""
        self.cpu_milli -= placement.cpu_milli
        self.memory_mib -= placement.memory_mib
        if placement.gpu_milli == WHOLE:
            self.whole -= len(placement.slots)
        else:
            self._shift(placement, -placement.gpu_milli)

    def release(self, placement: Placement) -> None:
        """Release a replica's placement."""
        self.cpu_milli += placement.cpu_milli
        self.memory_mib += placement.memory_mib
        if placement.gpu_milli == WHOLE:
            self.whole += len(placement.slots)
        else:
            self._shift(placement, placement.gpu_milli)

    def _shift(self, placement: Placement, milli: int) -> None:
        parts = self.parts
        for slot in placement.slots:
            left = parts.pop(slot, None)
            if left is None:
                left = WHOLE
                self.whole -= 1
            left += milli
            if left == WHOLE:
                self.whole += 1
            else:
                parts[slot] = left


class Demand:
    """The sizes of all requests so far, and a few classes that represent them."""

    __slots__ = ("_counts", "classes", "next_total", "total", "weight")

    def __init__(self) -> None:
        self._counts: dict[Size, int] = {}
        #: Tasks so far, and the number of tasks at which the classes are chosen again.
        self.total = 0
        self.next_total = 1
        #: Sizes with their weights, whose sum is `weight`.
        self.classes: list[tuple[Size, int]] = []
        self.weight = 1

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
        # The smallest first: by GPU, then CPU, then memory.
        sizes = sorted(
            (size[0] * size[1], size[2], size[3], size, count)
            for size, count in self._counts.items()
        )
        if len(sizes) <= CLASSES:
            self.classes = [(size, count) for *_, size, count in sizes]
            self.weight = self.total
            return
        # Cut all tasks, sorted by size, into CLASSES equal parts; the middle of each represents it.
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
        whole, parts = node.whole, node.parts
        in_parts = sum(parts.values()) if parts else 0
        idle = whole * WHOLE + in_parts
        if not idle:
            return 0
        cpu_milli, memory_mib, all_gpus = node.cpu_milli, node.memory_mib, node.gpus
        found = 0
        for (gpus, milli, cpu, memory, on_whole_nodes), weight in self.classes:
            if cpu > cpu_milli or memory > memory_mib:
                found += weight * idle
            elif milli == WHOLE:
                fits = whole >= (min(gpus, all_gpus) if on_whole_nodes else gpus)
                found += weight * (in_parts if fits else idle)
            else:
                small = [left for left in parts.values() if left < milli]
                fits = whole + len(parts) - len(small) >= gpus
                found += weight * (sum(small) if fits else idle)
        return found


def _middles(count: int, total: int) -> int:
    """Of the middles of `CLASSES` equal parts of `total`, how many are among the first `count`."""
    return (2 * count * CLASSES + total - 1) // (2 * total)
