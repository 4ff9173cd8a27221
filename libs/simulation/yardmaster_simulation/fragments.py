"""How much of the free GPUs is of no use to the tasks that a cluster gets (its fragmentation).

In the sense of fragmentation gradient descent (Weng et al., USENIX ATC 2023): what of a node's free
GPU a task could not use, be it that the node lacks GPUs, CPU or memory for it or that a slot has
too small a share left, averaged over what was asked for so far. Tasks without GPUs are left out.
What was asked for is represented by at most `CLASSES` of its sizes, chosen anew whenever there is a
quarter more of it, so that only nodes that changed are looked at in between.
"""

from typing import Final

from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import Layout

#: So many sizes stand for all that was asked for.
CLASSES: Final = 32
WHOLE: Final = 1000

#: GPU slots of a replica, gpu_milli of each, CPU, memory, whether it takes nodes as a whole.
Size = tuple[int, int, int, int, bool]


class FreeNode:
    """What is free on a node that is up: whole GPU slots, parts of others, CPU and memory."""

    __slots__ = ("cpu_milli", "gpus", "memory_mib", "parts", "unusable", "whole")

    def __init__(self, event: NodeJoinedV1) -> None:
        self.gpus = self.whole = event.gpus
        #: gpu_milli left of slots of which a part is taken.
        self.parts: dict[int, int] = {}
        self.cpu_milli = event.cpu_milli
        self.memory_mib = event.memory_mib
        #: As `Asked.unusable` last said.
        self.unusable = 0

    def take(self, placement: Placement) -> None:
        """A replica has its place."""
        self.cpu_milli -= placement.cpu_milli
        self.memory_mib -= placement.memory_mib
        if placement.gpu_milli == WHOLE:
            self.whole -= len(placement.slots)
        else:
            self._shift(placement, -placement.gpu_milli)

    def give(self, placement: Placement) -> None:
        """A replica has left its place."""
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
    """The sizes that were asked for so far, and a few that stand for them all."""

    __slots__ = ("_counts", "classes", "next_total", "total", "weight")

    def __init__(self) -> None:
        self._counts: dict[Size, int] = {}
        #: Tasks so far, and how many make it time to choose the classes anew.
        self.total = 0
        self.next_total = 1
        #: Sizes with their weight, which make `weight` together.
        self.classes: list[tuple[Size, int]] = []
        self.weight = 1

    def add(self, spec: AdmittedSpec) -> None:
        """A job's tasks were admitted."""
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
        """Choose the classes from what there is by now."""
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
        # The middle of each of so many equal parts.
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
        """The gpu_milli free on a node that each class could not use, times its weight, summed."""
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
    """How many of the middles of `CLASSES` equal parts of `total` lie among the first `count`."""
    return (2 * count * CLASSES + total - 1) // (2 * total)
