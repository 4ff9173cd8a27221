"""`/v1/jobs/{id}/erase`: permanently delete the texts and the files of a job.

The texts are its name, labels, command, environment and notes. The files are its artifacts, and its
code package if no other job has it.

The gateway writes the tombstones first and then the request, which names the last tombstone. The
answer 202 therefore means that the data is deleted from the log; no other process has to complete
the deletion. A client that gets no answer repeats the request, which does no harm. Quota turns the
request into DetailsErased, on which the views delete the data too. Replay never reads it.

Only ended jobs can be erased, because a job that has not ended needs its command for a restart.
Whether a job has ended is checked against the views. This is safe even if the views are behind the
log, because the end of a job is final.
"""

from collections.abc import AsyncIterator
from typing import Final

from fastapi import APIRouter

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import Partition
from yardmaster_eventlog.reader import record_at
from yardmaster_gateway import errors
from yardmaster_gateway.artifact_reader import store_errors
from yardmaster_gateway.code_context import is_needed, unavailable
from yardmaster_gateway.context import Gateway, ReadContext, authorize
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import Repeatable, Write
from yardmaster_gateway.identity.authorization import Action
from yardmaster_gateway.routes.jobs import find_job
from yardmaster_packages.errors import PackagesUnavailable
from yardmaster_projections.projection.details import details_of
from yardmaster_projections.rows import JobRow, RequestRow
from yardmaster_projections.store import Query
from yardmaster_schemas.api import Accepted
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import EraseRequestedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import DETAILS, REQUESTS

router = APIRouter(tags=["jobs"])

#: The number of requests that are read per page to find notes.
PAGE: Final = 500


@router.post(
    "/jobs/{job_id}/erase",
    operation_id="erase_job",
    status_code=202,
    response_model=Accepted,
    responses=problem_responses(
        *("forbidden", "not_found", "wrong_phase", "busy", "too_large", "outcome_unknown"),
        *("artifacts_unavailable", "packages_unavailable"),
    ),
)
async def erase_job(read: Repeatable, write: Write, job_id: str) -> Accepted:
    """Permanently delete the texts (name, labels, command, notes) and files of an ended job."""
    gateway = read.gateway
    row = await find_job(read, job_id)
    authorize(
        *(read.caller, Action.ERASE),
        project=row.facts.project,
        department=row.facts.department,
    )
    _check_ended(row)
    await _remove_files(gateway, row)
    keys = [key async for key in _other_keys(read, row.key)]
    own = await _key_of_details(read, row.offset)
    if own is not None:
        keys.append(own)
    # One with the job id always: the request names a tombstone also where the details are gone.
    offset = await gateway.writer.write_tombstones([*keys, row.key])
    event = EraseRequestedV1(job_id=row.key, partition=gateway.settings.partition, tombstone=offset)
    return await write.record(row.key, event)


def _check_ended(row: JobRow) -> None:
    live = [phase for phase in row.phases if not phase.final]
    if live or not row.phases:
        raise errors.NotEnded(what=f"job {row.key}", phase=live[0] if live else "submitted")


async def _remove_files(gateway: Gateway, row: JobRow) -> None:
    """Remove the artifacts of the job's tasks, and its code package if no other job has it.

    Raises:
        ArtifactStoreUnavailable, PackageStoreUnavailable, ViewBehind: nothing of the log is erased
            yet; the client repeats the request.
    """
    project, context = row.facts.project, None if row.run is None else row.run.context
    if gateway.artifacts is not None:
        with store_errors(gateway.ports.telemetry):
            await gateway.artifacts.store.remove_job(project, row.key)
    store = gateway.ports.packages
    if store is None or context is None:
        return
    # A job that was submitted before this request must be in the views.
    end = await gateway.end(REQUESTS.name)
    await gateway.wait_for_position(Position(cell=gateway.cell, requests=end))
    if not await is_needed(gateway, project, context.digest, ended=True, but=row.key):
        try:
            await store.remove(project, context.digest)
        except PackagesUnavailable as error:
            raise unavailable(gateway, error) from error


async def _other_keys(read: ReadContext, job_id: str) -> AsyncIterator[str]:
    """The keys of notes about the job or its tasks, and of the details of repeated submissions."""
    query = Query(facets={"noted": frozenset({job_id})}, limit=PAGE)
    while True:
        page = await read.store.page(RequestRow, query)
        for row in page.rows:
            key = await _key_of_details(read, row.offset)
            if key is not None:
                yield key
        if page.next is None:
            return
        query = Query(facets=query.facets, limit=PAGE, after=page.next)


async def _key_of_details(read: ReadContext, offset: int) -> str | None:
    """The key of the record in `details` that a request refers to; None if it is gone."""
    gateway = read.gateway
    log, number = gateway.ports.log, gateway.settings.partition
    requests = await log.read(Partition(REQUESTS.name, number), offset, max_records=1)
    try:
        event = decode(requests[0].record).data
    except (SchemaError, IndexError):
        return None
    where = details_of(event)
    if where is None:
        return None
    found = await record_at(log, Partition(DETAILS.name, where.partition), where.offset)
    return None if found is None else found.record.key.decode()
