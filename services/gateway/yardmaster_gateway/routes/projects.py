"""`/v1/projects`: list, show, configure, delete, and set quotas."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Final

from fastapi import Depends

from yardmaster_gateway import errors
from yardmaster_gateway.context import Read, ReadContext, authorize
from yardmaster_gateway.http.bodies import body_of, request_body
from yardmaster_gateway.http.filters import Cursor, Limit, Names, split_values
from yardmaster_gateway.http.names import valid_name
from yardmaster_gateway.http.writes import IfMatch, Write, WriteContext, check_condition
from yardmaster_gateway.identity.authorization import Action
from yardmaster_gateway.routes.object_router import (
    CONFIGURE_RESPONSES,
    DELETE_RESPONSES,
    ObjectKind,
    object_router,
)
from yardmaster_gateway.routes.quota_checks import refuse_quota, refuse_quotas
from yardmaster_projections import queries
from yardmaster_projections.queries import Filters
from yardmaster_projections.rows import ProjectRow
from yardmaster_schemas.api import Accepted, List, Project, ProjectConfig, Quota
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import ProjectChangeRequestedV1, ProjectDeletionRequestedV1


class Projects(ObjectKind[ProjectRow, ProjectConfig, Project]):
    """Projects: owners of jobs, each in a department."""

    name = "project"
    list_text = "List the projects that the caller may see, by name."
    read_text = "Show a project: its limits and quotas, and what it uses."
    delete_text = "Delete a project that has no pending or running tasks."
    row = ProjectRow
    config = ProjectConfig
    answer = Project
    page_answer = List[Project]

    async def filters(  # type: ignore[override]
        self, department: Names = None, limit: Limit = 100, cursor: Cursor = None
    ) -> Filters:
        """The filters of the list, which include the department."""
        departments = split_values(department)
        return Filters(departments=departments, newest_first=False, limit=limit, cursor=cursor)

    async def find(self, read: ReadContext, name: str) -> ProjectRow | None:
        """The project, if the caller may see it."""
        return await queries.project(read.store, name, read.visibility)

    def presenter(self, read: ReadContext) -> Callable[[ProjectRow], Awaitable[Project]]:
        return read.presenter.project

    def validate(self, config: ProjectConfig) -> None:
        refuse_quotas(config.quotas)

    async def users(self, read: ReadContext, name: str) -> str | None:
        counters = await queries.counters(read.store, f"project/{name}")
        if counters.waiting or counters.running:
            return f"{counters.waiting} pending and {counters.running} running tasks"
        return None

    def change(self, name: str, config: ProjectConfig, if_revision: int | None) -> Event:
        return ProjectChangeRequestedV1(project=name, config=config, if_revision=if_revision)

    def deletion(self, name: str, if_revision: int | None) -> Event:
        return ProjectDeletionRequestedV1(project=name, if_revision=if_revision)


_PROJECTS: Final = Projects()
router = object_router(_PROJECTS)


async def _find_for_quotas(read: ReadContext, name: str, if_match: str | None) -> ProjectRow:
    """The project whose quotas the caller changes.

    Raises:
        Forbidden, NotFound, PreconditionRequired, VersionMismatch, Malformed.
    """
    authorize(read.caller, Action.OPERATE)
    row = await _PROJECTS.get(read, name)
    check_condition(f"project {name}", row.revision, if_match)
    return row


async def _change_quotas(
    write: WriteContext, row: ProjectRow, quotas: dict[str, Quota]
) -> Accepted:
    # Quotas are part of the project. The request therefore names the revision that it is based on,
    # even after `If-Match: *`; otherwise a concurrent change of the project would be lost.
    event = _PROJECTS.change(row.name, replace(row.config, quotas=quotas), row.revision)
    return await write.record(row.name, event)


@router.put(
    "/projects/{name}/quotas/{pool}",
    operation_id="set_quota",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(Quota),
    responses=CONFIGURE_RESPONSES,
)
async def set_quota(
    read: Read,
    write: Write,
    name: str,
    pool: str,
    quota: Annotated[Quota, Depends(body_of(Quota))],
    if_match: IfMatch = None,
) -> Accepted:
    """Set a project's quota in one pool. The ETag is the project's."""
    row = await _find_for_quotas(read, name, if_match)
    refuse_quota(quota)
    quotas = {**row.config.quotas, valid_name(pool, "pool"): quota}
    return await _change_quotas(write, row, quotas)


@router.delete(
    "/projects/{name}/quotas/{pool}",
    operation_id="delete_quota",
    status_code=202,
    response_model=Accepted,
    responses=DELETE_RESPONSES,
)
async def delete_quota(
    read: Read, write: Write, name: str, pool: str, if_match: IfMatch = None
) -> Accepted:
    """Remove a project's quota in one pool. The ETag is the project's."""
    row = await _find_for_quotas(read, name, if_match)
    if pool not in row.config.quotas:
        raise errors.NotFound(what=f"quota of project {name[:64]} in pool {pool[:64]}")
    quotas = {key: value for key, value in row.config.quotas.items() if key != pool}
    return await _change_quotas(write, row, quotas)
