"""Runs of equal demands, oldest first. A division works on runs, so that it costs one step for each
kind of demand and not one for each claimant.

Equal demands are of one kind. They are served in the order of their age. When equal demands get
different shares, they are split at one age: a `DemandRun` contains the demands of one kind between
two ages, which have equal shares so far.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

#: Up to this number, demands are processed one by one.
FEW: Final = 32

#: The submission time (ms) of a claimant's first task, and its order of admission; unique. A
#: smaller value is older.
Age = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a claimant: `milli` gpu_milli, of which `fixed` are not preemptible.

    `smallest_task` is the size of the smallest task outside `fixed` (0: there is no such task, or
    any amount is useful).
    """

    weight: int
    milli: int
    fixed: int = 0
    smallest_task: int = 0
    #: Amounts above `fixed` are useful in multiples of this (0: any amount is).
    multiple_of: int = 0
    #: The slots that the claimant holds now; they do not change the shares.
    held: int = 0


class DemandKind:
    """Equal demands, by age; `retained` is what each claimant holds without stopping tasks."""

    __slots__ = ("ages", "demand", "retained")

    def __init__(self, demand: Demand, ages: list[Age], retained: int = 0) -> None:
        self.demand = demand
        self.ages = ages
        self.retained = retained


class DemandRun:
    """Consecutive demands of one kind, from index `first` to before `end`.

    `demand` is the demand of the kind, or the part of it that a limit leaves. `share` is the share
    of each claimant: in grains during a division, in gpu_milli after it. `fixed_left` is the part
    of `fixed` that `max_min` has not counted yet.
    """

    __slots__ = ("ages", "demand", "end", "first", "fixed_left", "kind", "share")

    def __init__(self, kind: DemandKind, demand: Demand, first: int, end: int) -> None:
        self.kind = kind
        self.ages = kind.ages
        self.demand = demand
        self.first = first
        self.end = end
        self.share = self.fixed_left = 0

    @property
    def count(self) -> int:
        """The number of demands."""
        return self.end - self.first

    def split(self, first: int) -> "DemandRun":
        """Split off the demands from index `first` on; return them as a run of their own."""
        rest = DemandRun(self.kind, self.demand, first, self.end)
        rest.share, rest.fixed_left = self.share, self.fixed_left
        self.end = first
        return rest


#: From a capacity (gpu_milli) and runs of demands to runs with shares, possibly more of them.
Division = Callable[[int, Sequence[DemandRun]], list[DemandRun]]


def runs_of(kinds: Sequence[DemandKind]) -> list[DemandRun]:
    """Return one run for each kind."""
    return [DemandRun(kind, kind.demand, 0, len(kind.ages)) for kind in kinds]


def oldest_within(runs: Sequence[DemandRun], sizes: Sequence[int], most: int) -> list[int]:
    """Return where each run ends if demands are taken one by one, oldest first, until the next one
    would make their sizes more than `most` together.

    `sizes` is the size of each demand, by run. Returns one index per run.
    """
    if len(runs) == 1:
        run, size = runs[0], sizes[0]
        return [run.first + (min(run.count, max(0, most) // size) if size else run.count)]
    if sum(size * run.count for run, size in zip(runs, sizes, strict=True)) <= most:
        return [run.end for run in runs]
    low = [run.first for run in runs]
    # An upper bound for each run: the demands that `most` would suffice for without other runs.
    high = [
        min(run.end, run.first + max(0, most) // size + 1) if size else run.end
        for run, size in zip(runs, sizes, strict=True)
    ]
    # A pivot near the middle decides at least a quarter of the open demands.
    while (left := sum(high) - sum(low)) > 2 * len(runs) + FEW:
        middles = sorted(
            (run.ages[(start + stop) // 2], stop - start)
            for run, start, stop in zip(runs, low, high, strict=True)
            if start < stop
        )
        left //= 2
        at = 0
        while (left := left - middles[at][1]) > 0:
            at += 1
        pivot = middles[at][0]
        ends = [
            bisect_right(run.ages, pivot, start, stop)
            for run, start, stop in zip(runs, low, high, strict=True)
        ]
        taken = sum(size * (end - start) for size, end, start in zip(sizes, ends, low, strict=True))
        if taken <= most:
            most -= taken
            low = ends
        else:
            high = [
                bisect_left(run.ages, pivot, start, end)
                for run, start, end in zip(runs, low, ends, strict=True)
            ]
    few = sorted(
        (run.ages[at], i)
        for i, (run, start, stop) in enumerate(zip(runs, low, high, strict=True))
        for at in range(start, stop)
    )
    for _, i in few:
        most -= sizes[i]
        if most < 0:
            break
        low[i] += 1
    return low
