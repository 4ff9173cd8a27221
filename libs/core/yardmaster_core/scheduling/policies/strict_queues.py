"""Strict queues, in which no task passes an earlier one.

Hundreds of groups may wait behind one task, and when that task starts, only the next group needs to
be considered. So the index of a strict policy keeps these groups sorted by position and finds the
first group of each queue without visiting the others.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.preemptible import PreemptibleIndex
from yardmaster_core.scheduling.state.policy_index import PLAIN, Traits
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.queue_class import QueueClass
from yardmaster_core.scheduling.state.tasks import Group, Job, Task

#: The queue of a task, and its position in it. A smaller position comes first; no two are equal.
QueuePosition = tuple[int, tuple[Any, ...]]
PositionOf = Callable[[Task], QueuePosition]
#: The position, a serial number that keeps groups from being compared, and the group.
Entry = tuple[tuple[Any, ...], int, Group]


class StrictQueues(PreemptibleIndex):
    """The groups of one pool that wait for others to go first, each at its first task's position.

    Groups with minimum run times are in queues of their own: they also wait behind tasks that
    others may pass. The first of these keeps the tasks behind it pending too (`first_ahead`).

    An entry is stale when its group has left or has another first task. Stale entries are removed
    at the front of a queue, and everywhere once they may be the majority.
    """

    def __init__(self, pool: Pool, position_of: PositionOf, traits: Traits) -> None:
        super().__init__(pool, traits)
        self.position_of = position_of
        self._classes = pool.queue_classes
        self._entries: dict[tuple[int, bool], list[Entry]] = {}
        self._added = 0
        self._clean_up_at = 64
        for queue_class in pool.queue_classes:
            for group in queue_class.behind:
                self._add(group)

    def group_changed(self, group: Group, _: Job) -> None:
        if group.queue.live:
            self._add(group)

    def wait_changed(self, group: Group) -> None:
        self._add(group)

    def next_behind(self, _: Iterable[QueueClass]) -> Iterator[Group]:
        """Yield the first group of each queue."""
        for queue in sorted(self._entries):
            group = self._first(queue)
            if group is not None:
                yield group

    def first_ahead(self, task: Task, blocking: Iterable[Task]) -> Task | None:
        """The first task before `task` in its queue, of the `blocking` ones and of those with a
        minimum run time that wait behind others.

        Such a task waits behind one of another queue perhaps, so no task of its own is ahead of it.
        """
        queue, position = self.position_of(task)
        ahead: Task | None = None
        behind = self._first((queue, True))
        if behind is not None and behind is not task.group:
            first = behind.queue.first
            first_position = self.position_of(first)[1]
            if first_position < position:
                position, ahead = first_position, first
        for candidate in blocking:
            candidate_queue, candidate_position = self.position_of(candidate)
            if candidate_queue == queue and candidate_position < position:
                position, ahead = candidate_position, candidate
        return ahead

    def _first(self, queue: tuple[int, bool]) -> Group | None:
        """The first group of a queue that waits for others to go first, or None."""
        entries = self._entries.get(queue, [])
        while entries and not self._is_current(queue, entries[0]):
            heappop(entries)
        return entries[0][2] if entries else None

    def _add(self, group: Group) -> None:
        """Add `group` at its first task's position, if it waits for others to go first."""
        if group not in self._classes[group.shape.queue_class].behind:
            return
        queue, position = self.position_of(group.queue.first)
        entries = self._entries.setdefault((queue, group.min_runtimes > 0), [])
        heappush(entries, (position, self._added, group))
        self._added += 1
        if self._added > self._clean_up_at:
            self._clean_up()

    def _is_current(self, queue: tuple[int, bool], entry: Entry) -> bool:
        position, _, group = entry
        if group not in self._classes[group.shape.queue_class].behind:
            return False
        number, now = self.position_of(group.queue.first)
        return (number, group.min_runtimes > 0) == queue and now == position

    def _clean_up(self) -> None:
        for queue, entries in self._entries.items():
            entries[:] = [entry for entry in entries if self._is_current(queue, entry)]
            heapify(entries)
        self._clean_up_at = self._added + 64 + sum(map(len, self._entries.values()))


def strict_queues_of(view: PoolView) -> StrictQueues:
    """Return the strict queues of a pool."""
    index = view.pool.index
    assert isinstance(index, StrictQueues), "the pool's policy is not strict"
    return index


def strict_queues(
    position_of: PositionOf, traits: Traits = PLAIN
) -> Callable[[Pool, Any], StrictQueues]:
    """Return the `Policy.index` of a policy with such queues and these other traits."""
    strict = replace(traits, strict=True, behind_one=True)

    def index(pool: Pool, _: Any) -> StrictQueues:
        return StrictQueues(pool, position_of, strict)

    return index
