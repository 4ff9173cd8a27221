"""Who waits behind others in a strict line, where nobody passes who comes first (`Policy.line`).

Hundreds may wait behind one, and when he starts only the next of them is worth a look. So a pool
with such a policy keeps them by their place, and finds the first of each line without going through
the others.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yardmaster_core.scheduling.state.entities import Group, Pool, Task

#: Which line a task waits in, and where in it: smaller comes first, no two are equal.
Place = tuple[int, tuple[Any, ...]]
PositionOf = Callable[["Task"], Place]
#: The number only keeps groups from being compared.
Entry = tuple[tuple[Any, ...], int, "Group"]


class StrictQueues:
    """The groups of one pool that wait for others to go first, each by its first task.

    An entry whose group has left, or has another first task by now, is dropped when it comes to the
    front, or when most entries may be such.
    """

    __slots__ = ("_added", "_clean_up_at", "_entries", "_pool", "position_of")

    def __init__(self, pool: "Pool", position_of: PositionOf) -> None:
        self.position_of = position_of
        self._pool = pool
        self._entries: dict[int, list[Entry]] = {}
        self._added = 0
        self._clean_up_at = 64
        for queue_class in pool.queue_classes:
            for group in queue_class.behind:
                self.note(group)

    def note(self, group: "Group") -> None:
        """Keep a group that waits behind others by its first task, which may be another now."""
        if group not in self._pool.queue_classes[group.shape.queue_class].behind:
            return
        line, place = self.position_of(group.queue.first)
        heappush(self._entries.setdefault(line, []), (place, self._added, group))
        self._added += 1
        if self._added > self._clean_up_at:
            self._clean_up()

    def firsts(self) -> Iterator["Group"]:
        """Of each line the first group that waits behind others."""
        for line in sorted(self._entries):
            entries = self._entries[line]
            while entries and not self._holds(line, entries[0]):
                heappop(entries)
            if entries:
                yield entries[0][2]

    def first_ahead(self, group: "Group", blocking: Iterable["Group"]) -> "Task | None":
        """The first task of those that wait for room and come before a group in its line."""
        line, place = self.position_of(group.queue.first)
        ahead: Task | None = None
        for other in blocking:
            if other is not group:
                task = other.queue.first
                its_line, its_place = self.position_of(task)
                if its_line == line and its_place < place:
                    place, ahead = its_place, task
        return ahead

    def _holds(self, line: int, entry: Entry) -> bool:
        place, _, group = entry
        behind = self._pool.queue_classes[group.shape.queue_class].behind
        return group in behind and self.position_of(group.queue.first) == (line, place)

    def _clean_up(self) -> None:
        for line, entries in self._entries.items():
            entries[:] = [entry for entry in entries if self._holds(line, entry)]
            heapify(entries)
        self._clean_up_at = self._added + 64 + sum(map(len, self._entries.values()))
