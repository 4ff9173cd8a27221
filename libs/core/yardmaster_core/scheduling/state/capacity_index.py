"""The free capacity of a pool's nodes, indexed, so that a cycle's cost depends on what changed.

`CapacityIndex` finds the nodes on which a replica may fit with a few operations on integers used as
bit sets, one bit per node. A set of 10,000 nodes takes 1.25 kB. The intersection of two sets takes
less time than one step of a search in a sorted list, the lowest bit is a defined choice, and node
types and cordons are further sets.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.node_order import NodeOrder
from yardmaster_core.scheduling.state.shapes import WHOLE, Fit, Shape
from yardmaster_core.scheduling.state.workload import NO_WORKLOAD, Workload
from yardmaster_schemas.events.node_events import MAX_RUNNING
from yardmaster_schemas.resources import fraction_of

#: Shared slots are indexed by their free gpu_milli in units of this.
STEP: Final = 50
#: Levels of CPU and memory: the number of binary digits of an amount.
LEVELS: Final = 54
#: Most tasks without GPUs on a node of a pool that sets no limit. Each is at least one process,
#: even if it requests no CPU and no memory, and the loss of a node names them all in one record.
DEFAULT_GPULESS: Final = 512
#: Highest limit on tasks without GPUs: half of what NodeLost and NodeJoined may name. The other
#: half is for tasks with GPUs.
MAX_GPULESS: Final = MAX_RUNNING // 2
#: Number of node orders that an index keeps before it drops all of them.
MAX_NODE_ORDERS: Final = 256

#: Gives the sort key of a node on which the shape fits; the smallest comes first.
NodeKey = Callable[["CapacityIndex", NodeCapacity, Shape], int]


class CapacityIndex:
    """The free capacity of a pool's nodes, by node ordinal, and sets of nodes by what is free.

    A pool has three: what is free now, what will be free once stopping tasks are gone, and what
    would be free without preemptible tasks. Changes of a node are noted and applied to the sets
    only before the next query, so that placing many equal replicas on one node moves it once.
    """

    __slots__ = (
        *("_stale", "available", "capacities", "changes", "cpu", "free_milli", "gpuless", "idle"),
        *("images", "max_gpuless", "memory", "named", "node_orders", "of_gpu_memory", "of_size"),
        *("of_type", "shared", "touched", "whole", "workload"),
    )

    def __init__(self) -> None:
        #: Number of changes; while it is the same, each query gives the same result.
        self.changes = 0
        #: By node ordinal.
        self.capacities: dict[int, NodeCapacity] = {}
        #: Nodes that take tasks: up, not cordoned, and covered by their enrollment.
        self.available = 0
        self.of_type: dict[str, int] = {}
        #: Nodes by their number of slots that are not disabled.
        self.of_size: dict[int, int] = {}
        #: Nodes with GPUs of known memory, by the memory of each GPU. Requests by memory cost a
        #: step for each of these classes.
        self.of_gpu_memory: dict[int, int] = {}
        #: Nodes that run containers.
        self.images = 0
        #: Node ordinals by name.
        self.named: dict[str, int] = {}
        #: Nodes with GPUs that are all unused.
        self.idle = 0
        #: Most tasks without GPUs on a node, and nodes by how many more they may take.
        self.max_gpuless = DEFAULT_GPULESS
        self.gpuless: dict[int, int] = {}
        #: Free gpu_milli of the available nodes.
        self.free_milli = 0
        #: Nodes by their number of unused slots.
        self.whole: list[int] = [0]
        #: Nodes with at least that level of CPU, memory, and free part of a shared slot.
        self.cpu = [0] * LEVELS
        self.memory = [0] * LEVELS
        self.shared = [0] * (WHOLE // STEP + 1)
        #: Kept orders of nodes, and the workload that some of their keys depend on.
        self.node_orders: dict[tuple[NodeKey, Fit], NodeOrder] = {}
        self.workload = NO_WORKLOAD
        #: Ordinals of nodes with changes since a reader set this to an empty dict; None: no reader
        #: did, or any node may have changed.
        self.touched: dict[int, None] | None = None
        self._stale: list[NodeCapacity] = []

    def add(
        self, capacity: NodeCapacity, node_type: str, name: str = "", *, runs_images: bool = False
    ) -> None:
        """Add the capacity of an empty node, which is not available until `open_node`."""
        bit = 1 << capacity.ordinal
        self.capacities[capacity.ordinal] = capacity
        capacity.node_type = node_type
        self.named[name] = capacity.ordinal
        self.set_images(capacity.ordinal, runs_images=runs_images)
        self.of_type[node_type] = self.of_type.get(node_type, 0) | bit
        self.of_size[capacity.size] = self.of_size.get(capacity.size, 0) | bit
        self.set_gpu_memory(capacity, capacity.gpu_memory_mib)
        self.whole.extend([0] * (len(capacity.slots) + 1 - len(self.whole)))
        capacity.max_gpuless = capacity.gpuless_left = capacity.filed_gpuless = self.max_gpuless
        self.gpuless[capacity.gpuless_left] = self.gpuless.get(capacity.gpuless_left, 0) | bit
        capacity.filed_whole = capacity.filed_shared = capacity.filed_cpu = (
            capacity.filed_memory
        ) = -1
        capacity.filed_idle = False
        self._index(capacity)

    def set_images(self, ordinal: int, *, runs_images: bool) -> None:
        """Set whether a node runs containers."""
        self.images = self.images & ~(1 << ordinal) | (runs_images << ordinal)

    def set_gpu_memory(self, capacity: NodeCapacity, memory_mib: int) -> None:
        """Set the memory of each GPU of a node, which was unknown."""
        capacity.gpu_memory_mib = memory_mib
        if memory_mib and capacity.slots:
            nodes = self.of_gpu_memory.get(memory_mib, 0)
            self.of_gpu_memory[memory_mib] = nodes | 1 << capacity.ordinal
        for order in self.node_orders.values():
            order.changed.add(capacity.ordinal)
        self.changes += 1

    def remove(self, capacity: NodeCapacity, node_type: str, name: str = "") -> None:
        self.close_node(capacity)
        self.flush()
        bit = 1 << capacity.ordinal
        del self.capacities[capacity.ordinal]
        for order in self.node_orders.values():
            order.changed.add(capacity.ordinal)
        self.named.pop(name, None)
        self.images &= ~bit
        self.of_type[node_type] &= ~bit
        self.of_size[capacity.size] &= ~bit
        memory = capacity.gpu_memory_mib
        if memory in self.of_gpu_memory:
            self.of_gpu_memory[memory] &= ~bit
            if not self.of_gpu_memory[memory]:
                del self.of_gpu_memory[memory]
        self.idle &= ~bit
        self._remove_gpuless(capacity, bit)
        self.whole[capacity.filed_whole] &= ~bit
        _move(self.shared, bit, capacity.filed_shared, -1)
        _move(self.cpu, bit, capacity.filed_cpu, -1)
        _move(self.memory, bit, capacity.filed_memory, -1)

    def open_node(self, capacity: NodeCapacity) -> None:
        """Allow new tasks on a node."""
        if not capacity.available:
            capacity.available = True
            self.available |= 1 << capacity.ordinal
            self.free_milli += capacity.gpu_milli

    def close_node(self, capacity: NodeCapacity) -> None:
        """Allow no new tasks on a node."""
        if capacity.available:
            capacity.available = False
            self.available ^= 1 << capacity.ordinal
            self.free_milli -= capacity.gpu_milli

    def disable(self, capacity: NodeCapacity, slots: tuple[int, ...]) -> None:
        """Disable exactly these slots of a node, which must have them."""
        # Flush before and after: `_index` checks `idle` only if a single quantity changed.
        self.flush()
        bit = 1 << capacity.ordinal
        self.of_size[capacity.size] &= ~bit
        before, capacity.disabled = capacity.disabled, slots
        self.of_size[capacity.size] = self.of_size.get(capacity.size, 0) | bit
        if enabled := tuple(slot for slot in before if slot not in slots):
            self.release(capacity, enabled, WHOLE, 0, 0)
        if disabled := tuple(slot for slot in slots if slot not in before):
            self.take(capacity, disabled, WHOLE, 0, 0)
        self.flush()

    def limit_gpuless(self, limit: int | None) -> None:
        """Set the most tasks without GPUs on each node, at most `MAX_GPULESS`.

        None means `DEFAULT_GPULESS`.
        """
        before = self.max_gpuless
        self.max_gpuless = DEFAULT_GPULESS if limit is None else min(limit, MAX_GPULESS)
        if before != self.max_gpuless:
            self.flush()
            for capacity in self.capacities.values():
                capacity.max_gpuless = self.max_gpuless
                capacity.gpuless_left += self.max_gpuless - before
                self._index(capacity)

    def take(
        self,
        capacity: NodeCapacity,
        slots: tuple[int, ...],
        gpu_milli: int,
        cpu_milli: int,
        memory_mib: int,
    ) -> None:
        """Take part of a node's capacity; the caller has checked that it is free."""
        self.shift(capacity, slots, -gpu_milli, -cpu_milli, -memory_mib, -1)

    def release(
        self,
        capacity: NodeCapacity,
        slots: tuple[int, ...],
        gpu_milli: int,
        cpu_milli: int,
        memory_mib: int,
    ) -> None:
        """Release part of a node's capacity."""
        self.shift(capacity, slots, gpu_milli, cpu_milli, memory_mib, 1)

    def shift(
        self,
        capacity: NodeCapacity,
        slots: tuple[int, ...],
        milli: int,
        cpu: int,
        memory: int,
        replicas: int,
    ) -> None:
        """Change a node's free capacity by one replica.

        Positive amounts release capacity, negative amounts take it.
        """
        self.changes += 1
        capacity.cpu_milli += cpu
        capacity.memory_mib += memory
        if slots:
            free = capacity.slots
            # Always a sum, so that a release undoes a take even where both a reservation and a
            # start took from one slot.
            if milli == -WHOLE:
                capacity.whole -= len(slots)
                clean = True
                for i in slots:
                    clean &= free[i] == WHOLE
                    free[i] -= WHOLE
            elif milli == WHOLE:
                capacity.whole += len(slots)
                clean = True
                for i in slots:
                    clean &= free[i] == 0
                    free[i] += WHOLE
            else:
                clean = False
                for i in slots:
                    free[i] += milli
            if not clean:
                capacity.recount()
            if capacity.available:
                # A slot that is held twice is free only after it was released twice.
                self.free_milli += (
                    milli * len(slots)
                    if clean
                    else sum(max(free[i], 0) - max(free[i] - milli, 0) for i in slots)
                )
        else:
            capacity.gpuless_left += replicas
        if self.touched is not None:
            self.touched[capacity.ordinal] = None
        if not capacity.stale:
            capacity.stale = True
            self._stale.append(capacity)

    def flush(self) -> None:
        """Apply the noted changes to the sets."""
        for capacity in self._stale:
            capacity.stale = False
            self._index(capacity)
        self._stale.clear()

    def _index(self, capacity: NodeCapacity) -> None:
        bit = 1 << capacity.ordinal
        for order in self.node_orders.values():
            order.changed.add(capacity.ordinal)
        # Without disabled slots `idle` changes only together with `whole`.
        if (
            capacity.filed_whole != capacity.whole or capacity.disabled
        ) and capacity.idle != capacity.filed_idle:
            self.idle ^= bit
            capacity.filed_idle = not capacity.filed_idle
        if capacity.filed_whole != capacity.whole:
            if capacity.filed_whole >= 0:
                self.whole[capacity.filed_whole] ^= bit
            self.whole[capacity.whole] |= bit
            capacity.filed_whole = capacity.whole
        if capacity.gpuless_left != capacity.filed_gpuless:
            self._remove_gpuless(capacity, bit)
            self.gpuless[capacity.gpuless_left] = self.gpuless.get(capacity.gpuless_left, 0) | bit
            capacity.filed_gpuless = capacity.gpuless_left
        level = capacity.shared // STEP
        if level != capacity.filed_shared:
            _move(self.shared, bit, capacity.filed_shared, level)
            capacity.filed_shared = level
        level = capacity.cpu_milli.bit_length()
        if level != capacity.filed_cpu:
            _move(self.cpu, bit, capacity.filed_cpu, level)
            capacity.filed_cpu = level
        level = capacity.memory_mib.bit_length()
        if level != capacity.filed_memory:
            _move(self.memory, bit, capacity.filed_memory, level)
            capacity.filed_memory = level

    def _remove_gpuless(self, capacity: NodeCapacity, bit: int) -> None:
        left = self.gpuless[capacity.filed_gpuless] & ~bit
        if left:
            self.gpuless[capacity.filed_gpuless] = left
        else:
            del self.gpuless[capacity.filed_gpuless]

    def refile(self) -> None:
        """Build all sets from the capacities, which costs less than many single changes."""
        self._stale.clear()
        self.touched = None
        self.node_orders.clear()
        self.free_milli = 0
        capacities = self.capacities.values()
        for capacity in capacities:
            capacity.stale = False
            capacity.filed_idle = capacity.idle
            capacity.filed_gpuless = capacity.gpuless_left
            capacity.filed_whole = capacity.whole
            capacity.filed_shared = capacity.shared // STEP
            capacity.filed_cpu = capacity.cpu_milli.bit_length()
            capacity.filed_memory = capacity.memory_mib.bit_length()
            if capacity.available:
                self.free_milli += capacity.gpu_milli
        self.whole = _sets(len(self.whole), [(r.filed_whole, r.ordinal) for r in capacities])
        self.idle = _sets(2, [(int(r.filed_idle), r.ordinal) for r in capacities])[1]
        counts = sorted({r.filed_gpuless for r in capacities})
        levels = {count: level for level, count in enumerate(counts)}
        found = _sets(len(counts), [(levels[r.filed_gpuless], r.ordinal) for r in capacities])
        self.gpuless = dict(zip(counts, found, strict=True))
        self.shared = _or_more(
            _sets(len(self.shared), [(r.filed_shared, r.ordinal) for r in capacities])
        )
        self.cpu = _or_more(_sets(LEVELS, [(r.filed_cpu, r.ordinal) for r in capacities]))
        self.memory = _or_more(_sets(LEVELS, [(r.filed_memory, r.ordinal) for r in capacities]))

    def matching(self, shape: Shape) -> int:
        """Nodes whose type, name, executor and GPU memory suit `shape`, whatever is free there."""
        mask = -1
        if shape.node_types:
            mask = 0
            for node_type in shape.node_types:
                mask |= self.of_type.get(node_type, 0)
        if shape.image:
            mask &= self.images
        if shape.gpu_memory_mib:
            enough = 0
            for memory, nodes in self.of_gpu_memory.items():
                if memory >= shape.gpu_memory_from_mib:
                    enough |= nodes
            mask &= enough
        return mask & ~self.ordinals(shape.avoid_nodes)

    def memories(self, shape: Shape) -> list[int]:
        """The memories of the GPUs of the available nodes that match `shape`, ascending."""
        usable = self.available & self.matching(shape)
        return sorted(memory for memory, nodes in self.of_gpu_memory.items() if nodes & usable)

    def ordinals(self, names: Iterable[str]) -> int:
        """The ordinals of the nodes with these names, as a bit set; unknown names are skipped."""
        mask = 0
        for name in names:
            ordinal = self.named.get(name)
            if ordinal is not None:
                mask |= 1 << ordinal
        return mask

    def candidates(self, shape: Shape) -> int:
        """Available matching nodes that may have the CPU and memory for one replica."""
        if self._stale:
            self.flush()
        mask = self.available & self.matching(shape)
        if shape.cpu_milli:
            mask &= self.cpu[shape.cpu_milli.bit_length()]
        if shape.memory_mib:
            mask &= self.memory[shape.memory_mib.bit_length()]
        if not shape.gpus:
            mask &= ~self._without_gpuless()
        elif shape.gpu_memory_mib:
            mask &= self._with_fractions(shape)
        return mask

    def promising(self, shape: Shape) -> int:
        """The candidates that may have the GPUs, or the fraction of a GPU, for one replica."""
        mask = self.candidates(shape)
        return mask & self.with_gpus(shape) if shape.gpus else mask

    def with_gpus(self, shape: Shape) -> int:
        """The available matching nodes that may have enough GPUs for one replica of `shape`."""
        if self._stale:
            self.flush()
        mask = self.available & self.matching(shape)
        if shape.gpu_memory_mib:
            mask &= self._with_fractions(shape)
        elif shape.gpu_milli == WHOLE or shape.gpus == 1:
            enough = 0 if shape.gpu_milli == WHOLE else self.shared[shape.gpu_milli // STEP]
            for found in self.whole[shape.gpus :]:
                enough |= found
            mask &= enough
        return mask

    def _with_fractions(self, shape: Shape) -> int:
        """The nodes that may have the slots for one replica of a shape that requests GPU memory."""
        enough = 0
        for found in self.whole[shape.gpus :]:
            enough |= found
        for milli, nodes in self.fractions_of(shape):
            if milli < WHOLE:
                # Several fractions may also be on partly used slots only.
                enough |= nodes & (self.shared[milli // STEP] if shape.gpus == 1 else -1)
        return enough

    def fractions_of(self, shape: Shape) -> list[tuple[int, int]]:
        """Pairs: the gpu_milli that a replica takes of each of its slots, and the nodes where it
        takes this amount. A request by memory has no pair for nodes with smaller GPUs.
        """
        requested = shape.gpu_memory_mib
        if not requested:
            return [(shape.gpu_milli, -1)]
        return [
            (fraction_of(requested, memory), nodes)
            for memory, nodes in self.of_gpu_memory.items()
            if memory >= shape.gpu_memory_from_mib
        ]

    def count_on(self, workload: Workload) -> None:
        """Order nodes by `workload` from now on."""
        if workload is not self.workload:
            self.workload = workload
            self.node_orders.clear()

    def _without_gpuless(self) -> int:
        """Nodes that take no more tasks without GPUs."""
        mask = 0
        for left, found in self.gpuless.items():
            if left <= 0:
                mask |= found
        return mask

    def lacks_gpuless(self, shape: Shape) -> bool:
        """Whether a node that matches `shape`, which requests no GPU, takes no more such tasks."""
        if self._stale:
            self.flush()
        return bool(self.available & self.matching(shape) & self._without_gpuless())

    def in_order(self, shape: Shape, within: int, key_of: NodeKey) -> Iterator[NodeCapacity]:
        """The nodes of `within` on which one replica fits, smallest key first."""
        mask = self.candidates(shape) & within
        if not mask:
            return
        kept = key_of, shape.fit
        order = self.node_orders.get(kept)
        if order is None:
            if len(self.node_orders) >= MAX_NODE_ORDERS:
                self.node_orders.clear()
            order = self.node_orders[kept] = NodeOrder(
                shape, lambda capacity: key_of(self, capacity, shape), set(self.capacities)
            )
        if order.changed:
            order.update(self.capacities)
        for ordinal in order.within(mask):
            yield self.capacities[ordinal]

    def free_for(self, shape: Shape) -> int:
        """Free gpu_milli of the available nodes that `shape` does not avoid."""
        free = self.free_milli
        for name in shape.avoid_nodes:
            capacity = self.capacities.get(self.named.get(name, -1))
            if capacity is not None and capacity.available:
                free -= capacity.gpu_milli
        return free

    def largest(self, shape: Shape) -> int:
        """The most gpu_milli that one available matching node has free."""
        if self._stale:
            self.flush()
        mask = self.available & self.matching(shape)
        for count in range(len(self.whole) - 1, 0, -1):
            if self.whole[count] & mask:
                return count * WHOLE
        for level in range(len(self.shared) - 1, 0, -1):
            if self.shared[level] & mask:
                return level * STEP
        return 0


def _move(levels: list[int], bit: int, old: int, new: int) -> None:
    # `levels[k]` has the nodes with level k or more; only the levels in between change.
    if new > old:
        for level in range(old + 1, new + 1):
            levels[level] |= bit
    else:
        for level in range(new + 1, old + 1):
            levels[level] &= ~bit


def _sets(levels: int, filed: list[tuple[int, int]]) -> list[int]:
    # The set of nodes of each level, from pairs (level, ordinal). Built in byte arrays, because
    # setting one bit of an integer copies the whole integer.
    size = max((ordinal for _, ordinal in filed), default=0) // 8 + 1
    found = [bytearray(size) for _ in range(levels)]
    for level, ordinal in filed:
        found[level][ordinal >> 3] |= 1 << (ordinal & 7)
    return [int.from_bytes(one, "little") for one in found]


def _or_more(levels: list[int]) -> list[int]:
    # From "exactly this level" to "this level or more".
    for level in range(len(levels) - 1, 0, -1):
        levels[level - 1] |= levels[level]
    return levels
