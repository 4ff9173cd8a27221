"""`/v1/usage`: GPU time by project, user or pool, from the store of metered usage."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from yardmaster_gateway import errors
from yardmaster_gateway.context import (
    CurrentCaller,
    CurrentGateway,
    PositionHeader,
    PositionQuery,
    parse_position,
)
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_projections.errors import TooMuchUsage
from yardmaster_projections.metered import UsageQuery, metered
from yardmaster_projections.usage import HOUR_MS
from yardmaster_schemas.api import Usage, UsageBucket, UsageBy, UsageSum
from yardmaster_schemas.instants import parse_rfc3339, rfc3339

router = APIRouter(tags=["usage"])

DAY_MS: Final = 24 * HOUR_MS
#: The longest period of one answer, and the default period.
MAX_WINDOW_MS: Final = 400 * DAY_MS
DEFAULT_WINDOW_MS: Final = 30 * DAY_MS


@router.get(
    "/usage",
    operation_id="read_usage",
    response_model=Usage,
    responses=problem_responses("not_found", "position_unknown", "view_behind"),
)
async def read_usage(
    gateway: CurrentGateway,
    caller: CurrentCaller,
    response: Response,
    begin: Annotated[str | None, Query(alias="from", max_length=40)] = None,
    end: Annotated[str | None, Query(alias="to", max_length=40)] = None,
    by: UsageBy = UsageBy.PROJECT,
    bucket: UsageBucket | None = None,
    min_position: PositionQuery = None,
    yard_min_position: PositionHeader = None,
) -> Usage:
    """Sum the GPU time of the projects that the caller may see, in whole hours.

    The default period is the last 30 days. A running task counts up to the end of the period.
    """
    store = gateway.usage
    if store is None:
        raise errors.NotFound(what="usage data: this cluster does not meter usage")
    await gateway.wait_for_position(parse_position(min_position or yard_min_position), store)
    now_ms = gateway.ports.clock.now_ms()
    to_ms = now_ms if end is None else _moment("to", end)
    from_ms = max(0, to_ms - DEFAULT_WINDOW_MS) if begin is None else _moment("from", begin)
    if not 0 <= to_ms - from_ms <= MAX_WINDOW_MS:
        raise errors.Malformed(found="`to` must be after `from`, by at most 400 days")
    query = UsageQuery.window(from_ms, to_ms, by, bucket)
    try:
        found = await metered(store, query, await gateway.visibility(caller), now_ms)
    except TooMuchUsage as error:
        raise errors.Malformed(found=str(error)) from None
    response.headers["Yard-Position"] = str(found.position)
    return Usage(
        from_at=rfc3339(query.from_ms),
        to_at=rfc3339(query.to_ms),
        by=by,
        bucket=bucket,
        items=[
            UsageSum(start_at=rfc3339(start), name=name, gpu_milli_seconds=count)
            for start, name, count in found.gpu_milli_seconds()
        ],
        position=str(found.position),
    )


def _moment(name: str, text: str) -> int:
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise errors.Malformed(found=f"{name}: {error}") from None
