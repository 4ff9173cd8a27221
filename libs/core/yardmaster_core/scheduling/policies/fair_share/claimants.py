"""The claimants of a pool, jobs or projects: weight, limits and what each holds.

What each claimant demands is kept with the pool (`demand_tracker.py`).
"""

from collections.abc import Mapping

from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Job
from yardmaster_schemas.events.requests import Quota

Claimant = Job | Project
Pools = Mapping[str, Pool]


def weight_of(claimant: Claimant) -> int:
    """Return a job's own weight, or the weight of a project's configuration."""
    if isinstance(claimant, Job):
        return claimant.weight
    return claimant.config.weight if claimant.config is not None else 1


def claimant_of(job: Job, among: str) -> Claimant:
    """Return the claimant of a job's tasks."""
    return job if among == "job" else job.project


def held_by(pool: Pool, claimant: Claimant) -> int:
    """Return what a claimant holds of a pool (gpu_milli), including stopping tasks."""
    if isinstance(claimant, Project):
        return claimant.used_milli.get(pool.name, 0)
    holding = pool.held_by_job.get(claimant)
    return holding.milli if holding is not None else 0


def retained_by(pool: Pool, claimant: Claimant) -> int:
    """Return what a claimant holds of a pool (gpu_milli), without stopping tasks."""
    if isinstance(claimant, Project):
        holders = pool.held_by_project.get(claimant)
        return held_by(pool, claimant) - (holders.releasing_milli if holders is not None else 0)
    holding = pool.held_by_job.get(claimant)
    return holding.milli - holding.releasing_milli if holding is not None else 0


def claimant_limit(pool: Pool, claimant: Claimant, pools: Pools) -> int | None:
    """Return the most a claimant may hold of a pool (gpu_milli), by its own limits and what it
    holds in other pools; None: no limit.

    Stopping tasks of other pools do not count, so that a limit over several pools is not enforced
    in each of them.
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
    """Return the most a project or department may hold of a pool (gpu_milli), given what it holds
    in other pools; None: no limit.

    Whether there is a limit depends on its configuration alone.
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
