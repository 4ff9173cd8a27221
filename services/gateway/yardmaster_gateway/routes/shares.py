"""`/v1/shares`: how a pool was divided among departments and projects."""

from typing import Annotated

from fastapi import APIRouter, Query

from yardmaster_gateway.context import Read
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.routes.pools import POOLS
from yardmaster_projections.shares import division
from yardmaster_schemas.api import Shares
from yardmaster_schemas.instants import rfc3339

router = APIRouter(tags=["shares"])


@router.get(
    "/shares",
    operation_id="read_shares",
    response_model=Shares,
    responses=problem_responses("not_found"),
)
async def read_shares(read: Read, pool: Annotated[str, Query(max_length=63)]) -> Shares:
    """Show what each department and project deserves, gets, holds and requests in a pool.

    The scheduler records the division under the policy `quota` when something changed: the next
    record follows after 5 s at the earliest, and after up to 60 s while changes continue.
    Departments and projects that deserve, hold and request nothing are left out, as are projects
    that the caller may not see and departments without a visible project.
    """
    row = await POOLS.get(read, pool)
    found = await division(read.store, row.name, read.visibility)
    return Shares(
        pool=row.name,
        divided_at=None if found.at_ms is None else rfc3339(found.at_ms),
        cycle=found.cycle,
        items=list(found.queues),
        position=str(read.position),
    )
