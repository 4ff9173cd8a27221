"""Limits on what a job, a project and a department hold at once. They apply under every policy."""

from yardmaster_core.scheduling.planner.reservations import Reservations
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Job
from yardmaster_schemas.reasons import Wait, WaitCode


def limit_reached(pool: Pool, job: Job, group: Group, reservations: Reservations) -> Wait | None:
    """Return the wait reason for the first limit that one more task of `group` would exceed, or
    None.

    `job` is the job of the group's first task.
    """
    requested = group.shape.total_gpu_milli
    if not requested:
        return None
    project = job.project
    if job.max_slots_milli is not None:
        limit, used = job.max_slots_milli, job.used_milli + reservations.of(job)
        if used + requested > limit:
            now, never = WaitCode.AT_MAX_SLOTS, WaitCode.EXCEEDS_MAX_SLOTS
            return _wait(now, never, limit, used, requested, "job")
    config = project.config
    if config is not None:
        if config.limit_milli is not None:
            used = sum(project.used_milli.values()) + reservations.of(project)
            if used + requested > config.limit_milli:
                return _limit(config.limit_milli, used, requested, project.name)
        quota = config.quotas.get(pool.name)
        if quota is not None and quota.limit_milli is not None:
            used = project.used_milli.get(pool.name, 0) + reservations.of(project, pool)
            if used + requested > quota.limit_milli:
                return _limit(quota.limit_milli, used, requested, project.name)
    department = project.department
    if department.config is not None:
        quota = department.config.quotas.get(pool.name)
        if quota is not None and quota.limit_milli is not None:
            used = department.used_milli.get(pool.name, 0) + reservations.of(department, pool)
            if used + requested > quota.limit_milli:
                return _limit(quota.limit_milli, used, requested, department.name)
    return None


def _limit(limit: int, used: int, requested: int, level: str) -> Wait:
    return _wait(WaitCode.AT_LIMIT, WaitCode.EXCEEDS_LIMIT, limit, used, requested, level)


def _wait(
    now: WaitCode, never: WaitCode, limit: int, used: int, requested: int, level: str
) -> Wait:
    if requested > limit:
        return Wait(
            code=never, numbers={"asked_milli": requested, "limit_milli": limit}, about=level
        )
    numbers = {"limit_milli": limit, "used_milli": used, "asked_milli": requested}
    return Wait(code=now, numbers=numbers, about=level)
