"""Bounds on what a job, a project and a department hold at once; they hold under every policy."""

from yardmaster.core.scheduling.entities import Group, Pool, Project
from yardmaster.schemas.reasons import Wait, WaitCode


def limit_reached(
    pool: Pool, project: Project, group: Group, max_slots: tuple[int, int] | None
) -> Wait | None:
    """The first bound that one more task of the group would pass, or None.

    `max_slots` is (bound, held) in gpu_milli of the group's job when it has a bound of its own.
    """
    asked = group.shape.total_gpu_milli
    if not asked:
        return None
    if max_slots is not None and max_slots[1] + asked > max_slots[0]:
        limit, used = max_slots
        return _wait(WaitCode.AT_MAX_SLOTS, WaitCode.EXCEEDS_MAX_SLOTS, limit, used, asked, "job")
    config = project.config
    if config is not None:
        if config.limit_milli is not None:
            used = sum(project.used_milli.values())
            if used + asked > config.limit_milli:
                return _limit(config.limit_milli, used, asked, project.name)
        quota = config.quotas.get(pool.name)
        if quota is not None and quota.limit_milli is not None:
            used = project.used_milli.get(pool.name, 0)
            if used + asked > quota.limit_milli:
                return _limit(quota.limit_milli, used, asked, project.name)
    department = project.department
    if department.config is not None:
        quota = department.config.quotas.get(pool.name)
        if quota is not None and quota.limit_milli is not None:
            used = department.used_milli.get(pool.name, 0)
            if used + asked > quota.limit_milli:
                return _limit(quota.limit_milli, used, asked, department.name)
    return None


def _limit(limit: int, used: int, asked: int, level: str) -> Wait:
    return _wait(WaitCode.AT_LIMIT, WaitCode.EXCEEDS_LIMIT, limit, used, asked, level)


def _wait(now: WaitCode, never: WaitCode, limit: int, used: int, asked: int, level: str) -> Wait:
    if asked > limit:
        return Wait(code=never, numbers={"asked_milli": asked, "limit_milli": limit}, about=level)
    numbers = {"limit_milli": limit, "used_milli": used, "asked_milli": asked}
    return Wait(code=now, numbers=numbers, about=level)
