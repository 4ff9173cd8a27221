"""The pending tasks of one pool that did not fit or wait for their reserved slots, by priority.

Tasks with GPUs and tasks without GPUs form two classes that never block each other.
"""

from itertools import chain
from typing import Final

from yardmaster_core.scheduling.state.tasks import Group, Task

#: More than the largest priority.
PRIORITIES: Final = 100


class QueueClass:
    """The groups of one class that did not fit or have reserved slots, and the groups behind them.

    A task whose slots are reserved is still pending: it may lose them before it starts.
    """

    __slots__ = (
        *("_first_protected", "_firsts_protected", "_protected_mask", "behind", "blocked"),
        *("first_by_priority", "first_pending_by_priority", "mask", "protected", "reserved"),
        "reserved_mask",
    )

    def __init__(self) -> None:
        #: Groups that did not fit, by priority.
        self.blocked: dict[int, dict[Group, None]] = {}
        #: Cache of `first`, by priority.
        self.first_by_priority: dict[int, Task | None] = {}
        #: Bit p is set while a group of priority p did not fit.
        self.mask = 0
        #: Of these, the groups that wait until victims may be preempted, by priority.
        self.protected: dict[int, dict[Group, None]] = {}
        self._protected_mask = 0
        #: The first task of these; empty: not known. And those of `firsts_protected`.
        self._first_protected: list[Task | None] = [None]
        self._firsts_protected: list[Task] = []
        #: Groups with tasks that wait for their reserved slots, by priority.
        self.reserved: dict[int, dict[Group, None]] = {}
        #: Bit p is set while a task of priority p waits for its reserved slots.
        self.reserved_mask = 0
        #: Cache of `first_pending`, by priority.
        self.first_pending_by_priority: dict[int, Task | None] = {}
        #: Groups that wait for other groups to go first.
        self.behind: dict[Group, None] = {}

    def first(self, priority: int) -> Task | None:
        """The first task of `priority` that did not fit."""
        if priority not in self.first_by_priority:
            tasks = (group.queue.first for group in self.blocked[priority])
            self.first_by_priority[priority] = min(tasks, default=None)
        return self.first_by_priority[priority]

    @property
    def highest_pending(self) -> int:
        """The highest priority of the tasks that did not fit or wait for their reserved slots;
        `PRIORITIES` if there is none.
        """
        mask = self.mask | self.reserved_mask
        return (mask & -mask).bit_length() - 1 if mask else PRIORITIES

    def first_pending(self, priority: int) -> Task | None:
        """The first task of `priority` that did not fit or waits for its reserved slots."""
        if priority not in self.first_pending_by_priority:
            blocked = self.first(priority) if priority in self.blocked else None
            tasks = [group.reserved.first for group in self.reserved.get(priority, ())]
            if blocked is not None:
                tasks.append(blocked)
            self.first_pending_by_priority[priority] = min(tasks, default=None)
        return self.first_pending_by_priority[priority]

    def first_protected(self) -> Task | None:
        """The first of the tasks that wait until victims may be preempted."""
        if not self._first_protected:
            self._first_protected.append(min(self.firsts_protected(), default=None))
        return self._first_protected[0]

    def firsts_protected(self) -> list[Task]:
        """Of these tasks the first one of each project and priority: of those that can be preempted
        as soon as they run, and of the others.
        """
        if not self._firsts_protected:
            firsts: dict[tuple[str, int, bool], Task] = {}
            for group in chain(*self.protected.values()):
                first = group.queue.first
                at_once = group.shape.preemptible and not first.job.spec.min_runtime_s
                key = group.shape.project, group.priority, at_once
                if key not in firsts or first < firsts[key]:
                    firsts[key] = first
            self._firsts_protected = list(firsts.values())
        return self._firsts_protected

    def _protected_changed(self) -> None:
        """Drop the cached first tasks of the protected groups."""
        self._first_protected.clear()
        self._firsts_protected = []

    def first_changed(self, priority: int) -> None:
        """Drop the cached first tasks of `priority`, because the first task of a group changed."""
        if self.first_by_priority or self.first_pending_by_priority:
            self._forget_first(priority)
        if priority in self.protected:
            self._protected_changed()

    @property
    def barriers(self) -> int:
        """The priorities whose groups keep others behind them; when a bit is cleared, the groups
        behind are woken.

        Bit p is set while a group of priority p did not fit, bit p + `PRIORITIES` while a task
        waits for its reserved slots, which under some policies keeps none behind it, and bit p + 2
        * `PRIORITIES` while a group waits until victims may be preempted.
        """
        return self.mask | (self.reserved_mask | self._protected_mask << PRIORITIES) << PRIORITIES

    def block(self, group: Group, *, protected: bool) -> None:
        """Note that `group` did not fit; `protected`: it waits until victims may be preempted."""
        if protected:
            self.protected.setdefault(group.priority, {})[group] = None
            self._protected_mask |= 1 << group.priority
            self._protected_changed()
        self.blocked.setdefault(group.priority, {})[group] = None
        self._forget_first(group.priority)
        self.mask |= 1 << group.priority

    def remove(self, group: Group) -> None:
        """Forget `group`, whether it did not fit or waits behind others."""
        blocked = self.blocked.get(group.priority)
        if blocked is not None and group in blocked:
            del blocked[group]
            self._forget_first(group.priority)
            if not blocked:
                del self.blocked[group.priority]
                self.mask &= ~(1 << group.priority)
        protected = self.protected.get(group.priority)
        if protected is not None and group in protected:
            del protected[group]
            self._protected_changed()
            if not protected:
                del self.protected[group.priority]
                self._protected_mask &= ~(1 << group.priority)
        self.behind.pop(group, None)

    def reserve(self, group: Group) -> None:
        """Note that tasks of `group` wait for their reserved slots."""
        self.reserved.setdefault(group.priority, {})[group] = None
        self.reserved_mask |= 1 << group.priority
        self._forget_first(group.priority)

    def release(self, group: Group) -> None:
        """Note that no task of `group` waits for reserved slots any more."""
        reserved = self.reserved[group.priority]
        del reserved[group]
        self._forget_first(group.priority)
        if not reserved:
            del self.reserved[group.priority]
            self.reserved_mask &= ~(1 << group.priority)

    def _forget_first(self, priority: int) -> None:
        self.first_by_priority.pop(priority, None)
        self.first_pending_by_priority.pop(priority, None)
