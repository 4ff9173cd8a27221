"""`admissions`: quota's verdict on every request. The scheduler reads it instead of `requests`."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.events.requests import (
    CellConfig,
    DepartmentConfig,
    DetailsRef,
    Enrollment,
    ExitZero,
    Kind,
    Layout,
    PoolConfig,
    ProjectConfig,
    Role,
    TaskIndex,
    Topology,
    Unschedulable,
)
from yardmaster_schemas.fields import (
    CLOSED,
    MAX_NAMES,
    MAX_REPLICAS,
    MAX_TASKS,
    CheckpointUri,
    JobId,
    ListedName,
    Millis,
    Name,
    Names,
    Numbers,
    Positive,
    PrincipalId,
    Priority,
    Seconds,
    SlotSet,
)
from yardmaster_schemas.reasons import AdmissionCode
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.run_as import RunAs
from yardmaster_schemas.topics import ADMISSIONS


class ListOwner(StrEnum):
    """The object whose allow-list refuses a job."""

    POOL = "pool"
    PROJECT = "project"


class Level(StrEnum):
    """The two levels of quota."""

    DEPARTMENT = "department"
    PROJECT = "project"


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedSpec:
    """The specification by which a job is scheduled, with every default filled in."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Kind
    role: Role | None
    preemptible: bool
    priority: Priority
    weight: Positive
    max_slots_milli: Positive | None
    pools: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_NAMES)]
    node_types: Names
    topology: Topology | None
    resources: Resources
    replicas_min: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    replicas_max: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)]
    max_concurrent: Annotated[int, Field(ge=1, le=MAX_TASKS)] | None
    min_runtime_s: Seconds
    time_limit_s: Seconds | None
    max_restarts: Annotated[int, Field(ge=0, le=1000)]
    unschedulable: Unschedulable
    grace_s: Seconds
    exit_zero: ExitZero
    checkpoint_uri: CheckpointUri | None
    layout: Layout = Layout.REPLICAS
    avoid_nodes: Names = ()
    runtime_estimate_s: Seconds | None = None
    image: bool = False
    run_as: RunAs | None = None


@event(ADMISSIONS, name="TaskAdmitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAdmittedV1(Event):
    """A job's tasks may be scheduled; the scheduler knows them from this event on.

    `submitted_at_ms`, the time of the quota cycle that took the request, orders tasks of equal
    priority, also after a preemption. `user` submitted the job: an opaque id, as the actor of the
    request.
    """

    job_id: JobId
    project: Name
    department: Name
    spec: AdmittedSpec
    submitted_at_ms: Millis
    details: DetailsRef
    user: PrincipalId | None = None


@event(ADMISSIONS, name="TaskRejected")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRejectedV1(Event):
    """A job was refused at admission; none of its tasks will run.

    `not_listed`: what an allow-list does not contain. The list is that of the object `about`, whose
    kind is `list_owner`.
    """

    job_id: JobId
    code: AdmissionCode
    numbers: Numbers = field(default_factory=dict)
    about: Name | None = None
    not_listed: ListedName | None = None
    list_owner: ListOwner | None = None


@event(ADMISSIONS, name="RequestRefused")
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefusedV1(Event):
    """A request other than a new job was refused; the envelope's cause is the request."""

    request_type: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z]{1,40}$")]
    code: AdmissionCode
    numbers: Numbers = field(default_factory=dict)
    about: Name | None = None


@event(ADMISSIONS, name="CancelAccepted")
@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAcceptedV1(Event):
    """A job or one task of it must end; once this is consumed, nothing of it starts."""

    job_id: JobId
    index: TaskIndex | None = None
    immediate: bool = False


@event(ADMISSIONS, name="TaskPaused")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPausedV1(Event):
    """A job or one task of it is held until it is resumed."""

    job_id: JobId
    index: TaskIndex | None = None


@event(ADMISSIONS, name="TaskResumed")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResumedV1(Event):
    """A held job or one task of it may run again."""

    job_id: JobId
    index: TaskIndex | None = None


@event(ADMISSIONS, name="PriorityChanged")
@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChangedV1(Event):
    """A job has a new priority; among equals its submission time still decides."""

    job_id: JobId
    priority: Priority
    revision: Positive


@event(ADMISSIONS, name="WeightChanged")
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChangedV1(Event):
    """A job has a new weight from now on."""

    job_id: JobId
    weight: Positive
    revision: Positive


@event(ADMISSIONS, name="MaxSlotsChanged")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSlotsChangedV1(Event):
    """A job has a new limit of its running GPUs from now on."""

    job_id: JobId
    max_slots_milli: Positive | None
    revision: Positive


@event(ADMISSIONS, name="CellConfigured")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellConfiguredV1(Event):
    """The cell has this configuration."""

    revision: Positive
    config: CellConfig


@event(ADMISSIONS, name="PoolConfigured")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfiguredV1(Event):
    """A pool exists with this configuration; its running tasks are not affected."""

    pool: Name
    revision: Positive
    config: PoolConfig


@event(ADMISSIONS, name="PoolDeleted")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDeletedV1(Event):
    """An unused pool was deleted."""

    pool: Name


@event(ADMISSIONS, name="EntitlementsChanged")
@dataclass(frozen=True, slots=True, kw_only=True)
class EntitlementsChangedV1(Event):
    """The entitlements of a department or project from now on; without a config it is deleted."""

    level: Level
    name: Name
    revision: Positive
    department: DepartmentConfig | None = None
    project: ProjectConfig | None = None


@event(ADMISSIONS, name="NodeCordoned")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordonedV1(Event):
    """Nothing new starts on the node."""

    node: Name


@event(ADMISSIONS, name="NodeUncordoned")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordonedV1(Event):
    """The node takes tasks again."""

    node: Name


@event(ADMISSIONS, name="NodeDraining")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainingV1(Event):
    """The node is emptied: preemptible tasks stop now with grace, others at the deadline."""

    node: Name
    deadline_at_ms: Millis


@event(ADMISSIONS, name="NodeSlotsChanged")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlotsChangedV1(Event):
    """Nothing new starts on exactly these slots of the node, also after it joins again.

    `stop`: the tasks on these slots are stopped, with grace.
    """

    node: Name
    disabled: SlotSet = ()
    stop: bool = False


@event(ADMISSIONS, name="DetailsErased")
@dataclass(frozen=True, slots=True, kw_only=True)
class DetailsErasedV1(Event):
    """A tombstone erased the details of a job; no record with their digest exists any longer.

    A task of the job that has not ended (none, if the gateway checked the request) cannot start any
    more, because its program is unknown.
    """

    job_id: JobId


@event(ADMISSIONS, name="NodeEnrolled")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnrolledV1(Event):
    """A node may join, and may claim at most this.

    The first such event closes the cell: a node without enrollment cannot join, and nothing new is
    placed on a node that joined before without enrollment, or that offers more than it may.
    """

    node: Name
    enrollment: Enrollment
    revision: Positive


@event(ADMISSIONS, name="NodeRevoked")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRevokedV1(Event):
    """A node may no longer join.

    Nothing new is placed on it, its tasks are stopped without grace, and it is lost as soon as it
    holds nothing, or after its pool's `node_timeout_s`.
    """

    node: Name
