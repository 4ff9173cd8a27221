"""`requests`: what was asked for, as the gateway recorded it. Quota judges each once."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from yardmaster_schemas.construct import LATER, writes_slots
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.fields import (
    CLOSED,
    MAX_NAMES,
    MAX_REPLICAS,
    MAX_SLOTS,
    MAX_TASKS,
    Address,
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
    Priority,
    Seconds,
    SlotSet,
)
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.topics import REQUESTS

TaskIndex = Annotated[int, Field(ge=0, lt=MAX_TASKS)]


class Kind(StrEnum):
    """What a job is for; training alone is preemptible unless it says otherwise."""

    TRAINING = "training"
    INTERACTIVE = "interactive"
    INFERENCE = "inference"


class Role(StrEnum):
    """What an interactive job is."""

    NOTEBOOK = "notebook"
    SHELL = "shell"
    TENSORBOARD = "tensorboard"
    COMMAND = "command"


class Unschedulable(StrEnum):
    """What becomes of a task that no node could ever hold."""

    WAIT = "wait"
    FAIL = "fail"


class Layout(StrEnum):
    """How a task lies on nodes: as the replicas it says, or on one node, else as equal parts.

    `whole_nodes`: its resources' GPUs are all of the task's. What no single node holds is laid over
    several idle nodes, each with the same number of GPUs, one replica a node.
    """

    REPLICAS = "replicas"
    WHOLE_NODES = "whole_nodes"


class ExitZero(StrEnum):
    """What exit code 0 means after a stop was asked for: saved, to be resumed, or finished."""

    STOPPED = "stopped"
    FINISHED = "finished"


class Fence(StrEnum):
    """What an agent does when it cannot reach the log: nothing, or kill what it runs."""

    NONE = "none"
    KILL = "kill"


class LogMode(StrEnum):
    """How the log is kept, embedded logs unsigned; or that what is in it was simulated."""

    EMBEDDED = "embedded"
    KAFKA = "kafka"
    SIMULATED = "simulated"


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class DetailsRef:
    """Where in `details` lies what no decision reads; digest of that (salted) record's value."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    partition: Count = 0
    offset: Count
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Label of the nodes that a gang must (or should) share a value of."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    required: Name | None = None
    preferred: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedSpec:
    """What a job asks for; None is left to the defaults of project, pool and cell."""

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
    #: Whether `run.image` is set, so that only nodes that run containers will do.
    image: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        if self.layout is Layout.WHOLE_NODES:
            if (self.replicas_min, self.replicas_max) != (1, 1):
                raise ValueError("a task on whole nodes has as many replicas as it gets nodes")
            if self.resources.gpu_milli not in (0, 1000):
                raise ValueError("a task on whole nodes asks for whole GPUs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """A policy by name and version; `options` are parsed by the policy's own closed model."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    name: Name
    version: Annotated[int, Field(ge=1, le=999)] = 1
    options: PolicyOptions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """How a pool is scheduled.

    `placement` names a placement strategy (best_fit, worst_fit). A node silent for `node_timeout_s`
    is lost; an attempt that has not started `start_timeout_s` after its allocation is revoked.
    `fence: kill` takes a `node_timeout_s` that leaves room for the kill before the loss.
    `unequal_gangs`: tasks on whole nodes may get nodes of unequal size. `gpuless_per_node`: the
    most tasks without GPUs on a node at once, up to 2,048 (None: 512). `seed`: what policies and
    placements that draw lots draw from.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One pool's share of a project or department; None: no limit, nothing deserved."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    deserved_milli: Count | None = None
    limit_milli: Count | None = None
    over_quota_weight: Count = 1


Quotas = Annotated[dict[Name, Quota], Field(max_length=MAX_NAMES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartmentConfig:
    """A department: what its projects may use together."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    weight: Positive = 1
    quotas: Quotas = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectConfig:
    """A project: what its jobs may ask for and use.

    Empty `pools`, `kinds` or `node_types` allow all. `best_priority` is the lowest (most urgent)
    number its jobs may ask for. `limit_milli` bounds its running GPUs over all pools.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """What a node may claim when it joins: this pool, at most so many GPUs, no labels but these.

    `node_type` and `address`: None leaves them to the node. `keys`: digests (SHA-256 of the public
    key in DER) of the keys that it may sign with; two, so that one can follow the other.
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
    """The first record of a log: its identity and how it is kept."""

    log_id: LogId
    mode: LogMode
    cell: Name


@event(REQUESTS, name="TaskSubmitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSubmittedV1(Event):
    """A job was submitted: `spec.tasks` tasks that differ by their index alone.

    `job_id` is made from project, user and idempotency key; `body_digest` tells a repeat from a
    clash.
    """

    job_id: JobId
    project: Name
    spec: SubmittedSpec
    body_digest: Digest
    details: DetailsRef


@event(REQUESTS, name="CancelRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequestedV1(Event):
    """A job, or one task of it, should end. `immediate`: without a grace period."""

    job_id: JobId
    index: TaskIndex | None = None
    immediate: bool = False
    note: DetailsRef | None = None


@event(REQUESTS, name="PauseRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequestedV1(Event):
    """A job, or one task of it, should stop with a checkpoint and not start again until resumed."""

    job_id: JobId
    index: TaskIndex | None = None
    note: DetailsRef | None = None


@event(REQUESTS, name="ResumeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequestedV1(Event):
    """A paused job, or one task of it, may run again."""

    job_id: JobId
    index: TaskIndex | None = None


@event(REQUESTS, name="PriorityChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChangeRequestedV1(Event):
    """A job should have another priority; `if_revision` guards against a change in between."""

    job_id: JobId
    priority: Priority
    if_revision: Count | None = None


@event(REQUESTS, name="WeightChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChangeRequestedV1(Event):
    """A job should have another weight."""

    job_id: JobId
    weight: Positive
    if_revision: Count | None = None


@event(REQUESTS, name="MaxSlotsChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSlotsChangeRequestedV1(Event):
    """A job should have another bound on its running GPUs; None lifts it."""

    job_id: JobId
    max_slots_milli: Positive | None
    if_revision: Count | None = None


@event(REQUESTS, name="PoolChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChangeRequestedV1(Event):
    """A pool should be created or configured anew; revision 0 stands for "must not exist"."""

    pool: Name
    config: PoolConfig
    if_revision: Count | None = None


@event(REQUESTS, name="PoolDeletionRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDeletionRequestedV1(Event):
    """A pool should go; refused while anything names it."""

    pool: Name
    if_revision: Count | None = None


@event(REQUESTS, name="DepartmentChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class DepartmentChangeRequestedV1(Event):
    """A department should be created or configured anew."""

    department: Name
    config: DepartmentConfig
    if_revision: Count | None = None


@event(REQUESTS, name="DepartmentDeletionRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class DepartmentDeletionRequestedV1(Event):
    """A department should go; refused while it has projects."""

    department: Name
    if_revision: Count | None = None


@event(REQUESTS, name="ProjectChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectChangeRequestedV1(Event):
    """A project should be created or configured anew."""

    project: Name
    config: ProjectConfig
    if_revision: Count | None = None


@event(REQUESTS, name="ProjectDeletionRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectDeletionRequestedV1(Event):
    """A project should go; refused while it has jobs that have not ended."""

    project: Name
    if_revision: Count | None = None


@event(REQUESTS, name="NodeCordonRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordonRequestedV1(Event):
    """Nothing new should start on a node."""

    node: Name
    note: DetailsRef | None = None


@event(REQUESTS, name="NodeUncordonRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordonRequestedV1(Event):
    """A cordoned or draining node should take tasks again."""

    node: Name


@event(REQUESTS, name="NodeDrainRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainRequestedV1(Event):
    """A node should be emptied: preemptible tasks stop with grace now, the rest at the deadline."""

    node: Name
    deadline_at_ms: Millis
    note: DetailsRef | None = None


@event(REQUESTS, name="NodeSlotsChangeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlotsChangeRequestedV1(Event):
    """Nothing new should start on these slots of a node, and on all its others it may.

    `stop`: what runs on them should be stopped, with grace; else it runs on.
    """

    node: Name
    disabled: SlotSet = ()
    stop: bool = False
    note: DetailsRef | None = None


@event(REQUESTS, name="NodeEnrolRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnrolRequestedV1(Event):
    """A node should be let join, within these bounds; revision 0 stands for "not enrolled"."""

    node: Name
    enrolment: Enrolment
    if_revision: Count | None = None


@event(REQUESTS, name="NodeRevokeRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRevokeRequestedV1(Event):
    """A node should not be trusted any more: nothing is left to it, and it may not join again."""

    node: Name
    if_revision: Count | None = None


@event(REQUESTS, name="EraseRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRequestedV1(Event):
    """The details of a job that has ended should be erased.

    `tombstone` is where in `details` the tombstone of the job's key lies already (those of notes
    about the job lie before it): what is accepted is done, whoever dies in between.
    """

    job_id: JobId
    partition: Count = 0
    tombstone: Count
