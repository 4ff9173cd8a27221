"""Quantities that change over time: kept as their changes, read as sums and means over spans."""

from array import array
from collections.abc import Sequence


class Series:
    """Some integers that hold from one change to the next; all are zero before the first."""

    __slots__ = ("points", "width")

    def __init__(self, columns: int) -> None:
        #: Of each change its time (ms) and then the values, one change after another. Times never
        #: fall, and the last of equal ones counts.
        self.points = array("q")
        self.width = 1 + columns

    def sums(self, column: int, edges: Sequence[int]) -> list[int]:
        """Value times milliseconds between each two neighbours of `edges` (ascending), exactly."""
        found = [0] * (len(edges) - 1)
        value = at = 0
        window, end = 0, edges[1]
        since = edges[0]
        times = self.points[:: self.width]
        values = self.points[1 + column :: self.width]
        count = len(times)
        while at < count and times[at] <= since:
            value = values[at]
            at += 1
        while True:
            until = times[at] if at < count else edges[-1]
            while until >= end:
                found[window] += value * (end - since)
                since = end
                window += 1
                if window == len(found):
                    return found
                end = edges[window + 1]
            found[window] += value * (until - since)
            since = until
            value = values[at]
            at += 1


def windows(begin_ms: int, end_ms: int, count: int) -> list[int]:
    """The edges of `count` windows of a span, equal to the millisecond; none is empty, so that
    those of a very short span reach beyond it.
    """
    length = max(end_ms - begin_ms, count)
    return [begin_ms + length * i // count for i in range(count + 1)]
