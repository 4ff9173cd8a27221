"""Who shares a pool, jobs or projects, and what bounds each of them: how much it counts, what it
holds, and whether what it waits for could run at all.

What somebody asks for with that is kept with the pool (`demands.py`).
"""

from collections.abc import Mapping

from yardmaster_core.scheduling.planner.placement import any_placement, idle_sizes
from yardmaster_core.scheduling.planner.wait_reasons import has_exact_sum
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.tasks import Job
from yardmaster_schemas.events.requests import Quota

Claimant = Job | Project
Pools = Mapping[str, Pool]


def weight_of(claimant: Claimant) -> int:
    """A job's own weight, or that of a project's configuration."""
    if isinstance(claimant, Job):
        return claimant.weight
    return claimant.config.weight if claimant.config is not None else 1


def claimant_of(job: Job, among: str) -> Claimant:
    """On whose behalf a job's tasks run."""
    return job if among == "job" else job.project


def held_by(pool: Pool, claimant: Claimant) -> int:
    """What a claimant's tasks hold of a pool, those that are stopping included."""
    if isinstance(claimant, Project):
        return claimant.used_milli.get(pool.name, 0)
    holding = pool.usage_by_job.get(claimant)
    return holding.milli if holding is not None else 0


def retained_by(pool: Pool, claimant: Claimant) -> int:
    """The same without those that are stopping."""
    if isinstance(claimant, Project):
        holders = pool.usage_by_project.get(claimant)
        return held_by(pool, claimant) - (holders.releasing_milli if holders is not None else 0)
    holding = pool.usage_by_job.get(claimant)
    return holding.milli - holding.releasing_milli if holding is not None else 0


def claimant_limit(pool: Pool, claimant: Claimant, pools: Pools) -> int | None:
    """The most a claimant may hold of a pool, by its own bounds and with what it holds elsewhere;
    what is stopping there is as good as gone, so that a bound over pools is not enforced in each.
    """
    if isinstance(claimant, Job):
        if claimant.max_slots_milli is None:
            return None
        elsewhere = 0
        if claimant.used_milli > held_by(pool, claimant):
            others = (pools[name] for name in claimant.shape.pools if name != pool.name)
            elsewhere = sum(retained_by(other, claimant) for other in others)
        return max(0, claimant.max_slots_milli - elsewhere)
    return owner_limit(pool, claimant, pools)


def owner_limit(pool: Pool, owner: Project | Department, pools: Pools) -> int | None:
    """The most that a project or department may hold of a pool, with what it holds elsewhere.

    Whether there is any limit is a matter of its configuration alone.
    """
    config = owner.config
    if config is None:
        return None
    quota: Quota | None = config.quotas.get(pool.name)
    limit = quota.limit_milli if quota is not None else None
    if isinstance(owner, Project) and owner.config is not None:
        whole = owner.config.limit_milli
        if whole is not None:
            elsewhere = sum(
                retained_by(pools[name], owner)
                for name, milli in owner.used_milli.items()
                if milli and name != pool.name
            )
            left = max(0, whole - elsewhere)
            limit = left if limit is None else min(limit, left)
    return limit


def could_fit(pool: Pool, shape: Shape) -> bool:
    """Whether a task would fit were every preemptible task of the pool gone."""
    assert pool.config is not None
    key = ("could_fit", shape.fit)
    known = pool.policy_cache.get(key)
    now = (pool.topology, pool.max_free_changes)
    if known is not None:
        then, fits, capacity = known
        if then == now:
            return bool(fits)
        # Where it fitted it may fit still, whatever came and went elsewhere.
        if (
            capacity is not None
            and then[0] == now[0]
            and capacity.available
            and capacity.holds(shape)
        ):
            pool.policy_cache[key] = (now, True, capacity)
            return True
    places = any_placement(pool.max_free, shape, pool.config)
    fits = places is not None
    if not fits and shape.whole_nodes and pool.config.unequal_gangs:
        # There more room may fit where all of it does not.
        fits = has_exact_sum(shape.gpus, idle_sizes(pool.max_free, shape))
    capacity = places[0][0] if places is not None and shape.replicas == len(places) == 1 else None
    pool.policy_cache[key] = (now, fits, capacity)
    return fits
