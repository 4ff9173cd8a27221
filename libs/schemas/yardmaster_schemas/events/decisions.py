"""`decisions`: the decisions of the scheduler, and the observations of its runtime."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import Level
from yardmaster_schemas.events.node_events import MAX_RUNNING, ImageDigest, ReplicaRef
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.fields import (
    CLOSED,
    MAX_REPLICAS,
    MAX_SLOTS,
    MAX_TASKS,
    Address,
    CheckpointUri,
    ClaimantName,
    Code,
    Count,
    GpuMilli,
    Incarnation,
    Millis,
    Name,
    Names,
    Numbers,
    Port,
    Positive,
    Priority,
    ReplicaIndex,
    Seconds,
    ShapeId,
    SlotIndex,
    TaskId,
)
from yardmaster_schemas.members import plain_members
from yardmaster_schemas.reasons import DropCode, EndCode, PolicyStop, Start, Stop, Wait
from yardmaster_schemas.run_as import RunAs
from yardmaster_schemas.topics import DECISIONS

#: Claimants that one ClaimantsRanked names.
MAX_RANKED: Final = 256
#: The most numbers in a rank: four for each level of queues.
MAX_RANK: Final = 36
#: Queues that one SharesDivided names.
MAX_SHARES: Final = 256

Nodes = Annotated[tuple[Name, ...], Field(max_length=MAX_REPLICAS)]


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The placement of one replica: `gpu_milli` of each of `slots`, with CPU and memory.

    `incarnation` is the node's; the assignment is void for any other incarnation. `gpu_memory_mib`:
    the memory of each of `slots` that the task requested; 0: it requested no memory of GPUs.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    replica: ReplicaIndex
    node: Name
    incarnation: Incarnation
    address: Address
    slots: Annotated[tuple[SlotIndex, ...], Field(max_length=MAX_SLOTS)]
    gpu_milli: GpuMilli
    cpu_milli: Count
    memory_mib: Count
    gpu_memory_mib: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The checkpoint from which an attempt resumes."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    uri: CheckpointUri
    step: Count


@plain_members
class Outcome(StrEnum):
    """How a task ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@event(DECISIONS, name="SlotsAllocated")
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsAllocatedV1(Event):
    """An attempt of a task begins: all replicas at once, each on its slots.

    `master_port` is reserved on replica 0's node with the slots (gangs only). `details` refers to
    the program to run. `grace_s` is the time that a stop gives the attempt to save its state; the
    task can read it. `fence_s`: the agent kills the attempt when no heartbeat was acknowledged for
    so long (None: never), which is before its node can be lost. `image`: the digest that all
    replicas must run, which an earlier attempt ran; None: that of the job's image now. `run_as`:
    the user that runs them; None: one that each node gives the attempt.
    """

    task_id: TaskId
    attempt: Positive
    pool: Name
    project: Name
    tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)]
    placements: Annotated[tuple[Placement, ...], Field(min_length=1, max_length=MAX_REPLICAS)]
    master_port: Port | None
    details: DetailsRef
    checkpoint: Checkpoint | None
    start: Start
    grace_s: Seconds | None = None
    fence_s: Positive | None = None
    image: ImageDigest | None = None
    run_as: RunAs | None = None


@event(DECISIONS, name="SlotsReserved")
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsReservedV1(Event):
    """Slots that other tasks release are kept for a pending task, which starts on exactly them.

    `attempt` is the attempt that will start. `victims` tasks are preempted for it in the same
    batch; 0: other tasks release the slots anyway. `until_at_ms`: when the last of these tasks must
    have released them (0: not known).
    """

    task_id: TaskId
    attempt: Positive
    pool: Name
    placements: Annotated[tuple[Placement, ...], Field(min_length=1, max_length=MAX_REPLICAS)]
    victims: Count = 0
    until_at_ms: Millis = 0


@event(DECISIONS, name="ReservationDropped")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationDroppedV1(Event):
    """A pending task keeps its reserved slots no longer; other tasks may use them.

    `about` is the node or the pool that caused it. `for_task` is the task that takes over the slots
    because it comes first; `numbers` are then the priorities and submission times of both tasks.
    Under `quota` it may also be a task that reclaims them; then `about` and `numbers` are those of
    a stop by which slots are reclaimed.
    """

    task_id: TaskId
    attempt: Positive
    pool: Name
    code: DropCode
    about: Name | None = None
    for_task: TaskId | None = None
    numbers: Numbers = field(default_factory=dict)


@plain_members
class Among(StrEnum):
    """The kinds of claimants of a pool."""

    JOB = "job"
    PROJECT = "project"
    #: Users, and the projects of jobs that name no user.
    USER = "user"


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimantRank:
    """The place of a claimant in its pool's queue: the smallest `rank` comes first, compared number
    by number. Empty: the claimant is no longer in the queue.

    `claimant` is the id of a job or user, or the name of a project; among users a project is
    `project/NAME`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    claimant: ClaimantName
    rank: Annotated[tuple[Count, ...], Field(max_length=MAX_RANK)]


@event(DECISIONS, name="ClaimantsRanked")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimantsRankedV1(Event):
    """The place in a pool's queue changed for these claimants: jobs, projects, or users.

    Only policies whose order depends on what others demand record it.
    """

    pool: Name
    among: Among
    ranks: Annotated[tuple[ClaimantRank, ...], Field(min_length=1, max_length=MAX_RANKED)]


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Amounts of GPUs, CPUs and memory."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    gpu_milli: Count
    cpu_milli: Count
    memory_mib: Count


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of GPUs, CPUs and memory; None: unlimited."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    gpu_milli: Count | None
    cpu_milli: Count | None
    memory_mib: Count | None


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShare:
    """The share of a department or project in one pool, and the amounts of the queues below it too.

    `parent` is the department above it. `held`: what its tasks hold, without those that are
    stopping. `requested`: what its tasks request in addition, except what is `reserved` for them.
    `usage_milli`: the GPUs that its tasks held in the past, where recent time counts more; None:
    the pool does not count this.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    name: Name
    level: Level
    parent: Name | None
    deserved: Bounds
    limit: Bounds
    fair_share: Amounts
    held: Amounts
    reserved: Amounts
    requested: Amounts
    usage_milli: Count | None = None


@event(DECISIONS, name="SharesDivided")
@dataclass(frozen=True, slots=True, kw_only=True)
class SharesDividedV1(Event):
    """A pool was divided among these departments and projects, each after the one above it.

    Recorded when something changed: 5 s after the record before, or up to 60 s while changes
    continue. Queues that deserve, hold and request nothing are left out. A division of many queues
    is recorded in parts, all in one cycle: `part` counts from 0 and replaces the former division.
    """

    pool: Name
    part: Count
    queues: Annotated[tuple[QueueShare, ...], Field(max_length=MAX_SHARES)]


@event(DECISIONS, name="PreemptionRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRequestedV1(Event):
    """A running attempt must save its state and end for another task; then it is requeued."""

    task_id: TaskId
    attempt: Positive
    nodes: Nodes
    stop: PolicyStop
    grace_s: Seconds
    deadline_at_ms: Millis


@event(DECISIONS, name="StopRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequestedV1(Event):
    """An attempt must end: cancel, pause, drain, a limit, or an incomplete gang; or a policy stops
    it, because its claimant is above a share or a limit.
    """

    task_id: TaskId
    attempt: Positive
    nodes: Nodes
    stop: Stop | PolicyStop
    grace_s: Seconds
    deadline_at_ms: Millis


@event(DECISIONS, name="AllocationRevoked")
@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRevokedV1(Event):
    """An attempt that did not start in time is void; its slots are held until released.

    `late`: the nodes on which a replica had not started by then.
    """

    task_id: TaskId
    attempt: Positive
    nodes: Nodes
    stop: Stop
    late: Nodes = ()


@event(DECISIONS, name="StopOverdue")
@dataclass(frozen=True, slots=True, kw_only=True)
class StopOverdueV1(Event):
    """An attempt that must stop still holds slots long after its deadline `deadline_at_ms`.

    From now on its slots count as held until they are released: nothing is reserved on them.
    """

    task_id: TaskId
    attempt: Positive
    pool: Name
    nodes: Nodes
    deadline_at_ms: Millis


@event(DECISIONS, name="FailedStartsExpired")
@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStartsExpiredV1(Event):
    """A task whose last `failed_starts` starts failed may preempt again, like any other of its job.

    Recorded a while after the last of these starts. They still count: after one more failed start,
    the task preempts no other again, and after 5 it ends.
    """

    task_id: TaskId
    attempt: Positive
    failed_starts: Positive


@event(DECISIONS, name="TaskRequeued")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequeuedV1(Event):
    """An attempt has ended, and its task is pending again with its original queue time.

    `restarts` counts the failures so far; `not_before_ms` delays the task after a failure.
    `failed_starts` counts consecutive failed starts; from 2 on, the task preempts no other until
    they expire (FailedStartsExpired). Its next attempt avoids `failed_nodes` if it fits on other
    nodes. `code` is an end code, or the name of the policy that stopped the attempt.
    """

    task_id: TaskId
    attempt: Positive
    code: Annotated[EndCode | Code, Field(union_mode="left_to_right")]
    restarts: Count
    not_before_ms: Millis = 0
    failed_starts: Count = 0
    failed_nodes: Names = ()


@event(DECISIONS, name="TaskUnschedulable")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUnschedulableV1(Event):
    """Why `task_id`, and every pending task of its shape and priority, was not placed in `pool`.

    Written once, and again only when the reason changes.
    """

    task_id: TaskId
    shape: ShapeId
    priority: Priority
    pool: Name
    wait: Wait


@event(DECISIONS, name="TaskEnded")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEndedV1(Event):
    """A task has ended. `attempt` is its last attempt (0: it never ran)."""

    task_id: TaskId
    attempt: Count
    outcome: Outcome
    code: EndCode
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    signal: Annotated[int, Field(ge=1, le=64)] | None = None


@event(DECISIONS, name="AllocationUnwritable")
@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationUnwritableV1(Event):
    """The runtime observed that the SlotsAllocated of a pending task exceeds the size of a record.
    Nothing of that cycle was written; the task ends.
    """

    task_id: TaskId


@event(DECISIONS, name="NodeSilenceObserved")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilenceObservedV1(Event):
    """The runtime observed a node's silence since that time; recorded before it is used."""

    node: Name
    incarnation: Incarnation
    last_heard_at_ms: Millis


class LossCause(StrEnum):
    """Why a node counts as lost."""

    SILENT = "silent"
    REPLACED = "replaced"
    REVOKED = "revoked"


@event(DECISIONS, name="NodeLost")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLostV1(Event):
    """A node's incarnation has ended; the `closed` replicas have ended and their slots are free.

    `replaced`: the node joined with a new incarnation while the old one still held slots.
    `revoked`: its enrollment was revoked, and it held nothing any more or did not release in time.
    """

    node: Name
    incarnation: Incarnation
    cause: LossCause
    last_heard_at_ms: Millis
    closed: Annotated[tuple[ReplicaRef, ...], Field(max_length=MAX_RUNNING)] = field(default=())
