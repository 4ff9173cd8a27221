"""`/v1/projects`: read, configure, set quotas, delete."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_gateway import errors
from yardmaster_gateway.authorization import Action
from yardmaster_gateway.bodies import body_of, request_body
from yardmaster_gateway.context import Read, ReadContext, authorize
from yardmaster_gateway.filters import Cursor, Limit, Names, some
from yardmaster_gateway.names import valid_name
from yardmaster_gateway.pages import page_of
from yardmaster_gateway.problems import problem_responses
from yardmaster_gateway.request_writer import RequestOrigin
from yardmaster_gateway.unsupported import refuse_quota, refuse_quotas
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
from yardmaster_projections.rows import ProjectRow
from yardmaster_schemas.api import Accepted, List, Project, ProjectConfig, Quota
from yardmaster_schemas.events.requests import ProjectChangeRequestedV1, ProjectDeletionRequestedV1

router = APIRouter(tags=["projects"])

_WRITES = problem_responses(
    *("forbidden", "not_found", "version_mismatch", "already_exists", "too_large"),
    *("unsupported_media_type", "invalid_spec", "precondition_required", "busy"),
    "outcome_unknown",
)
_DELETES = problem_responses(
    *("forbidden", "not_found", "in_use", "version_mismatch", "precondition_required"),
    *("busy", "outcome_unknown"),
)


@router.get(
    "/projects",
    operation_id="list_projects",
    response_model=List[Project],
    responses=problem_responses("bad_cursor"),
)
async def list_projects(
    read: Read, department: Names = None, limit: Limit = 100, cursor: Cursor = None
) -> List[Project]:
    """Projects that the caller may see, by name."""
    filters = Filters(departments=some(department), newest_first=False, limit=limit, cursor=cursor)
    return await page_of(read, ProjectRow, filters, read.presenter.project)


async def _find(read: ReadContext, name: str) -> ProjectRow:
    row = await queries.project(read.store, name, read.sight)
    if row is None:
        raise errors.NotFound(what=f"project {name[:64]}")
    return row


@router.get(
    "/projects/{name}",
    operation_id="read_project",
    response_model=Project,
    responses=problem_responses("not_found"),
)
async def read_project(read: Read, response: Response, name: str) -> Project:
    """A project: what it is entitled to, and what it has."""
    row = await _find(read, name)
    response.headers["ETag"] = etag(row.revision)
    return await read.presenter.project(row)


@router.put(
    "/projects/{name}",
    operation_id="configure_project",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(ProjectConfig),
    responses=_WRITES,
)
async def configure_project(
    read: Read,
    response: Response,
    origin: Origin,
    name: str,
    config: Annotated[ProjectConfig, Depends(body_of(ProjectConfig))],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Accepted:
    """Configure a project: `If-None-Match: *` makes a new one, `If-Match` changes one."""
    authorize(read.caller, Action.OPERATE)
    refuse_quotas(config.quotas)
    project = valid_name(name, "project")
    row = await queries.project(read.store, project)
    current = row.revision if row is not None else None
    found = check_condition(f"project {project}", current, if_match, if_none_match)
    event = ProjectChangeRequestedV1(project=project, config=config, if_revision=as_revision(found))
    return await record_requests(read.gateway, [(event, project)], origin, response)


@router.delete(
    "/projects/{name}",
    operation_id="delete_project",
    status_code=202,
    response_model=Accepted,
    responses=_DELETES,
)
async def delete_project(
    read: Read, response: Response, origin: Origin, name: str, if_match: IfMatch = None
) -> Accepted:
    """Remove a project none of whose tasks waits or runs."""
    authorize(read.caller, Action.OPERATE)
    row = await _find(read, name)
    found = check_condition(f"project {name}", row.revision, if_match)
    counters = await queries.counters(read.store, f"project/{name}")
    if counters.waiting or counters.running:
        have = f"{counters.waiting} waiting and {counters.running} running tasks"
        raise errors.InUse(what=f"project {name}", found=have)
    event = ProjectDeletionRequestedV1(project=name, if_revision=as_revision(found))
    return await record_requests(read.gateway, [(event, name)], origin, response)


async def _change_quotas(
    read: ReadContext,
    response: Response,
    origin: RequestOrigin,
    row: ProjectRow,
    quotas: dict[str, Quota],
) -> Accepted:
    # Quotas are part of the project, so the change names the revision that it was made from, also
    # where the caller took any: another change in between would be lost.
    config = replace(row.config, quotas=quotas)
    event = ProjectChangeRequestedV1(project=row.name, config=config, if_revision=row.revision)
    return await record_requests(read.gateway, [(event, row.name)], origin, response)


@router.put(
    "/projects/{name}/quotas/{pool}",
    operation_id="set_quota",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(Quota),
    responses=_WRITES,
)
async def set_quota(
    read: Read,
    response: Response,
    origin: Origin,
    name: str,
    pool: str,
    quota: Annotated[Quota, Depends(body_of(Quota))],
    if_match: IfMatch = None,
) -> Accepted:
    """Set what a project may have of one pool; the ETag is the project's."""
    authorize(read.caller, Action.OPERATE)
    refuse_quota(quota)
    row = await _find(read, name)
    check_condition(f"project {name}", row.revision, if_match)
    quotas = {**row.config.quotas, valid_name(pool, "pool"): quota}
    return await _change_quotas(read, response, origin, row, quotas)


@router.delete(
    "/projects/{name}/quotas/{pool}",
    operation_id="delete_quota",
    status_code=202,
    response_model=Accepted,
    responses=_DELETES,
)
async def delete_quota(
    read: Read, response: Response, origin: Origin, name: str, pool: str, if_match: IfMatch = None
) -> Accepted:
    """Forget a project's quota of one pool; the ETag is the project's."""
    authorize(read.caller, Action.OPERATE)
    row = await _find(read, name)
    check_condition(f"project {name}", row.revision, if_match)
    if pool not in row.config.quotas:
        raise errors.NotFound(what=f"quota of project {name[:64]} in pool {pool[:64]}")
    quotas = {key: value for key, value in row.config.quotas.items() if key != pool}
    return await _change_quotas(read, response, origin, row, quotas)
