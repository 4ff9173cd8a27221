"""The bodies of the REST API, used by the gateway and the client.

Names are in `snake_case`. Integers have their unit in the name (`gpu_milli`, `memory_mib`,
`grace_s`); `*_at` is RFC 3339 in UTC. An unknown field of a request is refused. Later versions may
add fields to answers, so a client ignores unknown ones. `JobSpec`, the body of `POST /v1/jobs`, is
defined in `job_file`.
"""

from enum import StrEnum
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import QueueShare
from yardmaster_schemas.events.details import Run, StopSignal
from yardmaster_schemas.events.node_events import ExecutorKind, FractionLimits, Isolation
from yardmaster_schemas.events.requests import (
    CellConfig,
    DepartmentConfig,
    Enrollment,
    Kind,
    Layout,
    LogMode,
    PolicyRef,
    PoolConfig,
    ProjectConfig,
    Quota,
    SubmittedSpec,
)
from yardmaster_schemas.events.users import MAX_ROLES, RoleName, Scope
from yardmaster_schemas.fields import (
    MAX_SLOTS,
    Digest,
    JobId,
    Millis,
    Name,
    Numbers,
    Priority,
    SlotIndex,
    TaskId,
    UserName,
)
from yardmaster_schemas.job_file import Amount, JobSpec, parse_job
from yardmaster_schemas.job_folders import Closed
from yardmaster_schemas.phases import ENDED, Phase
from yardmaster_schemas.position import POSITION_PATTERN
from yardmaster_schemas.reasons import WaitClass
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.run_as import RunAs

__all__ = [
    "ENDED",
    "Accepted",
    "Answer",
    "ArtifactLeftOut",
    "ArtifactList",
    "Attempt",
    "CancelBody",
    "Cell",
    "CellConfig",
    "CheckpointShown",
    "Cycle",
    "CycleInput",
    "Department",
    "DepartmentConfig",
    "DropShown",
    "End",
    "Enrollment",
    "EventRecord",
    "Explain",
    "FieldError",
    "Job",
    "JobPatch",
    "JobSpec",
    "KeptArtifact",
    "List",
    "NewUser",
    "Node",
    "NodeEnrollment",
    "NodePatch",
    "NodeReservation",
    "NodeSlots",
    "NodeState",
    "Package",
    "PauseBody",
    "Phase",
    "Pool",
    "PoolConfig",
    "PoolUse",
    "PoolWait",
    "PreparingShown",
    "Problem",
    "Project",
    "ProjectConfig",
    "QueueShare",
    "QueueShown",
    "QueuedTasks",
    "Quota",
    "Refusal",
    "ReplicaShown",
    "Request",
    "RequestState",
    "RequestedNodeState",
    "ReservedShown",
    "ResumeBody",
    "RoleBinding",
    "RoleGiven",
    "RolesChange",
    "Rules",
    "RulesSwitch",
    "Shares",
    "Slot",
    "SlotsOfNode",
    "StopShown",
    "Submitted",
    "Task",
    "TaskGroup",
    "TaskGroups",
    "TokenIssued",
    "TokenOrder",
    "TokenShown",
    "Usage",
    "UsageBucket",
    "UsageBy",
    "UsageSum",
    "UserShown",
    "Version",
    "Wait",
    "WatchKind",
    "WhoAmI",
    "parse_job",
]

#: The lifetime of a token for which none is named: 90 days.
TOKEN_LIFETIME_S: Final = 90 * 86_400
PROBLEM_JSON: Final = "application/problem+json"
At = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
PositionText = Annotated[str, Field(pattern=POSITION_PATTERN, max_length=160)]
Reason = Annotated[str, Field(pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$", max_length=1024)]


class Answer(BaseModel):
    """An answer or a part of one; later versions may add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class NodeState(StrEnum):
    """Whether a node is present, and whether tasks may start on it."""

    #: The node is enrolled and has not joined yet.
    ENROLLED = "enrolled"
    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    #: The node was drained: no task holds its slots, and none starts until it is uncordoned.
    DRAINED = "drained"
    #: The node gets no new tasks: it offers more than it is enrolled for, or it is not enrolled
    #: while other nodes are.
    BARRED = "barred"
    #: The enrollment of the node was revoked; its tasks are killed.
    REVOKED = "revoked"
    #: The agent shut down normally.
    GONE = "gone"
    LOST = "lost"


class RequestedNodeState(StrEnum):
    """The state of a node that an operator can request."""

    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"


class WatchKind(StrEnum):
    """The kinds of objects that can be watched."""

    TASK = "task"
    JOB = "job"
    NODE = "node"
    POOL = "pool"
    PROJECT = "project"
    DEPARTMENT = "department"


# --- requests -----------------------------------------------------------------------------------


class CancelBody(Closed):
    """Cancel a job or task, with an optional reason; `immediate` skips the grace period."""

    reason: Reason | None = Field(
        default=None, description="Stored with the details of the job.", examples=["wrong data"]
    )
    immediate: bool = Field(
        default=False, description="Kill at once, without a grace period.", examples=[True]
    )


class PauseBody(Closed):
    """Pause a job or task, with an optional reason."""

    reason: Reason | None = Field(
        default=None,
        description="Stored with the details of the job.",
        examples=["another job has a deadline"],
    )


class ResumeBody(Closed):
    """Resume a job or task; it takes no reason."""


class JobPatch(Closed):
    """The fields of a job to change; `max_slots: null` removes the limit."""

    priority: Priority | None = Field(
        default=None, description="A smaller number is a higher priority.", examples=[10]
    )
    weight: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Weight of the job in a fair share among jobs.", examples=[2]
    )
    max_slots: Annotated[Amount, Field(gt=0)] | None = Field(
        default=None,
        description="The most GPUs that the tasks of the job hold at once; null removes the limit.",
        examples=[64],
    )

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    @model_validator(mode="after")
    def _something(self) -> "JobPatch":
        if not self.model_fields_set:
            raise ValueError("there is nothing to change; set priority, weight or max_slots")
        for name in ("priority", "weight"):
            if name in self.model_fields_set and getattr(self, name) is None:
                raise ValueError(f"{name} must not be null; omit it to keep the value")
        return self


class NodePatch(Closed):
    """The requested state of a node; `draining` requires `deadline_at` (RFC 3339)."""

    state: RequestedNodeState = Field(
        description="`cordoned`: nothing new starts on the node. `draining`: its preemptible tasks "
        "also stop now, and the others at `deadline_at`. `ready`: it is used again.",
        examples=["draining"],
    )
    reason: Reason | None = Field(
        default=None, description="Shown to all users.", examples=["new driver"]
    )
    deadline_at: Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})] | (
        None
    ) = Field(
        default=None,
        description="When the remaining tasks of a draining node are stopped, RFC 3339 in UTC. "
        "Required for `draining`, and not allowed otherwise.",
        examples=["2026-11-23T18:00:00Z"],
    )

    @model_validator(mode="after")
    def _deadline(self) -> "NodePatch":
        if (self.state is RequestedNodeState.DRAINING) != (self.deadline_at is not None):
            raise ValueError("deadline_at is required for draining, and not allowed otherwise")
        return self


class NodeSlots(Closed):
    """All disabled slots of a node: no task starts on them. All other slots are enabled.

    With `stop`, running tasks on the disabled slots are preempted with their grace period;
    otherwise they continue.
    """

    disabled: Annotated[list[SlotIndex], Field(max_length=MAX_SLOTS)] = Field(
        description="The numbers of all disabled slots, from 0.", examples=[[0, 3]]
    )
    stop: bool = Field(
        default=False,
        description="Stop the tasks on the disabled slots with their grace period.",
        examples=[True],
    )
    reason: Reason | None = Field(
        default=None, description="Shown to all users.", examples=["memory errors"]
    )


class RulesSwitch(Closed):
    """The rules to switch to."""

    rules: Annotated[int, Field(ge=1, le=1000)] = Field(
        description="A version that every service knows, above the one in force.", examples=[2]
    )


# --- answers to writes --------------------------------------------------------------------------


class Submitted(Answer):
    """A job was recorded and not yet admitted; read with `position` as `min_position` to see it.

    `warnings`: why the job can never fit on the present nodes, and what would fit.
    """

    job_id: JobId
    task_ids: list[TaskId]
    position: PositionText
    warnings: list[str] = Field(default_factory=list)


class Accepted(Answer):
    """Requests were recorded and not yet decided on; `GET /v1/requests/{id}` shows the decision."""

    request_ids: Annotated[list[str], Field(min_length=1)]
    position: PositionText


class Package(Answer):
    """A code package that a project has uploaded: a folder, as an archive named by its content."""

    project: Name
    #: The SHA-256 of the uncompressed tar.
    digest: Digest
    #: Bytes of the compressed archive.
    packed_bytes: int
    stored_at: str


class KeptArtifact(Answer):
    """A file that a replica left in its working folder, and that was kept."""

    replica: int
    #: Relative to the working folder.
    path: str
    size_bytes: int
    #: The SHA-256 of its content.
    digest: Digest


class ArtifactLeftOut(Answer):
    """A path that the patterns of the job select, and that was not kept."""

    replica: int
    path: str
    reason: str


class ArtifactList(Answer):
    """A page of the kept files of one attempt, ordered by replica and path.

    `left_out` has the first paths of each replica whose files begin on this page.
    """

    task_id: TaskId
    #: Null: the store has nothing of the task.
    attempt: int | None
    #: The attempts that have files in the store.
    attempts: list[int]
    items: list[KeptArtifact]
    left_out: list[ArtifactLeftOut]
    #: Replicas of the attempt without kept files, or without them yet; null but on the first page.
    missing: int | None
    next_cursor: str | None
    position: PositionText


class RequestState(StrEnum):
    """Whether a request is still waiting for quota, was accepted, or was refused."""

    RECORDED = "recorded"
    ACCEPTED = "accepted"
    REFUSED = "refused"


class Refusal(Answer):
    """Why quota refused a request."""

    code: str
    numbers: Numbers = Field(default_factory=dict)
    about: str | None = None
    not_listed: str | None = None
    list_owner: str | None = None


class Request(Answer):
    """A request, and the decision of quota."""

    request_id: str
    type: str
    subject: str
    state: RequestState
    refusal: Refusal | None
    user: str
    requested_at: At


# --- tasks and jobs -----------------------------------------------------------------------------


class Wait(Answer):
    """Why a task waits, for the pool in which it is closest to starting.

    `numbers` are those of `cycle`, in which the reason was recorded; they may have changed since.
    """

    code: str
    wait_class: WaitClass
    pool: str | None
    numbers: Numbers
    about: str | None
    since_at: At | None
    cycle: int | None = None


class StopShown(Answer):
    """Why an attempt must stop: the rule, and the task that preempts it.

    `overdue_at`: since when its slots, which it did not release in time, count as held again.
    """

    code: str
    rule: str | None
    for_task: str | None
    numbers: Numbers
    about: str | None
    deadline_at: At | None
    overdue_at: At | None = None
    requested_at: At


class SlotsOfNode(Answer):
    """Slots of one node; empty: the node holds a task without GPUs."""

    node: str
    slots: list[int]


class ReservedShown(Answer):
    """The slots that are kept for a pending task, which starts as soon as all of them are free.

    `until_at` is when the tasks that hold them must have released them, if that is known.
    """

    pool: str
    slots: list[SlotsOfNode]
    until_at: At | None
    reserved_at: At


class DropShown(Answer):
    """Why a pending task lost its reserved slots; `for_task` is the task that took them over."""

    pool: str
    code: str
    for_task: str | None
    numbers: Numbers
    about: str | None
    dropped_at: At


class End(Answer):
    """How a task ended, and which cycle decided it."""

    outcome: str
    code: str
    exit_code: int | None
    signal: int | None
    cycle: int
    ended_at: At


class CheckpointShown(Answer):
    """The last checkpoint that any attempt reported."""

    uri: str
    step: int
    at: At


class PreparingShown(Answer):
    """How much has arrived of the image of a starting task, on the node of one replica; or how many
    replicas of this node start before that one, where many start at once.

    `bytes_total` counts the layers whose size is known yet.
    """

    replica: int
    layers: int
    layers_done: int
    bytes_done: int
    bytes_total: int
    starts_ahead: int
    reported_at: At


class Task(Answer):
    """The unit of scheduling; `gpu_milli` is the sum over all replicas."""

    task_id: TaskId
    job_id: JobId
    index: int
    name: str
    project: str
    department: str | None
    user: str
    labels: dict[str, str]
    kind: Kind
    phase: Phase
    paused: bool
    preemptible: bool
    priority: int | None
    weight: int | None
    pools: list[str]
    pool: str | None
    nodes: list[str]
    resources: Resources
    replicas_min: int
    replicas_max: int
    layout: Layout = Layout.REPLICAS
    avoid_nodes: list[str] = Field(default_factory=list)
    gpu_milli: int
    attempt: int
    restarts: int
    params: dict[str, JsonValue] | None
    progress_permille: int | None
    preparing: PreparingShown | None = None
    image_digest: str | None = None
    run_as: RunAs | None = None
    submitted_at: At
    admitted_at: At | None
    started_at: At | None
    ended_at: At | None
    wait: Wait | None
    reserved: ReservedShown | None = None
    stop: StopShown | None
    checkpoint: CheckpointShown | None
    end: End | None
    refusal: Refusal | None


class TaskGroup(Answer):
    """Tasks of one job in one phase: the first one, the index of the last one, and their number.

    Failed tasks of a group ended alike: with the same code, exit code and signal.
    """

    first: Task
    last_index: int
    count: int


class TaskGroups(Answer):
    """A page of groups, and the number of matching tasks per phase, at most `counted_most`."""

    items: list[TaskGroup]
    next_cursor: str | None
    phases: dict[Phase, int]
    counted_most: int
    position: PositionText


class QueuedTasks(TaskGroup):
    """Pending tasks of one job that follow each other in a queue and wait for the same reason.

    `position` is the place of the first one, from 1; the next tasks have the next places.
    """

    position: int


class QueueShown(Answer):
    """A page of a pool's queue, in the order of its policy (`name`, `version`)."""

    items: list[QueuedTasks]
    next_cursor: str | None
    policy: PolicyRef
    position: PositionText


class Job(Answer):
    """A job: `asked` is the submitted spec; `spec` has all defaults, once the job is admitted."""

    job_id: JobId
    name: str
    project: str
    department: str | None
    user: str
    labels: dict[str, str]
    kind: Kind
    tasks: int
    phases: dict[Phase, int]
    priority: int | None
    weight: int | None
    max_slots_milli: int | None
    paused: bool
    revision: int
    submitted_at: At
    admitted_at: At | None
    asked: SubmittedSpec
    spec: AdmittedSpec | None
    run: Run | None
    stop_signal: StopSignal
    refusal: Refusal | None
    erased: bool = False


class ReplicaShown(Answer):
    """One replica of an attempt."""

    replica: int
    node: str
    slots: list[int]
    image_digest: str | None = None
    started_at: At | None
    exited_at: At | None
    released_at: At | None
    exit_code: int | None
    signal: int | None


class Attempt(Answer):
    """One run of a task, from its allocation to the release of its last slot."""

    task_id: TaskId
    attempt: int
    pool: str
    nodes: list[str]
    allocated_at: At
    started_at: At | None
    ended_at: At | None
    end: str | None
    rule: str
    start_numbers: Numbers
    stop: StopShown | None
    checkpoint: CheckpointShown | None
    replicas: list[ReplicaShown]


class PoolWait(Answer):
    """Why a task is not placed in one of its pools.

    `numbers` are those of `cycle`, in which the reason was recorded; they may have changed since.
    """

    pool: str
    code: str
    wait_class: WaitClass
    asked_milli: int
    numbers: Numbers
    about: str | None
    since_at: At | None
    cycle: int | None


class Explain(Answer):
    """Why a task is in its phase: the recorded reasons, pool by pool."""

    task_id: TaskId
    phase: Phase
    preparing: PreparingShown | None = None
    image_digest: str | None = None
    run_as: RunAs | None = None
    wait_class: WaitClass | None
    pools: list[PoolWait]
    reserved: ReservedShown | None = None
    unblock: str | None
    attempt: int
    start_rule: str | None
    start_numbers: Numbers
    stop: StopShown | None
    last_stop: StopShown | None
    last_drop: DropShown | None = None
    end: End | None
    refusal: Refusal | None
    cycle: int | None
    cycle_at: At | None
    nodes_without_fraction_limits: list[str] = Field(default_factory=list)


# --- what operators keep ------------------------------------------------------------------------


class Slot(Answer):
    """One GPU of a node: how much of it is allocated, to which tasks, and for which pending tasks
    it is reserved.
    """

    index: int
    gpu_milli_used: int
    tasks: list[str]
    disabled: bool = False
    reserved_for: list[TaskId] = Field(default_factory=list)


class NodeReservation(Answer):
    """The reservation of a pending task on one node, over all its replicas there; other tasks may
    still hold what is reserved. Without slots: CPU and memory only.
    """

    task_id: TaskId
    slots: list[int]
    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    until_at: At | None


class Cell(Answer):
    """The configuration of a whole cell, and by how much its time is ahead of the clock."""

    name: str
    revision: int
    config: CellConfig
    time_ahead_s: int


class NodeEnrollment(Answer):
    """The limits of what a node may claim when it joins."""

    node: str
    revision: int
    enrollment: Enrollment


class Node(Answer):
    """A machine with slots, CPU and memory, as it joined; if `enrolled`, as it may join."""

    name: str
    pool: str
    node_type: str | None
    state: NodeState
    reason: str | None
    deadline_at: At | None
    gpus: int
    gpu_milli_used: int
    gpu_milli_free: int
    gpu_memory_mib: int
    cpu_milli: int
    cpu_milli_used: int
    memory_mib: int
    memory_mib_used: int
    slots: list[Slot]
    tasks: list[str]
    labels: dict[str, str]
    address: str | None
    isolation: Isolation | None
    incarnation: str | None
    joined_at: At | None
    seen_at: At | None
    enrollment: Enrollment | None = None
    disabled_slots: list[int] = Field(default_factory=list)
    disabled_reason: str | None = None
    gpu_milli_reserved: int = 0
    reserved: list[NodeReservation] = Field(default_factory=list)
    fraction_limits: FractionLimits | None = None
    executors: list[ExecutorKind] = Field(default_factory=list)
    mounts: list[str] = Field(default_factory=list)


class Pool(Answer):
    """A group of nodes with its own policy."""

    name: str
    revision: int
    config: PoolConfig
    nodes: int
    gpu_milli: int
    gpu_milli_used: int
    pending: int


class PoolUse(Answer):
    """The quota and use of a project or department in one pool; used and pending are GPUs.

    Of CPUs and memory null is unlimited; of GPUs only `deserved_unlimited` is.
    """

    pool: str
    deserved_milli: int
    limit_milli: int | None
    over_quota_weight: int
    used_milli: int
    pending_milli: int
    deserved_unlimited: bool = False
    deserved_cpu_milli: int | None = None
    deserved_memory_mib: int | None = None
    limit_cpu_milli: int | None = None
    limit_memory_mib: int | None = None
    over_quota: bool = True


class Project(Answer):
    """A project: its limits and quotas, and what it uses."""

    name: str
    department: str
    revision: int
    config: ProjectConfig
    used_milli: int
    pending_milli: int
    running: int
    pending: int
    pools: list[PoolUse]


class Department(Answer):
    """A department: its quotas, and what the projects in it and in `departments` use together."""

    name: str
    revision: int
    config: DepartmentConfig
    projects: list[str]
    used_milli: int
    pending_milli: int
    pools: list[PoolUse]
    departments: list[str] = Field(default_factory=list)


# --- the log, the cell, the caller --------------------------------------------------------------


class EventRecord(Answer):
    """One record of the log; reading after `position` continues behind it."""

    topic: str
    partition: int
    offset: int
    id: str
    type: str
    version: int
    source: str
    epoch: int
    seq: int
    subject: str
    at: At
    actor: str
    cause: str | None
    data: dict[str, Any]
    position: PositionText


class CycleInput(Answer):
    """The offsets that a cycle consumed from an input topic: from `first` up to before `next`."""

    topic: str
    partition: int
    first: int
    next: int
    refused: int


class Cycle(Answer):
    """One committed cycle of the scheduler."""

    cell: str
    cycle: int
    term: int
    now_at: At
    offset: int
    decisions: int
    complete: bool
    inputs: list[CycleInput]
    policies: dict[str, str]
    state_digest: str
    prev: str
    position: PositionText


class RoleBinding(Answer):
    """A role, and its scope: the `name` of the cell, department or project."""

    role: RoleName
    scope: Scope
    name: Name


class TokenIssued(Accepted):
    """A recorded request for a token. The token is valid once the request is accepted."""

    #: The token itself; no other answer contains it.
    token: str
    token_id: str


class TokenShown(Answer):
    """A token of a user, without the token itself."""

    id: str
    issued_at: At
    expires_at: At | None


class UserShown(Answer):
    """A user, its roles and its valid tokens."""

    name: str
    roles: list[RoleBinding]
    tokens: list[TokenShown]


class RoleGiven(Closed):
    """A role in the cell, in a department or in a project."""

    role: RoleName = Field(strict=False, description="The role.", examples=["user"])
    scope: Scope = Field(strict=False, description="Where the role applies.", examples=["project"])
    name: Name = Field(description="The name of the cell, department or project.", examples=["nlp"])


#: Roles of one request.
RolesGiven = Annotated[list[RoleGiven], Field(min_length=1, max_length=MAX_ROLES)]
#: The lifetime of a token, in seconds.
Lifetime = Annotated[int, Field(ge=1, le=10 * 365 * 86_400)]


class RolesChange(Closed):
    """The roles to give to a user, or to take from it."""

    roles: RolesGiven = Field(
        description="The roles.",
        examples=[[{"role": "user", "scope": "project", "name": "nlp"}]],
    )


class NewUser(Closed):
    """A user to add."""

    name: UserName = Field(
        description="The name, which the log keeps forever: letters, digits and `._:-`, so no "
        "email address.",
        examples=["ana"],
    )
    roles: RolesGiven = Field(
        description="Its roles.",
        examples=[[{"role": "user", "scope": "project", "name": "nlp"}]],
    )
    lifetime_s: Lifetime | None = Field(
        default=TOKEN_LIFETIME_S,
        description="The lifetime of its token in seconds; null: without an end.",
        examples=[TOKEN_LIFETIME_S],
    )


class TokenOrder(Closed):
    """A token to issue to a user that exists."""

    lifetime_s: Lifetime | None = Field(
        default=TOKEN_LIFETIME_S,
        description="The lifetime in seconds; null: without an end. Without this field, that of "
        "the token before.",
        examples=[TOKEN_LIFETIME_S],
    )
    overlap_s: Annotated[int, Field(ge=0, le=365 * 86_400)] | None = Field(
        default=None,
        description="The other tokens of the user end after so many seconds; null: they stay "
        "valid.",
        examples=[60],
    )


class WhoAmI(Answer):
    """The authenticated user, and its roles."""

    user: str
    method: str
    issuer: str
    credential_id: str
    roles: list[RoleBinding]


class Version(Answer):
    """The version of the gateway, and the log that it serves."""

    version: str
    api: str
    cell: str
    log_id: str
    mode: LogMode
    created_ms: Millis | None


class Rules(Answer):
    """The rules in force in the cell, and the newest of the gateway's version."""

    rules: int
    newest: int


class UsageBy(StrEnum):
    """The grouping of usage."""

    PROJECT = "project"
    #: The authenticated user.
    USER = "user"
    POOL = "pool"


class UsageBucket(StrEnum):
    """The length of the buckets of usage, in UTC."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class UsageSum(Answer):
    """The usage of one project, user or pool in one bucket, in gpu_milli x seconds."""

    start_at: str
    name: str
    gpu_milli_seconds: int


class Usage(Answer):
    """GPU time in a period, sorted by bucket, then by name."""

    from_at: str
    to_at: str
    by: UsageBy
    bucket: UsageBucket | None
    items: list[UsageSum]
    position: PositionText


class Shares(Answer):
    """The newest division of a pool among departments and projects, each after the one above it.

    Without `divided_at`, no division was recorded: the pool's policy divides nothing among them, or
    none of them deserved, held or requested anything yet.
    """

    pool: Name
    divided_at: At | None
    cycle: int | None
    items: list[QueueShare]
    position: PositionText


T = TypeVar("T", bound=BaseModel)


class List(Answer, Generic[T]):
    """A page of a list; `next_cursor` is null on the last page."""

    items: list[T]
    next_cursor: str | None
    position: PositionText


class FieldError(Answer):
    """An error in one field of a body; `pointer` is a JSON pointer."""

    pointer: str
    code: str
    detail: str


class Problem(Answer):
    """A problem document (RFC 9457); `code` is stable, `hint` tells what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str | None = None
    trace_id: str | None = None
    errors: list[FieldError] = Field(default_factory=list)
