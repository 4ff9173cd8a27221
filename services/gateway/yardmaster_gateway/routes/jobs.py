"""`/v1/jobs`: submit, read, change, cancel, pause, resume."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Response

from yardmaster_eventlog.errors import LogError
from yardmaster_gateway import errors
from yardmaster_gateway.code_context import check_artifacts, check_context, check_uploaded
from yardmaster_gateway.context import (
    CurrentCaller,
    CurrentGateway,
    Gateway,
    Read,
    ReadContext,
    authorize,
    authorize_submission,
)
from yardmaster_gateway.http.bodies import body_of, request_body
from yardmaster_gateway.http.filters import job_filters
from yardmaster_gateway.http.pages import page_of
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import (
    IfMatch,
    Key,
    Origin,
    Repeatable,
    Write,
    as_revision,
    check_condition,
    ensure_key,
    etag,
)
from yardmaster_gateway.identity.authorization import Action, Caller
from yardmaster_gateway.request_writer import RequestOrigin
from yardmaster_gateway.routes.verbs import (
    CANCEL,
    PAUSE,
    RESUME,
    Target,
    add_verb,
)
from yardmaster_gateway.submissions.recent_submissions import RecordedSubmission
from yardmaster_gateway.submissions.submission import Submission
from yardmaster_gateway.submissions.views_in_time import in_time
from yardmaster_projections import queries
from yardmaster_projections.queries import Filters
from yardmaster_projections.rows import JobRow
from yardmaster_schemas.api import (
    Accepted,
    Job,
    JobPatch,
    JobSpec,
    List,
    Phase,
    Submitted,
)
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import (
    MaxSlotsChangeRequestedV1,
    PriorityChangeRequestedV1,
    WeightChangeRequestedV1,
)
from yardmaster_schemas.position import Position
from yardmaster_schemas.quantities import milli
from yardmaster_schemas.topics import REQUESTS

router = APIRouter(tags=["jobs"])

#: The longest that a submission waits for the views, in seconds. After that, it is recorded without
#: them.
VIEWS_S: Final = 1.0

_LINKS: Final = {
    "job": {"operationId": "read_job", "parameters": {"job_id": "$response.body#/job_id"}},
    "change": {"operationId": "change_job", "parameters": {"job_id": "$response.body#/job_id"}},
    "cancel": {"operationId": "cancel_job", "parameters": {"job_id": "$response.body#/job_id"}},
    "pause": {"operationId": "pause_job", "parameters": {"job_id": "$response.body#/job_id"}},
    "resume": {"operationId": "resume_job", "parameters": {"job_id": "$response.body#/job_id"}},
    "task": {"operationId": "read_task", "parameters": {"task_id": "$response.body#/task_ids/0"}},
    "explain": {
        "operationId": "explain_task",
        "parameters": {"task_id": "$response.body#/task_ids/0"},
    },
    "fresh": {
        "operationId": "list_tasks",
        "parameters": {"min_position": "$response.body#/position"},
    },
}


@router.post(
    "/jobs",
    operation_id="submit_job",
    status_code=202,
    response_model=Submitted,
    openapi_extra=request_body(JobSpec),
    responses={
        202: {"links": _LINKS},
        **problem_responses(
            *("forbidden", "too_large", "unsupported_media_type", "invalid_spec"),
            *("idempotency_mismatch", "busy", "outcome_unknown"),
            *("no_packages", "packages_unavailable", "no_artifacts"),
        ),
    },
)
async def submit_job(
    gateway: CurrentGateway,
    caller: CurrentCaller,
    response: Response,
    origin: Origin,
    spec: Annotated[JobSpec, Depends(body_of(JobSpec))],
    idempotency_key: Key = None,
) -> Submitted:
    """Submit a job. The answer 202 means that the job is recorded, not that it is admitted.

    Repeating a request with the same Idempotency-Key and body returns the same answer; the same key
    with a different body is refused. If two gateways record the same key at the same time, the
    first record in the log counts. Jobs can be submitted while the views are unavailable; a
    repetition older than the setting `recent_requests` is then detected by quota only. The package
    that `run.context` names must be stored for the project of the job.
    """
    await authorize_submission(gateway, caller, spec.project)
    check_uploaded(spec)
    key = ensure_key(gateway, idempotency_key, response)
    log = await gateway.log_identity()
    salt = gateway.ports.chance.hex("details salt", 32)
    job = Submission.of(spec, key, log_id=log.log_id, user=caller.user, salt=salt)
    async with gateway.submission_lock(job.job_id):
        known = None
        if idempotency_key is not None:
            known = await _submitted_before(gateway, job.job_id)
        if known is None:
            check_artifacts(gateway, spec)
            await check_context(gateway, spec)
            known = await _record(gateway, job, origin)
    if known.body_digest != job.body_digest:
        raise errors.IdempotencyMismatch(key=key, job_id=job.job_id)
    position = str(Position(cell=gateway.cell, requests=known.offset + 1))
    response.headers["Yard-Position"] = position
    ids = [f"{job.job_id}.{index}" for index in range(known.tasks)]
    warnings = await gateway.sizes.warnings(job.requested, job.project)
    return Submitted(job_id=job.job_id, task_ids=ids, position=position, warnings=warnings)


async def _submitted_before(gateway: Gateway, id_: str) -> RecordedSubmission | None:
    """Return the earlier submission with the same key, if the log or the views have one.

    A submission whose record quota refused does not count.
    """
    known = await gateway.recent.find(id_)
    if known is None and gateway.recent.oldest == 0:
        return None
    row = await in_time(gateway.views.store.get(JobRow, id_), gateway.ports.clock, VIEWS_S)
    if row is not None and row.refused_as_record:
        gateway.recent.forget(id_, row.offset)
        return await gateway.recent.find(id_)
    return known if known is not None or row is None else _as_submitted(row)


def _as_submitted(row: JobRow) -> RecordedSubmission:
    facts = row.facts
    return RecordedSubmission(
        row.body_digest, row.offset, facts.requested.tasks, facts.project, facts.actor
    )


async def _record(gateway: Gateway, job: Submission, origin: RequestOrigin) -> RecordedSubmission:
    """Record a job and its details; return the submission that counts.

    If another gateway has just recorded the same key, this is the earlier submission, and the
    details that this call recorded are erased again.
    """
    ref = await gateway.writer.record_detail(job.details, job.details_key, job.job_id, origin)
    offset = await gateway.writer.record([(job.request(ref), job.job_id)], origin)
    own = RecordedSubmission(
        *(job.body_digest, offset, job.requested.tasks, job.project, origin.caller.user)
    )
    try:
        first = await gateway.recent.find(job.job_id, before=offset + 1)
        if first is None or first.offset >= offset:
            return own
        await gateway.writer.write_tombstones([job.details_key])
    except LogError as error:
        # The job is recorded. Quota detects a repetition, and an erasure finds these details.
        gateway.ports.telemetry.warn("repetition_not_checked", code=error.code, job_id=job.job_id)
        return own
    return first


@router.get(
    "/jobs",
    operation_id="list_jobs",
    response_model=List[Job],
    openapi_extra={"x-label-filters": True},
    responses=problem_responses("bad_cursor"),
)
async def list_jobs(read: Read, filters: Annotated[Filters, Depends(job_filters)]) -> List[Job]:
    """List jobs, the newest first. `label.team=x` filters by label."""
    return await page_of(read, JobRow, filters, read.presenter.job)


async def find_job(read: ReadContext, job_id: str) -> JobRow:
    """The job, if it exists and the caller may see it.

    Raises:
        NotFound: the views have read every request in the log and have no such job.
        ViewBehind: the views have not read every request, so the job may exist.
    """
    row = await queries.job(read.store, job_id, read.visibility)
    if row is None:
        gateway = read.gateway
        end = await gateway.end(REQUESTS.name)
        await gateway.wait_for_position(Position(cell=gateway.cell, requests=end))
        row = await queries.job(read.store, job_id, read.visibility)
    if row is None:
        raise errors.NotFound(what=f"job {job_id[:64]}")
    return row


@router.get(
    "/jobs/{job_id}",
    operation_id="read_job",
    response_model=Job,
    responses=problem_responses("not_found"),
)
async def read_job(read: Read, response: Response, job_id: str) -> Job:
    """Show a job. A change of the job must name the ETag of this answer."""
    row = await find_job(read, job_id)
    response.headers["ETag"] = etag(row.revision)
    return await read.presenter.job(row)


def authorize_change(caller: Caller, row: JobRow) -> None:
    """Check that a caller may change a job; another user's job needs a further role.

    Raises:
        Forbidden.
    """
    own = row.facts.actor == caller.user
    action = Action.CHANGE_OWN if own else Action.CHANGE_ANY
    authorize(caller, action, project=row.facts.project, department=row.facts.department)


@router.patch(
    "/jobs/{job_id}",
    operation_id="change_job",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(JobPatch),
    responses=problem_responses(
        *("forbidden", "not_found", "wrong_phase", "version_mismatch", "too_large"),
        *("unsupported_media_type", "invalid_spec", "precondition_required", "busy"),
        "outcome_unknown",
    ),
)
async def change_job(
    read: Read,
    write: Write,
    job_id: str,
    patch: Annotated[JobPatch, Depends(body_of(JobPatch))],
    if_match: IfMatch = None,
) -> Accepted:
    """Change a job's priority, weight or max_slots.

    Each change is a request of its own; quota decides them in this order.
    """
    row = await find_job(read, job_id)
    authorize_change(read.caller, row)
    revision = as_revision(check_condition(f"job {job_id}", row.revision, if_match))
    _check_not_ended(row)
    events: list[Event] = []

    def guard() -> int | None:
        # Every accepted change increments the revision, so the next change must name the new one.
        return None if revision is None else revision + len(events)

    if patch.priority is not None:
        events.append(
            PriorityChangeRequestedV1(job_id=job_id, priority=patch.priority, if_revision=guard())
        )
    if patch.weight is not None:
        events.append(
            WeightChangeRequestedV1(job_id=job_id, weight=patch.weight, if_revision=guard())
        )
    if "max_slots" in patch.model_fields_set:
        most = None if patch.max_slots is None else milli(patch.max_slots, "max_slots")
        events.append(
            MaxSlotsChangeRequestedV1(job_id=job_id, max_slots_milli=most, if_revision=guard())
        )
    return await write.record(job_id, *events)


def _check_not_ended(row: JobRow) -> None:
    if all(phase.final for phase in row.phases):
        phase = next(iter(row.phases), Phase.REJECTED)
        raise errors.WrongPhase(what=f"job {row.key}", phase=phase)


async def _changeable_job(read: Repeatable, job_id: str) -> Target:
    row = await find_job(read, job_id)
    authorize_change(read.caller, row)
    _check_not_ended(row)
    return Target(row.key)


async def _cancelable_job(read: Repeatable, job_id: str) -> Target:
    try:
        return await _changeable_job(read, job_id)
    except errors.ViewBehind:
        if not await _authorize_unseen(read, job_id):
            raise
        return Target(job_id)


async def _authorize_unseen(read: ReadContext, job_id: str) -> bool:
    """Check that the caller may change a job that the views may not contain yet.

    Return False if the job is not among the newest requests of the log. Return False too if the
    caller may not see its project: the answer must not say whether the job exists.

    Raises:
        Forbidden.
    """
    submitted = await read.gateway.recent.find(job_id)
    if submitted is None or not read.visibility.includes(submitted.project):
        return False
    project = await queries.project(read.store, submitted.project)
    own = submitted.actor == read.caller.user
    action = Action.CHANGE_OWN if own else Action.CHANGE_ANY
    department = project.config.department if project is not None else None
    authorize(read.caller, action, project=submitted.project, department=department)
    return True


add_verb(
    *(router, CANCEL, "job", _cancelable_job),
    "Cancel all tasks of a job. Repeating the request changes nothing.\n\n"
    "A job among the newest requests can also be canceled while the views are behind: it may be "
    "the\none that filled their store.",
)
add_verb(
    *(router, PAUSE, "job", _changeable_job),
    "Pause a job: its tasks save a checkpoint and stop, and do not start until it is resumed.",
)
add_verb(router, RESUME, "job", _changeable_job, "Resume a paused job.")
