"""`/v1/events`, `/v1/cycles`, `/v1/requests`: the log itself, and what became of a request."""

from typing import Annotated

from fastapi import APIRouter, Query

from yardmaster_eventlog.errors import ReadPastEnd
from yardmaster_gateway import errors
from yardmaster_gateway.context import PositionQuery, Read, Reading, may, parsed
from yardmaster_gateway.filters import Limit
from yardmaster_gateway.history import History
from yardmaster_gateway.problems import documented
from yardmaster_gateway.rights import Action, allowed
from yardmaster_projections.rows import CycleRow, RequestRow
from yardmaster_schemas.api import Cycle, EventRecord, List, Request, RequestState
from yardmaster_schemas.position import Position

router = APIRouter(tags=["log"])


@router.get(
    "/events",
    operation_id="list_events",
    response_model=List[EventRecord],
    responses=documented("forbidden"),
)
async def list_events(
    reading: Read, after: PositionQuery = None, limit: Limit = 100
) -> List[EventRecord]:
    """The log's records after a position, in the order in which they took effect.

    `position` resumes after the last one; there is no cursor, because there may always be more.
    """
    may(reading.caller, Action.READ_LOG)
    gateway = reading.gateway
    start = parsed(after) or Position.start(gateway.cell)
    await gateway.known(start)
    history = History(gateway.ports.log, gateway.cell, gateway.settings.partition, start, limit)
    try:
        items = await history.read()
    except ReadPastEnd as error:
        raise errors.PositionUnknown(position=start, found=str(error)) from None
    return List(items=items, next_cursor=None, position=str(history.position))


@router.get(
    "/cycles/{cell}/{number}",
    operation_id="read_cycle",
    response_model=Cycle,
    responses=documented("forbidden", "not_found"),
)
async def read_cycle(reading: Read, cell: str, number: str) -> Cycle:
    """A committed cycle of the cell's scheduler: what it took, under which policies."""
    may(reading.caller, Action.READ_LOG)
    row = None
    if cell == reading.gateway.cell and number.isdecimal() and len(number) < 16:
        row = await reading.store.get(CycleRow, str(int(number)))
    if row is None:
        raise errors.NotFound(what=f"cycle {number[:20]} of cell {cell[:64]}")
    return await reading.presenter.cycle(row)


async def _find(reading: Reading, request_id: str) -> RequestRow:
    cell, _, offset = request_id.rpartition(".")
    row = None
    if cell == reading.gateway.cell and offset.isdecimal() and len(offset) < 16:
        row = await reading.store.get(RequestRow, str(int(offset)))
    own = row is not None and row.actor == reading.caller.user
    if row is None or not (own or allowed(reading.caller.bindings, Action.READ_LOG)):
        raise errors.NotFound(what=f"request {request_id[:80]}")
    return row


@router.get(
    "/requests/{request_id}",
    operation_id="read_request",
    response_model=Request,
    responses=documented("not_found"),
)
async def read_request(
    reading: Read, request_id: str, wait_s: Annotated[int, Query(ge=0, le=30)] = 0
) -> Request:
    """What became of a request; with `wait_s`, once it is judged or that time is over."""
    row = await _find(reading, request_id)
    clock = reading.gateway.ports.clock
    until = clock.monotonic_s() + min(wait_s, reading.gateway.settings.max_wait_s)
    while row.state is RequestState.RECORDED:
        position = await reading.store.position()
        row = await _find(reading, request_id)
        left = until - clock.monotonic_s()
        if row.state is not RequestState.RECORDED or left <= 0:
            break
        await reading.store.changed(position, left)
    return await reading.presenter.request(row, reading.gateway.cell)
