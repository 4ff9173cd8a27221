"""The groups of one pool that did not fit, by what makes them equal.

If the first group of a class of equal groups neither fits nor finds victims, the others do not
either. So released slots wake only the first group of each class, and the next one is considered
once the first got slots: the cost of a release follows the number of classes, not of groups.

The policy defines which groups are equal. Some groups belong to no class: those with several pools,
those with a task that has reserved slots, and those that do not wait for free slots alone.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import itemgetter
from typing import Final

from yardmaster_core.scheduling.state.ordered_tasks import QueueKey
from yardmaster_core.scheduling.state.shapes import Fit
from yardmaster_core.scheduling.state.tasks import Group
from yardmaster_core.scheduling.state.wait_codes import BLOCKING, NO_CAPACITY
from yardmaster_schemas.reasons import WaitCode

#: What the policy calls equal, the request, whether the last starts failed, and the wait code.
EqualsKey = tuple[Hashable, Fit, bool, WaitCode]
#: The key of the first task of a group, and the group. No two keys are equal.
Entry = tuple[QueueKey, Group]
_KEY: Final = itemgetter(0)


class BlockedEquals:
    """The groups of one pool that did not fit, in classes of equal groups.

    A change of a group only marks it as stale, because a cycle may change a group many times. Its
    class and its place there are looked up again at the next `refresh`.

    Attributes:
        others: the groups that did not fit and belong to no class, at the last `refresh`.
    """

    __slots__ = ("_classes", "_equivalence", "_placed", "_pool_name", "_stale", "others")

    def __init__(
        self, pool_name: str, equivalence: Callable[[Group], Hashable], groups: Iterable[Group]
    ) -> None:
        self._pool_name = pool_name
        self._equivalence = equivalence
        self._classes: dict[EqualsKey, list[Entry]] = {}
        #: The class of each group, and the key by which it is sorted there.
        self._placed: dict[Group, tuple[EqualsKey, QueueKey]] = {}
        self._stale: dict[Group, None] = {}
        self.others: dict[Group, None] = {}
        for group in groups:
            self.changed(group)

    def changed(self, group: Group) -> None:
        """Note that the wait reason or the pending tasks of a group changed."""
        if not group.waits and group not in self._placed and group not in self.others:
            return  # it was never considered
        self._stale[group] = None

    def refresh(self) -> None:
        """Look up the classes of stale groups again."""
        for group in self._stale:
            before = self._placed.get(group)
            now = None
            self.others.pop(group, None)
            if self._has_class(group):
                now = self._class_of(group), group.queue.first.key
            elif group.wait_code(self._pool_name) in BLOCKING:
                self.others[group] = None
            if before == now:
                continue
            if before is not None:
                self._remove(*before)
                del self._placed[group]
            if now is not None:
                self._placed[group] = now
                self._add(*now, group)
        self._stale.clear()

    def classes(self) -> Iterator[EqualsKey]:
        """Yield the classes that have groups."""
        yield from self._classes

    def next_of(self, equals: EqualsKey, after: QueueKey | None) -> Entry | None:
        """Return the first group of a class, or the first one after the key `after`."""
        entries = self._classes.get(equals, ())
        at = 0 if after is None else bisect_right(entries, after, key=_KEY)
        return entries[at] if at < len(entries) else None

    def place_of(self, group: Group) -> tuple[EqualsKey, QueueKey] | None:
        """Return the class of a group, and the key of its place there; None: it has no class."""
        return self._placed.get(group)

    def _class_of(self, group: Group) -> EqualsKey:
        shape = group.shape
        code = group.waits[self._pool_name][0].code
        return self._equivalence(group), shape.fit_within_limits, shape.start_failed, code

    def _has_class(self, group: Group) -> bool:
        return (
            group.wait_code(self._pool_name) in NO_CAPACITY
            and len(group.shape.pools) == 1
            and not group.reserved.live
        )

    def _add(self, equals: EqualsKey, key: QueueKey, group: Group) -> None:
        entries = self._classes.setdefault(equals, [])
        entries.insert(bisect_left(entries, key, key=_KEY), (key, group))

    def _remove(self, equals: EqualsKey, key: QueueKey) -> None:
        entries = self._classes[equals]
        del entries[bisect_left(entries, key, key=_KEY)]
        if not entries:
            del self._classes[equals]
