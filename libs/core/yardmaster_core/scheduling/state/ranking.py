"""Rooms in an order that is kept: after a change only the rooms that changed are ranked anew.

For strategies that judge every room by itself, at a price: of a pool in which one task was placed,
one room is looked at again for each shape that is asked for next.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Final

from yardmaster_core.scheduling.state.indexes import CapacityIndex, NodeCapacity
from yardmaster_core.scheduling.state.shapes import Shape

#: The lower comes first. Asked only of a room that holds the shape.
Rank = Callable[[CapacityIndex, NodeCapacity, Shape], int]

#: Orders kept in one index; one more, and all are made anew when they are wanted.
MOST: Final = 256
#: More changes than this are made at once.
MANY: Final = 64


class Ranking:
    """The rooms of an index that hold one replica of a shape, best first, equals by ordinal."""

    __slots__ = ("_ranks", "moved", "order", "rank", "shape")

    def __init__(self, index: CapacityIndex, shape: Shape, rank: Rank) -> None:
        self.shape = shape
        self.rank = rank
        self.order: list[tuple[int, int]] = []
        #: Ordinals of rooms that changed since they were ranked.
        self.moved = set(index.capacities)
        self._ranks: dict[int, int] = {}

    def update(self, index: CapacityIndex) -> None:
        """Rank what moved."""
        shape, rank = self.shape, self.rank
        moved, self.moved = self.moved, set()
        ranks = self._ranks
        gone: list[tuple[int, int]] = []
        come: list[tuple[int, int]] = []
        for ordinal in moved:
            capacity = index.capacities.get(ordinal)
            before = ranks.pop(ordinal, None)
            if before is not None:
                gone.append((before, ordinal))
            if capacity is not None and capacity.holds(shape):
                ranks[ordinal] = now = rank(index, capacity, shape)
                come.append((now, ordinal))
        if len(moved) > MANY:
            self.order = sorted((now, ordinal) for ordinal, now in ranks.items())
            return
        for one in gone:
            del self.order[bisect_left(self.order, one)]
        for one in come:
            insort(self.order, one)


def ranked(index: CapacityIndex, shape: Shape, within: int, rank: Rank) -> Iterator[NodeCapacity]:
    """The rooms of `within` that hold one replica, the lowest rank first."""
    mask = index.candidates(shape) & within
    if not mask:
        return
    key = rank, shape.fit
    kept = index.rankings.get(key)
    if kept is None:
        if len(index.rankings) >= MOST:
            index.rankings.clear()
        kept = index.rankings[key] = Ranking(index, shape, rank)
    if kept.moved:
        kept.update(index)
    capacities = index.capacities
    for _, ordinal in kept.order:
        if mask >> ordinal & 1:
            yield capacities[ordinal]
