"""The order of queues, and with it of pending tasks and of victims: the most deprived queue first.

Siblings are compared by the state of their queues, each represented by the task that it would start
next; so the order changes with each start. Keys are computed again only for the path of a queue
that changed (`queue_heap.py`).
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from yardmaster_core.scheduling.planner.group_queue import id_order
from yardmaster_core.scheduling.planner.policy import Candidate, OrderKey, PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    Amounts,
    held,
    plus,
    requested,
)
from yardmaster_core.scheduling.policies.quota.index import index_of
from yardmaster_core.scheduling.policies.quota.pool_sums import stays_within_sum
from yardmaster_core.scheduling.policies.quota.queue_heap import QueueHeap, QueueKey, queue_key
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.tasks import Group, Task

#: The key within a leaf, the order of admission, and the candidate.
Waiting = tuple[OrderKey, int, Candidate]


class QueueOrder:
    """`CandidateOrder` by queue, then by priority and submission.

    All groups have one turn before any has the next; but a group waits for those of its project
    that come first until they have had their turn to preempt it (`after`). Else it would start, and
    be preempted for them in the next cycle.
    """

    def __init__(
        self,
        view: PoolView,
        turns: int,
        *,
        all_over: bool,
        within: Callable[[PoolView, Group], OrderKey],
        after: int,
    ) -> None:
        self._view = view
        self._all_over = all_over
        self._within = within
        #: By turn; groups whose last starts failed have theirs after all others.
        self._turns = [_Turn(self._key) for _ in range(2 * turns)]
        self._late = turns
        self._after = after
        self._count = 0
        #: By group: its place within its project, without the submission.
        self._places: dict[Group, OrderKey] = {}
        #: By leaf: the places of groups that wait for a turn up to `after`, and the groups that
        #: wait for these, with their first turn.
        self._ahead: dict[Queue, list[OrderKey]] = {}
        self._held: dict[Queue, list[Waiting]] = {}
        #: Leaves whose groups wait for none any more.
        self._released: list[Queue] = []

    def __bool__(self) -> bool:
        return self._count > 0

    def place(self, group: Group, task: Task) -> OrderKey:
        places = self._places
        found = places.get(group)
        if found is None:
            found = places[group] = self._within(self._view, group)
        return *found, task.key

    def push(self, candidate: Candidate) -> None:
        group, task, _, turn = candidate
        index = index_of(self._view)
        leaf = index.queue_of(self._view.state, task.job.project)
        at = turn + self._late * group.shape.start_failed
        entry = (self.place(group, task), id_order(task), candidate)
        self._count += 1
        if 0 < at <= self._after:
            self._ahead.setdefault(leaf, []).append(self._rank(entry))
        self._turns[at].push(leaf, entry)

    def pop(self, must_wait: Callable[[Group], bool]) -> Candidate | None:
        index = index_of(self._view)
        self._release()
        for at, turn in enumerate(self._turns):
            while turn.waiting:
                index.divide(self._view.state)
                entry = turn.best(index.touched)
                candidate = entry[2]
                leaf = index.queue_of(self._view.state, candidate[1].job.project)
                if not at and self._must_hold(leaf, entry):
                    turn.pop(leaf)
                    self._held.setdefault(leaf, []).append(entry)
                    continue
                if must_wait(candidate[0]):
                    return None
                turn.pop(leaf)
                self._count -= 1
                if 0 < at <= self._after:
                    self._ahead[leaf].remove(self._rank(entry))
                    if not self._ahead[leaf]:
                        self._released.append(leaf)
                return candidate
        return None

    def _must_hold(self, leaf: Queue, entry: Waiting) -> bool:
        ahead = self._ahead.get(leaf)
        return bool(ahead) and min(ahead or ()) < self._rank(entry)

    def _release(self) -> None:
        """Give the groups their first turn for which no other one is ahead any more."""
        for leaf in self._released:
            if not self._ahead[leaf]:
                for entry in self._held.pop(leaf, ()):
                    self._turns[0].push(leaf, entry)
        self._released.clear()

    @staticmethod
    def _rank(entry: Waiting) -> OrderKey:
        """The place without the submission: equals do not wait for each other."""
        return entry[0][:-1]

    def comes_first(self, group: Group, task: Task, turn: int) -> bool:
        # After a start the order is another one.
        return False

    def _key(self, queue: Queue, entry: Waiting) -> QueueKey:
        shape = entry[2][0].shape
        return place_among_siblings(self._view, queue, shape, all_over=self._all_over)


def place_among_siblings(view: PoolView, queue: Queue, shape: Shape, *, all_over: bool) -> QueueKey:
    """Return the place of a queue that would start a task of this shape next."""
    ask = requested(view.pool, shape)
    guaranteed = True
    if queue.is_project:
        guaranteed = stays_within_sum(view, view.state.projects[shape.project], ask)
    return queue_key(queue, ask, all_over=all_over, guaranteed=guaranteed)


class _Turn:
    """The groups that wait for one turn."""

    def __init__(self, key: Callable[[Queue, Waiting], QueueKey]) -> None:
        self.waiting: dict[Queue, list[Waiting]] = {}
        self._heap: QueueHeap[Waiting] = QueueHeap(self._head, key)
        #: Leaves whose place may be another one now, and how many changes of queues it knows.
        self._stale: dict[Queue, None] = {}
        self._followed = 0

    def _head(self, leaf: Queue) -> Waiting | None:
        waiting = self.waiting.get(leaf)
        return waiting[0] if waiting else None

    def push(self, leaf: Queue, entry: Waiting) -> None:
        """Add a group to a leaf."""
        heappush(self.waiting.setdefault(leaf, []), entry)
        self._stale[leaf] = None

    def pop(self, leaf: Queue) -> None:
        """Remove the first group of a leaf."""
        heappop(self.waiting[leaf])
        if not self.waiting[leaf]:
            del self.waiting[leaf]
        self._stale[leaf] = None

    def best(self, touched: list[Queue]) -> Waiting:
        """Return the first group; there must be one. `touched`: the queues that changed so far.

        Of a leaf without groups only the queues above it may have another place.
        """
        if self._followed < len(touched):
            self._stale.update(dict.fromkeys(touched[self._followed :]))
            self._followed = len(touched)
        for leaf in self._stale:
            self._heap.refresh(leaf)
        self._stale.clear()
        found = self._heap.best()
        assert found is not None, "a group that waits has no place"
        return found


def in_victim_order(
    pool: Pool, leaves: Iterator[tuple[Queue, Iterator[Task]]], *, all_over: bool
) -> Iterator[Task]:
    """Yield the tasks of all leaves: the next one of the queue that would come last.

    Each yielded task counts as taken from its queues.
    """
    tasks: dict[Queue, Iterator[Task]] = {}
    heads: dict[Queue, Task | None] = {}
    taken: dict[Queue, Amounts] = {}

    def key(queue: Queue, task: Task) -> QueueKey:
        own = queue_key(
            queue,
            held(pool, task),
            taken=taken.get(queue, NOTHING),
            all_over=all_over,
        )
        return tuple(-part for part in own)

    heap: QueueHeap[Task] = QueueHeap(heads.get, key)
    leaf_of: dict[Task, Queue] = {}
    for leaf, some in leaves:
        tasks[leaf] = some
        first = heads[leaf] = next(some, None)
        if first is not None:
            leaf_of[first] = leaf
    heap.fill(tasks)
    while (task := heap.best()) is not None:
        yield task
        leaf = leaf_of.pop(task)
        amounts = held(pool, task)
        for queue in leaf.path:
            taken[queue] = plus(taken.get(queue, NOTHING), amounts)
        following = heads[leaf] = next(tasks[leaf], None)
        if following is not None:
            leaf_of[following] = leaf
        heap.refresh(leaf)
