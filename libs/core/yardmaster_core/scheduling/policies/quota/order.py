"""The order of pending tasks, by queue: the most deprived queue first; and the order of victims.

A queue is represented by the task that it would start next. Siblings are compared by what they hold
and by that task, so the order changes with each start. Keys are computed again only for the path of
a queue that changed (`queue_heap.py`).
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from yardmaster_core.scheduling.planner.group_queue import id_order
from yardmaster_core.scheduling.planner.policy import Candidate, OrderKey, PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    Amounts,
    held_by_task,
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

#: The place within a leaf, the order of admission, and the candidate.
Waiting = tuple[OrderKey, int, Candidate]


class QueueOrder:
    """The `CandidateOrder` by queue, then by priority and submission.

    All groups have one turn before any group has the next. But the first turn of a group is
    deferred until the groups that come first in its project have had their turn to preempt (turn
    `after`). Else a task of the group would start, and those first groups would preempt it in the
    next cycle.
    """

    def __init__(
        self,
        view: PoolView,
        turns: int,
        *,
        over_in_all: bool,
        within: Callable[[PoolView, Group], OrderKey],
        after: int,
    ) -> None:
        self._view = view
        self._over_in_all = over_in_all
        self._within = within
        #: By turn, if any group had it. Groups whose last starts failed have their turns after all
        #: others.
        self._turns: dict[int, _Turn] = {}
        self._late = turns
        self._after = after
        self._count = 0
        #: The place of a group within its project, without the submission.
        self._places: dict[Group, OrderKey] = {}
        #: By leaf, the places of groups that are held, or wait for a turn from the second up to
        #: `after`; and the groups whose first turn is deferred until the groups in `_ahead` have
        #: had their turn.
        self._ahead: dict[Queue, list[OrderKey]] = {}
        self._deferred: dict[Queue, list[Waiting]] = {}
        #: Leaves whose groups in `_ahead` have all had their turn.
        self._released: list[Queue] = []

    def __bool__(self) -> bool:
        return self._count > 0

    def scope(self, group: Group) -> str:
        """Return the project: places order the tasks of one project."""
        return group.shape.project

    def place(self, group: Group, task: Task) -> OrderKey:
        places = self._places
        found = places.get(group)
        if found is None:
            found = places[group] = self._within(self._view, group)
        # rule: order: earlier submission
        return *found, task.key

    def push(self, candidate: Candidate) -> None:
        group, _, _, turn = candidate
        leaf, entry = self._entry(candidate)
        # rule: order: failed starts last
        at = turn + self._late * group.shape.start_failed
        self._count += 1
        if 0 < at <= self._after:
            self._ahead.setdefault(leaf, []).append(self._rank(entry))
        self._push(at, leaf, entry)

    def hold(self, candidate: Candidate) -> bool:
        leaf, entry = self._entry(candidate)
        self._ahead.setdefault(leaf, []).append(self._rank(entry))
        return True

    def release(self, candidate: Candidate) -> None:
        leaf, entry = self._entry(candidate)
        self._had_turn(leaf, entry)
        self.push(candidate)

    def _entry(self, candidate: Candidate) -> tuple[Queue, Waiting]:
        group, task, *_ = candidate
        leaf = index_of(self._view).queue_of(self._view.state, task.job.project)
        return leaf, (self.place(group, task), id_order(task), candidate)

    def _had_turn(self, leaf: Queue, entry: Waiting) -> None:
        """Count a group of `_ahead` as one that had its turn."""
        self._ahead[leaf].remove(self._rank(entry))
        if not self._ahead[leaf]:
            self._released.append(leaf)

    def _push(self, at: int, leaf: Queue, entry: Waiting) -> None:
        turn = self._turns.get(at)
        if turn is None:
            turn = self._turns[at] = _Turn(self._key)
        turn.push(leaf, entry)

    def pop(self, must_wait: Callable[[Group], bool]) -> Candidate | None:
        index = index_of(self._view)
        self._release()
        for at, turn in sorted(self._turns.items()):
            while turn.waiting:
                index.divide(self._view.state)
                entry = turn.best(index.changed_leaves)
                candidate = entry[2]
                leaf = index.queue_of(self._view.state, candidate[1].job.project)
                if not at and self._must_defer(leaf, entry):
                    turn.pop(leaf)
                    self._deferred.setdefault(leaf, []).append(entry)
                    continue
                if must_wait(candidate[0]):
                    return None
                turn.pop(leaf)
                self._count -= 1
                if 0 < at <= self._after:
                    self._had_turn(leaf, entry)
                return candidate
        return None

    def _must_defer(self, leaf: Queue, entry: Waiting) -> bool:
        """Whether a group of the leaf that comes before `entry` still has a turn to preempt."""
        ahead = self._ahead.get(leaf)
        # rule: order: wait for a preemption of the project
        return bool(ahead) and min(ahead or ()) < self._rank(entry)

    def _release(self) -> None:
        """Give deferred groups their first turn once no group of their leaf is ahead."""
        for leaf in self._released:
            if not self._ahead[leaf]:
                for entry in self._deferred.pop(leaf, ()):
                    self._push(0, leaf, entry)
        self._released.clear()

    @staticmethod
    def _rank(entry: Waiting) -> OrderKey:
        """Return the place without the submission: equal groups do not wait for each other."""
        return entry[0][:-1]

    def comes_first(self, group: Group, task: Task, turn: int) -> bool:
        # After a start the order is another one.
        return False

    def _key(self, queue: Queue, entry: Waiting) -> QueueKey:
        shape = entry[2][0].shape
        return place_among_siblings(self._view, queue, shape, over_in_all=self._over_in_all)


def place_among_siblings(
    view: PoolView, queue: Queue, shape: Shape, *, over_in_all: bool
) -> QueueKey:
    """Return the place of a queue that would start a task of this shape next."""
    request = requested(view.pool, shape)
    guaranteed = True
    if queue.is_project:
        guaranteed = stays_within_sum(view, view.state.projects[shape.project], request)
    return queue_key(queue, request, over_in_all=over_in_all, guaranteed=guaranteed)


class _Turn:
    """The groups that wait for one turn."""

    def __init__(self, key: Callable[[Queue, Waiting], QueueKey]) -> None:
        self.waiting: dict[Queue, list[Waiting]] = {}
        self._heap: QueueHeap[Waiting] = QueueHeap(self._head, key)
        #: Leaves whose place may have changed, and the number of changes of leaves read so far.
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

    def best(self, changed_leaves: list[Queue]) -> Waiting:
        """Return the first group; there must be one.

        `changed_leaves`: the leaves that changed so far in this cycle. A leaf without groups has no
        place, but the places of the queues above it may have changed.
        """
        if self._followed < len(changed_leaves):
            self._stale.update(dict.fromkeys(changed_leaves[self._followed :]))
            self._followed = len(changed_leaves)
        for leaf in self._stale:
            self._heap.refresh(leaf)
        self._stale.clear()
        found = self._heap.best()
        assert found is not None, "a group that waits has no place"
        return found


def in_victim_order(
    pool: Pool, tasks_by_leaf: Iterator[tuple[Queue, Iterator[Task]]], *, over_in_all: bool
) -> Iterator[Task]:
    """Yield the tasks of all leaves, each time the next task of the queue that would come last.

    `tasks_by_leaf`: the leaves with their tasks in order. The places of queues are computed as if
    the yielded tasks were gone.
    """
    tasks: dict[Queue, Iterator[Task]] = {}
    heads: dict[Queue, Task | None] = {}
    taken: dict[Queue, Amounts] = {}

    def key(queue: Queue, task: Task) -> QueueKey:
        place = queue_key(
            queue,
            held_by_task(pool, task),
            # rule: order: found victims count as taken
            taken=taken.get(queue, NOTHING),
            over_in_all=over_in_all,
        )
        # rule: order: victims in reverse
        return tuple(-part for part in place)

    heap: QueueHeap[Task] = QueueHeap(heads.get, key)
    leaf_of: dict[Task, Queue] = {}
    for leaf, tasks_of_leaf in tasks_by_leaf:
        tasks[leaf] = tasks_of_leaf
        first = heads[leaf] = next(tasks_of_leaf, None)
        if first is not None:
            leaf_of[first] = leaf
    heap.fill(tasks)
    while (task := heap.best()) is not None:
        yield task
        leaf = leaf_of.pop(task)
        amounts = held_by_task(pool, task)
        for queue in leaf.path:
            taken[queue] = plus(taken.get(queue, NOTHING), amounts)
        following = heads[leaf] = next(tasks[leaf], None)
        if following is not None:
            leaf_of[following] = leaf
        heap.refresh(leaf)
