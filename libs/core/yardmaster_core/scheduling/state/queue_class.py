"""The pending tasks of one pool that did not fit, by priority.

Tasks with GPUs and tasks without GPUs form two classes that never block each other.
"""

from yardmaster_core.scheduling.state.tasks import Group, Task


class QueueClass:
    """The groups of one class that did not fit, and the groups behind them."""

    __slots__ = ("behind", "blocked", "first_by_priority", "mask")

    def __init__(self) -> None:
        #: Groups that did not fit, by priority.
        self.blocked: dict[int, dict[Group, None]] = {}
        #: Cache of `first`, by priority.
        self.first_by_priority: dict[int, Task | None] = {}
        #: Bit p is set while a group of priority p did not fit.
        self.mask = 0
        #: Groups that wait for other groups to go first.
        self.behind: dict[Group, None] = {}

    def first(self, priority: int) -> Task | None:
        """The first task of `priority` that did not fit."""
        if priority not in self.first_by_priority:
            tasks = (group.queue.first for group in self.blocked[priority])
            self.first_by_priority[priority] = min(tasks, default=None)
        return self.first_by_priority[priority]

    def block(self, group: Group) -> None:
        """Note that `group` did not fit."""
        self.blocked.setdefault(group.priority, {})[group] = None
        self.first_by_priority.pop(group.priority, None)
        self.mask |= 1 << group.priority

    def remove(self, group: Group) -> None:
        """Forget `group`, whether it did not fit or waits behind others."""
        blocked = self.blocked.get(group.priority)
        if blocked is not None and group in blocked:
            del blocked[group]
            self.first_by_priority.pop(group.priority, None)
            if not blocked:
                del self.blocked[group.priority]
                self.mask &= ~(1 << group.priority)
        self.behind.pop(group, None)
