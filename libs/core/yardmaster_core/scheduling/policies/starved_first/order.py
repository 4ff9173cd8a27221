"""The order of pending tasks: the owner that holds the fewest GPUs first."""

from collections.abc import Callable, Hashable
from heapq import heappop, heappush

from yardmaster_core.scheduling.planner.group_queue import id_order
from yardmaster_core.scheduling.planner.policy import Candidate, OrderKey, PoolView
from yardmaster_core.scheduling.policies.starved_first.index import Owner, index_of
from yardmaster_core.scheduling.state.tasks import Group, Task

#: The place within the owner, the turn, the order of admission, and the candidate.
Waiting = tuple[OrderKey, int, int, Candidate]


class OwnerOrder:
    """The `CandidateOrder` by owner, evaluated again after each start.

    An owner is represented by its first task, by priority, then by submission. That task has all
    its turns, so that it also preempts others, before the next task is considered. A postponed one
    (`preempt.py`) preempts after the first turns of the others, and before they preempt. If owners
    hold the same amount, the owner whose task was submitted first comes first. Groups whose last
    starts failed come after all others.
    """

    def __init__(self, view: PoolView) -> None:
        self._view = view
        self._waiting: dict[Owner, list[Waiting]] = {}
        #: Owners with a task whose preemption is postponed.
        self._postponed: set[Owner] = set()
        #: Owners, each by its newest entry; older entries are skipped.
        self._heap: list[tuple[OrderKey, int, Owner]] = []
        self._newest: dict[Owner, int] = {}
        #: Owners whose place may have changed, and how many changes of owners were read.
        self._stale: dict[Owner, None] = {}
        self._followed = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def scope(self, group: Group) -> Hashable:
        """Return the owner: places order the tasks of one owner."""
        return index_of(self._view).owner_of(group.first.job)

    def place(self, group: Group, task: Task) -> OrderKey:
        return group.shape.start_failed, group.priority, *task.key

    def push(self, candidate: Candidate) -> None:
        group, task, _, turn = candidate
        owner = index_of(self._view).owner(task.job)
        if turn > 1:
            # Its turn of the second action.
            self._postponed.add(owner)
        failed, *place = self.place(group, task)
        late = turn > 0 and owner in self._postponed
        entry = ((failed, late, *place), turn, id_order(task), candidate)
        heappush(self._waiting.setdefault(owner, []), entry)
        self._stale[owner] = None

    def pop(self, must_wait: Callable[[Group], bool]) -> Candidate | None:
        self._refresh()
        heap = self._heap
        while heap:
            _, number, owner = heap[0]
            if number != self._newest[owner]:
                heappop(heap)
                continue
            waiting = self._waiting[owner]
            candidate = waiting[0][-1]
            if must_wait(candidate[0]):
                return None
            heappop(waiting)
            if not waiting:
                del self._waiting[owner]
            self._stale[owner] = None
            return candidate
        return None

    def comes_first(self, group: Group, task: Task, turn: int) -> bool:
        # After a start the order is another one.
        return False

    def hold(self, candidate: Candidate) -> bool:
        return False

    def release(self, candidate: Candidate) -> None:
        self.push(candidate)

    def _refresh(self) -> None:
        """Compute the places that may have changed again."""
        index = index_of(self._view)
        index.count()
        self._stale.update(dict.fromkeys(index.changed_owners[self._followed :]))
        self._followed = len(index.changed_owners)
        for owner in self._stale:
            number = self._newest[owner] = self._newest.get(owner, 0) + 1
            waiting = self._waiting.get(owner)
            if waiting:
                (failed, _, _, *submitted), *_ = waiting[0]
                heappush(self._heap, ((failed, owner.allocated, *submitted), number, owner))
        self._stale.clear()
