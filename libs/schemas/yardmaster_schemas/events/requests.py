"""`requests`: requests of users, as the gateway recorded them. Quota judges each once."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from yardmaster_schemas.about import about
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
    GitHost,
    GitHosts,
    JobId,
    Labels,
    LogId,
    Millis,
    MountGrants,
    Name,
    Names,
    PolicyOptions,
    Positive,
    PrincipalId,
    Priority,
    Rank,
    Seconds,
    SlotSet,
    UserGrants,
)
from yardmaster_schemas.image_names import ImagePrefix, ImageRepository
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.run_as import RunAs
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
    """Which of a node's GPUs a fraction gets: `packed`, the fullest that holds it, or `spread`, the
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
    #: The name of `run.image` without tag and digest, for the allow-lists. With it, only nodes that
    #: run containers can take the task.
    image: ImageRepository | None = None
    #: The folders of nodes that the container mounts.
    mounts: MountGrants = ()
    run_as: RunAs | None = None
    #: The host of the repository of `run.git`.
    git_host: GitHost | None = None

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

    name: Name = field(metadata=about("The name of the policy.", "fair_share"))
    version: Annotated[int, Field(ge=1, le=999)] = field(
        default=1, metadata=about("The version of its meaning.", 1)
    )
    options: PolicyOptions = field(
        default_factory=dict,
        metadata=about(
            "The options of the policy; an unknown one is refused.", {"among": "project"}
        ),
    )


ImagePrefixes = Annotated[tuple[ImagePrefix, ...], Field(max_length=MAX_NAMES)]

#: The rank of queues that have no other.
DEFAULT_RANK: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """How a pool is scheduled."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    policy: PolicyRef = field(metadata=about("The policy of the pool.", {"name": "priority"}))
    placement: Name = field(
        default="best_fit",
        metadata=about("The name of the placement, which chooses nodes and GPUs.", "worst_fit"),
    )
    default_priority: Priority = field(
        default=42,
        metadata=about("The priority of jobs for which neither job nor project names one.", 42),
    )
    node_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = field(
        default=60, metadata=about("A node that is silent for so long is lost.", 60)
    )
    start_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = field(
        default=300,
        metadata=about("An attempt that has not started after so long is revoked.", 300),
    )
    max_grace_s: Annotated[int, Field(ge=0, le=86_400)] = field(
        default=3600, metadata=about("The longest grace period that a job may have.", 3600)
    )
    fence: Fence = field(
        default=Fence.NONE,
        metadata=about(
            "`kill`: an agent that cannot reach the log kills its tasks before their node is lost. "
            "It needs a `node_timeout_s` of at least 11 s.",
            "kill",
        ),
    )
    unequal_gangs: bool = field(
        default=False,
        metadata=about("`replicas: auto` may use nodes of unequal size.", True),
    )
    gpuless_per_node: Annotated[int, Field(ge=0, le=1_000_000)] | None = field(
        default=None,
        metadata=about(
            "The most tasks without GPUs on a node at once, up to 2,048.", 64, none="512"
        ),
    )
    seed: Count = field(
        default=0, metadata=about("The seed of policies and placements that draw at random.", 7)
    )
    pool_order: PoolOrder = field(
        default=PoolOrder.IDLE_FIRST,
        metadata=about(
            "For tasks that list this pool before others. `idle_first`: idle capacity of a later "
            "pool comes before victims in this one. `strict`: victims in this one come first.",
            "strict",
        ),
    )
    gpu_placement: GpuPlacement | None = field(
        default=None,
        metadata=about(
            "Which of a node's GPUs a fraction gets. `packed`: the fullest that holds it. "
            "`spread`: the emptiest.",
            "spread",
            none="the placement chooses",
        ),
    )
    images: ImagePrefixes = field(
        default=(),
        metadata=about(
            "The registries, or beginnings of names, of the images that jobs of this pool may use; "
            "empty: all that their projects may use.",
            ["registry.example.org/team/"],
        ),
    )
    mounts: MountGrants = field(
        default=(),
        metadata=about(
            "The folders of its nodes that jobs of this pool may mount, with `:rw` also to write; "
            "empty: all that their projects may mount.",
            ["datasets", "scratch:rw"],
        ),
    )
    users: UserGrants = field(
        default=(),
        metadata=about(
            "The users that jobs of this pool may run as (`run.run_as`), as UID:GID; empty: all "
            "that their projects may run as.",
            ["1500:1500"],
        ),
    )
    git_hosts: GitHosts = field(
        default=(),
        metadata=about(
            "The hosts of the git repositories that jobs of this pool may use; empty: all that "
            "their projects may use.",
            ["git.example.org"],
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The quota of a project or department in one pool."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    deserved_milli: Count | None = field(
        default=None,
        metadata=about(
            "The {gpus} that it deserves in the pool (policy `quota`).", 4000, none="none"
        ),
    )
    limit_milli: Count | None = field(
        default=None,
        metadata=about("The most {gpus} held at once in the pool.", 8000, none="no limit"),
    )
    over_quota_weight: Count = field(
        default=1,
        metadata=about(
            "Its part of what siblings of its rank leave over, relative to them; 0: none (policy "
            "`quota`).",
            2,
        ),
    )
    deserved_unlimited: bool = field(
        default=False,
        metadata=about("It deserves all GPUs of the pool; then omit `deserved_milli`.", False),
    )
    deserved_cpu_milli: Count | None = field(
        default=None,
        metadata=about("The {cpus} that it deserves (policy `quota`).", 64_000, none="unlimited"),
    )
    deserved_memory_mib: Count | None = field(
        default=None,
        metadata=about(
            "The {memory} that it deserves (policy `quota`).", 524_288, none="unlimited"
        ),
    )
    limit_cpu_milli: Count | None = field(
        default=None,
        metadata=about("The most {cpus} held at once (policy `quota`).", 128_000, none="no limit"),
    )
    limit_memory_mib: Count | None = field(
        default=None,
        metadata=about(
            "The most {memory} held at once (policy `quota`).", 1_048_576, none="no limit"
        ),
    )
    over_quota: bool = field(
        default=True,
        metadata=about("Whether its tasks may hold more than it deserves (policy `quota`).", True),
    )


#: A limit on tasks that have not ended.
MaxUnfinished = Annotated[int, Field(ge=1, le=100_000_000)]
Quotas = Annotated[dict[Name, Quota], Field(max_length=MAX_NAMES)]
CheckpointPrefixes = Annotated[tuple[CheckpointPrefix, ...], Field(max_length=MAX_PREFIXES)]
KindNodeTypes = Annotated[dict[Kind, Names], Field(max_length=3)]


_QUOTAS: Final = about(
    "The quota in each pool, by the name of the pool.", {"default": {"limit_milli": 8000}}
)
_RANK: Final = about(
    "Siblings with a higher rank get what is left over before the others (policy `quota`).", 200
)
_PREEMPT_MIN_RUNTIME: Final = about(
    "For {time} a task is not preempted for the same project (policy `quota`).",
    600,
    none="as in the department above, else 0",
)
_RECLAIM_MIN_RUNTIME: Final = about(
    "For {time} a task is not reclaimed for another project (policy `quota`).",
    1800,
    none="as in the department above, else 0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartmentConfig:
    """A department: the resources that its projects may use together."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    weight: Positive = field(default=1, metadata=about("Not supported: omit it.", 1))
    quotas: Quotas = field(default_factory=dict, metadata=_QUOTAS)
    parent: Name | None = field(
        default=None,
        metadata=about(
            "The department that it is a part of, in at most 8 levels.", "company", none="none"
        ),
    )
    rank: Rank = field(default=DEFAULT_RANK, metadata=_RANK)
    preempt_min_runtime_s: Seconds | None = field(default=None, metadata=_PREEMPT_MIN_RUNTIME)
    reclaim_min_runtime_s: Seconds | None = field(default=None, metadata=_RECLAIM_MIN_RUNTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectConfig:
    """A project: what its jobs may request and use."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    department: Name = field(metadata=about("The department of the project.", "research"))
    weight: Positive = field(
        default=1,
        metadata=about("The weight of the project in a fair share among projects.", 2),
    )
    pools: Names = field(
        default=(),
        metadata=about("The pools that it may use, in order of preference; empty: all.", ["h100"]),
    )
    node_types: Names = field(
        default=(), metadata=about("The types of node that it may use; empty: all.", ["sxm"])
    )
    kinds: Annotated[tuple[Kind, ...], Field(max_length=3)] = field(
        default=(), metadata=about("The kinds of jobs that it may run; empty: all.", ["training"])
    )
    best_priority: Priority = field(
        default=1,
        metadata=about(
            "The smallest number, which is the highest priority, that its jobs may ask for.", 20
        ),
    )
    default_priority: Priority | None = field(
        default=None,
        metadata=about("The priority of its jobs that name none.", 50, none="that of the pool"),
    )
    limit_milli: Count | None = field(
        default=None,
        metadata=about("The most {gpus} held at once in all pools.", 8000, none="no limit"),
    )
    max_min_runtime_s: Seconds = field(
        default=86_400,
        metadata=about("The longest `min_runtime` that counts for its jobs.", 3600),
    )
    max_pending: Annotated[int, Field(ge=1, le=1_000_000)] = field(
        default=1_000_000,
        metadata=about("The maximum number of tasks of one job; a larger job is refused.", 10_000),
    )
    quotas: Quotas = field(default_factory=dict, metadata=_QUOTAS)
    max_unfinished: MaxUnfinished | None = field(
        default=None,
        metadata=about(
            "The most tasks of the project that have not ended.",
            50_000,
            none="the cell's `project_tasks`",
        ),
    )
    rank: Rank = field(default=DEFAULT_RANK, metadata=_RANK)
    preempt_min_runtime_s: Seconds | None = field(default=None, metadata=_PREEMPT_MIN_RUNTIME)
    reclaim_min_runtime_s: Seconds | None = field(default=None, metadata=_RECLAIM_MIN_RUNTIME)
    default_pools: Names = field(
        default=(),
        metadata=about(
            "The pools of its jobs that name none, in order of preference; empty: those of the "
            "cell's `default_pools` that it may use, else all that it may use.",
            ["h100"],
        ),
    )
    kind_node_types: KindNodeTypes = field(
        default_factory=dict,
        metadata=about(
            "The types of node that its jobs of a kind may use, by kind; empty: all. Other kinds "
            "follow `node_types`.",
            {"interactive": ["pcie"]},
        ),
    )
    checkpoint_prefixes: CheckpointPrefixes = field(
        default=(),
        metadata=about(
            "The URIs of checkpoints of its tasks are within one of these; empty: any URI.",
            ["s3://runs/nlp"],
        ),
    )
    images: ImagePrefixes = field(
        default=(),
        metadata=about(
            "The registries, or beginnings of names, of the images that its jobs may use; empty: "
            "all.",
            ["registry.example.org/team/"],
        ),
    )
    mounts: MountGrants = field(
        default=(),
        metadata=about(
            "The folders of nodes that its jobs may mount, with `:rw` also to write; empty: none.",
            ["datasets", "scratch:rw"],
        ),
    )
    users: UserGrants = field(
        default=(),
        metadata=about(
            "The users that its jobs may run as (`run.run_as`), as UID:GID; empty: none, so that "
            "each task has a user of its node.",
            ["1500:1500"],
        ),
    )
    git_hosts: GitHosts = field(
        default=(),
        metadata=about(
            "The hosts of the git repositories that its jobs may use; empty: all that nodes allow.",
            ["git.example.org"],
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellConfig:
    """The configuration of a whole cell."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    project_tasks: MaxUnfinished = field(
        default=200_000,
        metadata=about(
            "The most tasks of a project that have not ended; for projects without "
            "`max_unfinished`.",
            200_000,
        ),
    )
    user_tasks: MaxUnfinished = field(
        default=100_000,
        metadata=about("The most tasks of a user that have not ended, over all projects.", 100_000),
    )
    tasks_of: Annotated[dict[PrincipalId, MaxUnfinished], Field(max_length=1_000)] = field(
        default_factory=dict,
        metadata=about("Other limits of single users.", {"ada": 250_000}),
    )
    default_pools: Names = field(
        default=(),
        metadata=about(
            "The pools of jobs that name none, in projects without `default_pools`, in order of "
            "preference.",
            ["default"],
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrollment:
    """The limits of a node that joins."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    pool: Name = field(metadata=about("The pool that the node may join.", "h100"))
    gpus: Annotated[int, Field(ge=0, le=MAX_SLOTS)] = field(
        metadata=about("The most GPUs that it may have.", 8)
    )
    node_type: Name | None = field(
        default=None, metadata=about("The type that it must have.", "sxm", none="any")
    )
    labels: Labels = field(
        default_factory=dict, metadata=about("The labels that it may have.", {"rack": "r1"})
    )
    address: Address | None = field(
        default=None, metadata=about("The address that it must have.", "10.0.0.7", none="any")
    )
    keys: Annotated[tuple[Digest, ...], Field(max_length=2)] = field(
        default=(),
        metadata=about(
            "Digests of its public keys (SHA-256 of the key in DER, hex); two during a rotation.",
            ["0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"],
        ),
    )


#: The configurations, whose fields have their texts (`abouts`).
CONFIGURATIONS: Final = (
    *(PolicyRef, PoolConfig, Quota, DepartmentConfig, ProjectConfig, CellConfig, Enrollment),
)


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
    enrollment: Enrollment
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
