"""`decisions`: what the scheduler decided, and what its shell observed before it did."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from yardmaster_schemas.construct import LATER, writes_slots
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.node_events import MAX_RUNNING, ReplicaRef
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.fields import (
    CLOSED,
    MAX_REPLICAS,
    MAX_SLOTS,
    MAX_TASKS,
    Address,
    CheckpointUri,
    Count,
    GpuMilli,
    Incarnation,
    Millis,
    Name,
    Names,
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
from yardmaster_schemas.reasons import EndCode, Start, Stop, Wait
from yardmaster_schemas.topics import DECISIONS

Nodes = Annotated[tuple[Name, ...], Field(max_length=MAX_REPLICAS)]


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one replica runs: `gpu_milli` of each of `slots`, and CPU and memory beside them.

    `incarnation` is the node's: the assignment is void for any other.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What an attempt resumes from."""

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

    `master_port` is held on replica 0's node with the slots (gangs only). `details` is where the
    agent finds what to run. `grace_s` is what a stop will give the attempt to save its state, told
    to the task. `fence_s`: the agent kills the attempt when no heartbeat was acknowledged for so
    long (None: it runs on), which is before its node can be lost.
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


@event(DECISIONS, name="PreemptionRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRequestedV1(Event):
    """A running attempt is to save its state and end for another task; it is requeued after."""

    task_id: TaskId
    attempt: Positive
    nodes: Nodes
    stop: Stop
    grace_s: Seconds
    deadline_at_ms: Millis


@event(DECISIONS, name="StopRequested")
@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequestedV1(Event):
    """An attempt is to end: cancel, pause, drain, a limit, or a gang that is no longer whole."""

    task_id: TaskId
    attempt: Positive
    nodes: Nodes
    stop: Stop
    grace_s: Seconds
    deadline_at_ms: Millis


@event(DECISIONS, name="AllocationRevoked")
@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRevokedV1(Event):
    """An attempt that did not start in time is void; its slots are held until released.

    `late`: nodes on which a replica had not started by then.
    """

    task_id: TaskId
    attempt: Positive
    nodes: Nodes
    stop: Stop
    late: Nodes = field(default=(), metadata=LATER)


@event(DECISIONS, name="TaskRequeued")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequeuedV1(Event):
    """An attempt has ended and its task waits again, its queue time kept.

    `restarts` counts failures so far; `not_before_ms` holds it back after one. `failed_starts`
    counts the starts in a row that failed; from 2 on, the task preempts no other. Its next attempt
    avoids `failed_nodes` where it fits elsewhere.
    """

    task_id: TaskId
    attempt: Positive
    code: EndCode
    restarts: Count
    not_before_ms: Millis = 0
    failed_starts: Count = field(default=0, metadata=LATER)
    failed_nodes: Names = field(default=(), metadata=LATER)


@event(DECISIONS, name="TaskUnschedulable")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUnschedulableV1(Event):
    """Why `task_id`, and every waiting task of its shape and priority, was not placed in `pool`.

    Written once, and again only when another reason takes its place.
    """

    task_id: TaskId
    shape: ShapeId
    priority: Priority
    pool: Name
    wait: Wait


@event(DECISIONS, name="TaskEnded")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEndedV1(Event):
    """A task is over, for good. `attempt` is its last (0: it never ran)."""

    task_id: TaskId
    attempt: Count
    outcome: Outcome
    code: EndCode
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    signal: Annotated[int, Field(ge=1, le=64)] | None = None


@event(DECISIONS, name="AllocationUnwritable")
@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationUnwritableV1(Event):
    """What the shell observed: the SlotsAllocated that a cycle decided for a pending task is larger
    than a record may be. Nothing of that cycle was written; the task ends.
    """

    task_id: TaskId


@event(DECISIONS, name="NodeSilenceObserved")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilenceObservedV1(Event):
    """What the shell observed, recorded before it is used: a node's silence since then."""

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
    """A node's incarnation is over; the replicas named are closed, their slots free.

    `replaced`: the node joined with a new incarnation while the old one still held slots.
    `revoked`: its enrolment was revoked, and it held nothing any more or did not let go in time.
    """

    node: Name
    incarnation: Incarnation
    cause: LossCause
    last_heard_at_ms: Millis
    closed: Annotated[tuple[ReplicaRef, ...], Field(max_length=MAX_RUNNING)] = field(default=())
