"""What tasks of a pool ask for, and what is free on a node that is of no use to them.

After "Beware of fragmentation: scheduling GPU-sharing workloads with fragmentation gradient
descent" (USENIX ATC 2023). Of a node's free GPU a class of tasks has no use for all of it where
none of the class fits (or it asks for no GPU), else for what is left of GPUs that have less free
than it asks of one. Summed over the classes, each by how often it is asked for, that is how
fragmented the node is.

What is asked for is counted from all tasks that were admitted to the pool, in the order of
admission. So it follows from the jobs that the state has, and is neither in snapshots nor digests.
For placing it is taken over only when half as many again were admitted, so that what was worked
out of nodes holds for a while.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from yardmaster_core.scheduling.state.shapes import WHOLE, Shape

#: CPU, memory, GPUs, gpu_milli of each, node types (none: any) of one replica.
Class = tuple[int, int, int, int, tuple[str, ...]]
#: Free gpu_milli of each GPU, least first.
Slots = tuple[int, ...]

#: The classes that count: those asked for most.
CLASSES: Final = 64
#: Classes that are counted; of more than that the half asked for least is forgotten.
COUNTED: Final = 1024
#: Results kept of equal nodes, before all are worked out anew.
KEPT: Final = 1 << 16


class Workload:
    """What is asked for, by class with its count; never changed once made."""

    __slots__ = (
        *("_above", "_cpu", "_gpus", "_kept", "_memory", "_of_slots", "_of_type", "_types"),
        *("_weights", "counts", "total"),
    )

    def __init__(self, counts: Mapping[Class, int]) -> None:
        self.counts = counts
        #: Those that ask for no GPU count too: to them all is useless.
        self.total = sum(counts.values())
        classes = [one for one in counts if one[2]]
        self._weights = [counts[one] for one in classes]
        self._cpu = _steps([one[0] for one in classes])
        self._memory = _steps([one[1] for one in classes])
        # Sets of classes as bits.
        self._gpus: dict[tuple[int, int], int] = {}
        self._above: dict[int, int] = {}
        self._types: dict[str, int] = {}
        for at, (_, _, gpus, milli, types) in enumerate(classes):
            bit = 1 << at
            self._gpus[gpus, milli] = self._gpus.get((gpus, milli), 0) | bit
            self._above[milli] = self._above.get(milli, 0) | bit
            for name in types or ("",):
                self._types[name] = self._types.get(name, 0) | bit
        self._of_type: dict[str, int] = {}
        self._of_slots: dict[Slots, tuple[int, int, tuple[tuple[int, int], ...]]] = {}
        self._kept: dict[tuple[Slots, int, int, str], int] = {}

    def useless(self, slots: Slots, cpu_milli: int, memory_mib: int, node_type: str) -> int:
        """What is free on such a node and of no use, in gpu_milli, summed over all that ask."""
        cpu = bisect_right(self._cpu[0], cpu_milli)
        memory = bisect_right(self._memory[0], memory_mib)
        key = (slots, cpu, memory, node_type)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
                self._of_slots.clear()
            found = self._kept[key] = self._work_out(slots, cpu, memory, node_type)
        return found

    def _work_out(self, slots: Slots, cpu: int, memory: int, node_type: str) -> int:
        known = self._of_slots.get(slots)
        if known is None:
            known = self._of_slots[slots] = self._look_at(slots)
        free, fitting, parts = known
        of_type = self._of_type.get(node_type)
        if of_type is None:
            of_type = self._types.get("", 0) | self._types.get(node_type, 0)
            self._of_type[node_type] = of_type
        fitting &= of_type & self._cpu[1][cpu] & self._memory[1][memory]
        useless = free * (self.total - self._weight(fitting))
        for part, above in parts:
            useless += part * self._weight(fitting & above)
        return useless

    def _look_at(self, slots: Slots) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        """What is free, which classes find GPUs, and what is free of each GPU in use with those who
        ask for more of one.
        """
        fitting = 0
        for (gpus, milli), some in self._gpus.items():
            if len(slots) - bisect_left(slots, milli) >= gpus:
                fitting |= some
        parts = []
        for part in slots:
            if 0 < part < WHOLE:
                above = 0
                for milli, some in self._above.items():
                    if milli > part:
                        above |= some
                parts.append((part, above))
        return sum(slots), fitting, tuple(parts)

    def _weight(self, classes: int) -> int:
        weights = self._weights
        total = 0
        while classes:
            lowest = classes & -classes
            total += weights[lowest.bit_length() - 1]
            classes ^= lowest
        return total


def _steps(asked: Sequence[int]) -> tuple[list[int], list[int]]:
    # Amounts that are asked for, least first, and before, between and after them who has enough.
    amounts = sorted(set(asked))
    enough = [0]
    for amount in amounts:
        some = sum(1 << at for at, one in enumerate(asked) if one == amount)
        enough.append(enough[-1] | some)
    return amounts, enough


#: Nothing was asked for yet.
NO_WORKLOAD: Final = Workload({})


class WorkloadCounter:
    """What tasks of a pool asked for so far; `workload` is what counts for placing."""

    __slots__ = ("_taken", "_total", "counts", "workload")

    def __init__(self) -> None:
        #: Of each class.
        self.counts: dict[Class, int] = {}
        self._total = self._taken = 0
        self.workload = NO_WORKLOAD

    def add(self, shape: Shape, tasks: int) -> None:
        """So many tasks were admitted."""
        types = tuple(sorted(shape.node_types))
        asked = (shape.cpu_milli, shape.memory_mib, shape.gpus, shape.gpu_milli, types)
        counts = self.counts
        if asked not in counts and len(counts) >= COUNTED:
            self.counts = counts = self._foremost(COUNTED // 2)
        counts[asked] = counts.get(asked, 0) + tasks * shape.replicas
        self._total += tasks * shape.replicas
        if 2 * self._total >= 3 * self._taken:
            self._taken = self._total
            self.workload = Workload(self._foremost(CLASSES))

    def _foremost(self, most: int) -> dict[Class, int]:
        rows = sorted(self.counts.items(), key=_by_count)
        return dict(rows[:most])


def _by_count(row: tuple[Class, int]) -> tuple[int, Class]:
    return -row[1], row[0]
