"""Slots that the planner reserves during one cycle."""

from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Job, Task

Owner = Job | Project | Department


class Reservations:
    """Tasks with reserved slots, in one cycle; limits count those slots as used.

    Otherwise the planner would preempt more tasks than the limits let start.
    """

    __slots__ = ("_held", "_pools", "limits_changed")

    def __init__(self) -> None:
        #: Whether a task that counts towards a limit has started.
        self.limits_changed = False
        self._pools: dict[Task, Pool] = {}
        #: Reserved gpu_milli by owner, in one pool or (None) in all pools.
        self._held: dict[tuple[Owner, Pool | None], int] = {}

    def __contains__(self, task: Task) -> bool:
        return task in self._pools

    def add(self, task: Task, pool: Pool) -> None:
        """Reserve slots of `pool` for `task`."""
        self._pools[task] = pool
        self._count(task, pool, task.job.shape.total_gpu_milli)

    def drop(self, task: Task) -> None:
        """Remove the reservation of a task that starts, in whichever pool."""
        project = task.job.project
        if task.job.max_slots_milli or project.config or project.department.config:
            self.limits_changed = True
        pool = self._pools.pop(task, None)
        if pool is not None:
            self._count(task, pool, -task.job.shape.total_gpu_milli)

    def of(self, owner: Owner, pool: Pool | None = None) -> int:
        """Return the gpu_milli reserved for an owner's tasks, in one pool or in all pools."""
        return self._held.get((owner, pool), 0) if self._held else 0

    def _count(self, task: Task, pool: Pool, milli: int) -> None:
        job = task.job
        for owner in (job, job.project, job.project.department):
            for where in (pool, None):
                self._held[owner, where] = self._held.get((owner, where), 0) + milli
