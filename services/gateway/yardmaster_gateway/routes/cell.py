"""`/v1/cell`: what applies to a whole cell."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_gateway.context import Read, ReadContext, authorize
from yardmaster_gateway.http.bodies import body_of, request_body
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import (
    IfMatch,
    Write,
    as_revision,
    check_condition,
    etag,
)
from yardmaster_gateway.identity.authorization import Action
from yardmaster_projections.rows import LogRow
from yardmaster_schemas.api import Accepted, Cell, CellConfig
from yardmaster_schemas.events.requests import CellChangeRequestedV1

router = APIRouter(tags=["cell"])


async def _find(read: ReadContext) -> Cell:
    name = read.gateway.cell
    row = await read.store.get(LogRow, name)
    if row is None:
        return Cell(name=name, revision=0, config=CellConfig(), time_ahead_s=0)
    clock = read.gateway.ports.clock
    ahead_ms = max(row.now_ms, row.judged_ms) - (clock.now_ms() - clock.ahead_ms())
    return Cell(
        name=name,
        revision=row.config_revision,
        config=row.config,
        time_ahead_s=max(0, ahead_ms // 1000),
    )


@router.get("/cell", operation_id="read_cell", response_model=Cell, responses=problem_responses())
async def read_cell(read: Read, response: Response) -> Cell:
    """Show the limits that apply to every project and user of the cell, and the default pools."""
    found = await _find(read)
    response.headers["ETag"] = etag(found.revision)
    return found


@router.put(
    "/cell",
    operation_id="change_cell",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(CellConfig),
    responses=problem_responses(
        *("forbidden", "version_mismatch", "too_large", "unsupported_media_type"),
        *("invalid_spec", "precondition_required", "busy", "outcome_unknown"),
    ),
)
async def change_cell(
    read: Read,
    write: Write,
    config: Annotated[CellConfig, Depends(body_of(CellConfig))],
    if_match: IfMatch = None,
) -> Accepted:
    """Replace the configuration of the cell. Tasks that were admitted stay when a limit falls."""
    authorize(read.caller, Action.OPERATE)
    found = check_condition("the cell", (await _find(read)).revision, if_match)
    event = CellChangeRequestedV1(config=config, if_revision=as_revision(found))
    return await write.record(read.gateway.cell, event)
