"""Limits on the slots that a job, a project and a department hold at once, under every policy.

Slots that are reserved for their tasks count as held: otherwise more tasks would be preempted than
the limits let start. The held amount of a project counts in its department and in those above. A
project that may not use a pool any more has the limit 0 there. A request by GPU memory counts as
the amount that it holds where it is placed. Until then it counts as its fraction of the largest
GPUs that take tasks, and it is placed only on GPUs where the limits allow its fraction
(`gpu_memory.py`).
"""

from collections.abc import Callable, Iterable

from yardmaster_core.scheduling.state.cell_view import CellView
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Job, Task
from yardmaster_schemas.reasons import Wait, WaitCode


def is_allowed(project: Project, pool: Pool) -> bool:
    """Whether the configuration of a project lets its tasks use a pool."""
    config = project.config
    return config is None or not config.pools or pool.name in config.pools


#: The gpu_milli that are held in a pool but do not count towards limits: of the project of a task
#: (None), or of a department above it, by name.
Freed = Callable[[str | None], int]


def nothing_freed(_: str | None) -> int:
    """All that is held counts towards limits."""
    return 0


def limit_reached(
    state: CellView,
    pool: Pool,
    task: Task,
    *,
    freed: Freed = nothing_freed,
    gpu_milli: int | None = None,
) -> Wait | None:
    """Return the wait reason for the first limit that the task would exceed in a pool, or None.

    `gpu_milli`: the amount that the task takes there; None: the least that it may take.
    """
    job = task.job
    project = job.project
    config = project.config
    if config is None and job.max_slots_milli is None and project.department.config is None:
        return None
    requested = pool.milli_for_limits(job.shape, task) if gpu_milli is None else gpu_milli
    # On other nodes of the pool, which take no tasks now, it may take less.
    least = min(requested, pool.least_milli(job.shape)) if job.shape.gpu_memory_mib else requested
    if config is not None and not is_allowed(project, pool):
        return _limit(0, 0, max(requested, 1), max(least, 1), project.name)
    if not requested:
        return None
    if job.max_slots_milli is not None:
        limit = job.max_slots_milli
        used = job.used_milli + _reserved(state, task, job)
        if used + requested > limit:
            now, never = WaitCode.AT_MAX_SLOTS, WaitCode.EXCEEDS_MAX_SLOTS
            return _wait(now, never, limit, used, requested, least, "job")
    if config is not None:
        if config.limit_milli is not None:
            used = sum(project.used_milli.values()) + _reserved(state, task, project) - freed(None)
            if used + requested > config.limit_milli:
                return _limit(config.limit_milli, used, requested, least, project.name)
        quota = config.quotas.get(pool.name)
        if quota is not None and quota.limit_milli is not None:
            used = project.used_milli.get(pool.name, 0) + reserved_for(pool, task, project)
            used -= freed(None)
            if used + requested > quota.limit_milli:
                return _limit(quota.limit_milli, used, requested, least, project.name)
    for department in _departments(state, project):
        quota = department.config.quotas.get(pool.name) if department.config is not None else None
        if quota is not None and quota.limit_milli is not None:
            used = sum(
                each.used_milli.get(pool.name, 0) + pool.reserved_milli.get(each, 0)
                for each in department.within
            ) - _reserved_for_task(pool, task)
            used -= freed(department.name)
            if used + requested > quota.limit_milli:
                return _limit(quota.limit_milli, used, requested, least, department.name)
    return None


def never_within_limits(pool: Pool, task: Task) -> bool:
    """Whether a task alone exceeds a limit of its job, or of its project over all pools; or its
    project may not use the pool.
    """
    job, config = task.job, task.job.project.config
    if config is not None and not is_allowed(job.project, pool):
        return True
    limits = (job.max_slots_milli, config.limit_milli if config is not None else None)
    least = pool.least_milli(job.shape)
    return any(limit is not None and least > limit for limit in limits)


def _departments(state: CellView, project: Project) -> Iterable[Department]:
    """Return the department of a project and those above it, from the bottom."""
    department = project.department
    if department.config is None or department.config.parent is None:
        return (department,)
    return [state.departments[name] for name in state.chain_of(department)]


def reserved_for(pool: Pool, task: Task, owner: Job | Project) -> int:
    """Return the gpu_milli of a pool that are reserved for other tasks of the task's owner."""
    reserved = pool.reserved_milli.get(owner, 0)
    return reserved - _reserved_for_task(pool, task) if reserved else 0


def _reserved_for_task(pool: Pool, task: Task) -> int:
    reservation = task.reserved
    if reservation is None or reservation.pool_name != pool.name:
        return 0
    return reservation.counted


def _reserved(state: CellView, task: Task, owner: Job | Project) -> int:
    return sum(
        reserved_for(pool, task, owner) for pool in state.pools.values() if pool.reserved_milli
    )


def _limit(limit: int, used: int, requested: int, least: int, level: str) -> Wait:
    return _wait(WaitCode.AT_LIMIT, WaitCode.EXCEEDS_LIMIT, limit, used, requested, least, level)


def _wait(
    now: WaitCode, never: WaitCode, limit: int, used: int, requested: int, least: int, level: str
) -> Wait:
    if least > limit:
        numbers = {"asked_milli": least, "limit_milli": limit}
        return Wait(code=never, numbers=numbers, about=level)
    numbers = {"limit_milli": limit, "used_milli": used, "asked_milli": requested}
    return Wait(code=now, numbers=numbers, about=level)
