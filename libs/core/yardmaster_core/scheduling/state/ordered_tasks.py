"""Ordered collections of tasks that many tasks leave and few rejoin: queues, and running victims.

The collections need only the key of a task, so the modules of tasks and pools can import this one.
"""

from bisect import insort
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

#: (submission time in ms, order of admission, index of the task in its job).
QueueKey = tuple[int, int, int]

#: A `ReverseScan` passes over this many departed tasks before it drops them.
MAX_DEPARTED: Final = 32


class Keyed(Protocol):
    """The part of a task that gives it its place in an order."""

    @property
    def key(self) -> QueueKey:
        """Unique for each task; a smaller key comes first."""


T = TypeVar("T", bound=Keyed)


class OrderedTasks(Generic[T]):
    """Tasks sorted by key; the entry of a task that left is removed late.

    Most tasks arrive in order and are appended. The others (requeued tasks) go into a second,
    sorted list. A task that leaves keeps its entry until the entry comes to the front or until most
    entries are dead. Leaving and rejoining, as in a decision that is tried and undone, is free.
    """

    __slots__ = ("_appended", "_head", "_inserted", "_kept", "_with_entry")

    def __init__(self) -> None:
        self._appended: list[tuple[QueueKey, T]] = []
        #: Entries of `_appended` before this index are removed.
        self._head = 0
        self._inserted: list[tuple[QueueKey, T]] = []
        self._with_entry: set[T] = set()
        #: Number of entries that the last full clean-up kept.
        self._kept = 0

    def is_live(self, task: T) -> bool:
        """Whether the entry of `task` counts."""
        raise NotImplementedError

    def add(self, task: T) -> None:
        """Give `task` an entry, unless it still has one."""
        if task in self._with_entry:
            return
        self._with_entry.add(task)
        entry = (task.key, task)
        appended = self._appended
        if not appended or appended[-1][0] < entry[0]:
            appended.append(entry)
        else:
            insort(self._inserted, entry)

    def prune(self) -> None:
        """Remove dead entries at the front, and all dead entries once they may be the majority."""
        appended, inserted, head = self._appended, self._inserted, self._head
        while head < len(appended) and not self.is_live(appended[head][1]):
            self._with_entry.discard(appended[head][1])
            head += 1
        self._head = head
        while inserted and not self.is_live(inserted[0][1]):
            self._with_entry.discard(inserted.pop(0)[1])
        if len(appended) + len(inserted) > 64 + 2 * self._kept:
            merged = merge(appended[head:], inserted) if inserted else iter(appended[head:])
            self._appended = [entry for entry in merged if self.is_live(entry[1])]
            self._inserted = []
            self._head = 0
            self._with_entry = {task for _, task in self._appended}
            self._kept = len(self._appended)

    def in_order(self) -> Iterator[T]:
        """The live tasks, first to last. Tasks may leave during the iteration, but not join."""
        # By index, because `islice` would walk over all removed entries.
        entries: Iterator[tuple[QueueKey, T]] = map(
            self._appended.__getitem__, range(self._head, len(self._appended))
        )
        for _, task in merge(entries, self._inserted) if self._inserted else entries:
            if self.is_live(task):
                yield task

    def in_reverse(self) -> Iterator[T]:
        """The live tasks, last to first. Tasks may leave during the iteration, but not join."""
        entries: Iterator[tuple[QueueKey, T]] = islice(
            reversed(self._appended), len(self._appended) - self._head
        )
        if self._inserted:
            entries = merge(entries, reversed(self._inserted), reverse=True)
        for _, task in entries:
            if self.is_live(task):
                yield task

    def reverse_scan(self) -> "ReverseScan[T]":
        """The tasks that are live now, last to first, for several iterations."""
        # By index, because copying would cost a step per task.
        entries: Iterator[tuple[QueueKey, T]] = map(
            self._appended.__getitem__, range(len(self._appended) - 1, self._head - 1, -1)
        )
        inserted = self._inserted
        if inserted:
            entries = merge(entries, reversed([*inserted]), reverse=True)
        return ReverseScan(self, entries)

    @property
    def first(self) -> T:
        """The first live task; there must be one."""
        found = self.first_entry
        return found if found is not None and self.is_live(found) else next(self.in_order())

    @property
    def first_entry(self) -> T | None:
        """The task of the first entry; outside a draft it is the first live task."""
        appended, inserted = self._appended, self._inserted
        if self._head == len(appended):
            return inserted[0][1] if inserted else None
        first = appended[self._head]
        return min(first, inserted[0])[1] if inserted else first[1]


class ReverseScan(Generic[T]):
    """The tasks of an `OrderedTasks` from last to first, for several iterations in one cycle.

    Entries are read only as far as an iteration went. Tasks that left are passed over a few times
    and then dropped. Tasks that joined later are not included.
    """

    __slots__ = ("_departed", "_read", "_source", "_unread")

    def __init__(self, source: OrderedTasks[T], entries: Iterator[tuple[QueueKey, T]]) -> None:
        self._source = source
        self._unread = entries
        self._read: list[T] = []
        #: Number of read tasks that had left during the last iteration.
        self._departed = 0

    def __iter__(self) -> Iterator[T]:
        is_live = self._source.is_live
        if self._departed > max(MAX_DEPARTED, len(self._read) >> 4):
            self._read = [task for task in self._read if is_live(task)]
        self._departed = 0
        read = self._read
        at = 0
        while True:
            if at == len(read):
                entry = next(self._unread, None)
                if entry is None:
                    return
                read.append(entry[1])
            task = read[at]
            at += 1
            if is_live(task):
                yield task
            else:
                self._departed += 1
