"""The nodes of an index sorted by a key; a change lets only the keys of changed nodes be computed.

For placement strategies whose key of a node is expensive and depends on that node alone: after one
task was placed, each further shape computes the key of one node.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.shapes import Shape

#: With more changes than this, sorting all nodes is cheaper than moving each changed one.
MAX_MOVES: Final = 64


class NodeOrder:
    """The nodes on which one replica of `shape` fits, smallest key first, equal keys by ordinal."""

    __slots__ = ("_keys", "changed", "key_of", "order", "shape")

    def __init__(
        self, shape: Shape, key_of: Callable[[NodeCapacity], int], ordinals: set[int]
    ) -> None:
        self.shape = shape
        self.key_of = key_of
        #: (key, ordinal), sorted.
        self.order: list[tuple[int, int]] = []
        #: Ordinals of nodes that changed since their keys were computed.
        self.changed = ordinals
        self._keys: dict[int, int] = {}

    def update(self, capacities: Mapping[int, NodeCapacity]) -> None:
        """Sort in the changed nodes; `capacities` has all nodes by ordinal."""
        shape, key_of = self.shape, self.key_of
        changed, self.changed = self.changed, set()
        keys = self._keys
        removed: list[tuple[int, int]] = []
        added: list[tuple[int, int]] = []
        for ordinal in changed:
            capacity = capacities.get(ordinal)
            old = keys.pop(ordinal, None)
            if old is not None:
                removed.append((old, ordinal))
            if capacity is not None and capacity.holds(shape):
                keys[ordinal] = new = key_of(capacity)
                added.append((new, ordinal))
        if len(changed) > MAX_MOVES:
            self.order = sorted((key, ordinal) for ordinal, key in keys.items())
            return
        for entry in removed:
            del self.order[bisect_left(self.order, entry)]
        for entry in added:
            insort(self.order, entry)

    def within(self, mask: int) -> Iterator[int]:
        """The ordinals that are set in `mask`, in the order of their keys."""
        for _, ordinal in self.order:
            if mask >> ordinal & 1:
                yield ordinal
