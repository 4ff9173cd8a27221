"""The places of queues among their siblings, in heaps.

The comparisons are those of KAI-Scheduler at d5bc503a (plugins/proportion/queue_order), as a key of
integers.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from yardmaster_core.scheduling.policies.claiming.amounts import NOTHING, Amounts
from yardmaster_core.scheduling.policies.quota.queues import Queue

#: A place among siblings: the smaller comes first.
QueueKey = tuple[int, ...]

T = TypeVar("T")

#: A heap of siblings keeps so many outdated entries, and some for each sibling.
MANY_ENTRIES: Final = 64


def queue_key(
    queue: Queue,
    task: Amounts,
    *,
    taken: Amounts = NOTHING,
    all_over: bool,
    guaranteed: bool = True,
) -> QueueKey:
    """Return the place of a queue that would start a task of these amounts next.

    Args:
        queue: with its share.
        task: what the task requests.
        taken: what victims of the queue, found before, hold.
        all_over: whether a queue is above its share only if it is so in every resource.
        guaranteed: whether a project stays within what it deserves in all its pools.
    """
    held, reserved = queue.held, queue.reserved
    gpu, cpu, memory = (
        held[0] + reserved[0] - taken[0],
        held[1] + reserved[1] - taken[1],
        held[2] + reserved[2] - taken[2],
    )
    next_gpu, next_cpu, next_memory = gpu + task[0], cpu + task[1], memory + task[2]
    fair, most = queue.fair, queue.allocatable
    above = (fair[0] < gpu, fair[1] < cpu, fair[2] < memory)
    deserved_gpu, deserved_cpu, deserved_memory = queue.deserved
    starved = (
        guaranteed
        and (deserved_gpu is None or next_gpu <= deserved_gpu)
        and (deserved_cpu is None or next_cpu <= deserved_cpu)
        and (deserved_memory is None or next_memory <= deserved_memory)
    )
    # A part of nothing counts as a very large ratio.
    most_gpu, most_cpu, most_memory = most[0] or 1, most[1] or 1, most[2] or 1
    return (
        all(above) if all_over else any(above),
        not starved,
        -queue.rank,
        bool((task[0] and not most[0]) or (task[1] and not most[1]) or (task[2] and not most[2])),
        max(
            (next_gpu << 32) // most_gpu,
            (next_cpu << 32) // most_cpu,
            (next_memory << 32) // most_memory,
        ),
        max((gpu << 32) // most_gpu, (cpu << 32) // most_cpu, (memory << 32) // most_memory),
        *most,
        *queue.age,
    )


class QueueHeap(Generic[T]):
    """The leaves that have an item, by the keys of their paths.

    `head` returns the next item of a leaf, or None; `key` the place of a queue that is represented
    by an item. `refresh` must be called for a leaf after either may have changed; it costs
    O(depth * log(siblings)).
    """

    def __init__(
        self, head: Callable[[Queue], T | None], key: Callable[[Queue, T], QueueKey]
    ) -> None:
        self._head = head
        self._key = key
        #: By inner queue: its children, each by its newest entry; older entries are skipped.
        self._heaps: dict[Queue, list[tuple[QueueKey, int, Queue, T]]] = {}
        self._newest: dict[Queue, int] = {}
        self._root: Queue | None = None

    def refresh(self, queue: Queue) -> None:
        """Compute the places of a leaf, or of an inner queue, and of the queues above it again."""
        first = self._first(queue)
        item = self._head(queue) if queue not in self._heaps else None if not first else first[1]
        while queue.parent is not None:
            number = self._newest[queue] = self._newest.get(queue, 0) + 1
            heap = self._heaps.setdefault(queue.parent, [])
            if len(heap) > MANY_ENTRIES + 4 * len(queue.parent.children):
                heap[:] = [entry for entry in heap if entry[1] == self._newest[entry[2]]]
                heapify(heap)
            if item is not None:
                heappush(heap, (self._key(queue, item), number, queue, item))
            queue = queue.parent
            first = self._first(queue)
            item = None if first is None else first[1]
        self._root = queue

    def fill(self, leaves: Iterable[Queue]) -> None:
        """Do the same for many leaves of a heap without items, in one step per queue."""
        inner: dict[Queue, None] = {}
        for leaf in leaves:
            item = self._head(leaf)
            if item is not None:
                self._append(leaf, item, inner)
        while inner:
            deepest = max(len(queue.path) for queue in inner)
            for queue in [queue for queue in inner if len(queue.path) == deepest]:
                del inner[queue]
                heapify(self._heaps[queue])
                if queue.parent is None:
                    self._root = queue
                else:
                    self._append(queue, self._heaps[queue][0][3], inner)

    def _append(self, queue: Queue, item: T, inner: dict[Queue, None]) -> None:
        parent = queue.parent
        assert parent is not None, "the root has no place"
        self._newest[queue] = 0
        self._heaps.setdefault(parent, []).append((self._key(queue, item), 0, queue, item))
        inner[parent] = None

    def best(self) -> T | None:
        """Return the item of the first leaf, or None."""
        first = None if self._root is None else self._first(self._root)
        return None if first is None else first[1]

    def best_leaf(self) -> Queue:
        """Return the first leaf; there must be one."""
        assert self._root is not None
        queue = self._root
        while (first := self._first(queue)) is not None:
            queue = first[0]
        return queue

    def _first(self, queue: Queue) -> tuple[Queue, T] | None:
        heap = self._heaps.get(queue)
        while heap:
            _, number, child, item = heap[0]
            if number == self._newest[child]:
                return child, item
            heappop(heap)
        return None
