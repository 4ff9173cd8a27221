"""The nodes of an index sorted by a rank; after a change only the changed nodes are ranked again.

For placement strategies that rank each node independently and whose ranks are expensive: after one
task was placed, each further shape ranks one node again.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.shapes import Shape

#: With more changes than this, sorting all nodes is cheaper than moving each changed one.
MAX_MOVES: Final = 64


class Ranking:
    """The nodes on which one replica of `shape` fits, lowest rank first, equal ranks by ordinal."""

    __slots__ = ("_ranks", "changed", "order", "rank_of", "shape")

    def __init__(
        self, shape: Shape, rank_of: Callable[[NodeCapacity], int], ordinals: set[int]
    ) -> None:
        self.shape = shape
        self.rank_of = rank_of
        #: (rank, ordinal), sorted.
        self.order: list[tuple[int, int]] = []
        #: Ordinals of nodes that changed since they were ranked.
        self.changed = ordinals
        self._ranks: dict[int, int] = {}

    def update(self, capacities: Mapping[int, NodeCapacity]) -> None:
        """Rank the changed nodes; `capacities` has all nodes by ordinal."""
        shape, rank_of = self.shape, self.rank_of
        changed, self.changed = self.changed, set()
        ranks = self._ranks
        removed: list[tuple[int, int]] = []
        added: list[tuple[int, int]] = []
        for ordinal in changed:
            capacity = capacities.get(ordinal)
            old = ranks.pop(ordinal, None)
            if old is not None:
                removed.append((old, ordinal))
            if capacity is not None and capacity.holds(shape):
                ranks[ordinal] = new = rank_of(capacity)
                added.append((new, ordinal))
        if len(changed) > MAX_MOVES:
            self.order = sorted((rank, ordinal) for ordinal, rank in ranks.items())
            return
        for entry in removed:
            del self.order[bisect_left(self.order, entry)]
        for entry in added:
            insort(self.order, entry)

    def within(self, mask: int) -> Iterator[int]:
        """The ordinals that are set in `mask`, in the order of their ranks."""
        for _, ordinal in self.order:
            if mask >> ordinal & 1:
                yield ordinal
