"""Rows of jobs, tasks, their attempts and their output."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

from yardmaster_core.scheduling.state.shapes import SEPARATE_AFTER
from yardmaster_projections.rows.row import Facet, Order, Row
from yardmaster_projections.wire_types import Shared
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.admissions import AdmittedSpec
from yardmaster_schemas.events.decisions import Checkpoint, Outcome, Placement
from yardmaster_schemas.events.details import Run, StopSignal
from yardmaster_schemas.events.requests import (
    SubmittedSpec,
)
from yardmaster_schemas.reasons import DropCode, EndCode, PolicyStop, RefusalCode, Start, Stop

#: The codes with which quota refuses a record; no verdict on a request has one of them.
_OF_RECORDS: Final = frozenset(RefusalCode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The reason that quota gave for a refusal.

    `not_listed`: what the allow-list of the object `about`, whose kind is `list_owner`, lacks.
    """

    code: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    about: str | None = None
    not_listed: str | None = None
    list_owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """A requested stop, and the time of the request.

    `overdue_at_ms`: when a decision said that the slots were not released in time.
    """

    stop: Stop | PolicyStop
    at_ms: int
    deadline_at_ms: int | None
    overdue_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The slots that are kept for a pending task."""

    pool: str
    #: Node and slots of each replica.
    slots: tuple[tuple[str, tuple[int, ...]], ...]
    #: The number of tasks that were preempted for the reservation, and the time (ms) when the last
    #: task on the slots must have released them (0: not known).
    victims: int
    until_ms: int
    at_ms: int
    cycle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Why a pending task lost its reserved slots."""

    pool: str
    code: DropCode
    about: str | None
    for_task: str | None
    numbers: Mapping[str, int]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a task ended, and the cycle that decided it."""

    outcome: Outcome
    code: EndCode
    exit_code: int | None
    signal: int | None
    cycle: int

    @property
    def facet(self) -> str:
        """The value of the facet `end`: equal for tasks that ended alike."""
        return f"{self.code}/{self.exit_code}/{self.signal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The facts that a job and its tasks share; one object for all of them."""

    job_id: str
    project: str
    #: The name in the details; the actor's id if the details are erased.
    user: str
    name: str
    #: The user's id, as authenticated.
    actor: str
    submitted_at_ms: int
    requested: SubmittedSpec
    labels: Mapping[str, str] = field(default_factory=dict)
    params: tuple[Mapping[str, Any], ...] = ()
    department: str | None = None
    admitted_at_ms: int | None = None
    #: The spec as admitted, with later changes of priority, weight and max_slots.
    spec: AdmittedSpec | None = None
    shape: str | None = None
    #: Whether name, labels, owner, command and environment are erased.
    erased: bool = False

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools where the job may run, in order of preference."""
        return self.spec.pools if self.spec is not None else self.requested.pools

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The facets of the job and of its tasks."""
        return (
            ("project", self.project),
            ("user", self.user),
            ("kind", self.requested.kind),
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
    #: Offset of the job's TaskSubmitted in `requests`.
    offset: int
    run: Annotated[Run | None, Shared("run")] = None
    stop_signal: StopSignal = StopSignal.TERM
    revision: int = 1
    refusal: Refused | None = None
    phases: Mapping[Phase, int] = field(default_factory=dict)
    #: The number of failed tasks by how they ended (`Ended.facet`).
    ends: Mapping[str, int] = field(default_factory=dict)
    #: The submission time that the scheduler uses to order tasks: the time of the quota cycle that
    #: took the request. 0 before the admission.
    queued_at_ms: int = 0
    #: The number of pending tasks whose last starts failed (`TaskRow.start_failed`).
    failed: int = 0
    paused: bool = False
    #: The next submission under the same id, until quota decides on this one.
    again: "JobRow | None" = None

    @property
    def key(self) -> str:
        """The job's id."""
        return self.facts.job_id

    @property
    def refused_as_record(self) -> bool:
        """Whether quota refused the record of the submission, so that the next one counts."""
        return self.refusal is not None and self.refusal.code in _OF_RECORDS

    @property
    def order(self) -> Order:
        """By submission."""
        return (self.facts.submitted_at_ms, self.facts.job_id, 0)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The facets of the facts, its package and pools, and the phases of its tasks."""
        context = None if self.run is None else self.run.context
        return (
            *self.facts.facets,
            *(() if context is None else (("package", context.digest),)),
            *(("pool", pool) for pool in self.facts.pools),
            *(("phase", phase) for phase, count in self.phases.items() if count),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """How much has arrived of the image of a replica, or how many replicas of its node start before
    it, as its agent reported it at `at_ms`.
    """

    replica: int
    layers: int
    layers_done: int
    bytes_done: int
    bytes_total: int
    starts_ahead: int = 0
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow(Row):
    """The present state of a task."""

    KIND: ClassVar[str] = "task"
    WATCHED: ClassVar[bool] = True

    job: Annotated[JobFacts, Shared("facts")]
    index: int
    phase: Phase
    paused: bool = False
    attempt: int = 0
    restarts: int = 0
    not_before_ms: int = 0
    #: The number of consecutive starts that failed, up to the last one.
    failed_starts: int = 0
    #: How many of these have expired.
    expired_starts: int = 0
    pool: str | None = None
    nodes: tuple[str, ...] = ()
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    stopping: Stopping | None = None
    reserved: Reserved | None = None
    #: Why it lost its last reservation; None once it has another one, or has started.
    dropped: Dropped | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_at_ms: int = 0
    progress_permille: int | None = None
    #: How much has arrived of the image of the present attempt; the newest report of any replica.
    preparing: Preparing | None = None
    #: The digest of the first image that it ran, which all its attempts run.
    image: str | None = None
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
        """The request of all its replicas together; 0 for a request by memory of GPUs."""
        return self.job.requested.replicas_min * self.job.requested.resources.gpu_total_milli

    @property
    def failed(self) -> bool:
        """Whether the task is in phase `failed`; a cancelled task is not."""
        return self.phase is Phase.FAILED

    @property
    def start_failed(self) -> bool:
        """Whether the last starts failed so often that the task is queued apart from the others
        of its job.
        """
        return self.failed_starts >= max(SEPARATE_AFTER, self.expired_starts + 1)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """Phase, nodes, facets of the job; the task's pool, else all pools that it may use.

        For a failed task also how it ended (`Ended.facet`).
        """
        return (
            ("phase", self.phase),
            *((("end", self.end.facet),) if self.end is not None and self.failed else ()),
            ("job", self.job.job_id),
            *self.job.facets,
            *(("pool", p) for p in ((self.pool,) if self.pool is not None else self.job.pools)),
            *(("node", node) for node in self.nodes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica of an attempt."""

    placement: Placement
    image: str | None = None
    started_at_ms: int | None = None
    exited_at_ms: int | None = None
    released_at_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow(Row):
    """An attempt to run a task."""

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
    #: The reason why the attempt ended: an end code, or the name of the policy that stopped it.
    end: str | None = None

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
class OutputRow(Row):
    """The first and last offset of an attempt's output in `task-logs`."""

    KIND: ClassVar[str] = "output"

    task_id: str
    attempt: int
    first: int
    last: int

    @property
    def key(self) -> str:
        """Task and attempt."""
        return f"{self.task_id}/{self.attempt}"
