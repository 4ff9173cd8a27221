"""FitGpp's choice as the paper describes it, for tasks of one node: floats, and no index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

#: CPU, memory, GPUs.
Amounts = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Running:
    """A running, preemptible task."""

    name: str
    node: str
    demand: Amounts
    grace: float
    stopped: int = 0


def size(demand: Amounts, capacity: Amounts) -> float:
    """Equation 1."""
    return sqrt(sum((d / cap) ** 2 if cap else 0 for d, cap in zip(demand, capacity, strict=True)))


def scores(running: Sequence[Running], capacity: Amounts, s: float) -> dict[str, float]:
    """Equation 3: the score of each task by name."""
    largest = max(size(task.demand, capacity) for task in running) or 1
    longest = max(task.grace for task in running) or 1
    return {
        task.name: size(task.demand, capacity) / largest + s * task.grace / longest
        for task in running
    }


def eligible(
    demand: Amounts, running: Sequence[Running], free: Mapping[str, Amounts], p: float
) -> list[str]:
    """Equation 2, for tasks that were preempted fewer than `p` times."""
    return [
        task.name
        for task in running
        if task.stopped < p
        and all(
            asked <= held + left
            for asked, held, left in zip(demand, task.demand, free[task.node], strict=True)
        )
    ]
