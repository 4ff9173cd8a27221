"""Tasks in an order, from which many leave and to which some come back: who waits, who may be
stopped.
"""

from bisect import insort
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from yardmaster_core.scheduling.state.entities import Task

#: Tasks that left may be passed over so many times before they are taken out.
FEW: Final = 32

QueueKey = tuple[int, int, int]
Entry = tuple[QueueKey, "Task"]


class OrderedTasks:
    """Tasks in an order, whose entries are dropped late.

    Most come in order and are appended; those that do not (requeued tasks) go into a second, sorted
    list. A task that leaves keeps its entry until it comes to the front or until most entries are
    dead, so leaving and coming back (a decision tried and taken back) costs nothing.
    """

    __slots__ = ("_early", "_head", "_held", "_kept", "_line")

    def __init__(self) -> None:
        self._line: list[Entry] = []
        #: Entries of `_line` before this are gone.
        self._head = 0
        self._early: list[Entry] = []
        #: Tasks that have an entry.
        self._held: set[Task] = set()
        #: How many entries the last clean-up kept.
        self._kept = 0

    def alive(self, task: "Task") -> bool:
        """Whether a task's entry counts."""
        raise NotImplementedError

    def add(self, task: "Task") -> None:
        """Give a task an entry, unless it still has one."""
        if task in self._held:
            return
        self._held.add(task)
        entry = (task.key, task)
        line = self._line
        if not line or line[-1][0] < entry[0]:
            line.append(entry)
        else:
            insort(self._early, entry)

    def prune(self) -> None:
        """Remove dead entries: those in front, and all of them once they may be the most."""
        line, early, head = self._line, self._early, self._head
        while head < len(line) and not self.alive(line[head][1]):
            self._held.discard(line[head][1])
            head += 1
        self._head = head
        while early and not self.alive(early[0][1]):
            self._held.discard(early.pop(0)[1])
        if len(line) + len(early) > 64 + 2 * self._kept:
            merged = merge(line[head:], early) if early else iter(line[head:])
            self._line = [entry for entry in merged if self.alive(entry[1])]
            self._early = []
            self._head = 0
            self._held = {task for _, task in self._line}
            self._kept = len(self._line)

    def in_order(self) -> Iterator["Task"]:
        """The tasks that count, first to last; tasks may leave meanwhile, none may come."""
        # By index: `islice` would walk over all the entries that are gone.
        line: Iterator[Entry] = map(self._line.__getitem__, range(self._head, len(self._line)))
        for _, task in merge(line, self._early) if self._early else line:
            if self.alive(task):
                yield task

    def in_reverse(self) -> Iterator["Task"]:
        """The tasks that count, last to first; tasks may leave meanwhile, none may come."""
        line: Iterator[Entry] = islice(reversed(self._line), len(self._line) - self._head)
        if self._early:
            line = merge(line, reversed(self._early), reverse=True)
        for _, task in line:
            if self.alive(task):
                yield task

    def backwards(self) -> "Backwards":
        """The tasks that count now, last to first, to be gone through several times."""
        line: Iterator[Entry] = reversed(self._line[self._head :])
        early = self._early
        return Backwards(self, merge(line, reversed([*early]), reverse=True) if early else line)

    @property
    def first(self) -> "Task":
        """The first task that counts; there must be one."""
        found = self.foremost
        return found if found is not None and self.alive(found) else next(self.in_order())

    @property
    def foremost(self) -> "Task | None":
        """The task of the first entry, which outside a draft is the first that counts."""
        line, early = self._line, self._early
        if self._head == len(line):
            return early[0][1] if early else None
        first = line[self._head]
        return min(first, early[0])[1] if early else first[1]


class Backwards:
    """A line as it was, from its end, as often as somebody asks in a cycle.

    It is read no further than anybody went. Tasks that leave meanwhile are passed over once or a
    few times, not each time; those that come are not met.
    """

    __slots__ = ("_gone", "_line", "_met", "_rest")

    def __init__(self, line: OrderedTasks, entries: Iterator[Entry]) -> None:
        self._line = line
        self._rest = entries
        self._met: list[Task] = []
        #: How many of these had left when they were last gone through.
        self._gone = 0

    def __iter__(self) -> Iterator["Task"]:
        alive = self._line.alive
        if self._gone > max(FEW, len(self._met) >> 4):
            self._met = [task for task in self._met if alive(task)]
        self._gone = 0
        met = self._met
        at = 0
        while True:
            if at == len(met):
                entry = next(self._rest, None)
                if entry is None:
                    return
                met.append(entry[1])
            task = met[at]
            at += 1
            if alive(task):
                yield task
            else:
                self._gone += 1


class TaskQueue(OrderedTasks):
    """Waiting tasks that are equal but for their place in the queue."""

    __slots__ = ("live",)

    def __init__(self) -> None:
        super().__init__()
        #: How many tasks wait.
        self.live = 0

    def alive(self, task: "Task") -> bool:
        """Whether the task still waits here."""
        return task.queue is self

    def push(self, task: "Task") -> None:
        """Let a task wait; its place is its key's."""
        self.live += 1
        self.add(task)

    def drop(self) -> None:
        """Count a task out; its entry stays until `prune`."""
        self.live -= 1
