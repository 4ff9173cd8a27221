"""The projection: what each event changes of the views, as a pure function.

Requests show at once, as phase `submitted`. Of the machines' topics only counted cycles are
projected, and an agent's claims only when the scheduler's CycleCommitted takes them: `Step` takes a
whole cycle, so that its changes are applied with its position or not at all. Like the machines'
appliers there is one function an event version; an event is in `PROJECTED` or in `IGNORED`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.shapes import shape_id
from yardmaster_projections import scheduled
from yardmaster_projections.draft import ENROLLED, Asking, Draft
from yardmaster_projections.rows import (
    AttemptRow,
    CountersRow,
    CycleRow,
    DepartmentRow,
    HistoryRow,
    JobFacts,
    JobRow,
    LogRow,
    NodeRow,
    OutputRow,
    PoolRow,
    ProjectRow,
    Refused,
    RequestRow,
    TaskRow,
)
from yardmaster_projections.store import Change, ViewReader, Wanted
from yardmaster_schemas.api import Phase, RequestState
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.events.details import JobDetailedV1, RequestNotedV1, StopSignal
from yardmaster_schemas.events.machine import (
    CycleCommittedV1,
    CycleCommittedV2,
    RulesEnabledV1,
    SnapshotTakenV1,
    TermStartedV1,
)
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import DECISIONS, REQUESTS

#: Submissions of one id that are kept while none is judged. Who got no answer tries a few times,
#: and a gateway knows those that it sees in the log.
MAX_AGAIN: Final = 64
#: What a record in `details` says, where the event at hand refers to one that is not erased.
Details = JobDetailedV1 | RequestNotedV1 | None
Projection = Callable[[Draft, Envelope[Any], Details], None]


class Step:
    """One step of the projection: a batch of requests, or a counted cycle with its inputs.

    What it misses of the views it asks for at its end, all at once (`NotLoaded`).
    """

    def __init__(self, view: ViewReader, *, now_ms: int = 0, cycle: int = 0) -> None:
        self._draft = Draft(view, now_ms=now_ms, cycle=cycle)
        self._asking = Asking()

    def take(
        self, topic: str, offset: int, envelope: Envelope[Event], details: Details = None
    ) -> None:
        """Add what an event changes.

        Raises:
            ImpossibleEvent: it contradicts the views, or no projection knows it.
        """
        kind = type(envelope.data)
        projection = PROJECTED.get(kind)
        if projection is None:
            if kind not in IGNORED:
                raise ImpossibleEvent(event=envelope.type, found="the views do not know it")
            return
        with self._asking:
            if topic == REQUESTS.name:
                _record_request(self._draft, offset, envelope, details)
            projection(self._draft, envelope, details)
            for subject in _subjects(envelope):
                self._draft.add_to_history(subject, topic, offset)

    def refuse(self, commit: CycleCommittedV1) -> None:
        """Before a cycle's decisions: take back requests that it refused as records."""
        for one in commit.refused:
            if one.topic == REQUESTS.name:
                for offset in range(one.first, one.last + 1):
                    with self._asking:
                        _refuse(self._draft, offset, one.code)

    def commit(self, topic: str, offset: int, commit: CycleCommittedV1) -> None:
        """Add what the end of a counted cycle changes: requests judged, the cycle itself."""
        if topic == DECISIONS.name:
            self._draft.put(CycleRow(offset=offset, commit=commit))
            with self._asking:
                log = self._draft.find(LogRow, commit.cell)
                if log is not None:
                    self._draft.put(replace(log, now_ms=commit.now_ms, cycle=commit.cycle))
            return
        for taken in commit.inputs:
            if taken.topic == REQUESTS.name:
                for at in range(taken.first, taken.next):
                    with self._asking:
                        row = self._draft.find(RequestRow, str(at))
                        if row is not None and row.state is RequestState.RECORDED:
                            self._draft.put(replace(row, state=RequestState.ACCEPTED))

    def changes(self) -> list[Change]:
        """All changes of the step.

        Raises:
            NotLoaded: the views do not have everything at hand that it reads.
        """
        changes: list[Change] = []
        with self._asking:
            changes = self._draft.changes()
        self._asking.end()
        return changes


def project(
    view: ViewReader,
    topic: str,
    offset: int,
    envelope: Envelope[Event],
    details: Details = None,
    *,
    now_ms: int | None = None,
    cycle: int = 0,
) -> list[Change]:
    """What one event changes of the views; `now_ms` is of the cycle that takes it."""
    step = Step(view, now_ms=envelope.time_ms if now_ms is None else now_ms, cycle=cycle)
    step.take(topic, offset, envelope, details)
    return step.changes()


def details_of(event: Event) -> r.DetailsRef | None:
    """Where an event's details lie, if the views show them."""
    if isinstance(event, r.TaskSubmittedV1):
        return event.details
    if isinstance(
        event,
        r.CancelRequestedV1
        | r.PauseRequestedV1
        | r.NodeCordonRequestedV1
        | r.NodeDrainRequestedV1
        | r.NodeSlotsChangeRequestedV1,
    ):
        return event.note
    return None


def likely_read(envelope: Envelope[Event]) -> list[Wanted]:
    """Rows that a step with this event most likely reads; a hint, to load them in one go."""
    data: Any = envelope.data
    found: list[Wanted] = [(HistoryRow, subject) for subject in _subjects(envelope)]
    job_id = getattr(data, "job_id", None)
    if job_id is not None:
        found.append((JobRow, job_id))
    task_id = getattr(data, "task_id", None)
    if task_id is not None:
        found += ((TaskRow, task_id), (JobRow, task_id.partition(".")[0]))
        attempt = getattr(data, "attempt", 0)
        if attempt:
            found.append((AttemptRow, f"{task_id}/{attempt}"))
    return found


def _subjects(envelope: Envelope[Event]) -> tuple[str, ...]:
    """The job or task whose history a record belongs on."""
    data: Any = envelope.data
    if isinstance(data, scheduled.NOT_IN_HISTORY):
        return ()
    task_id = getattr(data, "task_id", None)
    if task_id is not None:
        return (task_id,)
    job_id = getattr(data, "job_id", None)
    if job_id is None:
        return ()
    index = getattr(data, "index", None)
    return (job_id if index is None else f"{job_id}.{index}",)


# --- requests -----------------------------------------------------------------------------------


def _record_request(draft: Draft, offset: int, envelope: Envelope[Event], details: Details) -> None:
    if isinstance(envelope.data, r.LogCreatedV1):
        return
    draft.put(
        RequestRow(
            offset=offset,
            record_id=envelope.id,
            type=envelope.type,
            subject=envelope.subject,
            actor=envelope.actor.id,
            at_ms=envelope.time_ms,
            note=details.text if isinstance(details, RequestNotedV1) else None,
        )
    )
    if isinstance(envelope.data, r.TaskSubmittedV1):
        _task_submitted_v1(draft, offset, envelope.data, envelope, details)


def _refuse(draft: Draft, offset: int, code: RefusalCode) -> None:
    row = draft.find(RequestRow, str(offset))
    if row is None:
        return  # it could not even be decoded
    draft.put(replace(row, state=RequestState.REFUSED, refusal=Refused(code=code)))
    job = draft.find(JobRow, row.subject)
    if row.type == r.TaskSubmittedV1.TYPE and job is not None and job.offset == offset:
        _withdraw(draft, job)


def _withdraw(draft: Draft, job: JobRow) -> None:
    """A submission did not count (it landed late, say): the next one of its id takes its place."""
    for task in _tasks(draft, job):
        draft.drop_task(task)
    if job.again is None:
        draft.drop(job)
    else:
        # The counts stay what they were before this step, which takes the tasks off them.
        _appear(draft, replace(job.again, phases=job.phases))


def _appear(draft: Draft, job: JobRow) -> None:
    draft.put(job)
    for index in range(job.facts.asked.tasks):
        draft.add_task(TaskRow(job=job.facts, index=index, phase=Phase.SUBMITTED))


def _log_created_v1(draft: Draft, envelope: Envelope[r.LogCreatedV1], _: Details) -> None:
    data = envelope.data
    if draft.find(LogRow, data.cell) is None:
        draft.put(
            LogRow(cell=data.cell, log_id=data.log_id, mode=data.mode, created_ms=envelope.time_ms)
        )


def _task_submitted_v1(
    draft: Draft,
    offset: int,
    data: r.TaskSubmittedV1,
    envelope: Envelope[Event],
    details: Details,
) -> None:
    known = details if isinstance(details, JobDetailedV1) else None
    facts = JobFacts(
        job_id=data.job_id,
        project=data.project,
        user=known.user if known else envelope.actor.id,
        name=known.name if known else data.job_id,
        actor=envelope.actor.id,
        submitted_at_ms=envelope.time_ms,
        asked=data.spec,
        labels=dict(known.labels) if known else {},
        params=known.params if known else (),
    )
    job = JobRow(
        facts=facts,
        body_digest=data.body_digest,
        offset=offset,
        run=known.run if known else None,
    )
    if known is not None:
        job = replace(job, stop_signal=known.stop_signal)
    first = draft.find(JobRow, data.job_id)
    if first is None:
        _appear(draft, job)
    elif first.facts.spec is None:
        # The same key again: only the first counts, unless it turns out to be no valid record.
        draft.put(_followed_by(first, job, MAX_AGAIN))


def _followed_by(job: JobRow, last: JobRow, room: int) -> JobRow:
    """The job with one more submission of its id behind those that wait for its verdict."""
    if job.again is None:
        return replace(job, again=last)
    return job if room == 1 else replace(job, again=_followed_by(job.again, last, room - 1))


def _nothing(draft: Draft, envelope: Envelope[Any], details: Details) -> None:
    """A request shows as a request; what it asks for shows when it is accepted."""


# --- admissions: jobs ---------------------------------------------------------------------------


def _tasks(draft: Draft, job: JobRow, index: int | None = None) -> list[TaskRow]:
    wanted = range(job.facts.asked.tasks) if index is None else (index,)
    return draft.need_each(TaskRow, [f"{job.key}.{each}" for each in wanted], "a verdict")


def _task_admitted_v1(draft: Draft, envelope: Envelope[a.TaskAdmittedV1], _: Details) -> None:
    data = envelope.data
    job = draft.need(JobRow, data.job_id, envelope.type)
    facts = replace(
        job.facts,
        department=data.department,
        admitted_at_ms=envelope.time_ms,
        spec=data.spec,
        shape=shape_id(data.job_id, data.project, data.spec),
    )
    # What else was submitted under its id can take its place no more.
    draft.put(replace(job, facts=facts, again=None))
    for task in _tasks(draft, job):
        draft.change_task(task, job=facts, phase=Phase.PENDING)


def _task_rejected_v1(draft: Draft, envelope: Envelope[a.TaskRejectedV1], _: Details) -> None:
    data = envelope.data
    job = draft.need(JobRow, data.job_id, envelope.type)
    refusal = Refused(code=data.code, numbers=dict(data.numbers), about=data.about)
    request = draft.request(envelope.cause or "")
    if request is not None:
        draft.put(replace(request, state=RequestState.REFUSED, refusal=refusal))
        if request.offset != job.offset:
            return  # a second submission under the same id; the first one's tasks live on
    draft.put(replace(job, refusal=refusal))
    for task in _tasks(draft, job):
        draft.change_task(task, phase=Phase.REJECTED, ended_at_ms=envelope.time_ms)


def _request_refused_v1(draft: Draft, envelope: Envelope[a.RequestRefusedV1], _: Details) -> None:
    data = envelope.data
    request = draft.request(envelope.cause or "")
    if request is not None:
        refusal = Refused(code=data.code, numbers=dict(data.numbers), about=data.about)
        draft.put(replace(request, state=RequestState.REFUSED, refusal=refusal))


def _hold(draft: Draft, job_id: str, index: int | None, paused: bool) -> None:
    job = draft.need(JobRow, job_id, "a verdict")
    if index is None:
        job = replace(job, paused=paused)
        draft.put(job)
    elif not paused and job.paused:
        draft.put(replace(job, paused=False))
    for task in _tasks(draft, job, index):
        if not task.phase.final:
            draft.change_task(task, paused=paused)


def _task_paused_v1(draft: Draft, envelope: Envelope[a.TaskPausedV1], _: Details) -> None:
    _hold(draft, envelope.data.job_id, envelope.data.index, paused=True)


def _task_resumed_v1(draft: Draft, envelope: Envelope[a.TaskResumedV1], _: Details) -> None:
    _hold(draft, envelope.data.job_id, envelope.data.index, paused=False)


def _job_changed_v1(draft: Draft, envelope: Envelope[Any], _: Details) -> None:
    data = envelope.data
    job = draft.need(JobRow, data.job_id, envelope.type)
    spec = job.facts.spec
    if spec is None:
        raise ImpossibleEvent(event=envelope.type, found=f"job {job.key} was not admitted")
    match data:
        case a.PriorityChangedV1():
            spec = replace(spec, priority=data.priority)
        case a.WeightChangedV1():
            spec = replace(spec, weight=data.weight)
        case _:
            spec = replace(spec, max_slots_milli=data.max_slots_milli)
    facts = replace(job.facts, spec=spec, shape=shape_id(data.job_id, job.facts.project, spec))
    draft.put(replace(job, facts=facts, revision=data.revision))
    for task in _tasks(draft, job):
        draft.change_task(task, job=facts)


def _details_erased_v1(draft: Draft, envelope: Envelope[a.DetailsErasedV1], _: Details) -> None:
    job = draft.find(JobRow, envelope.data.job_id)
    if job is None:
        return
    facts = replace(
        job.facts, name=job.key, user=job.facts.actor, labels={}, params=(), erased=True
    )
    # As if the details had never been there: so it is where the views are folded anew.
    draft.put(replace(job, facts=facts, run=None, again=None, stop_signal=StopSignal.TERM))
    for task in _tasks(draft, job):
        draft.change_task(task, job=facts)
        for attempt in range(1, task.attempt + 1):
            draft.drop(OutputRow(task_id=task.key, attempt=attempt, first=0, last=0))
    for request in draft.having(RequestRow, ("noted", job.key)):
        draft.put(replace(request, note=None))


# --- admissions: what operators keep ------------------------------------------------------------


def _pool_configured_v1(draft: Draft, envelope: Envelope[a.PoolConfiguredV1], _: Details) -> None:
    data = envelope.data
    draft.put(PoolRow(name=data.pool, revision=data.revision, config=data.config))


def _pool_deleted_v1(draft: Draft, envelope: Envelope[a.PoolDeletedV1], _: Details) -> None:
    row = draft.find(PoolRow, envelope.data.pool)
    if row is not None:
        draft.drop(row)


def _entitlements_changed_v1(
    draft: Draft, envelope: Envelope[a.EntitlementsChangedV1], _: Details
) -> None:
    data = envelope.data
    kind: type[DepartmentRow] | type[ProjectRow]
    if data.level is a.Level.DEPARTMENT:
        kind = DepartmentRow
        if data.department is not None:
            draft.put(DepartmentRow(name=data.name, revision=data.revision, config=data.department))
            return
    else:
        kind = ProjectRow
        if data.project is not None:
            draft.put(ProjectRow(name=data.name, revision=data.revision, config=data.project))
            return
    row = draft.find(kind, data.name)
    if row is not None:
        draft.drop(row)


def _node_changed_v1(draft: Draft, envelope: Envelope[Any], _: Details) -> None:
    data = envelope.data
    node = draft.find(NodeRow, data.node) or NodeRow(name=data.node)
    if isinstance(data, a.NodeUncordonedV1):
        draft.change_node(node, cordoned=False, deadline_at_ms=None, reason=None)
        return
    request = draft.request(envelope.cause or "")
    draft.change_node(
        node,
        cordoned=True,
        deadline_at_ms=data.deadline_at_ms if isinstance(data, a.NodeDrainingV1) else None,
        reason=request.note if request is not None else None,
    )


def _node_slots_changed_v1(
    draft: Draft, envelope: Envelope[a.NodeSlotsChangedV1], _: Details
) -> None:
    data = envelope.data
    node = draft.find(NodeRow, data.node) or NodeRow(name=data.node)
    request = draft.request(envelope.cause or "")
    draft.change_node(
        node,
        disabled=data.disabled,
        disabled_reason=request.note if request is not None and data.disabled else None,
    )


def _node_enrolled_v1(draft: Draft, envelope: Envelope[a.NodeEnrolledV1], _: Details) -> None:
    data = envelope.data
    first = draft.find(CountersRow, ENROLLED) is None
    node = draft.find(NodeRow, data.node) or NodeRow(name=data.node)
    if not node.enrolment_revision:
        draft.enrol()
    draft.change_node(
        node, enrolment=data.enrolment, enrolment_revision=data.revision, revoked=False
    )
    # The first one closes the cell, to those who are here already too.
    here = draft.having(NodeRow, ("listed", "yes")) if first else []
    for name in dict.fromkeys((data.node, *(row.key for row in here))):
        found = draft.find(NodeRow, name)
        if found is not None:
            draft.change_node(found, barred=scheduled.barred(found))


def _node_revoked_v1(draft: Draft, envelope: Envelope[a.NodeRevokedV1], _: Details) -> None:
    node = draft.need(NodeRow, envelope.data.node, envelope.type)
    draft.change_node(
        node, enrolment=None, revoked=True, barred=node.joined is not None, rejoined=None
    )


PROJECTED: Final[Mapping[type[Event], Projection]] = {
    r.LogCreatedV1: _log_created_v1,
    r.TaskSubmittedV1: _nothing,
    r.CancelRequestedV1: _nothing,
    r.PauseRequestedV1: _nothing,
    r.ResumeRequestedV1: _nothing,
    r.PriorityChangeRequestedV1: _nothing,
    r.WeightChangeRequestedV1: _nothing,
    r.MaxSlotsChangeRequestedV1: _nothing,
    r.PoolChangeRequestedV1: _nothing,
    r.PoolDeletionRequestedV1: _nothing,
    r.DepartmentChangeRequestedV1: _nothing,
    r.DepartmentDeletionRequestedV1: _nothing,
    r.ProjectChangeRequestedV1: _nothing,
    r.ProjectDeletionRequestedV1: _nothing,
    r.NodeCordonRequestedV1: _nothing,
    r.NodeUncordonRequestedV1: _nothing,
    r.NodeDrainRequestedV1: _nothing,
    r.NodeSlotsChangeRequestedV1: _nothing,
    r.NodeEnrolRequestedV1: _nothing,
    r.NodeRevokeRequestedV1: _nothing,
    r.EraseRequestedV1: _nothing,
    a.TaskAdmittedV1: _task_admitted_v1,
    a.TaskRejectedV1: _task_rejected_v1,
    a.RequestRefusedV1: _request_refused_v1,
    a.CancelAcceptedV1: _nothing,
    a.TaskPausedV1: _task_paused_v1,
    a.TaskResumedV1: _task_resumed_v1,
    a.PriorityChangedV1: _job_changed_v1,
    a.WeightChangedV1: _job_changed_v1,
    a.MaxSlotsChangedV1: _job_changed_v1,
    a.PoolConfiguredV1: _pool_configured_v1,
    a.PoolDeletedV1: _pool_deleted_v1,
    a.EntitlementsChangedV1: _entitlements_changed_v1,
    a.NodeCordonedV1: _node_changed_v1,
    a.NodeUncordonedV1: _node_changed_v1,
    a.NodeDrainingV1: _node_changed_v1,
    a.NodeSlotsChangedV1: _node_slots_changed_v1,
    a.NodeEnrolledV1: _node_enrolled_v1,
    a.NodeRevokedV1: _node_revoked_v1,
    a.DetailsErasedV1: _details_erased_v1,
    **scheduled.PROJECTED,
}

#: Events that no view shows yet.
IGNORED: Final[frozenset[type[Event]]] = frozenset(
    {
        *(TermStartedV1, CycleCommittedV1, CycleCommittedV2, RulesEnabledV1, SnapshotTakenV1),
        *(a.UsageRecordedV1, a.RoleGrantedV1, a.RoleRevokedV1, a.TokenIssuedV1, a.TokenRevokedV1),
        *(a.AccessRevokedV1, a.RunAsBoundV1),
        *scheduled.IGNORED,
    }
)
