"""`requests`: requests of users, as the gateway recorded them. Quota judges each once."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.fields import (
    CLOSED,
    MAX_NAMES,
    MAX_PREFIXES,
    MAX_REPLICAS,
    MAX_SLOTS,
    MAX_TASKS,
    Address,
    CheckpointPrefix,
    CheckpointUri,
    Count,
    Digest,
    JobId,
    Labels,
    LogId,
    Millis,
    Name,
    Names,
    PolicyOptions,
    Positive,
    PrincipalId,
    Priority,
    Rank,
    Seconds,
    SlotSet,
)
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.topics import REQUESTS

TaskIndex = Annotated[int, Field(ge=0, lt=MAX_TASKS)]


class Kind(StrEnum):
    """The purpose of a job; by default only training is preemptible."""

    TRAINING = "training"
    INTERACTIVE = "interactive"
    INFERENCE = "inference"


class Role(StrEnum):
    """The type of an interactive job."""

    NOTEBOOK = "notebook"
    SHELL = "shell"
    TENSORBOARD = "tensorboard"
    COMMAND = "command"


class Unschedulable(StrEnum):
    """The treatment of a task that can never fit."""

    WAIT = "wait"
    FAIL = "fail"


class Layout(StrEnum):
    """How a task is placed: as the replicas that it names, or on whole nodes.

    `whole_nodes`: the GPUs of its resources are those of the whole task. A task that no single node
    can hold is placed on several idle nodes, each with the same number of GPUs, one replica per
    node.
    """

    REPLICAS = "replicas"
    WHOLE_NODES = "whole_nodes"


class ExitZero(StrEnum):
    """The meaning of exit code 0 after a stop request: state saved, to be resumed, or finished."""

    STOPPED = "stopped"
    FINISHED = "finished"


class Fence(StrEnum):
    """The action of an agent that cannot reach the log: none, or to kill its tasks."""

    NONE = "none"
    KILL = "kill"


class PoolOrder(StrEnum):
    """The order for a task that lists later pools too and does not fit in this one now.

    `idle_first`: idle capacity of a later pool; then slots of this pool that are being released,
    and victims in it. `strict`: a later pool comes last.
    """

    IDLE_FIRST = "idle_first"
    STRICT = "strict"


class GpuPlacement(StrEnum):
    """Which of a node's GPUs a share gets: `packed`, the fullest that holds it, or `spread`, the
    emptiest.
    """

    PACKED = "packed"
    SPREAD = "spread"


class LogMode(StrEnum):
    """How the log is stored (embedded logs are unsigned), or that its content was simulated."""

    EMBEDDED = "embedded"
    KAFKA = "kafka"
    SIMULATED = "simulated"


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class DetailsRef:
    """A position in `details`, and the digest of that (salted) record's value."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    partition: Count = 0
    offset: Count
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The label whose value must (or should) be the same on all nodes of a gang."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    required: Name | None = None
    preferred: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedSpec:
    """The request of a job; for None the defaults of project, pool and cell apply."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Kind = Kind.TRAINING
    role: Role | None = None
    preemptible: bool | None = None
    priority: Priority | None = None
    weight: Positive | None = None
    max_slots_milli: Positive | None = None
    pools: Names = ()
    node_types: Names = ()
    topology: Topology | None = None
    resources: Resources = field(default_factory=Resources)
    replicas_min: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    replicas_max: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)] = 1
    max_concurrent: Annotated[int, Field(ge=1, le=MAX_TASKS)] | None = None
    min_runtime_s: Seconds | None = None
    time_limit_s: Seconds | None = None
    max_restarts: Annotated[int, Field(ge=0, le=1000)] | None = None
    unschedulable: Unschedulable | None = None
    grace_s: Seconds | None = None
    exit_zero: ExitZero | None = None
    checkpoint_uri: CheckpointUri | None = None
    layout: Layout = Layout.REPLICAS
    avoid_nodes: Names = ()
    runtime_estimate_s: Seconds | None = None
    #: `run.image` is set, so that only nodes that run containers can take the task.
    image: bool = False

    def __post_init__(self) -> None:
        if self.layout is Layout.WHOLE_NODES:
            if (self.replicas_min, self.replicas_max) != (1, 1):
                raise ValueError("a task on whole nodes has one replica per node")
            if self.resources.gpu_milli not in (0, 1000) or self.resources.gpu_memory_mib:
                raise ValueError("a task on whole nodes needs whole GPUs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """A policy by name and version; `options` are parsed by the policy's own closed model."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    name: Name
    version: Annotated[int, Field(ge=1, le=999)] = 1
    options: PolicyOptions = field(default_factory=dict)


#: The rank of queues that have no other.
DEFAULT_RANK: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """How a pool is scheduled.

    `placement` names a placement strategy (best_fit, worst_fit). A node silent for `node_timeout_s`
    is lost; an attempt that has not started `start_timeout_s` after its allocation is revoked.
    `fence: kill` needs a `node_timeout_s` that is long enough for the kill before the loss.
    `unequal_gangs`: tasks on whole nodes may get nodes of unequal size. `gpuless_per_node`: the
    most tasks without GPUs on a node at once, up to 2,048 (None: 512). `seed`: the seed of policies
    and placements that use random numbers.
    `pool_order`: the order of a task that lists this pool before others. `gpu_placement`: which of
    a node's GPUs a share gets (None: `placement` chooses).
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    policy: PolicyRef
    placement: Name = "best_fit"
    default_priority: Priority = 42
    node_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = 60
    start_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = 300
    max_grace_s: Annotated[int, Field(ge=0, le=86_400)] = 3600
    fence: Fence = Fence.NONE
    unequal_gangs: bool = False
    gpuless_per_node: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    seed: Count = 0
    pool_order: PoolOrder = PoolOrder.IDLE_FIRST
    gpu_placement: GpuPlacement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The quota of a project or department in one pool.

    Limits: None is no limit. What is deserved: of GPUs, None is nothing, unless
    `deserved_unlimited`; of CPUs and memory, None is unlimited. `over_quota`: whether its tasks may
    hold more than is deserved. `over_quota_weight`: its part of what is left, relative to its
    siblings.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    deserved_milli: Count | None = None
    limit_milli: Count | None = None
    over_quota_weight: Count = 1
    deserved_unlimited: bool = False
    deserved_cpu_milli: Count | None = None
    deserved_memory_mib: Count | None = None
    limit_cpu_milli: Count | None = None
    limit_memory_mib: Count | None = None
    over_quota: bool = True


#: A limit on tasks that have not ended.
MaxUnfinished = Annotated[int, Field(ge=1, le=100_000_000)]
Quotas = Annotated[dict[Name, Quota], Field(max_length=MAX_NAMES)]
CheckpointPrefixes = Annotated[tuple[CheckpointPrefix, ...], Field(max_length=MAX_PREFIXES)]
KindNodeTypes = Annotated[dict[Kind, Names], Field(max_length=3)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartmentConfig:
    """A department: the resources that its projects may use together.

    `parent`: the department that it is a part of. Under the policy `quota`: `rank`, siblings with a
    higher one get what is left first; `preempt_min_runtime_s`, `reclaim_min_runtime_s`: for how
    long its tasks are neither preempted for the same project nor reclaimed for another one (None:
    as in the parent, else 0).
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    weight: Positive = 1
    quotas: Quotas = field(default_factory=dict)
    parent: Name | None = None
    rank: Rank = DEFAULT_RANK
    preempt_min_runtime_s: Seconds | None = None
    reclaim_min_runtime_s: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectConfig:
    """A project: what its jobs may request and use.

    Empty `pools`, `kinds` or `node_types` allow all. `best_priority` is the lowest number (the
    highest priority) that its jobs may request. `limit_milli` limits its running GPUs in all pools.
    `default_pools`: the pools of jobs that name none (empty: those of the cell that it may use).
    `kind_node_types`: the node types that jobs of a kind may use (empty: all); kinds that it does
    not name follow `node_types`.
    `rank`, `preempt_min_runtime_s`, `reclaim_min_runtime_s`: see `DepartmentConfig`.
    `checkpoint_prefixes`: the URIs of its checkpoints are within one of them (empty: any URI).
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    department: Name
    weight: Positive = 1
    pools: Names = ()
    node_types: Names = ()
    kinds: Annotated[tuple[Kind, ...], Field(max_length=3)] = ()
    best_priority: Priority = 1
    default_priority: Priority | None = None
    limit_milli: Count | None = None
    max_min_runtime_s: Seconds = 86_400
    max_pending: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000_000
    quotas: Quotas = field(default_factory=dict)
    max_unfinished: MaxUnfinished | None = None
    rank: Rank = DEFAULT_RANK
    preempt_min_runtime_s: Seconds | None = None
    reclaim_min_runtime_s: Seconds | None = None
    default_pools: Names = ()
    kind_node_types: KindNodeTypes = field(default_factory=dict)
    checkpoint_prefixes: CheckpointPrefixes = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellConfig:
    """The configuration of a whole cell.

    `project_tasks`, `user_tasks`: the most tasks of one project, and of one user, that have not
    ended. `tasks_of`: other limits of single users; a project's own is `max_unfinished`.
    `default_pools`: the pools of jobs that name none, in projects that name none.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    project_tasks: MaxUnfinished = 200_000
    user_tasks: MaxUnfinished = 100_000
    tasks_of: Annotated[dict[PrincipalId, MaxUnfinished], Field(max_length=1_000)] = field(
        default_factory=dict
    )
    default_pools: Names = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """The limits of a node that joins: this pool, at most so many GPUs, only these labels.

    `node_type` and `address`: with None the node chooses. `keys`: digests (SHA-256 of the public
    key in DER) of the keys that the node may sign with; two, so that a key can be replaced.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    pool: Name
    gpus: Annotated[int, Field(ge=0, le=MAX_SLOTS)]
    node_type: Name | None = None
    labels: Labels = field(default_factory=dict)
    address: Address | None = None
    keys: Annotated[tuple[Digest, ...], Field(max_length=2)] = ()


@event(REQUESTS, name="LogCreated")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogCreatedV1(Event):
    """The first record of a log: its identity, how it is stored, and its format (`LOG_FORMAT`)."""

    log_id: LogId
    mode: LogMode
    cell: Name
    format: Positive


@event(REQUESTS, name="TaskSubmitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSubmittedV1(Event):
    """A job was submitted: `spec.tasks` tasks that differ only by their index.

    `job_id` is derived from project, user and idempotency key; `body_digest` distinguishes a repeat
    from a conflict.
    """

    job_id: JobId
    project: Name
    spec: SubmittedSpec
    body_digest: Digest
    details: DetailsRef


@event(REQUESTS, name="CancelRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequestedV1(Event):
    """A request to end a job or one task of it. `immediate`: without a grace period."""

    job_id: JobId
    index: TaskIndex | None = None
    immediate: bool = False
    note: DetailsRef | None = None


@event(REQUESTS, name="PauseRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequestedV1(Event):
    """A request to stop a job or one task of it with a checkpoint, until it is resumed."""

    job_id: JobId
    index: TaskIndex | None = None
    note: DetailsRef | None = None


@event(REQUESTS, name="ResumeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequestedV1(Event):
    """A request to let a paused job or one task of it run again."""

    job_id: JobId
    index: TaskIndex | None = None


@event(REQUESTS, name="PriorityChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChangeRequestedV1(Event):
    """A request to change a job's priority; `if_revision` guards against concurrent changes."""

    job_id: JobId
    priority: Priority
    if_revision: Count | None = None


@event(REQUESTS, name="WeightChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChangeRequestedV1(Event):
    """A request to change a job's weight."""

    job_id: JobId
    weight: Positive
    if_revision: Count | None = None


@event(REQUESTS, name="MaxSlotsChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSlotsChangeRequestedV1(Event):
    """A request to change the limit of a job's running GPUs; None removes it."""

    job_id: JobId
    max_slots_milli: Positive | None
    if_revision: Count | None = None


@event(REQUESTS, name="CellChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellChangeRequestedV1(Event):
    """A request to change the cell's configuration; revision 0: it was never changed."""

    config: CellConfig
    if_revision: Count | None = None


@event(REQUESTS, name="PoolChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChangeRequestedV1(Event):
    """A request to create a pool or change its configuration; revision 0: it must not exist."""

    pool: Name
    config: PoolConfig
    if_revision: Count | None = None


@event(REQUESTS, name="PoolDeletionRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDeletionRequestedV1(Event):
    """A request to delete a pool; refused while anything refers to it."""

    pool: Name
    if_revision: Count | None = None


@event(REQUESTS, name="DepartmentChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class DepartmentChangeRequestedV1(Event):
    """A request to create a department or change its configuration."""

    department: Name
    config: DepartmentConfig
    if_revision: Count | None = None


@event(REQUESTS, name="DepartmentDeletionRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class DepartmentDeletionRequestedV1(Event):
    """A request to delete a department; refused while it has projects or is a parent."""

    department: Name
    if_revision: Count | None = None


@event(REQUESTS, name="ProjectChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectChangeRequestedV1(Event):
    """A request to create a project or change its configuration."""

    project: Name
    config: ProjectConfig
    if_revision: Count | None = None


@event(REQUESTS, name="ProjectDeletionRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectDeletionRequestedV1(Event):
    """A request to delete a project; refused while it has jobs that have not ended."""

    project: Name
    if_revision: Count | None = None


@event(REQUESTS, name="NodeCordonRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordonRequestedV1(Event):
    """A request to start nothing new on a node."""

    node: Name
    note: DetailsRef | None = None


@event(REQUESTS, name="NodeUncordonRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordonRequestedV1(Event):
    """A request to let a cordoned or draining node take tasks again."""

    node: Name


@event(REQUESTS, name="NodeDrainRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainRequestedV1(Event):
    """A request to empty a node: preemptible tasks stop now with grace, others at the deadline."""

    node: Name
    deadline_at_ms: Millis
    note: DetailsRef | None = None


@event(REQUESTS, name="NodeSlotsChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlotsChangeRequestedV1(Event):
    """A request to start nothing new on exactly these slots of a node.

    `stop`: stop the tasks on these slots, with grace; otherwise they continue to run.
    """

    node: Name
    disabled: SlotSet = ()
    stop: bool = False
    note: DetailsRef | None = None


@event(REQUESTS, name="NodeEnrolRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnrolRequestedV1(Event):
    """A request to let a node join within these limits; revision 0: it must not be enrolled."""

    node: Name
    enrolment: Enrolment
    if_revision: Count | None = None


@event(REQUESTS, name="NodeRevokeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRevokeRequestedV1(Event):
    """A request to revoke a node's enrollment: its tasks are killed, and it cannot join again."""

    node: Name
    if_revision: Count | None = None


@event(REQUESTS, name="RulesRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class RulesRequestedV1(Event):
    """A request to switch the cell to this version of the rules, after an upgrade."""

    rules: Positive


@event(REQUESTS, name="EraseRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRequestedV1(Event):
    """A request to erase the details of a job that has ended.

    `tombstone` is the offset in `details` of the tombstone of the job's key, which was written
    before this request, after the tombstones of notes about the job: an accepted request is
    complete, whichever process fails in between.
    """

    job_id: JobId
    partition: Count = 0
    tombstone: Count
