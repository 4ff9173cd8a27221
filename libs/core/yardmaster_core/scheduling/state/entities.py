"""What the state is made of: tasks, jobs, groups of equals, pools, nodes, departments, projects.

Plain slotted objects and integers; they keep no event. `facts` of each is what a digest covers.

One file, though a long one: the objects refer to one another, and are read as one vocabulary.
"""

from enum import IntEnum
from typing import Any, Final

from yardmaster_core.fencing import least_timeout_s
from yardmaster_core.scheduling.state.indexes import CapacityIndex, NodeCapacity
from yardmaster_core.scheduling.state.policy_traits import PolicyTraits
from yardmaster_core.scheduling.state.queues import OrderedTasks, QueueKey, TaskQueue
from yardmaster_core.scheduling.state.shapes import APART_AFTER, Shape, shape_of
from yardmaster_core.scheduling.state.strict_queues import StrictQueues
from yardmaster_core.scheduling.state.workload import WorkloadCounter
from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import Checkpoint, Outcome, Placement
from yardmaster_schemas.events.node_events import ExecutorKind, NodeJoinedV1
from yardmaster_schemas.events.requests import (
    DepartmentConfig,
    DetailsRef,
    Enrolment,
    PoolConfig,
    ProjectConfig,
)
from yardmaster_schemas.members import plain_members
from yardmaster_schemas.reasons import StartFailure, Stop, Wait, WaitClass, WaitCode

#: So many of a node's incarnations that are over are remembered, the newest.
MAX_DEAD_INCARNATIONS: Final = 64
#: Of nodes in a pool that is not configured.
DEFAULT_NODE_TIMEOUT_S: Final = 60


@plain_members
class Phase(IntEnum):
    """Where a task is in its life (interface.md, section 4)."""

    PENDING = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6

    @property
    def final(self) -> bool:
        """Whether nothing comes after."""
        return self >= Phase.SUCCEEDED


OUTCOMES: Final = {
    Outcome.SUCCEEDED: Phase.SUCCEEDED,
    Outcome.FAILED: Phase.FAILED,
    Outcome.CANCELLED: Phase.CANCELLED,
}


@plain_members
class ReplicaState(IntEnum):
    """Where one replica of an attempt is."""

    ALLOCATED = 0
    STARTED = 1
    EXITED = 2
    RELEASED = 3
    LOST = 4


@plain_members
class NodeState(IntEnum):
    """Whether a node can be worked with."""

    ABSENT = 0  # named by an operator, never joined
    UP = 1
    LOST = 2
    LEFT = 3


class Attempt:
    """One run of a task, from SlotsAllocated until the last replica is released or lost."""

    __slots__ = (
        *("allocated_ms", "done", "exit_code", "fence_s", "number", "open", "out_of_memory"),
        *(
            "placements",
            "pool",
            "port",
            "replicas",
            "running_ms",
            "signal",
            "started",
            "stop",
            "stop_deadline_ms",
        ),
        *("failed_nodes", "failure", "zero_exits"),
    )

    def __init__(
        self,
        number: int,
        pool: "Pool",
        placements: tuple[Placement, ...],
        port: int | None,
        now_ms: int,
    ) -> None:
        self.number = number
        self.pool = pool
        self.placements = placements
        self.port = port
        self.allocated_ms = now_ms
        #: What its agents were told to kill it after; 0: nothing.
        self.fence_s = 0
        #: When the last replica had started; 0 before.
        self.running_ms = 0
        self.replicas = bytearray(len(placements))
        self.open = len(placements)
        self.started = 0
        self.zero_exits = 0
        #: The first failure of a replica.
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.out_of_memory = False
        self.done = False
        self.stop: Stop | None = None
        self.stop_deadline_ms = 0
        #: The first reason that an agent gave for not starting a replica, and the nodes on which a
        #: replica could not be started, or was not in time.
        self.failure: StartFailure | None = None
        self.failed_nodes: tuple[str, ...] = ()

    def note_failed_start(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """The nodes on which the start failed, with `nodes` among them; each once."""
        return tuple(dict.fromkeys((*self.failed_nodes, *nodes)))

    def facts(self) -> tuple[object, ...]:
        """All that a digest covers."""
        facts = (
            self.number,
            self.pool.name,
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
        # Only where a start failed: digests are in the log.
        return (*facts, self.failure, self.failed_nodes) if self.failed_nodes else facts

    @property
    def failed(self) -> bool:
        """Whether a replica ended otherwise than with exit code 0."""
        return self.exit_code is not None or self.signal is not None

    @property
    def ended(self) -> bool:
        """Whether every replica has ended: what is still held will be given back without asking."""
        return min(self.replicas) >= ReplicaState.EXITED

    @property
    def late_nodes(self) -> tuple[str, ...]:
        """Names of the nodes on which a replica has not started, each once."""
        late = (
            placement.node
            for placement, was in zip(self.placements, self.replicas, strict=True)
            if was == ReplicaState.ALLOCATED
        )
        return tuple(dict.fromkeys(late))

    @property
    def queue_class(self) -> int:
        """1 when it holds GPUs, else 0."""
        return 1 if self.placements[0].slots else 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes, each once, in the order of replicas."""
        return tuple(dict.fromkeys(p.node for p in self.placements))


class Task:
    """The unit that is scheduled."""

    __slots__ = (
        *("attempt", "cancel_now", "cancelled", "cause", "checkpoint", "failed_nodes"),
        *(
            "failed_starts",
            "group",
            "hash",
            "held_until_ms",
            "id",
            "index",
            "job",
            "key",
            "outcome_code",
            "paused",
            "phase",
        ),
        *("preemptions", "queue", "ran_ms", "released", "restarts", "run", "unwritable"),
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
        self.queue: TaskQueue | None = None
        self.checkpoint: Checkpoint | None = None
        self.restarts = 0
        #: How many starts in a row failed, and the nodes on which they did, the newest last.
        self.failed_starts = 0
        self.failed_nodes: tuple[str, ...] = ()
        #: How often FitGpp stopped it for others.
        self.preemptions = 0
        self.ran_ms = 0
        self.held_until_ms = 0
        self.cancelled = False
        self.cancel_now = False
        self.paused = False
        #: Whether the job's max_concurrent lets it be considered.
        self.released = False
        self.outcome_code = ""
        #: An allocation of it was larger than a record may be.
        self.unwritable = False
        #: The record that last changed its standing.
        self.cause: str | None = None
        self.hash = 0

    def __lt__(self, other: "Task") -> bool:
        return self.key < other.key

    @property
    def shape(self) -> Shape:
        """What it asks for; set apart from its equals while its last starts failed."""
        apart = self.failed_starts >= APART_AFTER
        return self.job.shape_after_failed_start if apart else self.job.shape

    @property
    def releasing(self) -> bool:
        """Whether what it holds is being given back."""
        run = self.run
        return run is None or run.stop is not None or run.ended

    def facts(self) -> tuple[object, ...]:
        """All that a digest covers."""
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
        # Only where there are any: digests are in the log.
        if self.preemptions:
            facts = (*facts, self.preemptions)
        if self.failed_starts:
            facts = (*facts, self.failed_starts, self.failed_nodes)
        return (*facts, "unwritable") if self.unwritable else facts


class Victims(OrderedTasks):
    """Preemptible tasks of one pool and priority that hold slots and were not asked to stop."""

    __slots__ = ("pool", "priority")

    def __init__(self, pool: "Pool", priority: int) -> None:
        super().__init__()
        self.pool = pool
        self.priority = priority

    def alive(self, task: Task) -> bool:
        """Whether the task may still be stopped for another."""
        run = task.run
        return (
            run is not None
            and run.stop is None
            and run.open > 0
            and not run.ended
            and run.pool is self.pool
            and task.job.priority == self.priority
        )

    def note(self, task: Task) -> None:
        """A preemptible task started, or came to this priority."""
        self.add(task)


class Job:
    """What was submitted: tasks that share a spec."""

    __slots__ = (
        *("alone", "details", "erased", "hash", "id", "live", "max_slots_milli", "next_index"),
        *("priority", "project", "revision", "seq", "shape", "spec", "submitted_ms", "tasks"),
        *("used_milli", "weight"),
    )

    def __init__(
        self,
        id_: str,
        seq: int,
        project: "Project",
        spec: AdmittedSpec,
        submitted_ms: int,
        details: DetailsRef,
    ) -> None:
        self.id = id_
        #: The order of admission.
        self.seq = seq
        self.project = project
        self.spec = spec
        self.submitted_ms = submitted_ms
        self.details = details
        self.priority = spec.priority
        self.weight = spec.weight
        self.max_slots_milli = spec.max_slots_milli
        self.revision = 1
        #: Whether a pool that it may use is divided among jobs (derived).
        self.alone = False
        self.shape = shape_of(id_, project.name, spec)
        self.tasks: list[Task] = []
        #: Index of the first task that max_concurrent still holds back.
        self.next_index = 0
        #: Tasks let through by max_concurrent that have not ended.
        self.live = 0
        self.used_milli = 0
        #: Nothing says any more what it would run.
        self.erased = False
        self.hash = 0

    def set_bound(self, max_slots_milli: int | None) -> None:
        """Bound what its tasks hold at once; a job with a bound of its own is equal to no other."""
        self.max_slots_milli = max_slots_milli
        self._reshape()

    def set_alone(self, alone: bool) -> None:
        """Where pools are divided among jobs, each job's tasks are equal to no other's."""
        self.alone = alone
        self._reshape()

    @property
    def shape_after_failed_start(self) -> Shape:
        """The shape of its tasks whose last starts failed."""
        bound = self.shape.job_id is not None
        return shape_of(self.id, self.project.name, self.spec, bound=bound, start_failed=True)

    def _reshape(self) -> None:
        bound = self.alone or self.max_slots_milli is not None
        self.shape = shape_of(self.id, self.project.name, self.spec, bound=bound)

    def facts(self) -> tuple[object, ...]:
        """All that a digest covers."""
        return (
            *("job", self.id, self.seq, self.project.name, self.shape.id, self.submitted_ms),
            *(self.priority, self.weight, self.max_slots_milli, self.revision, self.next_index),
            (self.details.partition, self.details.offset, self.details.digest),
            self.erased,
        )


class Group:
    """Waiting tasks of one shape and priority: what holds for the first holds for all."""

    __slots__ = ("hash", "key", "priority", "queue", "shape", "waits")

    def __init__(self, shape: Shape, priority: int) -> None:
        self.shape = shape
        self.priority = priority
        self.key = (shape.id, priority)
        self.queue = TaskQueue()
        #: By pool: why it waits there, since when (ms), decided in which cycle.
        self.waits: dict[str, tuple[Wait, int, int]] = {}
        self.hash = 0

    def facts(self) -> tuple[object, ...]:
        """All that a digest covers."""
        waits = sorted(
            (pool, w.code, sorted(w.numbers.items()), w.about or "", since, cycle)
            for pool, (w, since, cycle) in self.waits.items()
        )
        return ("group", self.key, waits)


#: Codes of a group that waits for room (and so goes before those of worse priority).
BLOCKING: Final = frozenset(
    {
        WaitCode.INSUFFICIENT_FREE,
        WaitCode.FRAGMENTED,
        WaitCode.TOPOLOGY_FULL,
        WaitCode.NODES_UNAVAILABLE,
        WaitCode.WAITING_FOR_VICTIMS,
        WaitCode.VICTIMS_PROTECTED,
    }
)


#: Codes of a group for which the nodes that there are will never have room.
IMPOSSIBLE: Final = frozenset(
    {
        WaitCode.NO_MATCHING_NODE,
        WaitCode.EXCEEDS_EVERY_NODE,
        WaitCode.EXCEEDS_POOL,
        WaitCode.GANG_INDIVISIBLE,
        WaitCode.TOPOLOGY_IMPOSSIBLE,
        WaitCode.NO_EXECUTOR,
    }
)


def blocks(group: Group, code: WaitCode) -> bool:
    """Whether a group that waits for that reason goes before those of worse priority.

    What no node can hold waits for room too, as long as it has nowhere else to go: nodes may come.
    """
    return code in BLOCKING or (code in IMPOSSIBLE and len(group.shape.pools) == 1)


#: Codes of a group that waits for others of better priority.
BEHIND: Final = frozenset({WaitCode.BEHIND_TASK, WaitCode.BACKFILL_NOT_ALLOWED})


#: Codes of a group that keeps those behind it waiting where nobody passes.
IN_LINE: Final = BLOCKING | BEHIND


#: Codes of a group that waits for what its project, department or job holds.
LIMITED: Final = frozenset({WaitCode.AT_LIMIT, WaitCode.AT_MAX_SLOTS, WaitCode.EXCEEDS_LIMIT})


class JobUsage:
    """What a job's tasks hold of one pool."""

    __slots__ = ("milli", "releasing", "releasing_milli", "tasks")

    def __init__(self) -> None:
        #: gpu_milli of all open replicas.
        self.milli = 0
        #: The same by task.
        self.tasks: dict[Task, int] = {}
        #: Of that what is being given back.
        self.releasing: dict[Task, int] = {}
        self.releasing_milli = 0


class ProjectUsage:
    """The jobs of a project that hold something of one pool."""

    __slots__ = ("jobs", "releasing_milli")

    def __init__(self) -> None:
        self.jobs: dict[Job, JobUsage] = {}
        #: What they are giving back.
        self.releasing_milli = 0


class ReclaimableTasks(OrderedTasks):
    """Preemptible tasks of one claimant that hold slots of a pool and do not give them back yet."""

    __slots__ = ("pool",)

    def __init__(self, pool: "Pool") -> None:
        super().__init__()
        self.pool = pool

    def alive(self, task: Task) -> bool:
        """Whether the task may still be stopped."""
        run = task.run
        return run is not None and run.pool is self.pool and run.open > 0 and not task.releasing


class QueueClass:
    """Which priorities of a pool wait for room, GPU tasks and others apart."""

    __slots__ = ("behind", "blocked", "firsts", "mask")

    def __init__(self) -> None:
        #: priority -> groups that wait for room.
        self.blocked: dict[int, dict[Group, None]] = {}
        #: The first task of all these, of the priorities for which somebody asked since they last
        #: changed.
        self.firsts: dict[int, Task | None] = {}
        #: Bit p is set when a group of priority p waits for room.
        self.mask = 0
        self.behind: dict[Group, None] = {}

    def first(self, priority: int) -> Task | None:
        """The first task of that priority that waits for room."""
        if priority not in self.firsts:
            tasks = (group.queue.first for group in self.blocked[priority])
            self.firsts[priority] = min(tasks, default=None)
        return self.firsts[priority]


class Pool:
    """Nodes of a cell with their policy, what is free on them and who waits for it."""

    __slots__ = (
        *(
            "awake",
            "config",
            "max_free",
            "max_free_changes",
            "future",
            "reclaimable",
            "groups",
            "hash",
            "usage_by_job",
        ),
        *("used_milli", "usage_by_project", "free"),
        *(
            "queue_classes",
            "demands",
            "strict_queues",
            "name",
            "woken",
            "over_share",
            "per_job",
            "preempts",
            "reshare",
        ),
        *("reshare_next", "shares", "stale", "lowest_placed_priority"),
        *(
            "nodes",
            "protected",
            "has_min_runtimes",
            "recheck",
            "revision",
            "stopping",
            "stopping_for",
            "topology",
            "victims",
        ),
        *("workload", "policy_cache", "reconsidered", "resolved"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: PoolConfig | None = None
        self.revision = 0
        #: By node ordinal.
        self.nodes: dict[int, Node] = {}
        self.free = CapacityIndex()
        #: What is free once all that is stopping is gone.
        self.future = CapacityIndex()
        #: What would be free were all preemptible tasks gone.
        self.max_free = CapacityIndex()
        #: Counts changes of that, so that what only depends on it is kept.
        self.max_free_changes = 0
        #: Jobs that hold GPUs of it.
        self.usage_by_job: dict[Job, JobUsage] = {}
        #: The same by project, and all that is held.
        self.usage_by_project: dict[Project, ProjectUsage] = {}
        self.used_milli = 0
        #: Whether its policy gives out shares, and whether among jobs (derived).
        self.shares = self.per_job = self.preempts = False
        #: The worst priority of what this cycle placed and could be stopped (None: nothing).
        self.lowest_placed_priority: int | None = None
        #: What each claimant asks for (`demands.py`), made when it is wanted; from then on, which
        #: jobs and groups are to be counted again first.
        self.demands: Any = None
        self.stale: dict[Job | Group, None] = {}
        #: Of jobs and projects that ever had to give something back: what they could (derived).
        self.reclaimable: dict[Job | Project, ReclaimableTasks] = {}
        #: What its shares rest on changed: they are to be looked at in the next cycle; or in the
        #: one after, since it was the planner that changed it.
        self.reshare = self.reshare_next = False
        #: Groups that wait because their claimant has its share.
        self.over_share: dict[Group, None] = {}
        #: (shape id, priority) -> tasks that wait.
        self.groups: dict[tuple[str, int], Group] = {}
        #: Groups to be considered in the next cycle; in `news` those that a running cycle woke.
        self.awake: dict[Group, None] = {}
        self.woken: list[Group] = []
        #: Groups that a running cycle considers again whether or not anything woke them.
        self.reconsidered: dict[Group, None] = {}
        self.queue_classes = (QueueClass(), QueueClass())
        #: Who waits behind others, where the policy is strict (derived).
        self.strict_queues: StrictQueues | None = None
        #: Groups that wait until victims may be stopped.
        self.protected: dict[Group, None] = {}
        #: Whether a job that may use the pool ever had a minimum run time.
        self.has_min_runtimes = False
        #: By lane: preempted attempts that still hold slots, by the priority of whom they are
        #: stopped for.
        self.stopping_for: tuple[dict[int, int], dict[int, int]] = ({}, {})
        #: Stopping attempts of any reason.
        self.stopping = 0
        #: Slots began to be freed, or are no longer promised to somebody: all who wait for room are
        #: to be asked again, once a cycle however often it happens.
        self.recheck = False
        #: Preemptible tasks that hold slots, by priority.
        self.victims: dict[int, Victims] = {}
        #: What its tasks asked for so far (derived), made when a placement first goes by it.
        self.workload: WorkloadCounter | None = None
        #: Counts changes of the set of nodes, so that what only depends on it is kept.
        self.topology = 0
        self.policy_cache: dict[Any, Any] = {}
        #: What its configuration says about planning (`rules.py`), made when it is wanted.
        self.resolved: Any = None
        self.hash = 0

    def set_traits(self, traits: PolicyTraits) -> None:
        """Keep what another policy or configuration changes of the pool itself."""
        self.shares, self.per_job, self.preempts = traits.shares, traits.per_job, traits.preempts
        self.strict_queues = (
            None if traits.strict_queue is None else StrictQueues(self, traits.strict_queue)
        )

    def reconsider(self, group: Group) -> None:
        """Have a group considered in the cycle that is being decided."""
        self.reconsidered[group] = None
        self.woken.append(group)

    @property
    def indexes(self) -> tuple[CapacityIndex, ...]:
        """What is free, in each way of looking at it."""
        return (self.free, self.future, self.max_free)

    def views(self, node: "Node") -> tuple[tuple[CapacityIndex, NodeCapacity], ...]:
        """The pool's indexes, each with the node's room in it."""
        return (self.free, node.free), (self.future, node.future), (self.max_free, node.max_free)

    def facts(self) -> tuple[object, ...]:
        """All that a digest covers."""
        return ("pool", self.name, self.revision)


class Node:
    """A machine with slots."""

    __slots__ = (
        *("address", "barred", "boot_id", "cordoned", "cpu_milli", "dead", "drain_ms", "max_free"),
        "future",
        *("disabled", "executors", "gpus", "stops_disabled"),
        *("hash", "free", "incarnation", "labels", "memory_mib", "name", "node_type", "open"),
        *("ordinal", "pending", "pool", "port_first", "port_last", "ports", "schema_version"),
        *("revoked_ms", "silent_ms", "state"),
    )

    def __init__(self, name: str, ordinal: int) -> None:
        self.name = name
        self.ordinal = ordinal
        self.state = NodeState.ABSENT
        self.pool: Pool | None = None
        self.incarnation = ""
        #: Incarnations that are over.
        self.dead: list[str] = []
        self.boot_id = ""
        self.schema_version = 0
        self.node_type = ""
        self.labels: dict[str, str] = {}
        self.executors: tuple[ExecutorKind, ...] = (ExecutorKind.PROCESS,)
        self.address = ""
        self.gpus = self.cpu_milli = self.memory_mib = 0
        self.port_first = self.port_last = 0
        #: Ports of gangs whose first replica is here, by how many hold them.
        self.ports: dict[int, int] = {}
        self.free = NodeCapacity(ordinal, 0, 0, 0)
        self.future = NodeCapacity(ordinal, 0, 0, 0)
        self.max_free = NodeCapacity(ordinal, 0, 0, 0)
        self.cordoned = False
        #: Deadline of a drain; 0: none.
        self.drain_ms = 0
        #: Slots that an operator put out of use, whatever it has; whether what runs there is to
        #: stop.
        self.disabled: tuple[int, ...] = ()
        self.stops_disabled = False
        #: Its enrolment does not cover it (derived, see enrolment.py).
        self.barred = False
        #: When its enrolment was revoked while it was up; 0: it was not.
        self.revoked_ms = 0
        #: When the node was last heard of, once silence was observed; 0: it is heard.
        self.silent_ms = 0
        #: A join that waits for the old incarnation to be declared lost.
        self.pending: NodeJoinedV1 | None = None
        #: Replicas placed here that are not closed.
        self.open: dict[tuple[str, int], Task] = {}
        self.hash = 0

    @property
    def usable(self) -> bool:
        """Whether new tasks may be placed here."""
        return self.state is NodeState.UP and not self.cordoned and not self.barred

    @property
    def runs_images(self) -> bool:
        """Whether its agent runs containers."""
        return ExecutorKind.CONTAINER in self.executors

    @property
    def out_of_use(self) -> tuple[int, ...]:
        """Which of the slots that it has are disabled."""
        return tuple(slot for slot in self.disabled if slot < self.gpus)

    @property
    def timeout_s(self) -> int:
        """How long it may be silent, or hold what it was told to let go: what its pool says, but
        never less than what it runs was told.

        A pool's timeout may have been shortened after its agents were told a fence.
        """
        config = self.pool.config if self.pool is not None else None
        timeout_s = config.node_timeout_s if config is not None else DEFAULT_NODE_TIMEOUT_S
        fence_s = max((task.run.fence_s for task in self.open.values() if task.run), default=0)
        return max(timeout_s, least_timeout_s(fence_s)) if fence_s else timeout_s

    @property
    def revoked(self) -> bool:
        """Whether it is here still, and trusted no more."""
        return self.revoked_ms > 0 and self.state is NodeState.UP

    @property
    def forfeit_ms(self) -> int | None:
        """When it is lost for being revoked, whatever it still holds; None: never by time alone.

        What has a fence may run for as long as heartbeats are acknowledged, which a revocation does
        not end: such a node is lost when it has let go, or by its silence.
        """
        if not self.revoked:
            return None
        if not self.open:
            return self.revoked_ms
        if any(task.run.fence_s for task in self.open.values() if task.run):
            return None
        return self.revoked_ms + self.timeout_s * 1000

    @property
    def empty_ms(self) -> int:
        """When it is to be empty; 0: it need not be."""
        return self.revoked_ms or self.drain_ms

    def facts(self) -> tuple[object, ...]:
        """All that a digest covers."""
        return (
            *("node", self.name, self.ordinal, int(self.state), self.pool and self.pool.name),
            *(self.incarnation, self.gpus, self.cpu_milli, self.memory_mib, self.node_type),
            *(self.cordoned, self.drain_ms, self.silent_ms, self.free.slots, self.free.cpu_milli),
            *(self.free.memory_mib, self.pending and self.pending.incarnation, self.dead),
            *(self.barred, self.revoked_ms),
            # Only where there are any: digests are in the log.
            *((self.disabled, self.stops_disabled) if self.disabled else ()),
            *(("executors", self.executors) if self.executors != (ExecutorKind.PROCESS,) else ()),
        )


class Enrolled:
    """What a node may claim when it joins; no `config`: it was revoked."""

    __slots__ = ("config", "hash", "name", "revision")

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: Enrolment | None = None
        self.revision = 0
        self.hash = 0

    def facts(self) -> tuple[object, ...]:
        """All that a digest covers; what was enrolled follows from name and revision."""
        return ("enrolled", self.name, self.revision, self.config is None)


class Department:
    """A level of quota above projects."""

    __slots__ = ("config", "hash", "limited", "name", "revision", "used_milli")

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: DepartmentConfig | None = None
        self.revision = 0
        #: gpu_milli held, by pool.
        self.used_milli: dict[str, int] = {}
        #: Waiting groups held back by a limit of the department, its projects or their jobs.
        self.limited: dict[tuple[Pool, Group], None] = {}
        self.hash = 0

    def facts(self) -> tuple[object, ...]:
        """All that a digest covers."""
        return ("department", self.name, self.revision, _held(self.used_milli))


class Project:
    """A level of quota below a department."""

    __slots__ = ("config", "department", "hash", "name", "revision", "used_milli")

    def __init__(self, name: str, department: Department) -> None:
        self.name = name
        self.department = department
        self.config: ProjectConfig | None = None
        self.revision = 0
        #: gpu_milli held, by pool.
        self.used_milli: dict[str, int] = {}
        self.hash = 0

    def facts(self) -> tuple[object, ...]:
        """All that a digest covers."""
        return (
            *("project", self.name, self.department.name, self.revision),
            _held(self.used_milli),
        )


def _held(used_milli: dict[str, int]) -> list[tuple[str, int]]:
    # A pool of which nothing is held is the same as one of which nothing ever was.
    return sorted((pool, milli) for pool, milli in used_milli.items() if milli)


@plain_members
class Due(IntEnum):
    """What a deadline is about."""

    START = 0
    TIME_LIMIT = 1
    HOLD = 2
    DRAIN = 3
    PROTECTION = 4


def class_of(waits: dict[str, tuple[Wait, int, int]], pools: tuple[str, ...]) -> WaitClass | None:
    """never only when it is in all pools; None while some pool has not considered the group."""
    classes = [waits[name][0].code.wait_class for name in pools if name in waits]
    if len(classes) < len(pools):
        return None
    return max(classes, key=[WaitClass.NEVER, WaitClass.HELD, WaitClass.NOT_NOW].index)
