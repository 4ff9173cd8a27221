"""Compare the search for victims with an exhaustive one, on small clusters at rest.

If some set of tasks that `quota` allows to be reclaimed makes a task fit, within what its project
deserves, the scheduler has found one: the task runs.
"""

from itertools import combinations

from tests.histories.capacity import fits_without
from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies import options_of
from yardmaster_core.scheduling.policies.quota.reclaim import may_reclaim, reclaim_victims
from yardmaster_core.scheduling.policies.quota.start import wait_for_quota
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.tasks import Task

#: Among more tasks the sets are too many.
MOST_VICTIMS = 12


def missed_claims(state: ClusterState) -> list[tuple[str, list[str]]]:
    """Return the pending tasks for which a set of victims exists, each with such a set."""
    found = []
    for pool in state.pools.values():
        if pool.config is None or pool.config.policy.name != "quota":
            continue
        view = PoolView(state, pool, options_of(pool.config.policy))
        if "reclaim" not in view.options.claiming:
            continue
        for group in list(pool.groups.values()):
            if not group.queue.live or group.shape.start_failed:
                continue
            task = group.queue.first
            if limit_reached(state, pool, task) or wait_for_quota(view, group, task):
                continue
            victims = _set_for(view, task)
            if victims is not None:
                found.append((task.id, [victim.id for victim in victims]))
    return found


def _set_for(view: PoolView, task: Task) -> list[Task] | None:
    """Return the smallest set of tasks that may be reclaimed and without which the task fits."""
    victims = [v for v in reclaim_victims(view, task) if not v.starts_past_others]
    if len(victims) > MOST_VICTIMS:
        return None
    for size in range(1, len(victims) + 1):
        for some in combinations(victims, size):
            if may_reclaim(view, task, some) and fits_without(view.state, view.pool, task, some):
                return list(some)
    return None
