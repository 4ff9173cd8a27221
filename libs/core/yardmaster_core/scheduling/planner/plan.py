"""Plan a cycle: the pools take turns (`plan`), and each is planned by a pass (`pool_pass.py`)."""

from typing import Final

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.fragmentation import track_workload
from yardmaster_core.scheduling.planner.policy import PolicyRegistry
from yardmaster_core.scheduling.planner.pool_pass import PoolPass
from yardmaster_core.scheduling.planner.pool_preference import PoolPreference
from yardmaster_core.scheduling.planner.resolved_config import resolved_config
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project

#: When a pool decides a group without the results of the pools that the group prefers: the first
#: of these conditions that holds for the first group of any pool.
_WITHOUT_PREFERRED: Final = (
    PoolPass.is_alone_in_starting,
    PoolPass.may_start_unpreferred,
    PoolPass.decides_anyway,
)


def plan(draft: Draft, policies: PolicyRegistry) -> None:
    """Consider every awake group in every pool, in the group's order of preferred pools.

    Pools take turns by name until no group is left to consider. A group waits for its turn in a
    pool until every pool that it prefers has a result for it, and the groups behind it wait too
    (otherwise they would start and then be preempted for it). If the first groups of all pools wait
    for each other like this, they are considered without these results: the groups behind them do
    not pass them.
    """
    pools = sorted(draft.state.pools.values(), key=lambda pool: pool.name)
    configured = [
        (pool, resolved_config(pool, policies)) for pool in pools if pool.config is not None
    ]
    for pool, resolved in configured:
        if resolved.strategy.uses_workload:
            track_workload(pool)
    if not any(map(_must_plan, pools)):
        return
    preference = PoolPreference()
    passes = [PoolPass(draft, pool, resolved, preference) for pool, resolved in configured]
    preference.planned.update((pool_pass.pool.name, pool_pass) for pool_pass in passes)
    for pool_pass in passes:
        pool_pass.start_ready()
    _consider_all(passes)
    started = [pool_pass.start_deferred() for pool_pass in passes]
    if any(started):
        _consider_all(passes)
    for pool_pass in passes:
        pool_pass.record_ranks()


def _must_plan(pool: Pool) -> bool:
    """Whether a cycle may decide anything in a pool."""
    woken = pool.awake or pool.equals_woken or pool.recheck
    return bool(woken or pool.index.due or pool.ready)


def _consider_all(passes: list[PoolPass]) -> None:
    while True:
        considered = False
        for pool_pass in passes:
            considered |= pool_pass.run()
        if considered:
            continue
        # Each of these pools waits for a result of another one.
        waiting = [pool_pass for pool_pass in passes if pool_pass.queue]
        if any(
            pool_pass.consider_first(may_decide)
            for may_decide in _WITHOUT_PREFERRED
            for pool_pass in waiting
        ):
            continue
        if any(pool_pass.take_back() for pool_pass in passes):
            continue
        changed: dict[Project, None] = {}
        for pool_pass in passes:
            changed |= pool_pass.decisions.limits_changed
            pool_pass.decisions.limits_changed = {}
        if not changed:
            return
        for pool_pass in passes:
            pool_pass.recheck_limits(changed)
