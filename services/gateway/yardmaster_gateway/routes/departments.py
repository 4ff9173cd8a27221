"""`/v1/departments`: list, show, configure, delete."""

from collections.abc import Awaitable, Callable

from yardmaster_gateway import errors
from yardmaster_gateway.context import ReadContext
from yardmaster_gateway.routes.object_router import ObjectKind, object_router
from yardmaster_gateway.routes.quota_checks import refuse_department
from yardmaster_projections import queries
from yardmaster_projections.queries import Filters
from yardmaster_projections.rows import DepartmentRow
from yardmaster_schemas.api import Department, DepartmentConfig, List
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import (
    DepartmentChangeRequestedV1,
    DepartmentDeletionRequestedV1,
)


class Departments(ObjectKind[DepartmentRow, DepartmentConfig, Department]):
    """Departments: groups of projects and of other departments."""

    name = "department"
    list_text = "List the departments in which the caller may see a project, by name."
    read_text = "Show a department: its quotas, and what the projects in it and below it use."
    delete_text = "Delete a department that has no projects and is no parent."
    row = DepartmentRow
    config = DepartmentConfig
    answer = Department
    page_answer = List[Department]

    async def page(self, read: ReadContext, filters: Filters) -> List[Department]:
        """One page, without the departments in which the caller sees no project.

        Raises:
            BadCursor.
        """
        try:
            page = await queries.rows(read.store, DepartmentRow, filters)
        except queries.BadCursor:
            raise errors.BadCursor() from None
        return List(
            items=[
                await read.presenter.department(row)
                for row in page.rows
                if await queries.department_visible(read.store, row, read.visibility)
            ],
            next_cursor=queries.cursor_of(page.next),
            position=str(read.position),
        )

    async def find(self, read: ReadContext, name: str) -> DepartmentRow | None:
        """The department, if the caller may see a project in it or below it."""
        row = await read.store.get(DepartmentRow, name)
        if row is None or not await queries.department_visible(read.store, row, read.visibility):
            return None
        return row

    def presenter(self, read: ReadContext) -> Callable[[DepartmentRow], Awaitable[Department]]:
        return read.presenter.department

    def validate(self, config: DepartmentConfig) -> None:
        refuse_department(config)

    async def users(self, read: ReadContext, name: str) -> str | None:
        projects = await queries.projects_of(read.store, name)
        departments = await queries.children_of(read.store, name)
        counted = ((len(projects), "projects"), (len(departments), "departments"))
        return " and ".join(f"{count} {kind}" for count, kind in counted if count) or None

    def change(self, name: str, config: DepartmentConfig, if_revision: int | None) -> Event:
        return DepartmentChangeRequestedV1(department=name, config=config, if_revision=if_revision)

    def deletion(self, name: str, if_revision: int | None) -> Event:
        return DepartmentDeletionRequestedV1(department=name, if_revision=if_revision)


router = object_router(Departments())
