"""Jobs, their tasks and attempts, and groups of equal pending tasks.

One file because these classes refer to one another. Plain slotted objects and integers; none keeps
an event. The `facts` of each object are what the state's digest covers.
"""

from collections.abc import Mapping
from typing import Final

from yardmaster_core.scheduling.state.ordered_tasks import OrderedTasks, QueueKey
from yardmaster_core.scheduling.state.phases import Phase, ReplicaState
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.shapes import EXPIRY_MS, SEPARATE_AFTER, Shape, shape_of
from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import Checkpoint, Placement
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.reasons import PolicyStop, StartFailure, Stop, Wait, WaitCode

#: Agents report at least once in 30 s that something of an image has arrived, or that a start of
#: others has ended, so a pull or a node counts as stalled after twice this time at the earliest.
LEAST_QUIET_S: Final = 60
#: Such reports extend a start to at most this time after the allocation. Agents send
#: their last one after about 8 hours.
MAX_PULL_S: Final = 12 * 3600

#: A pool, and why a task is pending in it, or `Phase.RUNNING`.
CountedAs = tuple[str, WaitCode | Phase]


class Attempt:
    """One run of a task, from SlotsAllocated until the last replica is released or lost."""

    __slots__ = (
        *("allocated_ms", "differs", "done", "engine_restarted", "exit_code", "failed_nodes"),
        *("failure", "fence_s", "image", "number"),
        *("open", "out_of_memory", "overdue", "passed_others", "placements", "pool_name", "port"),
        "prepared_ms",
        "replicas",
        *("running_ms", "signal", "started", "stop", "stop_deadline_ms", "zero_exits"),
    )

    def __init__(
        self,
        number: int,
        pool_name: str,
        placements: tuple[Placement, ...],
        port: int | None,
        now_ms: int,
    ) -> None:
        self.number = number
        self.pool_name = pool_name
        self.placements = placements
        self.port = port
        self.allocated_ms = now_ms
        #: After this many seconds without contact the agents kill the attempt; 0: never.
        self.fence_s = 0
        #: The digest that its replicas must run; None: that of the job's image.
        self.image: str | None = None
        #: The first replica that runs another image than its task; None: all run the same one.
        self.differs: int | None = None
        #: When something last arrived of an image that is pulled for a replica; 0: never.
        self.prepared_ms = 0
        #: When the last replica started; 0 before.
        self.running_ms = 0
        #: A `ReplicaState` for each replica.
        self.replicas = bytearray(len(placements))
        #: Number of replicas that hold their slots.
        self.open = len(placements)
        self.started = 0
        self.zero_exits = 0
        #: The first failure of a replica.
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.out_of_memory = False
        #: Whether the container engine of a replica ended it, because it was restarted.
        self.engine_restarted = False
        self.done = False
        self.stop: Stop | PolicyStop | None = None
        self.stop_deadline_ms = 0
        #: Whether it did not release its slots in time, so that they count as held again.
        self.overdue = False
        #: The first reason that an agent gave for not starting a replica.
        self.failure: StartFailure | None = None
        #: The nodes on which a replica could not start, or did not start in time.
        self.failed_nodes: tuple[str, ...] = ()
        #: Whether its task started on reserved slots, or was let pass a task that reached its limit
        #: in the same cycle: it is preempted for no task before it runs.
        self.passed_others = False

    def failed_nodes_with(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """`failed_nodes` extended by `nodes`, without duplicates."""
        return tuple(dict.fromkeys((*self.failed_nodes, *nodes)))

    def facts(self) -> tuple[object, ...]:
        """All that the state's digest covers."""
        facts: tuple[object, ...] = (
            self.number,
            self.pool_name,
            self.port,
            self.allocated_ms,
            self.running_ms,
            self.fence_s,
            bytes(self.replicas),
            self.exit_code,
            self.signal,
            self.out_of_memory,
            self.done,
            self.stop and (self.stop.code, self.stop.for_task),
            self.stop_deadline_ms,
            [(p.node, p.incarnation, p.slots, p.gpu_milli) for p in self.placements],
        )
        if self.failed_nodes:
            facts = (*facts, self.failure, self.failed_nodes)
        if self.overdue:
            facts = (*facts, "overdue")
        if self.prepared_ms:
            facts = (*facts, "prepared", self.prepared_ms)
        if self.engine_restarted:
            facts = (*facts, "engine restarted")
        if self.image is not None:
            facts = (*facts, "image", self.image)
        if self.differs is not None:
            facts = (*facts, "differs", self.differs)
        return (*facts, "on reserved slots") if self.passed_others else facts

    def start_due_ms(self, limit_s: int) -> int:
        """When all replicas must have started, if `limit_s` is the limit of the pool.

        While an image is pulled, or the start waits for others on its node, the limit counts from
        the last report about it, but within `MAX_PULL_S`.
        """
        due_ms = self.allocated_ms + limit_s * 1000
        if not self.prepared_ms:
            return due_ms
        quiet_ms = self.prepared_ms + max(limit_s, LEAST_QUIET_S) * 1000
        return max(due_ms, min(quiet_ms, self.last_pull_ms))

    @property
    def last_pull_ms(self) -> int:
        """Until when reports about an image extend the start, whatever an agent reports."""
        return self.allocated_ms + MAX_PULL_S * 1000

    @property
    def frees_slots(self) -> bool:
        """Whether its slots count as free in the future: it stops, and is not overdue."""
        return self.stop is not None and not self.overdue

    @property
    def failed(self) -> bool:
        """Whether a replica ended with a signal or an exit code other than 0."""
        return self.exit_code is not None or self.signal is not None

    @property
    def ended(self) -> bool:
        """Whether every replica has ended; agents release the slots of ended replicas unasked."""
        # Asked at each release: two searches of bytes take far less time than a minimum.
        replicas = self.replicas
        return ReplicaState.STARTED not in replicas and ReplicaState.ALLOCATED not in replicas

    @property
    def late_nodes(self) -> tuple[str, ...]:
        """Names of the nodes on which a replica has not started, without duplicates."""
        late = (
            placement.node
            for placement, replica in zip(self.placements, self.replicas, strict=True)
            if replica == ReplicaState.ALLOCATED
        )
        return tuple(dict.fromkeys(late))

    @property
    def queue_class(self) -> int:
        """1 when the attempt holds GPUs, else 0."""
        return 1 if self.placements[0].slots else 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes without duplicates, in the order of replicas."""
        return tuple(dict.fromkeys(p.node for p in self.placements))


class Reservation:
    """Slots that are kept for a pending task, from SlotsReserved until it starts or loses them."""

    __slots__ = (
        *("counted", "cycle", "free", "missing", "placements", "pool_name", "priority", "revision"),
        *("shape_id", "since_ms", "until_ms", "victims"),
    )

    def __init__(
        self,
        pool_name: str,
        placements: tuple[Placement, ...],
        *,
        of: tuple[str, int, int],
        since: tuple[int, int],
        victims: int = 0,
        until_ms: int = 0,
    ) -> None:
        self.pool_name = pool_name
        self.placements = placements
        #: The task's shape and priority, and the revision of the pool's configuration, by which the
        #: slots were chosen.
        self.shape_id, self.priority, self.revision = of
        #: When it was decided (ms), and in which cycle.
        self.since_ms, self.cycle = since
        #: Tasks that were preempted for it, and when the last of them must be gone (ms; 0: not
        #: known).
        self.victims = victims
        self.until_ms = until_ms
        #: The gpu_milli that count as reserved for the owners of the task (derived): while a moved
        #: task is stopping, the reserved amount beyond what it still holds.
        self.counted = 0
        #: 1 for each replica whose slots are free (derived); `missing` replicas have none yet.
        self.free = bytearray(len(placements))
        self.missing = len(placements)

    @property
    def gpu_milli(self) -> int:
        """The sum over all replicas."""
        return sum(p.gpu_milli * len(p.slots) for p in self.placements)

    @property
    def wait(self) -> Wait:
        """Why its task is pending."""
        numbers = {"victims": self.victims, "asked_milli": self.gpu_milli}
        until = {"until_at_ms": self.until_ms} if self.until_ms else {}
        return Wait(code=WaitCode.WAITING_FOR_VICTIMS, numbers={**numbers, **until})

    def facts(self) -> tuple[object, ...]:
        """All that the state's digest covers."""
        return (
            *(self.pool_name, self.shape_id, self.priority, self.revision, self.since_ms),
            *(self.cycle, self.victims, self.until_ms),
            [(p.node, p.incarnation, p.slots, p.gpu_milli) for p in self.placements],
        )


class Task:
    """The unit that is scheduled."""

    __slots__ = (
        *("attempt", "cancel_now", "cancelled", "cause", "checkpoint", "counted_as"),
        "expired_starts",
        *("failed_nodes", "failed_starts", "group", "hash", "held_until_ms", "id", "image"),
        "index",
        *("job", "key", "outcome_code", "paused", "phase", "preemptions", "queue", "queued_ms"),
        *("ran_ms", "released", "reserved", "restarts", "run", "starts_elsewhere", "unwritable"),
    )

    def __init__(self, job: "Job", index: int) -> None:
        self.id = f"{job.id}.{index}"
        self.job = job
        self.index = index
        self.key: QueueKey = (job.submitted_ms, job.seq, index)
        self.phase = Phase.PENDING
        #: The number of the last attempt; 0 before the first.
        self.attempt = 0
        self.run: Attempt | None = None
        self.group: Group | None = None
        #: `queue` or `reserved` of its group.
        self.queue: TaskQueue | None = None
        #: The slots that are kept for its next attempt.
        self.reserved: Reservation | None = None
        #: The attempt whose reserved slots were dropped because it starts on others in this cycle.
        self.starts_elsewhere = 0
        self.checkpoint: Checkpoint | None = None
        #: The digest of the image that its first replica ran, which all attempts run.
        self.image: str | None = None
        self.restarts = 0
        #: Number of consecutive failed starts.
        self.failed_starts = 0
        #: How many of these have expired: all that there were at the time.
        self.expired_starts = 0
        #: The nodes of these starts, the newest last.
        self.failed_nodes: tuple[str, ...] = ()
        #: When it was submitted, or requeued after its last attempt. For metrics and the preemption
        #: delay of `quota`; the digest does not cover it.
        self.queued_ms = job.submitted_ms
        #: Where `ClusterState.counts` has it, unless its queue counts it.
        self.counted_as: CountedAs | None = None
        #: How often the FitGpp policy preempted the task.
        self.preemptions = 0
        self.ran_ms = 0
        self.held_until_ms = 0
        self.cancelled = False
        self.cancel_now = False
        self.paused = False
        #: Whether the job's max_concurrent lets the task be considered.
        self.released = False
        self.outcome_code = ""
        #: Whether an allocation of the task was larger than a record may be.
        self.unwritable = False
        #: Id of the record that last changed the task.
        self.cause: str | None = None
        self.hash = 0

    def __lt__(self, other: "Task") -> bool:
        return self.key < other.key

    @property
    def shape(self) -> Shape:
        """The job's shape, or a separate shape while the task is set apart."""
        return self.job.shape_after_failed_starts if self.set_apart else self.job.shape

    @property
    def set_apart(self) -> bool:
        """Whether its last starts failed so often that it preempts no other for now."""
        return self.failed_starts >= SEPARATE_AFTER and self.failed_starts > self.expired_starts

    @property
    def expiry_ms(self) -> int:
        """When the failed starts of a pending task expire."""
        return max(self.queued_ms, self.held_until_ms) + EXPIRY_MS

    @property
    def releasing(self) -> bool:
        """Whether the task holds no slots or is about to release them."""
        run = self.run
        return run is None or run.stop is not None or run.ended

    @property
    def starts_past_others(self) -> bool:
        """Whether the task passed others when it started, and is not running yet."""
        run = self.run
        return run is not None and run.passed_others and self.phase is Phase.STARTING

    def facts(self) -> tuple[object, ...]:
        """All that the state's digest covers."""
        facts: tuple[object, ...] = (
            self.id,
            int(self.phase),
            self.attempt,
            self.restarts,
            self.ran_ms,
            self.held_until_ms,
            self.cancelled,
            self.cancel_now,
            self.paused,
            self.released,
            self.checkpoint and (self.checkpoint.uri, self.checkpoint.step),
            self.outcome_code,
            self.run and self.run.facts(),
        )
        # Only where they apply, as they rarely do.
        if self.preemptions:
            facts = (*facts, self.preemptions)
        if self.failed_starts:
            facts = (*facts, self.failed_starts, self.failed_nodes)
        if self.expired_starts:
            facts = (*facts, "expired", self.expired_starts)
        if self.image is not None:
            facts = (*facts, "image", self.image)
        if self.reserved is not None:
            facts = (*facts, "reserved", self.reserved.facts())
        return (*facts, "unwritable") if self.unwritable else facts


class TaskQueue(OrderedTasks[Task]):
    """Pending tasks that are equal except for their position."""

    __slots__ = ("live",)

    def __init__(self) -> None:
        super().__init__()
        #: Number of pending tasks.
        self.live = 0

    def is_live(self, task: Task) -> bool:
        """Whether `task` is still pending in this queue."""
        return task.queue is self

    def push(self, task: Task) -> None:
        """Enqueue `task` at the position of its key."""
        self.live += 1
        self.add(task)

    def drop(self) -> None:
        """Count one task less; its entry stays until `prune`."""
        self.live -= 1


class Job:
    """A submitted job: tasks that share a spec."""

    __slots__ = (
        *(
            "by_user",
            "details",
            "erased",
            "hash",
            "id",
            "live",
            "max_slots_milli",
            "next_index",
            "priority",
        ),
        *(
            "project",
            "ranks",
            "revision",
            "separate",
            "seq",
            "shape",
            "spec",
            "submitted_ms",
            "tasks",
        ),
        *("unfinished", "used_milli", "user", "weight"),
    )

    def __init__(
        self,
        id_: str,
        seq: int,
        project: Project,
        spec: AdmittedSpec,
        submitted_ms: int,
        details: DetailsRef,
        user: str | None = None,
    ) -> None:
        self.id = id_
        #: The order of admission.
        self.seq = seq
        self.project = project
        self.spec = spec
        self.submitted_ms = submitted_ms
        self.details = details
        #: The opaque id of the user who submitted it, if its request named one.
        self.user = user
        self.priority = spec.priority
        self.weight = spec.weight
        self.max_slots_milli = spec.max_slots_milli
        self.revision = 1
        #: Whether one of its pools is divided among jobs, and whether among users (derived).
        self.separate = self.by_user = False
        self.shape = shape_of(id_, project.name, spec)
        self.tasks: list[Task] = []
        #: Index of the first task that max_concurrent does not release yet.
        self.next_index = 0
        #: Number of released tasks that have not ended.
        self.live = 0
        #: Number of tasks that have not ended (derived).
        self.unfinished = spec.tasks
        #: gpu_milli in use, over all pools.
        self.used_milli = 0
        #: Whether its name, labels, command and environment were erased.
        self.erased = False
        #: By pool: its recorded place among the claimants of the queue.
        self.ranks: dict[str, tuple[int, ...]] = {}
        self.hash = 0

    def set_max_slots(self, max_slots_milli: int | None) -> None:
        """Set or remove the limit on the job's slots; with a limit, the job has its own shape."""
        self.max_slots_milli = max_slots_milli
        self._update_shape()

    def set_separate(self, separate: bool, by_user: bool) -> None:
        """Choose which jobs share the shape of this job.

        In pools that are divided among jobs, none does; in pools that are divided among users,
        jobs of the same user do.
        """
        self.separate, self.by_user = separate, by_user
        self._update_shape()

    @property
    def shape_after_failed_starts(self) -> Shape:
        """The shape of its tasks whose last starts failed."""
        return self._shape(start_failed=True)

    def _update_shape(self) -> None:
        self.shape = self._shape()

    def _shape(self, *, start_failed: bool = False) -> Shape:
        own = self.separate or self.max_slots_milli is not None
        user = self.user if self.by_user and not own else None
        return shape_of(
            self.id, self.project.name, self.spec, own=own, start_failed=start_failed, user=user
        )

    def facts(self) -> tuple[object, ...]:
        """All that the state's digest covers."""
        facts: tuple[object, ...] = (
            *("job", self.id, self.seq, self.project.name, self.shape.id, self.submitted_ms),
            *(self.priority, self.weight, self.max_slots_milli, self.revision, self.next_index),
            (self.details.partition, self.details.offset, self.details.digest),
            self.erased,
        )
        if self.user is not None:
            facts = (*facts, "user", self.user)
        return (*facts, sorted(self.ranks.items())) if self.ranks else facts


class Group:
    """Pending tasks of one shape and priority: an answer for the first of `queue` applies to all.

    Tasks with reserved slots are in `reserved` instead; they need no answer.
    """

    __slots__ = ("hash", "key", "min_runtimes", "priority", "queue", "reserved", "shape", "waits")

    def __init__(self, shape: Shape, priority: int) -> None:
        self.shape = shape
        self.priority = priority
        self.key = (shape.id, priority)
        self.queue = TaskQueue()
        self.reserved = TaskQueue()
        #: Number of its tasks with a minimum run time (derived).
        self.min_runtimes = 0
        #: By pool: the reason why the tasks are pending, since when (ms), and the deciding cycle.
        self.waits: dict[str, tuple[Wait, int, int]] = {}
        self.hash = 0

    @property
    def pending(self) -> int:
        """The number of its tasks, with and without reserved slots."""
        return self.queue.live + self.reserved.live

    @property
    def first(self) -> Task:
        """The first of its tasks, with or without reserved slots; there must be one."""
        if not self.reserved.live:
            return self.queue.first
        reserved = self.reserved.first
        return min(reserved, self.queue.first) if self.queue.live else reserved

    def wait_code(self, pool: str) -> WaitCode | None:
        """The recorded wait code of the tasks without reserved slots in a pool, if there are such
        tasks and a code.
        """
        record = self.waits.get(pool)
        return record[0].code if record is not None and self.queue.live else None

    def facts(self) -> tuple[object, ...]:
        """All that the state's digest covers."""
        return group_facts(self.key, self.waits)


def group_facts(
    key: tuple[str, int], waits: Mapping[str, tuple[Wait, int, int]]
) -> tuple[object, ...]:
    """The part of the state's digest about a group with this key and these waits."""
    found = sorted(
        (pool, w.code, sorted(w.numbers.items()), w.about or "", since, cycle)
        for pool, (w, since, cycle) in waits.items()
    )
    return ("group", key, found)
