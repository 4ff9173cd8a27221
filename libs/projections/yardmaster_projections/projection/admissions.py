"""Projects the verdicts of quota."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.shapes import shape_id
from yardmaster_projections.projection import scheduling
from yardmaster_projections.projection.details import Details, Projector
from yardmaster_projections.projection.draft import ENROLLED, Draft
from yardmaster_projections.projection.requests import job_tasks, nothing
from yardmaster_projections.rows import (
    CountersRow,
    DepartmentRow,
    JobRow,
    LogRow,
    NodeRow,
    OutputRow,
    PoolRow,
    ProjectRow,
    Refused,
    RequestRow,
)
from yardmaster_schemas.api import Phase, RequestState
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events.details import StopSignal

# --- admissions: jobs ---------------------------------------------------------------------------


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
    # Once the job is admitted, no other submission under its id can replace it.
    draft.put(replace(job, facts=facts, queued_at_ms=data.submitted_at_ms, again=None))
    for task in job_tasks(draft, job):
        draft.change_task(task, job=facts, phase=Phase.PENDING)


def _task_rejected_v1(draft: Draft, envelope: Envelope[a.TaskRejectedV1], _: Details) -> None:
    data = envelope.data
    job = draft.need(JobRow, data.job_id, envelope.type)
    refusal = Refused(
        code=data.code,
        numbers=dict(data.numbers),
        about=data.about,
        not_listed=data.not_listed,
        list_owner=data.list_owner,
    )
    request = draft.request(envelope.cause or "")
    if request is not None:
        draft.put(replace(request, state=RequestState.REFUSED, refusal=refusal))
        if request.offset != job.offset:
            return  # a second submission under the same id; the job row is that of the first
    draft.put(replace(job, refusal=refusal))
    for task in job_tasks(draft, job):
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
    for task in job_tasks(draft, job, index):
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
    for task in job_tasks(draft, job):
        draft.change_task(task, job=facts)


def _details_erased_v1(draft: Draft, envelope: Envelope[a.DetailsErasedV1], _: Details) -> None:
    job = draft.find(JobRow, envelope.data.job_id)
    if job is None:
        return
    facts = replace(
        job.facts, name=job.key, user=job.facts.actor, labels={}, params=(), erased=True
    )
    # The row is as if there had never been details, so that a rebuild of the views after the
    # erasure gives the same row.
    draft.put(replace(job, facts=facts, run=None, again=None, stop_signal=StopSignal.TERM))
    for task in job_tasks(draft, job):
        draft.change_task(task, job=facts)
        for attempt in range(1, task.attempt + 1):
            draft.drop(OutputRow(task_id=task.key, attempt=attempt, first=0, last=0))
    for request in draft.having(RequestRow, ("noted", job.key)):
        draft.put(replace(request, note=None))


# --- admissions: what operators keep ------------------------------------------------------------


def _cell_configured_v1(draft: Draft, envelope: Envelope[a.CellConfiguredV1], _: Details) -> None:
    data = envelope.data
    log = draft.need(LogRow, envelope.subject, envelope.type)
    draft.put(replace(log, config=data.config, config_revision=data.revision))


def _pool_configured_v1(draft: Draft, envelope: Envelope[a.PoolConfiguredV1], _: Details) -> None:
    data = envelope.data
    row = draft.find(PoolRow, data.pool)
    if row is not None and row.config.policy.name != data.config.policy.name:
        draft.drop_shares(data.pool)
    draft.put(PoolRow(name=data.pool, revision=data.revision, config=data.config))


def _pool_deleted_v1(draft: Draft, envelope: Envelope[a.PoolDeletedV1], _: Details) -> None:
    row = draft.find(PoolRow, envelope.data.pool)
    if row is not None:
        draft.drop_shares(row.name)
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
    if not node.enrollment_revision:
        draft.enroll()
    draft.change_node(
        node, enrollment=data.enrollment, enrollment_revision=data.revision, revoked=False
    )
    # The first enrollment closes the cell, also to nodes that joined already.
    here = draft.having(NodeRow, ("listed", "yes")) if first else []
    for name in dict.fromkeys((data.node, *(row.key for row in here))):
        found = draft.find(NodeRow, name)
        if found is not None:
            draft.change_node(found, barred=scheduling.barred(found))


def _node_revoked_v1(draft: Draft, envelope: Envelope[a.NodeRevokedV1], _: Details) -> None:
    node = draft.need(NodeRow, envelope.data.node, envelope.type)
    draft.change_node(
        node, enrollment=None, revoked=True, barred=node.joined is not None, rejoined=None
    )


PROJECTED: Final[Mapping[type[Event], Projector]] = {
    a.TaskAdmittedV1: _task_admitted_v1,
    a.TaskRejectedV1: _task_rejected_v1,
    a.RequestRefusedV1: _request_refused_v1,
    a.CancelAcceptedV1: nothing,
    a.TaskPausedV1: _task_paused_v1,
    a.TaskResumedV1: _task_resumed_v1,
    a.PriorityChangedV1: _job_changed_v1,
    a.WeightChangedV1: _job_changed_v1,
    a.MaxSlotsChangedV1: _job_changed_v1,
    a.CellConfiguredV1: _cell_configured_v1,
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
}
