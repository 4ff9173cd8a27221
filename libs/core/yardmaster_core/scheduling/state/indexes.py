"""What is free on a pool's nodes, indexed by how much it is: a cycle's cost follows the change.

`CapacityIndex` finds the nodes on which a replica may fit with a few operations on integers used as
bit sets, one bit per node. A set of 10,000 nodes takes 1.25 kB. The intersection of two sets takes
less time than one step of a search in a sorted list, the lowest bit is a defined choice, and node
types and cordons are further sets.
"""

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Final

from yardmaster_core.scheduling.state.shapes import WHOLE, Shape
from yardmaster_core.scheduling.state.workload import NO_WORKLOAD, Workload
from yardmaster_schemas.events.decisions import Placement
from yardmaster_schemas.events.node_events import MAX_RUNNING

if TYPE_CHECKING:
    from yardmaster_core.scheduling.state.ranking import Ranking

#: Shared slots are indexed by how many of these (gpu_milli) they have free.
STEP: Final = 50
#: Levels of a quantity: the number of its binary digits.
LEVELS: Final = 54
#: Places for tasks without GPUs on a node of a pool that is not configured.
UNBOUNDED: Final = 1 << 30
#: The same in a pool that does not bound them: each is a process or more, also one that asks for no
#: CPU and no memory, and a lost node names them all in one record.
DEFAULT_GPULESS: Final = 512
#: The same in a pool that allows more: half of what NodeLost and NodeJoined may name. The other
#: half is for tasks with GPUs.
MOST_GPULESS: Final = MAX_RUNNING // 2


class NodeCapacity:
    """What is free on one node, in one view of it.

    `slots[i]` is the free gpu_milli of slot i; `whole` counts untouched slots; `shared` is the most
    that one partly used slot has free. A disabled slot counts as used up by somebody more: while a
    task still holds it, less than nothing of it is free.
    """

    __slots__ = (
        *("available", "cpu_milli", "memory_mib", "ordinal", "shared", "slots", "stale", "whole"),
        *("at_cpu", "at_idle", "at_memory", "at_places", "at_shared", "at_whole"),
        *("disabled", "most_gpuless", "node_type", "places"),
    )

    def __init__(self, ordinal: int, slots: int, cpu_milli: int, memory_mib: int) -> None:
        self.ordinal = ordinal
        self.slots = [WHOLE] * slots
        #: Slots on which nothing new is placed.
        self.disabled: tuple[int, ...] = ()
        #: How many tasks without GPUs it may have; of them it may still take `places`.
        self.most_gpuless = UNBOUNDED
        self.places = UNBOUNDED
        self.whole = slots
        self.shared = 0
        self.cpu_milli = cpu_milli
        self.memory_mib = memory_mib
        self.node_type = ""
        #: Whether an index that has the room counts it among those that take tasks.
        self.available = False
        self.stale = False
        self.at_whole = self.at_shared = self.at_cpu = self.at_memory = -1
        self.at_places = UNBOUNDED
        self.at_idle = False

    @property
    def gpu_milli(self) -> int:
        """Free on all slots together."""
        slots = self.slots
        if slots and min(slots) < 0:
            return sum(free for free in slots if free > 0)
        return sum(slots)

    @property
    def size(self) -> int:
        """How many slots it has that are not disabled."""
        return len(self.slots) - len(self.disabled)

    @property
    def idle(self) -> bool:
        """Whether it has GPUs, and none is used."""
        if self.whole != self.size or not self.whole:
            return False
        return not self.disabled or min(self.slots) >= 0

    def supports(self, shape: Shape) -> bool:
        """Whether it has the CPU and memory for one replica of `shape`."""
        return self.cpu_milli >= shape.cpu_milli and self.memory_mib >= shape.memory_mib

    def holds(self, shape: Shape) -> bool:
        """Whether one replica of `shape` fits."""
        if self.cpu_milli < shape.cpu_milli or self.memory_mib < shape.memory_mib:
            return False
        milli = shape.gpu_milli
        if milli == WHOLE:
            return self.whole >= shape.gpus
        if not milli:
            return self.places > 0
        if shape.gpus == 1:
            return self.whole > 0 or self.shared >= milli
        return sum(1 for free in self.slots if free >= milli) >= shape.gpus

    def pick(self, shape: Shape) -> tuple[int, ...]:
        """The slots that one replica of `shape` would get: the fullest that will do, lowest index
        first.

        For a gang whose replicas share several GPUs each it is the emptiest: only so do as many as
        possible find different slots.
        """
        if not shape.gpus:
            return ()
        milli = shape.gpu_milli
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
        sign = -1 if shape.replicas > 1 and shape.gpus > 1 else 1
        fitting = sorted((sign * free, i) for i, free in enumerate(self.slots) if free >= milli)
        return tuple(sorted(i for _, i in fitting[: shape.gpus]))

    def fill(self, gpus: int, cpu_milli: int, memory_mib: int, placed: Iterable[Placement]) -> None:
        """Make the room that of a node with so much, less what is placed there; the index that has
        it must `refile`.
        """
        free = self.slots = [WHOLE] * gpus
        for slot in self.disabled:
            free[slot] -= WHOLE
        self.places = self.most_gpuless
        for placement in placed:
            milli = placement.gpu_milli
            for slot in placement.slots:
                free[slot] -= milli
            if not placement.slots:
                self.places -= 1
            cpu_milli -= placement.cpu_milli
            memory_mib -= placement.memory_mib
        self.cpu_milli = cpu_milli
        self.memory_mib = memory_mib
        self.recount()

    def recount(self) -> None:
        """Count what is whole and what is shared."""
        free = self.slots
        self.whole = free.count(WHOLE)
        if self.whole + free.count(0) == len(free):
            self.shared = 0
        else:
            self.shared = max((f for f in free if 0 < f < WHOLE), default=0)


class CapacityIndex:
    """The rooms of a pool's nodes, found by what is free.

    Two of them stand for a pool: what is idle now, and what will be when all that is stopping is
    gone. Changes of a room are noted and looked at only before the next question, so that placing
    many equal replicas on one node moves it once.
    """

    __slots__ = (
        *("available", "cpu", "free_milli", "memory", "of_type", "capacities", "shared", "whole"),
        *("changes", "idle", "images", "most_gpuless", "named", "of_size", "places"),
        *("_stale", "workload", "rankings"),
    )

    def __init__(self) -> None:
        #: Counts what was taken and given: while it is the same, so is the answer to a question.
        self.changes = 0
        #: Rooms by node ordinal.
        self.capacities: dict[int, NodeCapacity] = {}
        #: Nodes that take tasks: up and not cordoned.
        self.available = 0
        self.of_type: dict[str, int] = {}
        #: Nodes by how many slots they have that are not disabled.
        self.of_size: dict[int, int] = {}
        #: Nodes that run containers.
        self.images = 0
        #: Node ordinals by name.
        self.named: dict[str, int] = {}
        #: Nodes with GPUs of which none is used.
        self.idle = 0
        #: Most tasks without GPUs on a node; nodes by how many more they may take.
        self.most_gpuless = DEFAULT_GPULESS
        self.places: dict[int, int] = {}
        #: Free gpu_milli of the available nodes.
        self.free_milli = 0
        self.whole: list[int] = [0]
        #: Nodes with at least that level of CPU, memory, share of a slot.
        self.cpu = [0] * LEVELS
        self.memory = [0] * LEVELS
        self.shared = [0] * (WHOLE // STEP + 1)
        #: Orders of rooms that are kept (`ranking.py`), and what those rest on that go by what is
        #: asked for.
        self.rankings: dict[Hashable, Ranking] = {}
        self.workload = NO_WORKLOAD
        self._stale: list[NodeCapacity] = []

    def add(
        self, capacity: NodeCapacity, node_type: str, name: str = "", *, runs_images: bool = False
    ) -> None:
        """Take in an empty node's room; it is not available until `open_node`."""
        bit = 1 << capacity.ordinal
        self.capacities[capacity.ordinal] = capacity
        capacity.node_type = node_type
        self.named[name] = capacity.ordinal
        self.note_images(capacity.ordinal, runs_images=runs_images)
        self.of_type[node_type] = self.of_type.get(node_type, 0) | bit
        self.of_size[capacity.size] = self.of_size.get(capacity.size, 0) | bit
        self.whole.extend([0] * (len(capacity.slots) + 1 - len(self.whole)))
        capacity.most_gpuless = capacity.places = capacity.at_places = self.most_gpuless
        self.places[capacity.places] = self.places.get(capacity.places, 0) | bit
        capacity.at_whole = capacity.at_shared = capacity.at_cpu = capacity.at_memory = -1
        capacity.at_idle = False
        self._index(capacity)

    def note_images(self, ordinal: int, *, runs_images: bool) -> None:
        """Whether a node runs containers."""
        self.images = self.images & ~(1 << ordinal) | (runs_images << ordinal)

    def remove(self, capacity: NodeCapacity, node_type: str, name: str = "") -> None:
        """Forget a node's room."""
        self.close_node(capacity)
        self.flush()
        bit = 1 << capacity.ordinal
        del self.capacities[capacity.ordinal]
        for ranking in self.rankings.values():
            ranking.moved.add(capacity.ordinal)
        self.named.pop(name, None)
        self.images &= ~bit
        self.of_type[node_type] &= ~bit
        self.of_size[capacity.size] &= ~bit
        self.idle &= ~bit
        self._leave_place(capacity, bit)
        self.whole[capacity.at_whole] &= ~bit
        _move(self.shared, bit, capacity.at_shared, -1)
        _move(self.cpu, bit, capacity.at_cpu, -1)
        _move(self.memory, bit, capacity.at_memory, -1)

    def open_node(self, capacity: NodeCapacity) -> None:
        """Let tasks be placed on the node."""
        if not capacity.available:
            capacity.available = True
            self.available |= 1 << capacity.ordinal
            self.free_milli += capacity.gpu_milli

    def close_node(self, capacity: NodeCapacity) -> None:
        """Let nothing new be placed on the node."""
        if capacity.available:
            capacity.available = False
            self.available ^= 1 << capacity.ordinal
            self.free_milli -= capacity.gpu_milli

    def disable(self, capacity: NodeCapacity, slots: tuple[int, ...]) -> None:
        """Place nothing new on these slots of a room, which has them; on all its others again."""
        # Filed before and after: what is idle is looked at anew only where one thing changed.
        self.flush()
        bit = 1 << capacity.ordinal
        self.of_size[capacity.size] &= ~bit
        before, capacity.disabled = capacity.disabled, slots
        self.of_size[capacity.size] = self.of_size.get(capacity.size, 0) | bit
        if back := tuple(slot for slot in before if slot not in slots):
            self.give(capacity, back, WHOLE, 0, 0)
        if gone := tuple(slot for slot in slots if slot not in before):
            self.take(capacity, gone, WHOLE, 0, 0)
        self.flush()

    def bound_gpuless(self, most: int | None) -> None:
        """Let every node have so many tasks without GPUs at once (None: `DEFAULT_GPULESS`), and at
        most `MOST_GPULESS`.
        """
        before = self.most_gpuless
        self.most_gpuless = DEFAULT_GPULESS if most is None else min(most, MOST_GPULESS)
        if before != self.most_gpuless:
            self.flush()
            for capacity in self.capacities.values():
                capacity.most_gpuless = self.most_gpuless
                capacity.places += self.most_gpuless - before
                self._index(capacity)

    def take(
        self,
        capacity: NodeCapacity,
        slots: tuple[int, ...],
        gpu_milli: int,
        cpu_milli: int,
        memory_mib: int,
    ) -> None:
        """Use up part of a room; the caller has checked that it is free."""
        self.shift(capacity, slots, -gpu_milli, -cpu_milli, -memory_mib, -1)

    def give(
        self,
        capacity: NodeCapacity,
        slots: tuple[int, ...],
        gpu_milli: int,
        cpu_milli: int,
        memory_mib: int,
    ) -> None:
        """Give part of a room back."""
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
        """Add to what is free in a room: give (one replica), or with negative amounts take."""
        self.changes += 1
        capacity.cpu_milli += cpu
        capacity.memory_mib += memory
        if slots:
            free = capacity.slots
            # Always a sum, so that giving undoes taking even where both a promise and a start
            # took of one slot.
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
                # Of what is taken twice, nothing is free until it was given twice.
                self.free_milli += (
                    milli * len(slots)
                    if clean
                    else sum(max(free[i], 0) - max(free[i] - milli, 0) for i in slots)
                )
        else:
            capacity.places += replicas
        if not capacity.stale:
            capacity.stale = True
            self._stale.append(capacity)

    def flush(self) -> None:
        """Move the rooms that changed to where they belong."""
        for capacity in self._stale:
            capacity.stale = False
            self._index(capacity)
        self._stale.clear()

    def _index(self, capacity: NodeCapacity) -> None:
        bit = 1 << capacity.ordinal
        for ranking in self.rankings.values():
            ranking.moved.add(capacity.ordinal)
        # Only with disabled slots may it be idle or not without a change of what is whole.
        if (
            capacity.at_whole != capacity.whole or capacity.disabled
        ) and capacity.idle != capacity.at_idle:
            self.idle ^= bit
            capacity.at_idle = not capacity.at_idle
        if capacity.at_whole != capacity.whole:
            if capacity.at_whole >= 0:
                self.whole[capacity.at_whole] ^= bit
            self.whole[capacity.whole] |= bit
            capacity.at_whole = capacity.whole
        if capacity.places != capacity.at_places:
            self._leave_place(capacity, bit)
            self.places[capacity.places] = self.places.get(capacity.places, 0) | bit
            capacity.at_places = capacity.places
        level = capacity.shared // STEP
        if level != capacity.at_shared:
            _move(self.shared, bit, capacity.at_shared, level)
            capacity.at_shared = level
        level = capacity.cpu_milli.bit_length()
        if level != capacity.at_cpu:
            _move(self.cpu, bit, capacity.at_cpu, level)
            capacity.at_cpu = level
        level = capacity.memory_mib.bit_length()
        if level != capacity.at_memory:
            _move(self.memory, bit, capacity.at_memory, level)
            capacity.at_memory = level

    def _leave_place(self, capacity: NodeCapacity, bit: int) -> None:
        left = self.places[capacity.at_places] & ~bit
        if left:
            self.places[capacity.at_places] = left
        else:
            del self.places[capacity.at_places]

    def refile(self) -> None:
        """File every room anew, whatever changed in it; many at once cost less than one by one."""
        self._stale.clear()
        self.rankings.clear()
        self.free_milli = 0
        capacities = self.capacities.values()
        for capacity in capacities:
            capacity.stale = False
            capacity.at_idle = capacity.idle
            capacity.at_places = capacity.places
            capacity.at_whole = capacity.whole
            capacity.at_shared = capacity.shared // STEP
            capacity.at_cpu = capacity.cpu_milli.bit_length()
            capacity.at_memory = capacity.memory_mib.bit_length()
            if capacity.available:
                self.free_milli += capacity.gpu_milli
        self.whole = _sets(len(self.whole), [(r.at_whole, r.ordinal) for r in capacities])
        self.idle = _sets(2, [(int(r.at_idle), r.ordinal) for r in capacities])[1]
        counts = sorted({r.at_places for r in capacities})
        levels = {count: level for level, count in enumerate(counts)}
        found = _sets(len(counts), [(levels[r.at_places], r.ordinal) for r in capacities])
        self.places = dict(zip(counts, found, strict=True))
        self.shared = _or_more(
            _sets(len(self.shared), [(r.at_shared, r.ordinal) for r in capacities])
        )
        self.cpu = _or_more(_sets(LEVELS, [(r.at_cpu, r.ordinal) for r in capacities]))
        self.memory = _or_more(_sets(LEVELS, [(r.at_memory, r.ordinal) for r in capacities]))

    def matching(self, shape: Shape) -> int:
        """Nodes of the types that `shape` allows and does not avoid, with the executor that it
        needs, whatever is free on them.
        """
        mask = -1
        if shape.node_types:
            mask = 0
            for node_type in shape.node_types:
                mask |= self.of_type.get(node_type, 0)
        if shape.image:
            mask &= self.images
        return mask & ~self.ordinals(shape.avoid_nodes)

    def ordinals(self, names: Iterable[str]) -> int:
        """The nodes of those names, those that it has."""
        mask = 0
        for name in names:
            ordinal = self.named.get(name)
            if ordinal is not None:
                mask |= 1 << ordinal
        return mask

    def candidates(self, shape: Shape) -> int:
        """Available nodes of the right type that may have the CPU and memory for one replica."""
        if self._stale:
            self.flush()
        mask = self.available & self.matching(shape)
        if shape.cpu_milli:
            mask &= self.cpu[shape.cpu_milli.bit_length()]
        if shape.memory_mib:
            mask &= self.memory[shape.memory_mib.bit_length()]
        if not shape.gpus:
            mask &= ~self._crowded()
        return mask

    def promising(self, shape: Shape) -> int:
        """Candidates, less those that have too few whole GPUs, or no such share, for a replica."""
        mask = self.candidates(shape)
        if shape.gpus and (shape.gpu_milli == WHOLE or shape.gpus == 1):
            enough = 0 if shape.gpu_milli == WHOLE else self.shared[shape.gpu_milli // STEP]
            for found in self.whole[shape.gpus :]:
                enough |= found
            mask &= enough
        return mask

    def count_on(self, workload: Workload) -> None:
        """Rank rooms by what is asked for from now on."""
        if workload is not self.workload:
            self.workload = workload
            self.rankings.clear()

    def _crowded(self) -> int:
        """Nodes that take no more tasks without GPUs."""
        mask = 0
        for places, found in self.places.items():
            if places <= 0:
                mask |= found
        return mask

    def crowded_for(self, shape: Shape) -> bool:
        """Whether a node that `shape`, which asks for no GPU, may use takes no more of its kind."""
        if self._stale:
            self.flush()
        return bool(self.available & self.matching(shape) & self._crowded())

    def free_for(self, shape: Shape) -> int:
        """Free gpu_milli of the available nodes that `shape` does not avoid."""
        free = self.free_milli
        for name in shape.avoid_nodes:
            capacity = self.capacities.get(self.named.get(name, -1))
            if capacity is not None and capacity.available:
                free -= capacity.gpu_milli
        return free

    def largest(self, shape: Shape) -> int:
        """The most GPUs (gpu_milli) free on one available node of the right type."""
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
    # Per level the set of nodes filed under it, of (level, ordinal). In bytes that can be changed:
    # setting one bit of an integer copies all of it.
    size = max((ordinal for _, ordinal in filed), default=0) // 8 + 1
    found = [bytearray(size) for _ in range(levels)]
    for level, ordinal in filed:
        found[level][ordinal >> 3] |= 1 << (ordinal & 7)
    return [int.from_bytes(one, "little") for one in found]


def _or_more(levels: list[int]) -> list[int]:
    # From "exactly that level" to "that level or more".
    for level in range(len(levels) - 1, 0, -1):
        levels[level - 1] |= levels[level]
    return levels
