"""The price of victims: of those that may be preempted equally well, the ones come first that hold
the fewest GPUs beyond what a task requests.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Final

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.state.tasks import Task

#: The number of victims that are compared with each other, so that a search need not list all.
WINDOW: Final = 64


def least_beyond_first(view: PoolView, task: Task, victims: Iterable[Task]) -> Iterator[Task]:
    """Yield victims that come in order of priority: of each `WINDOW` of equal priority, first those
    that hold the fewest GPUs beyond the request of `task`, else in their order.
    """
    pool = view.pool
    asked = pool.most_milli(task.job.shape)
    for _, equal in groupby(victims, key=_priority):
        while window := list(islice(equal, WINDOW)):
            if len(window) > 1:
                window.sort(key=lambda victim: max(0, pool.held_milli(victim) - asked))
            yield from window


def _priority(task: Task) -> int:
    return task.job.priority
