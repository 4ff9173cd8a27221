"""`/v1/projects`: read, configure, set quotas, delete."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_gateway import errors
from yardmaster_gateway.bodies import body_of, takes
from yardmaster_gateway.context import Read, Reading, may
from yardmaster_gateway.filters import Cursor, Limit, Names, some
from yardmaster_gateway.lists import page_of
from yardmaster_gateway.names import name_in_path
from yardmaster_gateway.problems import documented
from yardmaster_gateway.rights import Action
from yardmaster_gateway.unsupported import refuse_quota, refuse_quotas
from yardmaster_gateway.writer import Asker
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
from yardmaster_projections.rows import ProjectRow
from yardmaster_schemas.api import Accepted, List, Project, ProjectConfig, Quota
from yardmaster_schemas.events.requests import ProjectChangeRequestedV1, ProjectDeletionRequestedV1

router = APIRouter(tags=["projects"])

_WRITES = documented(
    *("forbidden", "not_found", "version_mismatch", "already_exists", "too_large"),
    *("unsupported_media_type", "invalid_spec", "precondition_required", "busy"),
    "outcome_unknown",
)
_DELETES = documented(
    *("forbidden", "not_found", "in_use", "version_mismatch", "precondition_required"),
    *("busy", "outcome_unknown"),
)


@router.get(
    "/projects",
    operation_id="list_projects",
    response_model=List[Project],
    responses=documented("bad_cursor"),
)
async def list_projects(
    reading: Read, department: Names = None, limit: Limit = 100, cursor: Cursor = None
) -> List[Project]:
    """Projects that the caller may see, by name."""
    filters = Filters(departments=some(department), newest_first=False, limit=limit, cursor=cursor)
    return await page_of(reading, ProjectRow, filters, reading.presenter.project)


async def _find(reading: Reading, name: str) -> ProjectRow:
    row = await queries.project(reading.store, name, reading.sight)
    if row is None:
        raise errors.NotFound(what=f"project {name[:64]}")
    return row


@router.get(
    "/projects/{name}",
    operation_id="read_project",
    response_model=Project,
    responses=documented("not_found"),
)
async def read_project(reading: Read, response: Response, name: str) -> Project:
    """A project: what it is entitled to, and what it has."""
    row = await _find(reading, name)
    response.headers["ETag"] = etag(row.revision)
    return await reading.presenter.project(row)


@router.put(
    "/projects/{name}",
    operation_id="configure_project",
    status_code=202,
    response_model=Accepted,
    openapi_extra=takes(ProjectConfig),
    responses=_WRITES,
)
async def configure_project(
    reading: Read,
    response: Response,
    asker: Ask,
    name: str,
    config: Annotated[ProjectConfig, Depends(body_of(ProjectConfig))],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Accepted:
    """Configure a project: `If-None-Match: *` makes a new one, `If-Match` changes one."""
    may(reading.caller, Action.OPERATE)
    refuse_quotas(config.quotas)
    project = name_in_path(name, "project")
    row = await queries.project(reading.store, project)
    current = row.revision if row is not None else None
    found = condition(f"project {project}", current, if_match, if_none_match)
    event = ProjectChangeRequestedV1(project=project, config=config, if_revision=revision_of(found))
    return await submit_requests(reading.gateway, [(event, project)], asker, response)


@router.delete(
    "/projects/{name}",
    operation_id="delete_project",
    status_code=202,
    response_model=Accepted,
    responses=_DELETES,
)
async def delete_project(
    reading: Read, response: Response, asker: Ask, name: str, if_match: IfMatch = None
) -> Accepted:
    """Remove a project none of whose tasks waits or runs."""
    may(reading.caller, Action.OPERATE)
    row = await _find(reading, name)
    found = condition(f"project {name}", row.revision, if_match)
    tally = await queries.tally(reading.store, f"project/{name}")
    if tally.waiting or tally.running:
        have = f"{tally.waiting} waiting and {tally.running} running tasks"
        raise errors.InUse(what=f"project {name}", found=have)
    event = ProjectDeletionRequestedV1(project=name, if_revision=revision_of(found))
    return await submit_requests(reading.gateway, [(event, name)], asker, response)


async def _change_quotas(
    reading: Reading,
    response: Response,
    asker: Asker,
    row: ProjectRow,
    quotas: dict[str, Quota],
) -> Accepted:
    # Quotas are part of the project, so the change names the revision that it was made from, also
    # where the caller took any: another change in between would be lost.
    config = replace(row.config, quotas=quotas)
    event = ProjectChangeRequestedV1(project=row.name, config=config, if_revision=row.revision)
    return await submit_requests(reading.gateway, [(event, row.name)], asker, response)


@router.put(
    "/projects/{name}/quotas/{pool}",
    operation_id="set_quota",
    status_code=202,
    response_model=Accepted,
    openapi_extra=takes(Quota),
    responses=_WRITES,
)
async def set_quota(
    reading: Read,
    response: Response,
    asker: Ask,
    name: str,
    pool: str,
    quota: Annotated[Quota, Depends(body_of(Quota))],
    if_match: IfMatch = None,
) -> Accepted:
    """Set what a project may have of one pool; the ETag is the project's."""
    may(reading.caller, Action.OPERATE)
    refuse_quota(quota)
    row = await _find(reading, name)
    condition(f"project {name}", row.revision, if_match)
    quotas = {**row.config.quotas, name_in_path(pool, "pool"): quota}
    return await _change_quotas(reading, response, asker, row, quotas)


@router.delete(
    "/projects/{name}/quotas/{pool}",
    operation_id="delete_quota",
    status_code=202,
    response_model=Accepted,
    responses=_DELETES,
)
async def delete_quota(
    reading: Read, response: Response, asker: Ask, name: str, pool: str, if_match: IfMatch = None
) -> Accepted:
    """Forget a project's quota of one pool; the ETag is the project's."""
    may(reading.caller, Action.OPERATE)
    row = await _find(reading, name)
    condition(f"project {name}", row.revision, if_match)
    if pool not in row.config.quotas:
        raise errors.NotFound(what=f"quota of project {name[:64]} in pool {pool[:64]}")
    quotas = {key: value for key, value in row.config.quotas.items() if key != pool}
    return await _change_quotas(reading, response, asker, row, quotas)
