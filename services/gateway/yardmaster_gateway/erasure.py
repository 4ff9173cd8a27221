"""`/v1/jobs/{id}/erase`: what was said of a job in words, and what it ran, gone for good.

The tombstones are written first and then the request, which names the last of them. So what is
answered with 202 is done: no half of it is left to somebody who may die before. Whoever got no
answer asks again, which is harmless. Quota makes DetailsErased of the request, and at that the
views forget as well; replay never needed what is gone.

Only of jobs that have ended: one that has not could not be started again. An end is for good, so a
view that shows it cannot be out of date.
"""

from collections.abc import AsyncIterator
from typing import Final

from fastapi import APIRouter, Response

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import Partition
from yardmaster_eventlog.reader import record_at
from yardmaster_gateway import errors
from yardmaster_gateway.authorization import Action
from yardmaster_gateway.context import Read, ReadContext, authorize
from yardmaster_gateway.jobs import find_job
from yardmaster_gateway.problems import problem_responses
from yardmaster_gateway.writes import Key, Origin, ensure_key, record_requests
from yardmaster_projections.project import details_of
from yardmaster_projections.rows import JobRow, RequestRow
from yardmaster_projections.store import Query
from yardmaster_schemas.api import Accepted
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import EraseRequestedV1
from yardmaster_schemas.topics import DETAILS, REQUESTS

router = APIRouter(tags=["jobs"])

#: Notes that are looked up at a time.
PAGE: Final = 500


@router.post(
    "/jobs/{job_id}/erase",
    operation_id="erase_job",
    status_code=202,
    response_model=Accepted,
    responses=problem_responses(
        "forbidden", "not_found", "wrong_phase", "busy", "too_large", "outcome_unknown"
    ),
)
async def erase_job(
    read: Read,
    response: Response,
    origin: Origin,
    job_id: str,
    idempotency_key: Key = None,
) -> Accepted:
    """Erase the name, labels, command, environment and notes of a job that has ended, for good."""
    gateway = read.gateway
    ensure_key(gateway, idempotency_key, response)
    row = await find_job(read, job_id)
    authorize(
        *(read.caller, Action.ERASE),
        project=row.facts.project,
        department=row.facts.department,
    )
    _ended(row)
    keys = [key async for key in _other_keys(read, row.key)]
    own = await _key_of_details(read, row.offset)
    if own is not None:
        keys.append(own)
    # The job's own id is the details' key in logs of earlier versions.
    offset = await gateway.writer.erase([*keys, row.key])
    event = EraseRequestedV1(job_id=row.key, partition=gateway.settings.partition, tombstone=offset)
    return await record_requests(gateway, [(event, row.key)], origin, response)


def _ended(row: JobRow) -> None:
    live = [phase for phase in row.phases if not phase.final]
    if live or not row.phases:
        raise errors.NotEnded(what=f"job {row.key}", phase=live[0] if live else "submitted")


async def _other_keys(read: ReadContext, job_id: str) -> AsyncIterator[str]:
    """The keys of notes given with requests about the job or its tasks, and of repeats' details."""
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
    """The key of what the request at an offset has in `details`; None when it is gone."""
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
