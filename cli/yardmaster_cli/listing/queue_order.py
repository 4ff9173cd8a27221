"""In which order the tasks that wait for a pool are considered, worked out from its tasks as shown.

What the scheduler counts and these do not show is left out: what a party's bounds and the nodes of
the pool keep it from asking for.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from yardmaster_schemas.reasons import WaitCode

Row = Mapping[str, Any]
Order = Callable[[Row], tuple[Any, ...]]

#: Why a task that is pending does not count among what its party asks for.
UNCOUNTED: Final = (WaitCode.PAUSED, WaitCode.AT_MAX_CONCURRENT)


def submission(task: Row) -> tuple[Any, ...]:
    """The earliest submission first."""
    return task["submitted_at"], task["job_id"], task["index"]


def by_priority(task: Row) -> tuple[Any, ...]:
    """`priority`'s order: the best priority, then the earliest submission."""
    return task["priority"], *submission(task)


def by_kind(task: Row) -> tuple[Any, ...]:
    """`fitgpp`'s order: what is not preemptible first, then the earliest submission."""
    return task["preemptible"], *submission(task)


#: The orders in which each task has its place whatever the others are, by policy.
OF_TASKS: Final[Mapping[str, Order]] = {
    "priority": by_priority,
    "fifo": submission,
    "fitgpp": by_kind,
    "lrtp": by_kind,
    "rand": by_kind,
}


def least_asked_first(tasks: Iterable[Row], among: str) -> Order:
    """`fair_share`'s order: tasks without GPUs apart, then whose party asks for least, then the
    oldest.

    Args:
        tasks: all of the pool that have not ended.
        among: whether `job`s or `project`s are the parties.
    """
    party = "project" if among == "project" else "job_id"
    asked: dict[str, int] = {}
    oldest: dict[str, tuple[Any, ...]] = {}
    for task in tasks:
        wait = task["wait"]
        if task["gpu_milli"] and not (wait and wait["code"] in UNCOUNTED):
            name = task[party]
            asked[name] = asked.get(name, 0) + task["gpu_milli"]
            oldest[name] = min(oldest.get(name, submission(task)), submission(task))

    def order(task: Row) -> tuple[Any, ...]:
        own, name = submission(task), task[party]
        if not task["gpu_milli"]:
            return False, 0, own, own
        return True, asked.get(name, 0), oldest.get(name, own), own

    return order
