"""Projects requests: their jobs and tasks are visible at once, in phase `submitted`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from yardmaster_projections.projection.details import Details, Projector
from yardmaster_projections.projection.draft import Draft
from yardmaster_projections.rows import JobFacts, JobRow, LogRow, Refused, RequestRow, TaskRow
from yardmaster_schemas.api import Phase, RequestState
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.events import users as u
from yardmaster_schemas.events.details import JobDetailedV1, RequestNotedV1
from yardmaster_schemas.reasons import RefusalCode

#: The most submissions of one job id that are kept until quota decides. This many are not expected:
#: a client without an answer retries only a few times, and a gateway recognizes the submissions
#: that it has read in the log.
MAX_AGAIN: Final = 64


def record_request(draft: Draft, offset: int, envelope: Envelope[Event], details: Details) -> None:
    """Add a request, and the job and tasks that it submits."""
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


def refuse(draft: Draft, offset: int, code: RefusalCode) -> None:
    """Mark a request whose record quota refused; replace or reject the job that it submitted."""
    row = draft.find(RequestRow, str(offset))
    if row is None:
        return  # the record could not be decoded, so it has no row
    draft.put(replace(row, state=RequestState.REFUSED, refusal=Refused(code=code)))
    job = draft.find(JobRow, row.subject)
    if row.type == r.TaskSubmittedV1.TYPE and job is not None and job.offset == offset:
        _reject(draft, job, code)


def _reject(draft: Draft, job: JobRow, code: RefusalCode) -> None:
    """Replace a refused submission by the next one of its id, or else reject its job.

    The user may have received status 202, and must see that the job will not run. Quota does not
    know the job, so no event can erase its details from the views later. Therefore the details are
    removed at once.
    """
    if job.again is not None:
        _replace(draft, job, job.again)
        return
    facts = replace(job.facts, name=job.key, labels={}, params=())
    rejected = replace(job, facts=facts, run=None, refusal=Refused(code=code))
    _replace(draft, job, rejected, phase=Phase.REJECTED, ended_at_ms=draft.now_ms)


def _replace(draft: Draft, job: JobRow, new: JobRow, **of_tasks: Any) -> None:
    """Drop the tasks of a job, and add the job and its tasks again as `new`."""
    for task in job_tasks(draft, job):
        draft.drop_task(task)
    # `phases` keeps the counts from before this step: the draft subtracts the dropped tasks later.
    _add_job(draft, replace(new, phases=job.phases), **of_tasks)


def _add_job(
    draft: Draft, job: JobRow, *, phase: Phase = Phase.SUBMITTED, ended_at_ms: int | None = None
) -> None:
    draft.put(job)
    for index in range(job.facts.requested.tasks):
        task = TaskRow(job=job.facts, index=index, phase=phase, ended_at_ms=ended_at_ms)
        draft.add_task(task)


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
        requested=data.spec,
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
        _add_job(draft, job)
    elif first.refused_as_record:
        _replace(draft, first, job)
    elif first.facts.spec is None:
        # The submission repeats an idempotency key. Only the first submission counts, unless quota
        # refuses the record of the first.
        draft.put(_followed_by(first, job, MAX_AGAIN))


def _followed_by(job: JobRow, last: JobRow, limit: int) -> JobRow:
    """The job with `last` appended to the further submissions of its id, at most `limit`."""
    if job.again is None:
        return replace(job, again=last)
    return job if limit == 1 else replace(job, again=_followed_by(job.again, last, limit - 1))


def nothing(draft: Draft, envelope: Envelope[Any], details: Details) -> None:
    """Change nothing: the effect of such a request is visible only once quota has accepted it."""


def job_tasks(draft: Draft, job: JobRow, index: int | None = None) -> list[TaskRow]:
    """The tasks of a job, or its task of an index.

    Raises:
        ImpossibleEvent: one of them does not exist.
    """
    wanted = range(job.facts.requested.tasks) if index is None else (index,)
    return draft.need_each(TaskRow, [f"{job.key}.{each}" for each in wanted], "a verdict")


PROJECTED: Final[Mapping[type[Event], Projector]] = {
    r.LogCreatedV1: _log_created_v1,
    r.TaskSubmittedV1: nothing,
    r.CancelRequestedV1: nothing,
    r.PauseRequestedV1: nothing,
    r.ResumeRequestedV1: nothing,
    r.PriorityChangeRequestedV1: nothing,
    r.WeightChangeRequestedV1: nothing,
    r.MaxSlotsChangeRequestedV1: nothing,
    r.CellChangeRequestedV1: nothing,
    r.PoolChangeRequestedV1: nothing,
    r.PoolDeletionRequestedV1: nothing,
    r.DepartmentChangeRequestedV1: nothing,
    r.DepartmentDeletionRequestedV1: nothing,
    r.ProjectChangeRequestedV1: nothing,
    r.ProjectDeletionRequestedV1: nothing,
    r.NodeCordonRequestedV1: nothing,
    r.NodeUncordonRequestedV1: nothing,
    r.NodeDrainRequestedV1: nothing,
    r.NodeSlotsChangeRequestedV1: nothing,
    r.RulesRequestedV1: nothing,
    r.NodeEnrolRequestedV1: nothing,
    r.NodeRevokeRequestedV1: nothing,
    r.EraseRequestedV1: nothing,
    u.RoleGrantRequestedV1: nothing,
    u.RoleRevokeRequestedV1: nothing,
    u.TokenIssueRequestedV1: nothing,
    u.TokenRevokeRequestedV1: nothing,
    u.AccessRevokeRequestedV1: nothing,
}
