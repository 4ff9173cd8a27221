"""What somebody asks for of a pool, and sums of it."""

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from math import gcd

from yardmaster_core.scheduling.policies.fair_share.claim_runs import Age, Claim


@dataclass(slots=True)
class Demand:
    """What is demand for, in gpu_milli; `age` is that of the oldest task."""

    age: Age
    #: What is demand for capped all bounds, of that what cannot be taken away, and the smallest
    #: task that can (0: none); all that can are multiples of `size`.
    demand: int
    fixed: int = 0
    least: int = 0
    size: int = 0

    def add(self, other: "Demand | None") -> None:
        """Count something more."""
        if other is None:
            return
        self.age = min(self.age, other.age)
        self.demand += other.demand
        self.fixed += other.fixed
        self.size = gcd(self.size, other.size)
        if other.least:
            self.least = min(self.least, other.least) if self.least else other.least

    def cap(self, most: int | None, *, whole_tasks: bool) -> None:
        """Ask for no more than that."""
        if most is not None and self.demand > most:
            claim = Claim(0, self.demand, self.fixed, self.least, self.size)
            self.demand = capped(claim, most, whole_tasks=whole_tasks)


def capped(claim: Claim, most: int, *, whole_tasks: bool) -> int:
    """What is demand for if it is to be no more than `most`, above what is fixed perhaps for whole
    tasks only.
    """
    if claim.demand <= most:
        return claim.demand
    above = max(0, most - claim.fixed)
    if whole_tasks and claim.size:
        above = above - above % claim.size if above >= claim.least else 0
    return claim.fixed + above


class DemandSum:
    """The sum of what pieces ask for, from which some can be taken again."""

    __slots__ = ("ages", "demand", "fixed", "leasts")

    def __init__(self) -> None:
        self.ages: list[Age] = []
        self.demand = self.fixed = 0
        #: How many pieces have tasks of a size.
        self.leasts: Counter[int] = Counter()

    def add(self, demand: Demand) -> None:
        """Count a piece."""
        insort(self.ages, demand.age)
        self.demand += demand.demand
        self.fixed += demand.fixed
        if demand.least:
            self.leasts[demand.least] += 1

    def remove(self, demand: Demand) -> None:
        """Count a piece no more."""
        del self.ages[bisect_left(self.ages, demand.age)]
        self.demand -= demand.demand
        self.fixed -= demand.fixed
        if demand.least:
            self.leasts[demand.least] -= 1
            if not self.leasts[demand.least]:
                del self.leasts[demand.least]

    def total(self) -> Demand | None:
        """All of it; None: there is no piece."""
        if not self.ages:
            return None
        least = min(self.leasts, default=0)
        return Demand(self.ages[0], self.demand, self.fixed, least, gcd(*self.leasts))
