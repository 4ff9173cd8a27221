"""Bounds on what a job, a project and a department hold at once; they hold under every policy."""

from yardmaster_core.scheduling.state.entities import Department, Group, Job, Pool, Project, Task
from yardmaster_schemas.reasons import Wait, WaitCode

Owner = Job | Project | Department


class Reservations:
    """Tasks for which others are stopped, in one cycle: bounds count what they will hold.

    Else more would be stopped than the bounds let start.
    """

    __slots__ = ("_held", "_pools", "spent")

    def __init__(self) -> None:
        #: Something that counts towards a bound has started.
        self.spent = False
        self._pools: dict[Task, Pool] = {}
        #: gpu_milli by owner, in a pool or (None) in all.
        self._held: dict[tuple[Owner, Pool | None], int] = {}

    def __contains__(self, task: Task) -> bool:
        return task in self._pools

    def add(self, task: Task, pool: Pool) -> None:
        """What is being freed in `pool` is for `task`."""
        self._pools[task] = pool
        self._count(task, pool, task.job.shape.total_gpu_milli)

    def drop(self, task: Task) -> None:
        """The task starts, wherever it does."""
        project = task.job.project
        if task.job.max_slots_milli or project.config or project.department.config:
            self.spent = True
        pool = self._pools.pop(task, None)
        if pool is not None:
            self._count(task, pool, -task.job.shape.total_gpu_milli)

    def of(self, owner: Owner, pool: Pool | None = None) -> int:
        """What an owner is promised, in one pool or in all."""
        return self._held.get((owner, pool), 0) if self._held else 0

    def _count(self, task: Task, pool: Pool, milli: int) -> None:
        job = task.job
        for owner in (job, job.project, job.project.department):
            for where in (pool, None):
                self._held[owner, where] = self._held.get((owner, where), 0) + milli


def limit_reached(pool: Pool, job: Job, group: Group, reservations: Reservations) -> Wait | None:
    """The first bound that one more task of the group, whose first is of `job`, would pass, or
    None.
    """
    asked = group.shape.total_gpu_milli
    if not asked:
        return None
    project = job.project
    if job.max_slots_milli is not None:
        limit, used = job.max_slots_milli, job.used_milli + reservations.of(job)
        if used + asked > limit:
            now, never = WaitCode.AT_MAX_SLOTS, WaitCode.EXCEEDS_MAX_SLOTS
            return _wait(now, never, limit, used, asked, "job")
    config = project.config
    if config is not None:
        if config.limit_milli is not None:
            used = sum(project.used_milli.values()) + reservations.of(project)
            if used + asked > config.limit_milli:
                return _limit(config.limit_milli, used, asked, project.name)
        quota = config.quotas.get(pool.name)
        if quota is not None and quota.limit_milli is not None:
            used = project.used_milli.get(pool.name, 0) + reservations.of(project, pool)
            if used + asked > quota.limit_milli:
                return _limit(quota.limit_milli, used, asked, project.name)
    department = project.department
    if department.config is not None:
        quota = department.config.quotas.get(pool.name)
        if quota is not None and quota.limit_milli is not None:
            used = department.used_milli.get(pool.name, 0) + reservations.of(department, pool)
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
