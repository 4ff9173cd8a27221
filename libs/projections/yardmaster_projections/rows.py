"""The rows of the views: frozen, flat, one kind for each thing that is asked for.

A row has a `key`, an `order` by which its kind is listed, and `facets`, by which lists are
filtered; a store never looks into a row otherwise. Times are milliseconds since the epoch.

One file, though a long one: the rows are one vocabulary, read like a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, TypeVar

from yardmaster_projections.wire_types import PAIRS, Shared
from yardmaster_schemas.api import NodeState, Phase, RequestState
from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import Checkpoint, Outcome, Placement
from yardmaster_schemas.events.details import Run, StopSignal
from yardmaster_schemas.events.machine import CycleCommittedV1, CycleCommittedV2
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    DepartmentConfig,
    Enrolment,
    LogMode,
    PauseRequestedV1,
    PoolConfig,
    ProjectConfig,
    SubmittedSpec,
    TaskSubmittedV1,
)
from yardmaster_schemas.reasons import EndCode, Start, Stop, Wait

#: Where a row stands among its kind: a number (a time), then names.
Order = tuple[int, str, int]
Facet = tuple[str, str]


class Row:
    """Base of all rows."""

    __slots__ = ()
    KIND: ClassVar[str]
    #: Whether a watch reports changes of this kind.
    WATCHED: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """What the row is found by; unique in its kind."""
        raise NotImplementedError

    @property
    def order(self) -> Order:
        """Where it stands in lists of its kind."""
        return (0, self.key, 0)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """What lists are filtered by."""
        return ()

    @property
    def settled(self) -> bool:
        """Hardly any later step reads it: its writer does not keep it at hand."""
        return False


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why quota refused, in its words."""

    code: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    about: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """A stop that was asked for, and when."""

    stop: Stop
    at_ms: int
    deadline_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a task ended."""

    outcome: Outcome
    code: EndCode
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What a job and its tasks have in common; one object for all of them."""

    job_id: str
    project: str
    #: As the details name them; the actor's id where the details are erased.
    user: str
    name: str
    #: The user's id, as authenticated.
    actor: str
    submitted_at_ms: int
    asked: SubmittedSpec
    labels: Mapping[str, str] = field(default_factory=dict)
    params: tuple[Mapping[str, Any], ...] = ()
    department: str | None = None
    admitted_at_ms: int | None = None
    #: As admitted, later changes of priority, weight and max_slots included.
    spec: AdmittedSpec | None = None
    shape: str | None = None
    #: Name, labels, owner and what it runs are gone for good.
    erased: bool = False

    @property
    def pools(self) -> tuple[str, ...]:
        """Where it may run, in order of preference."""
        return self.spec.pools if self.spec is not None else self.asked.pools

    @property
    def facets(self) -> tuple[Facet, ...]:
        """What jobs and tasks alike are filtered by."""
        return (
            ("project", self.project),
            ("user", self.user),
            ("kind", self.asked.kind),
            ("name", self.name),
            *((f"label.{key}", value) for key, value in self.labels.items()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow(Row):
    """A job as submitted and as admitted; `phases` counts its tasks."""

    KIND: ClassVar[str] = "job"
    WATCHED: ClassVar[bool] = True

    facts: Annotated[JobFacts, Shared("facts")]
    body_digest: str
    #: Offset of its TaskSubmitted in `requests`.
    offset: int
    run: Annotated[Run | None, Shared("run")] = None
    stop_signal: StopSignal = StopSignal.TERM
    revision: int = 1
    refusal: Refused | None = None
    phases: Mapping[Phase, int] = field(default_factory=dict)
    paused: bool = False
    #: The next submission under the same id, while this one is not judged.
    again: "JobRow | None" = None

    @property
    def key(self) -> str:
        """The job's id."""
        return self.facts.job_id

    @property
    def order(self) -> Order:
        """By submission."""
        return (self.facts.submitted_at_ms, self.facts.job_id, 0)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The job's, the pools it may use and the phases its tasks are in."""
        return (
            *self.facts.facets,
            *(("pool", pool) for pool in self.facts.pools),
            *(("phase", phase) for phase, count in self.phases.items() if count),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow(Row):
    """A task where it is now; what it shares with its job is the job's."""

    KIND: ClassVar[str] = "task"
    WATCHED: ClassVar[bool] = True

    job: Annotated[JobFacts, Shared("facts")]
    index: int
    phase: Phase
    paused: bool = False
    attempt: int = 0
    restarts: int = 0
    not_before_ms: int = 0
    #: Starts in a row that failed.
    failed_starts: int = 0
    pool: str | None = None
    nodes: tuple[str, ...] = ()
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    stopping: Stopping | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_at_ms: int = 0
    progress_permille: int | None = None
    end: Ended | None = None

    @property
    def task_id(self) -> str:
        """The task's id, `job.index`."""
        return f"{self.job.job_id}.{self.index}"

    @property
    def key(self) -> str:
        """The task's id."""
        return self.task_id

    @property
    def order(self) -> Order:
        """By submission, then index."""
        return (self.job.submitted_at_ms, self.job.job_id, self.index)

    @property
    def gpu_milli(self) -> int:
        """What its replicas ask for together."""
        return self.job.asked.replicas_min * self.job.asked.resources.gpu_total_milli

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Phase, nodes and the job's; the pool is where it runs, else all it may use."""
        return (
            ("phase", self.phase),
            ("job", self.job.job_id),
            *self.job.facets,
            *(("pool", p) for p in ((self.pool,) if self.pool is not None else self.job.pools)),
            *(("node", node) for node in self.nodes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica of an attempt."""

    placement: Placement
    started_at_ms: int | None = None
    exited_at_ms: int | None = None
    released_at_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow(Row):
    """One run of a task."""

    KIND: ClassVar[str] = "attempt"

    task_id: str
    project: str
    attempt: int
    pool: str
    allocated_at_ms: int
    start: Start
    replicas: tuple[ReplicaRow, ...]
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    stopping: Stopping | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_at_ms: int = 0
    #: Requeued or ended for this reason.
    end: EndCode | None = None

    @property
    def key(self) -> str:
        """Task and attempt."""
        return f"{self.task_id}/{self.attempt}"

    @property
    def order(self) -> Order:
        """By task, then number."""
        return (0, self.task_id, self.attempt)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The task."""
        return (("task", self.task_id),)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow(Row):
    """A node: what it may offer, what it offered when it joined, and who holds its slots."""

    KIND: ClassVar[str] = "node"
    WATCHED: ClassVar[bool] = True

    name: str
    #: What an operator wants of it, joined or not.
    cordoned: bool = False
    deadline_at_ms: int | None = None
    reason: str | None = None
    #: Slots on which nothing new starts, and why.
    disabled: tuple[int, ...] = ()
    disabled_reason: str | None = None
    #: What it may claim; None: it was not enrolled, or was `revoked`.
    enrolment: Enrolment | None = None
    enrolment_revision: int = 0
    revoked: bool = False
    #: It gets nothing new, since its enrolment does not cover what it offers.
    barred: bool = False
    joined: NodeJoinedV1 | None = None
    joined_at_ms: int = 0
    left: bool = False
    lost: bool = False
    #: (task, replica) -> where; closed by SlotsReleased and NodeLost alone.
    held: Annotated[Mapping[tuple[str, int], Placement], PAIRS] = field(default_factory=dict)
    #: The node joined anew while its old life still held slots.
    rejoined: NodeJoinedV1 | None = None

    @property
    def key(self) -> str:
        """The node's name."""
        return self.name

    @property
    def offer(self) -> NodeJoinedV1 | Enrolment | None:
        """What it offered, else what it may; a node with neither is only talked about."""
        return self.joined or self.enrolment

    @property
    def state(self) -> NodeState:
        """What may be expected of it."""
        if self.revoked:
            return NodeState.REVOKED
        if self.lost:
            return NodeState.LOST
        if self.left:
            return NodeState.GONE
        if self.joined is None and self.enrolment is not None:
            return NodeState.ENROLLED
        if self.barred:
            return NodeState.BARRED
        if self.deadline_at_ms is not None:
            return NodeState.DRAINING
        return NodeState.CORDONED if self.cordoned else NodeState.READY

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Pool and state, once it is enrolled or joined."""
        offer = self.offer
        if offer is None:
            return ()
        return (("pool", offer.pool), ("state", self.state), ("listed", "yes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRow(Row):
    """When a node's heartbeat was last heard."""

    KIND: ClassVar[str] = "seen"

    node: str
    at_ms: int

    @property
    def key(self) -> str:
        """The node's name."""
        return self.node


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow(Row):
    """A configured pool."""

    KIND: ClassVar[str] = "pool"
    WATCHED: ClassVar[bool] = True

    name: str
    revision: int
    config: PoolConfig

    @property
    def key(self) -> str:
        """The pool's name."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartmentRow(Row):
    """A configured department."""

    KIND: ClassVar[str] = "department"
    WATCHED: ClassVar[bool] = True

    name: str
    revision: int
    config: DepartmentConfig

    @property
    def key(self) -> str:
        """The department's name."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow(Row):
    """A configured project."""

    KIND: ClassVar[str] = "project"
    WATCHED: ClassVar[bool] = True

    name: str
    revision: int
    config: ProjectConfig

    @property
    def key(self) -> str:
        """The project's name."""
        return self.name

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Itself, as what is visible, and its department."""
        return (("project", self.name), ("department", self.config.department))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersRow(Row):
    """Sums that lists show, by pool, in gpu_milli: of a project (`project/x`) or a pool (`pool/y`).

    A waiting task counts in every pool it may use; `waiting_milli` counts it once.
    """

    KIND: ClassVar[str] = "counters"

    name: str
    used_milli: Mapping[str, int] = field(default_factory=dict)
    pending_milli: Mapping[str, int] = field(default_factory=dict)
    waiting_milli: int = 0
    waiting: int = 0
    running: int = 0
    nodes: int = 0
    gpu_milli: int = 0

    @property
    def key(self) -> str:
        """What it sums up."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRow(Row):
    """Why the waiting tasks of a shape and priority are not placed in a pool."""

    KIND: ClassVar[str] = "wait"

    pool: str
    shape: str
    priority: int
    wait: Wait
    since_ms: int
    cycle: int

    @property
    def key(self) -> str:
        """Pool, shape and priority."""
        return f"{self.pool}/{self.shape}/{self.priority}"


#: Requests about a job or task of it that may come with a note.
_ABOUT_JOBS: Final = (CancelRequestedV1.TYPE, PauseRequestedV1.TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow(Row):
    """A request and what quota made of it."""

    KIND: ClassVar[str] = "request"

    offset: int
    record_id: str
    type: str
    subject: str
    actor: str
    at_ms: int
    state: RequestState = RequestState.RECORDED
    refusal: Refused | None = None
    note: str | None = None

    @property
    def key(self) -> str:
        """Its offset in `requests`."""
        return str(self.offset)

    @property
    def order(self) -> Order:
        """In the log's order."""
        return (self.offset, "", 0)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The record's identity, while a verdict may still name it; the job that is described.

        By a note, or by the details of a submission that was refused, as a repeat is.
        """
        recorded = self.state is RequestState.RECORDED
        repeat = self.type == TaskSubmittedV1.TYPE and self.state is RequestState.REFUSED
        noted = repeat or (self.note is not None and self.type in _ABOUT_JOBS)
        return (
            *((("record", self.record_id),) if recorded else ()),
            *((("noted", self.subject.partition(".")[0]),) if noted else ()),
        )

    @property
    def settled(self) -> bool:
        """It was judged."""
        return self.state is not RequestState.RECORDED


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleRow(Row):
    """A counted cycle of the scheduler: where its commit lies, and what it took."""

    KIND: ClassVar[str] = "cycle"

    offset: int
    #: By its own version: of version 1 alone, the rules' version would not be stored.
    commit: CycleCommittedV2 | CycleCommittedV1

    @property
    def key(self) -> str:
        """Its number."""
        return str(self.commit.cycle)

    @property
    def order(self) -> Order:
        """By number."""
        return (self.commit.cycle, "", 0)

    @property
    def settled(self) -> bool:
        """It never changes."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow(Row):
    """Where the records about a job or task lie: (topic, offset), the newest `MAX_HISTORY`."""

    KIND: ClassVar[str] = "history"

    subject: str
    records: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> str:
        """The job's or task's id."""
        return self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRow(Row):
    """Between which offsets of `task-logs` an attempt's output lies."""

    KIND: ClassVar[str] = "output"

    task_id: str
    attempt: int
    first: int
    last: int

    @property
    def key(self) -> str:
        """Task and attempt."""
        return f"{self.task_id}/{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow(Row):
    """The log's identity; one row, keyed by the cell."""

    KIND: ClassVar[str] = "log"

    cell: str
    log_id: str
    mode: LogMode
    created_ms: int
    now_ms: int = 0
    cycle: int = 0

    @property
    def key(self) -> str:
        """The cell."""
        return self.cell
