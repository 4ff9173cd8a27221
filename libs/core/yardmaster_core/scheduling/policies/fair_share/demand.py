"""The demand of a claimant in a pool, and sums of demands."""

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from math import gcd

from yardmaster_core.scheduling.policies.fair_share.demand_runs import Age, Demand


@dataclass(slots=True)
class AgedDemand:
    """A demand in gpu_milli; `age` is the age of the oldest task."""

    age: Age
    #: `milli` is the amount requested within all limits. Of it, `fixed` cannot be preempted.
    #: `smallest_task` is the size of the smallest preemptible or pending task (0: none); the sizes
    #: of all such tasks are multiples of `multiple_of`.
    milli: int
    fixed: int = 0
    smallest_task: int = 0
    multiple_of: int = 0

    def add(self, other: "AgedDemand | None") -> None:
        """Add another demand."""
        if other is None:
            return
        self.age = min(self.age, other.age)
        self.milli += other.milli
        self.fixed += other.fixed
        self.multiple_of = gcd(self.multiple_of, other.multiple_of)
        if other.smallest_task:
            self.smallest_task = (
                min(self.smallest_task, other.smallest_task)
                if self.smallest_task
                else other.smallest_task
            )

    def cap(self, most: int | None, *, whole_tasks: bool) -> None:
        """Reduce the demand to at most `most`."""
        if most is not None and self.milli > most:
            demand = Demand(0, self.milli, self.fixed, self.smallest_task, self.multiple_of)
            self.milli = capped(demand, most, whole_tasks=whole_tasks)


def capped(demand: Demand, most: int, *, whole_tasks: bool) -> int:
    """Return the demand if it must be at most `most`; with `whole_tasks`, the part above `fixed` is
    a number of whole tasks.
    """
    if demand.milli <= most:
        return demand.milli
    above = max(0, most - demand.fixed)
    if whole_tasks and demand.multiple_of:
        above = above - above % demand.multiple_of if above >= demand.smallest_task else 0
    return demand.fixed + above


class DemandSum:
    """A sum of demands from which single demands can be subtracted."""

    __slots__ = ("ages", "fixed", "milli", "smallest_tasks")

    def __init__(self) -> None:
        self.ages: list[Age] = []
        self.milli = self.fixed = 0
        #: Number of demands by their `smallest_task`.
        self.smallest_tasks: Counter[int] = Counter()

    def add(self, demand: AgedDemand) -> None:
        insort(self.ages, demand.age)
        self.milli += demand.milli
        self.fixed += demand.fixed
        if demand.smallest_task:
            self.smallest_tasks[demand.smallest_task] += 1

    def remove(self, demand: AgedDemand) -> None:
        del self.ages[bisect_left(self.ages, demand.age)]
        self.milli -= demand.milli
        self.fixed -= demand.fixed
        if demand.smallest_task:
            self.smallest_tasks[demand.smallest_task] -= 1
            if not self.smallest_tasks[demand.smallest_task]:
                del self.smallest_tasks[demand.smallest_task]

    def total(self) -> AgedDemand | None:
        """Return the sum, or None if it has no parts."""
        if not self.ages:
            return None
        least = min(self.smallest_tasks, default=0)
        return AgedDemand(self.ages[0], self.milli, self.fixed, least, gcd(*self.smallest_tasks))
