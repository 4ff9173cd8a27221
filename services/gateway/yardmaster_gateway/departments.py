"""`/v1/departments`: read, configure, delete."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_gateway import errors
from yardmaster_gateway.bodies import body_of, takes
from yardmaster_gateway.context import Read, Reading, may
from yardmaster_gateway.filters import Cursor, Limit
from yardmaster_gateway.names import name_in_path
from yardmaster_gateway.problems import documented
from yardmaster_gateway.rights import Action
from yardmaster_gateway.unsupported import refuse_department
from yardmaster_gateway.writes import (
    Ask,
    IfMatch,
    IfNoneMatch,
    condition,
    etag,
    revision_of,
    submit_requests,
)
from yardmaster_projections import queries
from yardmaster_projections.queries import Filters
from yardmaster_projections.rows import DepartmentRow
from yardmaster_schemas.api import Accepted, Department, DepartmentConfig, List
from yardmaster_schemas.events.requests import (
    DepartmentChangeRequestedV1,
    DepartmentDeletionRequestedV1,
)

router = APIRouter(tags=["departments"])


@router.get(
    "/departments",
    operation_id="list_departments",
    response_model=List[Department],
    responses=documented("bad_cursor"),
)
async def list_departments(
    reading: Read, limit: Limit = 100, cursor: Cursor = None
) -> List[Department]:
    """Departments of which the caller may see a project, by name."""
    filters = Filters(newest_first=False, limit=limit, cursor=cursor)
    try:
        page = await queries.rows(reading.store, DepartmentRow, filters)
    except queries.BadCursor:
        raise errors.BadCursor() from None
    return List(
        items=[
            await reading.presenter.department(row)
            for row in page.rows
            if await queries.department_visible(reading.store, row, reading.sight)
        ],
        next_cursor=queries.cursor_of(page.next),
        position=str(reading.position),
    )


async def _find(reading: Reading, name: str) -> DepartmentRow:
    row = await reading.store.get(DepartmentRow, name)
    if row is None or not await queries.department_visible(reading.store, row, reading.sight):
        raise errors.NotFound(what=f"department {name[:64]}")
    return row


@router.get(
    "/departments/{name}",
    operation_id="read_department",
    response_model=Department,
    responses=documented("not_found"),
)
async def read_department(reading: Read, response: Response, name: str) -> Department:
    """A department: what it is entitled to, and what its projects have."""
    row = await _find(reading, name)
    response.headers["ETag"] = etag(row.revision)
    return await reading.presenter.department(row)


@router.put(
    "/departments/{name}",
    operation_id="configure_department",
    status_code=202,
    response_model=Accepted,
    openapi_extra=takes(DepartmentConfig),
    responses=documented(
        *("forbidden", "not_found", "version_mismatch", "already_exists", "too_large"),
        *("unsupported_media_type", "invalid_spec", "precondition_required", "busy"),
        "outcome_unknown",
    ),
)
async def configure_department(
    reading: Read,
    response: Response,
    asker: Ask,
    name: str,
    config: Annotated[DepartmentConfig, Depends(body_of(DepartmentConfig))],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Accepted:
    """Configure a department: `If-None-Match: *` makes a new one, `If-Match` changes one."""
    may(reading.caller, Action.OPERATE)
    refuse_department(config)
    department = name_in_path(name, "department")
    row = await reading.store.get(DepartmentRow, department)
    current = row.revision if row is not None else None
    found = condition(f"department {department}", current, if_match, if_none_match)
    event = DepartmentChangeRequestedV1(
        department=department, config=config, if_revision=revision_of(found)
    )
    return await submit_requests(reading.gateway, [(event, department)], asker, response)


@router.delete(
    "/departments/{name}",
    operation_id="delete_department",
    status_code=202,
    response_model=Accepted,
    responses=documented(
        *("forbidden", "not_found", "in_use", "version_mismatch", "precondition_required"),
        *("busy", "outcome_unknown"),
    ),
)
async def delete_department(
    reading: Read, response: Response, asker: Ask, name: str, if_match: IfMatch = None
) -> Accepted:
    """Remove a department without projects."""
    may(reading.caller, Action.OPERATE)
    row = await _find(reading, name)
    found = condition(f"department {name}", row.revision, if_match)
    projects = await queries.projects_of(reading.store, name)
    if projects:
        raise errors.InUse(what=f"department {name}", found=f"{len(projects)} projects")
    event = DepartmentDeletionRequestedV1(department=name, if_revision=revision_of(found))
    return await submit_requests(reading.gateway, [(event, name)], asker, response)
