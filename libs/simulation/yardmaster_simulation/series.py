"""Quantities that change over time, stored as changes and read as sums over time windows."""

from array import array
from collections.abc import Sequence


class Series:
    """Columns of integers that are constant between changes; zero before the first change."""

    __slots__ = ("points", "width")

    def __init__(self, columns: int) -> None:
        #: For each change, its time (ms) and then the value of each column. Times never decrease.
        #: If changes have equal times, the last one counts.
        self.points = array("q")
        self.width = 1 + columns

    def sums(self, column: int, edges: Sequence[int]) -> list[int]:
        """Exact sums of value x milliseconds between neighbors in `edges` (ascending)."""
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
    """The edges of `count` windows of equal length (to the millisecond).

    No window is empty; the windows of a very short span extend beyond its end.
    """
    length = max(end_ms - begin_ms, count)
    return [begin_ms + length * i // count for i in range(count + 1)]
