"""The free capacity of one node: GPU slots, CPU, memory, and places for tasks without GPUs."""

from collections.abc import Iterable
from typing import Final

from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.resources import TOO_LARGE, fraction_of

#: Places for tasks without GPUs on a node of a pool that is not configured.
UNLIMITED: Final = 1 << 30


class NodeCapacity:
    """The free capacity of one node; each index of a pool has its own object for the node.

    `slots[i]` is the free gpu_milli of slot i, `whole` the number of unused slots, and `shared` the
    most that any partly used slot has free. A disabled slot counts as taken once more, so it is
    negative while a task still holds it.
    """

    __slots__ = (
        *("available", "cpu_milli", "disabled", "filed_cpu", "filed_gpuless", "filed_idle"),
        *("filed_memory", "filed_shared", "filed_whole", "gpu_memory_mib", "gpuless_left"),
        "max_gpuless",
        *("memory_mib", "node_type", "ordinal", "shared", "slots", "stale", "whole"),
    )

    def __init__(
        self,
        ordinal: int,
        slots: int,
        cpu_milli: int,
        memory_mib: int,
        gpu_memory_mib: int = 0,
    ) -> None:
        self.ordinal = ordinal
        self.slots = [WHOLE] * slots
        #: Slots on which no new replica is placed.
        self.disabled: tuple[int, ...] = ()
        #: Limit on tasks without GPUs, and how many more of them the node may take.
        self.max_gpuless = UNLIMITED
        self.gpuless_left = UNLIMITED
        self.whole = slots
        self.shared = 0
        self.cpu_milli = cpu_milli
        self.memory_mib = memory_mib
        #: The memory of each GPU, which is never taken; 0: unknown.
        self.gpu_memory_mib = gpu_memory_mib
        self.node_type = ""
        #: Whether the index contains the node among the nodes that take tasks.
        self.available = False
        #: Whether a change is not in the index yet, and the levels under which the index has it.
        self.stale = False
        self.filed_whole = self.filed_shared = self.filed_cpu = self.filed_memory = -1
        self.filed_gpuless = UNLIMITED
        self.filed_idle = False

    @property
    def gpu_milli(self) -> int:
        """The sum over all slots."""
        slots = self.slots
        if slots and min(slots) < 0:
            return sum(free for free in slots if free > 0)
        return sum(slots)

    @property
    def size(self) -> int:
        """The number of slots that are not disabled."""
        return len(self.slots) - len(self.disabled)

    @property
    def idle(self) -> bool:
        """Whether the node has GPUs and none is in use."""
        if self.whole != self.size or not self.whole:
            return False
        return not self.disabled or min(self.slots) >= 0

    def supports(self, shape: Shape) -> bool:
        """Whether the CPU and memory suffice for one replica of `shape`.

        They are negative while a task holds what is reserved for another one. Then a replica that
        requests none of them still fits.
        """
        cpu, memory = shape.cpu_milli, shape.memory_mib
        return (not cpu or self.cpu_milli >= cpu) and (not memory or self.memory_mib >= memory)

    def holds(self, shape: Shape) -> bool:
        """Whether one replica of `shape` fits."""
        cpu, memory = shape.cpu_milli, shape.memory_mib
        if (cpu and self.cpu_milli < cpu) or (memory and self.memory_mib < memory):
            return False
        milli = shape.gpu_milli
        if milli == WHOLE:
            return self.whole >= shape.gpus
        if not milli:
            if not shape.gpus:
                return self.gpuless_left > 0
            milli = self.milli_of(shape)
            if milli >= WHOLE:
                return milli == WHOLE and self.whole >= shape.gpus
        if shape.gpus == 1:
            return self.whole > 0 or self.shared >= milli
        return sum(1 for free in self.slots if free >= milli) >= shape.gpus

    def milli_of(self, shape: Shape) -> int:
        """The gpu_milli that a replica of `shape` takes of each of its slots; `TOO_LARGE` if it
        requests more memory than the GPUs have, or must not use them.
        """
        if shape.gpu_memory_mib:
            if self.gpu_memory_mib < shape.gpu_memory_from_mib:
                return TOO_LARGE
            # rule: GPU memory: the part of the node's GPUs
            return fraction_of(shape.gpu_memory_mib, self.gpu_memory_mib)
        return shape.gpu_milli

    def pick(self, shape: Shape, *, spread: bool = False) -> tuple[int, ...]:
        """The slots for one replica of `shape`, which must fit: the fullest, or with `spread` the
        emptiest, lowest index first.

        A gang whose replicas share several GPUs each gets the emptiest slots instead, because only
        then do as many replicas as possible find different slots.
        """
        if not shape.gpus:
            return ()
        milli = shape.gpu_milli or self.milli_of(shape)
        if milli == WHOLE:
            if shape.gpus == 1:
                return (self.slots.index(WHOLE),)
            picked: list[int] = []
            start = 0
            for _ in range(shape.gpus):
                start = self.slots.index(WHOLE, start)
                picked.append(start)
                start += 1
            return tuple(picked)
        sign = -1 if spread or (shape.replicas > 1 and shape.gpus > 1) else 1
        fitting = sorted((sign * free, i) for i, free in enumerate(self.slots) if free >= milli)
        return tuple(sorted(i for _, i in fitting[: shape.gpus]))

    def fill(self, gpus: int, cpu_milli: int, memory_mib: int, placed: Iterable[Placement]) -> None:
        """Set the free capacity to that of a node of this size less `placed`.

        The caller must call `refile` of the index.
        """
        free = self.slots = [WHOLE] * gpus
        for slot in self.disabled:
            free[slot] -= WHOLE
        self.gpuless_left = self.max_gpuless
        for placement in placed:
            milli = placement.gpu_milli
            for slot in placement.slots:
                free[slot] -= milli
            if not placement.slots:
                self.gpuless_left -= 1
            cpu_milli -= placement.cpu_milli
            memory_mib -= placement.memory_mib
        self.cpu_milli = cpu_milli
        self.memory_mib = memory_mib
        self.recount()

    def recount(self) -> None:
        """Compute `whole` and `shared` from `slots`."""
        free = self.slots
        self.whole = free.count(WHOLE)
        if self.whole + free.count(0) == len(free):
            self.shared = 0
        else:
            self.shared = max((f for f in free if 0 < f < WHOLE), default=0)
