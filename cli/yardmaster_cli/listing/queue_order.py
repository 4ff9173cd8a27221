"""The order in which a policy considers the pending tasks of a pool, derived from the API.

The API does not show every number of the scheduler: this order ignores demand that the limits of a
claimant or the nodes of the pool exclude.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from yardmaster_schemas.reasons import WaitCode

Row = Mapping[str, Any]
Order = Callable[[Row], tuple[Any, ...]]

#: Pending tasks with these reasons do not count as demand of their claimant.
UNCOUNTED: Final = (WaitCode.PAUSED, WaitCode.AT_MAX_CONCURRENT)


def submission(task: Row) -> tuple[Any, ...]:
    """The earliest submission first."""
    return task["submitted_at"], task["job_id"], task["index"]


def by_priority(task: Row) -> tuple[Any, ...]:
    """The order of `priority`: the highest priority (smallest number), then the earliest."""
    return task["priority"], *submission(task)


def by_kind(task: Row) -> tuple[Any, ...]:
    """The order of `fitgpp`: non-preemptible tasks first, then the earliest submission."""
    return task["preemptible"], *submission(task)


#: By policy, the orders in which the place of a task does not depend on other tasks.
OF_TASKS: Final[Mapping[str, Order]] = {
    "priority": by_priority,
    "fifo": submission,
    "fitgpp": by_kind,
    "lrtp": by_kind,
    "rand": by_kind,
}


def least_demand_first(tasks: Iterable[Row], among: str) -> Order:
    """The order of `fair_share`: tasks without GPUs, then claimants with the least demand, oldest.

    Args:
        tasks: all active tasks of the pool.
        among: the claimants, `job` or `project`.
    """
    claimant = "project" if among == "project" else "job_id"
    demand: dict[str, int] = {}
    oldest: dict[str, tuple[Any, ...]] = {}
    for task in tasks:
        wait = task["wait"]
        if task["gpu_milli"] and not (wait and wait["code"] in UNCOUNTED):
            name = task[claimant]
            demand[name] = demand.get(name, 0) + task["gpu_milli"]
            oldest[name] = min(oldest.get(name, submission(task)), submission(task))

    def order(task: Row) -> tuple[Any, ...]:
        own, name = submission(task), task[claimant]
        if not task["gpu_milli"]:
            return False, 0, own, own
        return True, demand.get(name, 0), oldest.get(name, own), own

    return order
