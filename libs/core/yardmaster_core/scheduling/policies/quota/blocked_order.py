"""The order of the groups that did not fit, kept from cycle to cycle."""

from collections.abc import Iterable, Set
from typing import Protocol

from yardmaster_core.scheduling.planner.policy import OrderKey
from yardmaster_core.scheduling.policies.quota.queue_heap import QueueHeap, QueueKey
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.state.shapes import Fit
from yardmaster_core.scheduling.state.tasks import Group

#: The slots that a task of a group requests, whether the last starts of its tasks failed, whether
#: they are preemptible, and whether some have no reserved slots. Of groups with equal requests,
#: either all fit or none.
Request = tuple[Fit, bool, bool, bool]


def request_of(group: Group) -> Request:
    """Return the request of a group."""
    shape = group.shape
    return shape.fit, shape.start_failed, shape.preemptible, bool(group.queue.live)


#: The place of a group in its project, and the group.
Placed = tuple[OrderKey, QueueKey, int, Group]


class BlockedGroups(Protocol):
    """The groups that did not fit, as one cycle sees them."""

    def groups_of(self, leaf: Queue) -> list[Placed]:
        """Return the groups of a leaf, in order."""

    def key(self, queue: Queue, group: Group) -> QueueKey:
        """Return the place of a queue that `group` represents."""


class BlockedOrder:
    """The order of the groups that did not fit and have one of the given requests.

    The order is kept from cycle to cycle: only the places of queues that changed are computed
    again.
    """

    def __init__(self, requests: Set[Request], leaves: Iterable[Queue]) -> None:
        self._requests = requests
        self._heap: QueueHeap[Group] = QueueHeap(self._head, self._key)
        #: The leaves to fill the heap with at its first use; then None.
        self._leaves: list[Queue] | None = list(leaves)
        self._stale: dict[Queue, None] = {}
        #: The first group of each leaf, as the heap has it.
        self._first: dict[Queue, Group] = {}
        self._source: BlockedGroups | None = None
        #: Groups that are passed over, and the leaves that have such groups.
        self._passed: Set[Group] = frozenset()
        self._passed_in: dict[Queue, None] = {}

    def changed(self, queue: Queue) -> None:
        """Note that the place or the groups of a queue may have changed."""
        self._stale[queue] = None

    def first(self, source: BlockedGroups, passed: Set[Group]) -> Group | None:
        """Return the first group that is not in `passed`, or None.

        The caller only adds groups to `passed`, or passes another set.
        """
        self._read(source, passed)
        while (found := self._heap.best()) is not None and found in passed:
            self._pass_over(self._heap.best_leaf())
        return found

    def first_of(self, leaf: Queue, source: BlockedGroups, passed: Set[Group]) -> Group | None:
        """Return the first group of a leaf that is not in `passed`, or None; as `first`."""
        self._read(source, passed)
        while (found := self._first.get(leaf)) is not None and found in passed:
            self._pass_over(leaf)
        return found

    def _read(self, source: BlockedGroups, passed: Set[Group]) -> None:
        """Bring the places of all queues up to date."""
        self._source = source
        if passed is not self._passed:
            self._passed = passed
            self._stale.update(self._passed_in)
            self._passed_in.clear()
        if self._leaves is not None:
            self._heap.fill(self._leaves)
            self._leaves = None
        for queue in self._stale:
            self._heap.refresh(queue)
        self._stale.clear()

    def _pass_over(self, leaf: Queue) -> None:
        """Have another group represent a leaf than the one that is passed over."""
        self._passed_in[leaf] = None
        self._heap.refresh(leaf)

    def _head(self, leaf: Queue) -> Group | None:
        """Return the first group of a leaf that has one of the requests and is not passed over, or
        None.

        A leaf with a group that is passed over is noted in `_passed_in`.
        """
        found = self._first_not_passed(leaf)
        if found is None:
            self._first.pop(leaf, None)
        else:
            self._first[leaf] = found
        return found

    def _first_not_passed(self, leaf: Queue) -> Group | None:
        assert self._source is not None
        for *_, group in self._source.groups_of(leaf):
            if request_of(group) in self._requests:
                if group not in self._passed:
                    return group
                self._passed_in[leaf] = None
        return None

    def _key(self, queue: Queue, group: Group) -> QueueKey:
        assert self._source is not None
        return self._source.key(queue, group)
