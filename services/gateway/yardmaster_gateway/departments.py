"""`/v1/departments`: read, configure, delete."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_gateway import errors
from yardmaster_gateway.authorization import Action
from yardmaster_gateway.bodies import body_of, request_body
from yardmaster_gateway.context import Read, ReadContext, authorize
from yardmaster_gateway.filters import Cursor, Limit
from yardmaster_gateway.names import valid_name
from yardmaster_gateway.problems import problem_responses
from yardmaster_gateway.unsupported import refuse_department
from yardmaster_gateway.writes import (
    IfMatch,
    IfNoneMatch,
    Origin,
    as_revision,
    check_condition,
    etag,
    record_requests,
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
    responses=problem_responses("bad_cursor"),
)
async def list_departments(
    read: Read, limit: Limit = 100, cursor: Cursor = None
) -> List[Department]:
    """Departments of which the caller may see a project, by name."""
    filters = Filters(newest_first=False, limit=limit, cursor=cursor)
    try:
        page = await queries.rows(read.store, DepartmentRow, filters)
    except queries.BadCursor:
        raise errors.BadCursor() from None
    return List(
        items=[
            await read.presenter.department(row)
            for row in page.rows
            if await queries.department_visible(read.store, row, read.sight)
        ],
        next_cursor=queries.cursor_of(page.next),
        position=str(read.position),
    )


async def _find(read: ReadContext, name: str) -> DepartmentRow:
    row = await read.store.get(DepartmentRow, name)
    if row is None or not await queries.department_visible(read.store, row, read.sight):
        raise errors.NotFound(what=f"department {name[:64]}")
    return row


@router.get(
    "/departments/{name}",
    operation_id="read_department",
    response_model=Department,
    responses=problem_responses("not_found"),
)
async def read_department(read: Read, response: Response, name: str) -> Department:
    """A department: what it is entitled to, and what its projects have."""
    row = await _find(read, name)
    response.headers["ETag"] = etag(row.revision)
    return await read.presenter.department(row)


@router.put(
    "/departments/{name}",
    operation_id="configure_department",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(DepartmentConfig),
    responses=problem_responses(
        *("forbidden", "not_found", "version_mismatch", "already_exists", "too_large"),
        *("unsupported_media_type", "invalid_spec", "precondition_required", "busy"),
        "outcome_unknown",
    ),
)
async def configure_department(
    read: Read,
    response: Response,
    origin: Origin,
    name: str,
    config: Annotated[DepartmentConfig, Depends(body_of(DepartmentConfig))],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Accepted:
    """Configure a department: `If-None-Match: *` makes a new one, `If-Match` changes one."""
    authorize(read.caller, Action.OPERATE)
    refuse_department(config)
    department = valid_name(name, "department")
    row = await read.store.get(DepartmentRow, department)
    current = row.revision if row is not None else None
    found = check_condition(f"department {department}", current, if_match, if_none_match)
    event = DepartmentChangeRequestedV1(
        department=department, config=config, if_revision=as_revision(found)
    )
    return await record_requests(read.gateway, [(event, department)], origin, response)


@router.delete(
    "/departments/{name}",
    operation_id="delete_department",
    status_code=202,
    response_model=Accepted,
    responses=problem_responses(
        *("forbidden", "not_found", "in_use", "version_mismatch", "precondition_required"),
        *("busy", "outcome_unknown"),
    ),
)
async def delete_department(
    read: Read, response: Response, origin: Origin, name: str, if_match: IfMatch = None
) -> Accepted:
    """Remove a department without projects."""
    authorize(read.caller, Action.OPERATE)
    row = await _find(read, name)
    found = check_condition(f"department {name}", row.revision, if_match)
    projects = await queries.projects_of(read.store, name)
    if projects:
        raise errors.InUse(what=f"department {name}", found=f"{len(projects)} projects")
    event = DepartmentDeletionRequestedV1(department=name, if_revision=as_revision(found))
    return await record_requests(read.gateway, [(event, name)], origin, response)
