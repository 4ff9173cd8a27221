"""The records of a `History`: pools and projects over time, jobs, tasks and their attempts.

Times are milliseconds, GPUs are gpu_milli.
"""

from yardmaster_schemas.events.admissions import TaskAdmittedV1
from yardmaster_schemas.events.decisions import Outcome, Placement
from yardmaster_simulation.series import Series


class Pool:
    """A pool's GPUs over time.

    The columns of `series` are the GPUs that are in nodes that are up, allocated, requested by
    pending tasks, free but unusable (see `fragments`), and reserved but idle. A task that may use
    several pools counts as pending in its first pool.
    """

    __slots__ = (
        *("allocated", "changed", "name", "requested", "reserved_idle", "series", "unusable"),
        "up",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.series = Series(5)
        self.up = self.allocated = self.requested = self.reserved_idle = 0
        #: The unusable gpu_milli times the weight of all classes of `fragments.Demand`.
        self.unusable = 0
        self.changed = False


class Project:
    """A project's GPUs over time, its weight, and how often its tasks were preempted.

    The columns of `series` are the GPUs that are allocated, requested by pending tasks, deserved,
    both allocated and deserved, and recorded as the project's share.
    """

    __slots__ = (
        *("allocated", "changed", "deserved", "held", "name", "preempted", "requested", "series"),
        *("shares", "weight"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.series = Series(5)
        self.allocated = self.requested = 0
        #: By pool: the allocated GPUs, the deserved GPUs (None: all GPUs of the pool), and the
        #: recorded share.
        self.held: dict[str, int] = {}
        self.deserved: dict[str, int | None] = {}
        self.shares: dict[str, int] = {}
        #: The number of preemptions of the project's tasks, by the rule of the stop.
        self.preempted: dict[str, int] = {}
        self.weight = 1
        self.changed = False


class Job:
    """The common properties of a job's tasks; resources are the sum over all replicas."""

    __slots__ = (
        *("cpu_milli", "gpu_milli", "grace_s", "holding", "id", "memory_mib", "most"),
        *("pool", "preemptible", "project", "requesting", "submitted_ms", "tasks", "waiting"),
    )

    def __init__(
        self, event: TaskAdmittedV1, project: Project, pool: Pool, submitted_ms: int
    ) -> None:
        spec = event.spec
        self.id = event.job_id
        self.project = project
        #: The first pool that the job may use.
        self.pool = pool
        self.preemptible = spec.preemptible
        self.gpu_milli = spec.resources.gpu_total_milli * spec.replicas_min
        self.cpu_milli = spec.resources.cpu_milli * spec.replicas_min
        self.memory_mib = spec.resources.memory_mib * spec.replicas_min
        self.grace_s = spec.grace_s
        self.submitted_ms = submitted_ms
        #: The most tasks of the job that may run at once.
        self.most = spec.max_concurrent
        self.tasks: list[Task] = []
        #: Numbers of tasks. `waiting`: pending and not paused. `holding`: with an attempt, counted
        #: only if the job limits its concurrent tasks. `requesting`: pending and allowed to start,
        #: so that they request GPUs.
        self.waiting = self.holding = self.requesting = 0


class Attempt:
    """One attempt of a task, from its allocation until the last replica released its slots.

    `stop_ms`: time of the first stop request. `over_ms`: time of the last replica's exit. Once the
    attempt has ended, `ran_ms` is how long it worked, and `lost_ms` is the part of this work that
    no checkpoint contained (docs/explanation/simulator.md).
    """

    __slots__ = (
        *("allocated_ms", "checkpoint_ms", "closed_ms", "end", "left", "lost_ms", "number"),
        *("open", "over_ms", "placements", "pool", "preempted", "ran_ms", "replicas"),
        *("deadline_ms", "for_task", "started_ms", "stop_ms", "unstarted"),
    )

    def __init__(
        self, number: int, pool: Pool, placements: tuple[Placement, ...], now_ms: int
    ) -> None:
        self.number = number
        self.pool = pool
        self.placements = placements
        self.replicas = bytearray(len(placements))
        #: The numbers of replicas that have not started, have not exited, and have not released
        #: their slots.
        self.unstarted = self.left = self.open = len(placements)
        self.allocated_ms = now_ms
        self.started_ms: int | None = None
        self.checkpoint_ms: int | None = None
        self.stop_ms: int | None = None
        self.over_ms: int | None = None
        self.closed_ms: int | None = None
        #: Whether the attempt was preempted for another task.
        self.preempted = False
        #: Of a preemption: the task that it was for, and the end of the grace period.
        self.for_task: str | None = None
        self.deadline_ms: int | None = None
        #: How the attempt ended; None while it is open.
        self.end: str | None = None
        self.ran_ms = self.lost_ms = 0

    def works_until_ms(self, now_ms: int) -> int:
        """The time at which the attempt's work ends: the first stop request, else the last exit.

        The result is at most `now_ms`.
        """
        return min(at for at in (self.stop_ms, self.over_ms, now_ms) if at is not None)


class Task:
    """A task's history so far; `since_ms` is the start of its current wait (None: no wait)."""

    __slots__ = (
        *("attempts", "ended_ms", "gpu_milli_ms", "id", "job", "outcome", "paused", "reserved"),
        *("run", "since_ms", "wait_ms"),
    )

    def __init__(self, id_: str, job: Job) -> None:
        self.id = id_
        self.job = job
        self.attempts: list[Attempt] = []
        #: The current attempt; None if no attempt is open.
        self.run: Attempt | None = None
        self.paused = False
        #: The placements that are reserved for the task.
        self.reserved: tuple[Placement, ...] = ()
        self.since_ms: int | None = job.submitted_ms
        self.wait_ms = 0
        #: The usage in gpu_milli x ms of all slots that the task has released.
        self.gpu_milli_ms = 0
        self.ended_ms: int | None = None
        self.outcome: Outcome | None = None
