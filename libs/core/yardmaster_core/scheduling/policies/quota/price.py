"""Which of a project's tasks are preempted first, of those of one priority."""

from collections.abc import Iterable, Iterator

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.price import least_beyond_first
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.state.tasks import Task


def by_price(view: PoolView, task: Task, victims: Iterable[Task]) -> Iterator[Task]:
    """Yield the tasks of a project in the order in which they are preempted for `task`: of one
    priority those with the fewest GPUs beyond its request first; with `order: kai` as they come.
    """
    return iter(victims) if follows_kai(view) else least_beyond_first(view, task, victims)
