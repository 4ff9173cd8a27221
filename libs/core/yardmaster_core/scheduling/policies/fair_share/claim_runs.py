"""Equal claims, oldest first: what a division of a pool works on, so that it costs a step for each
kind of claim and not one for each claimant.

Those who claim the same are of one kind. Whatever is done to them is done in the order of their
age, so equals that come to differ are split at one age: a `ClaimRun` is those of a kind between two
ages, who have the same offer so far.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

#: So many are gone through one by one.
FEW: Final = 32

#: When somebody's first task was submitted, and the order of admission: nobody's is another's.
Age = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """What somebody asks for: `demand`, of which `fixed` cannot be taken away again.

    `least` is the size of the smallest task that is not fixed (0: there is none, or any part of a
    share is of use).
    """

    weight: int
    demand: int
    fixed: int = 0
    least: int = 0
    #: What is not fixed is of use in multiples of this (0: any part is).
    size: int = 0
    #: What he holds now: it is not taken from him to round somebody else up.
    held: int = 0


class ClaimKind:
    """Those with one claim, by age; `retained` is what each of them holds that is not stopping."""

    __slots__ = ("ages", "claim", "retained")

    def __init__(self, claim: Claim, ages: list[Age], retained: int = 0) -> None:
        self.claim = claim
        self.ages = ages
        self.retained = retained


class ClaimRun:
    """Some of a kind next to one another: from the `first` on, before the `end`.

    Their `claim` is that of the kind, or what a limit leaves of it. `fixed_left` is what `max_min`
    has yet to count.
    """

    __slots__ = ("ages", "claim", "end", "first", "fixed_left", "kind", "share")

    def __init__(self, kind: ClaimKind, claim: Claim, first: int, end: int) -> None:
        self.kind = kind
        self.ages = kind.ages
        self.claim = claim
        self.first = first
        self.end = end
        self.share = self.fixed_left = 0

    @property
    def count(self) -> int:
        """How many they are."""
        return self.end - self.first

    def split(self, first: int) -> "ClaimRun":
        """Let those from `first` on be a run of their own."""
        rest = ClaimRun(self.kind, self.claim, first, self.end)
        rest.share, rest.fixed_left = self.share, self.fixed_left
        self.end = first
        return rest


#: From what there is and who asks for it to the same with offers, perhaps in more runs.
Division = Callable[[int, Sequence[ClaimRun]], list[ClaimRun]]


def runs_of(kinds: Sequence[ClaimKind]) -> list[ClaimRun]:
    """All of these kinds."""
    return [ClaimRun(kind, kind.claim, 0, len(kind.ages)) for kind in kinds]


def oldest_within(runs: Sequence[ClaimRun], sizes: Sequence[int], most: int) -> list[int]:
    """Where each run ends if they are taken one by one, the oldest first, each of the size that its
    run's has, until the next would make it more than `most` in all.
    """
    if len(runs) == 1:
        run, size = runs[0], sizes[0]
        return [run.first + (min(run.count, max(0, most) // size) if size else run.count)]
    if sum(size * run.count for run, size in zip(runs, sizes, strict=True)) <= most:
        return [run.end for run in runs]
    low = [run.first for run in runs]
    # No more of a run than would be enough alone.
    high = [
        min(run.end, run.first + max(0, most) // size + 1) if size else run.end
        for run, size in zip(runs, sizes, strict=True)
    ]
    # A pivot near the middle of all that is open settles at least a quarter of it.
    while (left := sum(high) - sum(low)) > 2 * len(runs) + FEW:
        middles = sorted(
            (run.ages[(one + other) // 2], other - one)
            for run, one, other in zip(runs, low, high, strict=True)
            if one < other
        )
        left //= 2
        at = 0
        while (left := left - middles[at][1]) > 0:
            at += 1
        pivot = middles[at][0]
        ends = [
            bisect_right(run.ages, pivot, one, other)
            for run, one, other in zip(runs, low, high, strict=True)
        ]
        taken = sum(size * (end - one) for size, end, one in zip(sizes, ends, low, strict=True))
        if taken <= most:
            most -= taken
            low = ends
        else:
            high = [
                bisect_left(run.ages, pivot, one, end)
                for run, one, end in zip(runs, low, ends, strict=True)
            ]
    few = sorted(
        (run.ages[at], i)
        for i, (run, one, other) in enumerate(zip(runs, low, high, strict=True))
        for at in range(one, other)
    )
    for _, i in few:
        most -= sizes[i]
        if most < 0:
            break
        low[i] += 1
    return low
