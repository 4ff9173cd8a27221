"""`/v1/events`, `/v1/cycles`, `/v1/requests`: the records of the log, and the state of requests."""

from typing import Annotated

from fastapi import APIRouter, Query

from yardmaster_eventlog.errors import OffsetGone, ReadPastEnd
from yardmaster_gateway import errors
from yardmaster_gateway.context import PositionQuery, Read, ReadContext, authorize, parse_position
from yardmaster_gateway.http.filters import Limit
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.identity.authorization import Action, is_allowed
from yardmaster_gateway.routes.history import oldest_after, page_after
from yardmaster_projections.rows import CycleRow, RequestRow
from yardmaster_schemas.api import Cycle, EventRecord, List, Request, RequestState
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import REQUESTS

router = APIRouter(tags=["log"])


@router.get(
    "/events",
    operation_id="list_events",
    response_model=List[EventRecord],
    responses=problem_responses("forbidden", "position_expired"),
)
async def list_events(
    read: Read, after: PositionQuery = None, limit: Limit = 100
) -> List[EventRecord]:
    """List the records of the log after a position, in the order in which they took effect.

    Pass the answer's `position` as `after` to continue. There is no cursor, because the log has no
    last page.
    """
    authorize(read.caller, Action.READ_LOG)
    gateway = read.gateway
    start = parse_position(after) or Position.start(gateway.cell)
    await gateway.check_position(start)
    try:
        items, position = await page_after(
            gateway.ports.log, start, gateway.settings.partition, limit
        )
    except ReadPastEnd as error:
        raise errors.PositionUnknown(position=start, found=str(error)) from None
    except OffsetGone:
        oldest = await oldest_after(gateway.ports.log, start, gateway.settings.partition)
        raise errors.PositionExpired(position=start, oldest=oldest) from None
    return List(items=items, next_cursor=None, position=str(position))


@router.get(
    "/cycles/{cell}/{number}",
    operation_id="read_cycle",
    response_model=Cycle,
    responses=problem_responses("forbidden", "not_found"),
)
async def read_cycle(read: Read, cell: str, number: str) -> Cycle:
    """Show a committed cycle of the scheduler: its inputs and policies."""
    authorize(read.caller, Action.READ_LOG)
    row = None
    if cell == read.gateway.cell and number.isdecimal() and len(number) < 16:
        row = await read.store.get(CycleRow, str(int(number)))
    if row is None:
        raise errors.NotFound(what=f"cycle {number[:20]} of cell {cell[:64]}")
    return await read.presenter.cycle(row)


async def _find(read: ReadContext, request_id: str) -> RequestRow:
    cell, _, offset = request_id.rpartition(".")
    row = None
    if cell == read.gateway.cell and offset.isdecimal() and len(offset) < 16:
        row = await read.store.get(RequestRow, str(int(offset)))
        if row is None and int(offset) < await read.gateway.end(REQUESTS.name):
            # The gateway answers a write before the views contain it.
            recorded = Position(cell=cell).at(REQUESTS.name, int(offset) + 1)
            await read.gateway.wait_for_position(recorded)
            row = await read.store.get(RequestRow, str(int(offset)))
    own = row is not None and row.actor == read.caller.user
    if row is None or not (own or is_allowed(read.caller.bindings, Action.READ_LOG)):
        raise errors.NotFound(what=f"request {request_id[:80]}")
    return row


@router.get(
    "/requests/{request_id}",
    operation_id="read_request",
    response_model=Request,
    responses=problem_responses("not_found"),
)
async def read_request(
    read: Read, request_id: str, wait_s: Annotated[int, Query(ge=0, le=30)] = 0
) -> Request:
    """Show whether a request was accepted or refused.

    With `wait_s`, the answer comes when quota has decided, and after that time at the latest.
    """
    row = await _find(read, request_id)
    clock = read.gateway.ports.clock
    until = clock.monotonic_s() + min(wait_s, read.gateway.settings.max_wait_s)
    while row.state is RequestState.RECORDED:
        position = await read.store.position()
        row = await _find(read, request_id)
        left = until - clock.monotonic_s()
        if row.state is not RequestState.RECORDED or left <= 0:
            break
        await read.store.changed(position, left)
    return await read.presenter.request(row, read.gateway.cell)
