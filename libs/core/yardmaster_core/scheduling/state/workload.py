"""The requests of a pool's tasks, and how much free capacity of a node is useless to them.

After "Beware of fragmentation: scheduling GPU-sharing workloads with fragmentation gradient
descent" (USENIX ATC 2023). For a class of tasks, all free GPU capacity of a node is
useless if no task of the class fits (or if the class requests no GPU). Otherwise a free part of a
GPU is useless if it is smaller than the request of the class for one GPU. The sum over the classes,
weighted by how often each is requested, is the fragmentation of the node.

Requests are counted from all tasks that were admitted to the pool, in the order of admission. The
counts outlive the jobs, so they are part of the state. Placement uses a new workload only once half
as many tasks again were admitted, so that results computed per node stay valid for a while.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

from yardmaster_core.digests import MODULUS, row_hash
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape

#: cpu_milli, memory_mib, GPUs, gpu_milli of each, node types (empty: any) of one replica.
Class = tuple[int, int, int, int, tuple[str, ...]]
#: Free gpu_milli of each GPU, ascending.
Slots = tuple[int, ...]

#: Number of classes that a workload has: the most requested.
CLASSES: Final = 64
#: Number of classes that are counted. When a further class comes, the less requested half is
#: dropped.
COUNTED: Final = 1024
#: Number of cached results before the cache is cleared.
MAX_CACHED: Final = 1 << 16


class Workload:
    """The number of requested replicas of each class; immutable."""

    __slots__ = (
        *("_above", "_cpu", "_gpus", "_cache", "_memory", "_of_slots", "_of_type", "_types"),
        *("_weights", "counts", "hash", "total"),
    )

    def __init__(self, counts: Mapping[Class, int]) -> None:
        self.counts = counts
        self.hash = _hash(counts)
        #: Includes replicas without GPUs, to which all free GPU is useless.
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
        self._cache: dict[tuple[Slots, int, int, str], int] = {}

    def useless(self, slots: Slots, cpu_milli: int, memory_mib: int, node_type: str) -> int:
        """The useless gpu_milli of such a node, summed over all requested replicas."""
        cpu = bisect_right(self._cpu[0], cpu_milli)
        memory = bisect_right(self._memory[0], memory_mib)
        key = (slots, cpu, memory, node_type)
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
                self._of_slots.clear()
            found = self._cache[key] = self._compute(slots, cpu, memory, node_type)
        return found

    def _compute(self, slots: Slots, cpu: int, memory: int, node_type: str) -> int:
        known = self._of_slots.get(slots)
        if known is None:
            known = self._of_slots[slots] = self._fitting_classes(slots)
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

    def _fitting_classes(self, slots: Slots) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        """The free gpu_milli, the classes whose GPUs fit, and for each partly used GPU its free
        gpu_milli and the classes that request more of one GPU.
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


def _steps(requested: Sequence[int]) -> tuple[list[int], list[int]]:
    # The requested amounts, ascending, and the classes that an amount between them suffices for.
    amounts = sorted(set(requested))
    enough = [0]
    for amount in amounts:
        some = sum(1 << at for at, one in enumerate(requested) if one == amount)
        enough.append(enough[-1] | some)
    return amounts, enough


def _hash(counts: Mapping[Class, int]) -> int:
    return sum(_row_hash(one, number) for one, number in counts.items()) % MODULUS


def _row_hash(one: Class, number: int) -> int:
    return row_hash(repr((one, number)))


NO_WORKLOAD: Final = Workload({})


class WorkloadCounter:
    """Counts the requests of a pool's tasks; placement uses `workload`."""

    __slots__ = ("_hash", "_total", "_total_used", "counts", "workload")

    def __init__(self) -> None:
        #: Requested replicas of each class, and the sum of the hashes of these rows.
        self.counts: dict[Class, int] = {}
        self._hash = 0
        self._total = 0
        #: The total of `workload`.
        self._total_used = 0
        self.workload = NO_WORKLOAD

    def add(self, shape: Shape, tasks: int) -> None:
        """Count `tasks` admitted tasks of `shape`."""
        types = tuple(sorted(shape.node_types))
        requested = (shape.cpu_milli, shape.memory_mib, shape.gpus, shape.gpu_milli, types)
        counts = self.counts
        if requested not in counts and len(counts) >= COUNTED:
            self.counts = counts = self._most_requested(COUNTED // 2)
            self._hash = _hash(counts)
        before = counts.get(requested, 0)
        if before:
            self._hash -= _row_hash(requested, before)
        counts[requested] = before + tasks * shape.replicas
        self._hash = (self._hash + _row_hash(requested, counts[requested])) % MODULUS
        self._total += tasks * shape.replicas
        if 2 * self._total >= 3 * self._total_used:
            self._total_used = self._total
            self.workload = Workload(self._most_requested(CLASSES))

    def facts(self) -> tuple[str, int, int, str]:
        """A summary of all that later placements depend on; it costs the same for any counts."""
        return f"{self._hash:x}", self._total, self._total_used, f"{self.workload.hash:x}"

    def dump(self) -> list[Any]:
        """All that later placements depend on, as plain JSON."""
        return [_plain(self.counts), self._total, self._total_used, _plain(self.workload.counts)]

    @classmethod
    def load(cls, dump: list[Any]) -> "WorkloadCounter":
        """The counter that `dump` described."""
        counter = cls()
        counts, counter._total, counter._total_used, used = dump
        counter.counts = _counts(counts)
        counter._hash = _hash(counter.counts)
        counter.workload = Workload(_counts(used)) if used else NO_WORKLOAD
        return counter

    def _most_requested(self, limit: int) -> dict[Class, int]:
        rows = sorted(self.counts.items(), key=_by_count)
        return dict(rows[:limit])


def _plain(counts: Mapping[Class, int]) -> list[Any]:
    return [[*one[:4], list(one[4]), number] for one, number in sorted(counts.items())]


def _counts(plain: list[Any]) -> dict[Class, int]:
    return {(*one, tuple(types)): number for *one, types, number in plain}


def _by_count(row: tuple[Class, int]) -> tuple[int, Class]:
    return -row[1], row[0]
