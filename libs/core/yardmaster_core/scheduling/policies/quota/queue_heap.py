"""The places of queues among their siblings, in heaps.

The comparisons are those of KAI-Scheduler at d5bc503a (plugins/proportion/queue_order), as the
parts of a key of integers.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from yardmaster_core.scheduling.policies.claiming.amounts import NOTHING, Amounts
from yardmaster_core.scheduling.policies.quota.queues import Queue

#: A place among siblings: the smaller one comes first.
QueueKey = tuple[int, ...]

T = TypeVar("T")

#: The number of outdated entries that a heap of siblings keeps, in addition to some per sibling.
MANY_ENTRIES: Final = 64


def queue_key(
    queue: Queue,
    request: Amounts,
    *,
    taken: Amounts | None = None,
    over_in_all: bool,
    guaranteed: bool = True,
) -> QueueKey:
    """Return the place of a queue that would start a task with this request next; or, with
    `taken`, that would lose a task with this request next.

    Each part of the key decides between queues whose parts before it are equal.

    Args:
        queue: a queue with an up-to-date share.
        request: the amounts that the task requests.
        taken: the amounts that the victims found so far in the queue hold; None: the queue starts
            a task.
        over_in_all: whether a queue is over-utilized only if every resource is.
        guaranteed: whether a project stays within what it deserves in all its pools.
    """
    held, reserved, gone = queue.held, queue.reserved, taken or NOTHING
    gpu, cpu, memory = (
        held[0] + reserved[0] - gone[0],
        held[1] + reserved[1] - gone[1],
        held[2] + reserved[2] - gone[2],
    )
    next_gpu, next_cpu, next_memory = gpu + request[0], cpu + request[1], memory + request[2]
    fair, allocatable = queue.fair, queue.allocatable
    deserved_gpu, deserved_cpu, deserved_memory = queue.deserved
    # If a queue may hold nothing of a resource, what it holds counts as a very large part.
    most_gpu, most_cpu, most_memory = allocatable[0] or 1, allocatable[1] or 1, allocatable[2] or 1

    # Queues that hold more than their share come last.
    over = (fair[0] < gpu, fair[1] < cpu, fair[2] < memory)
    # rule: order: above its share last
    # rule: order: any resource
    # rule: order: all resources (kai)
    over_utilized = all(over) if over_in_all else any(over)
    # Queues that deserve all that they hold with the task come first.
    # rule: order: deserved first
    # rule: order: deserved first, within the sum over pools
    within_deserved = (
        guaranteed
        and (deserved_gpu is None or next_gpu <= deserved_gpu)
        and (deserved_cpu is None or next_cpu <= deserved_cpu)
        and (deserved_memory is None or next_memory <= deserved_memory)
    )
    # Queues that would hold more than their share of a requested resource with the task come
    # later: a task that stays within its share would reclaim the slots.
    # rule: order: above its share with the task later
    above_with_task = taken is None and (
        bool(request[0] and fair[0] < next_gpu)
        or bool(request[1] and fair[1] < next_cpu)
        or bool(request[2] and fair[2] < next_memory)
    )
    # Queues of a higher rank come first.
    # rule: order: higher rank
    higher_rank_first = -queue.rank
    # Queues without a share of a requested resource come last.
    # rule: order: a share of all that is requested
    without_share = bool(
        (request[0] and not allocatable[0])
        or (request[1] and not allocatable[1])
        or (request[2] and not allocatable[2])
    )
    # Queues that hold the smaller part of their share with the task come first.
    # rule: order: smaller part with the task
    part_with_task = max(
        (next_gpu << 32) // most_gpu,
        (next_cpu << 32) // most_cpu,
        (next_memory << 32) // most_memory,
    )
    # Queues that hold the smaller part of their share now come first.
    # rule: order: smaller part now
    part_now = max((gpu << 32) // most_gpu, (cpu << 32) // most_cpu, (memory << 32) // most_memory)
    return (
        over_utilized,
        not within_deserved,
        above_with_task,
        higher_rank_first,
        without_share,
        part_with_task,
        part_now,
        # Queues with the smaller share come first: of GPUs, of CPUs, of memory.
        # rule: order: smaller share
        *allocatable,
        # Departments come before projects, older queues before newer ones.
        # rule: order: older queue
        *queue.age,
    )


class QueueHeap(Generic[T]):
    """The leaves that have an item, in the order of the keys of the queues on their paths.

    `head` returns the next item of a leaf, or None. `key` returns the place of a queue that is
    represented by an item. Call `refresh` for a leaf after its item or a key on its path may have
    changed; a call costs O(depth * log(siblings)).
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
        """Compute the places of a queue and of the queues above it again."""
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
        """Add the items of many leaves to an empty heap, in one step per queue."""
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
        """Add the entry of a queue to the heap of its parent, which the caller must heapify."""
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
        """Return the first child of a queue, with its item, or None; drop outdated entries."""
        heap = self._heaps.get(queue)
        while heap:
            _, number, child, item = heap[0]
            if number == self._newest[child]:
                return child, item
            heappop(heap)
        return None
