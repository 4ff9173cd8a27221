"""The strict queues of a pool, in which no task passes an earlier one (`Policy.strict_queue`).

Hundreds of groups may wait behind one task, and when that task starts, only the next group needs to
be considered. So a pool with such a policy keeps these groups sorted by position and finds the
first group of each queue without visiting the others.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from yardmaster_core.scheduling.state.queue_class import QueueClass
from yardmaster_core.scheduling.state.tasks import Group, Task

#: The queue of a task, and its position in it. A smaller position comes first; no two are equal.
QueuePosition = tuple[int, tuple[Any, ...]]
PositionOf = Callable[[Task], QueuePosition]
#: The position, a serial number that keeps groups from being compared, and the group.
Entry = tuple[tuple[Any, ...], int, Group]


class StrictQueues:
    """The groups of one pool that wait for others to go first, each at its first task's position.

    An entry is stale when its group has left or has another first task. Stale entries are removed
    at the front of a queue, and everywhere once they may be the majority.
    """

    __slots__ = ("_added", "_classes", "_clean_up_at", "_entries", "position_of")

    def __init__(self, classes: tuple[QueueClass, QueueClass], position_of: PositionOf) -> None:
        self.position_of = position_of
        self._classes = classes
        self._entries: dict[int, list[Entry]] = {}
        self._added = 0
        self._clean_up_at = 64
        for queue_class in classes:
            for group in queue_class.behind:
                self.add(group)

    def add(self, group: Group) -> None:
        """Add `group` at its first task's position, if it waits for others to go first."""
        if group not in self._classes[group.shape.queue_class].behind:
            return
        queue, position = self.position_of(group.queue.first)
        heappush(self._entries.setdefault(queue, []), (position, self._added, group))
        self._added += 1
        if self._added > self._clean_up_at:
            self._clean_up()

    def first_groups(self) -> Iterator[Group]:
        """The first group of each queue."""
        for queue in sorted(self._entries):
            entries = self._entries[queue]
            while entries and not self._is_current(queue, entries[0]):
                heappop(entries)
            if entries:
                yield entries[0][2]

    def first_ahead(self, group: Group, blocking: Iterable[Group]) -> Task | None:
        """The first task of the `blocking` groups that comes before `group` in its queue."""
        queue, position = self.position_of(group.queue.first)
        ahead: Task | None = None
        for other in blocking:
            if other is not group:
                task = other.queue.first
                other_queue, other_position = self.position_of(task)
                if other_queue == queue and other_position < position:
                    position, ahead = other_position, task
        return ahead

    def _is_current(self, queue: int, entry: Entry) -> bool:
        position, _, group = entry
        behind = self._classes[group.shape.queue_class].behind
        return group in behind and self.position_of(group.queue.first) == (queue, position)

    def _clean_up(self) -> None:
        for queue, entries in self._entries.items():
            entries[:] = [entry for entry in entries if self._is_current(queue, entry)]
            heapify(entries)
        self._clean_up_at = self._added + 64 + sum(map(len, self._entries.values()))
