"""The endpoints that pools, projects and departments share: list, show, configure, delete.

An `ObjectKind` defines what is specific to one kind of object; `object_router` builds its router.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

from yardmaster_gateway import errors
from yardmaster_gateway.context import Read, ReadContext, authorize
from yardmaster_gateway.http.bodies import body_of, request_body
from yardmaster_gateway.http.filters import Cursor, Limit
from yardmaster_gateway.http.names import valid_name
from yardmaster_gateway.http.pages import page_of
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import (
    IfMatch,
    IfNoneMatch,
    Write,
    as_revision,
    check_condition,
    etag,
)
from yardmaster_gateway.identity.authorization import Action
from yardmaster_projections.queries import Filters
from yardmaster_projections.rows import DepartmentRow, PoolRow, ProjectRow
from yardmaster_schemas.api import Accepted, List
from yardmaster_schemas.envelope import Event

R = TypeVar("R", PoolRow, ProjectRow, DepartmentRow)
C = TypeVar("C")
M = TypeVar("M", bound=BaseModel)

CONFIGURE_RESPONSES: Final = problem_responses(
    *("forbidden", "not_found", "version_mismatch", "already_exists", "too_large"),
    *("unsupported_media_type", "invalid_spec", "precondition_required", "busy"),
    "outcome_unknown",
)
DELETE_RESPONSES: Final = problem_responses(
    *("forbidden", "not_found", "in_use", "version_mismatch", "precondition_required"),
    *("busy", "outcome_unknown"),
)


class ObjectKind(ABC, Generic[R, C, M]):
    """One kind of configured object: its models, its requests, and its own checks."""

    #: The kind in the singular (`pool`); its path and operation ids are built from it.
    name: ClassVar[str]
    #: Descriptions of the endpoints in the OpenAPI document.
    list_text: ClassVar[str]
    read_text: ClassVar[str]
    delete_text: ClassVar[str]

    row: type[R]
    config: type[C]
    answer: type[M]
    page_answer: type[List[M]]

    async def filters(self, limit: Limit = 100, cursor: Cursor = None) -> Filters:
        """The filters of the list, read from the query parameters."""
        return Filters(newest_first=False, limit=limit, cursor=cursor)

    async def page(self, read: ReadContext, filters: Filters) -> List[M]:
        """One page of the objects that the caller may see, by name.

        Raises:
            BadCursor.
        """
        return await page_of(read, self.row, filters, self.presenter(read))

    async def find(self, read: ReadContext, name: str) -> R | None:
        """The object, or None if it does not exist or the caller may not see it."""
        return await read.store.get(self.row, name)

    async def get(self, read: ReadContext, name: str) -> R:
        """The object.

        Raises:
            NotFound: it does not exist, or the caller may not see it.
        """
        row = await self.find(read, name)
        if row is None:
            raise errors.NotFound(what=f"{self.name} {name[:64]}")
        return row

    @abstractmethod
    def presenter(self, read: ReadContext) -> Callable[[R], Awaitable[M]]:
        """The function that turns a row into an answer."""

    @abstractmethod
    def validate(self, config: C) -> None:
        """Refuse a configuration that quota would accept although it cannot work.

        Raises:
            InvalidBody.
        """

    @abstractmethod
    async def users(self, read: ReadContext, name: str) -> str | None:
        """Return the uses that prevent the deletion of the object (`2 projects`), or None."""

    @abstractmethod
    def change(self, name: str, config: C, if_revision: int | None) -> Event:
        """The request that creates or changes the object."""

    @abstractmethod
    def deletion(self, name: str, if_revision: int | None) -> Event:
        """The request that deletes the object."""


def object_router(kind: ObjectKind[R, C, M]) -> APIRouter:
    """A router with the endpoints of one kind of object."""
    name_of_kind, plural = kind.name, f"{kind.name}s"
    router = APIRouter(tags=[plural])

    @router.get(
        f"/{plural}",
        name=f"list_{plural}",
        operation_id=f"list_{plural}",
        description=kind.list_text,
        response_model=kind.page_answer,
        responses=problem_responses("bad_cursor"),
    )
    async def list_objects(
        filters: Annotated[Filters, Depends(kind.filters)], read: Read
    ) -> List[M]:
        return await kind.page(read, filters)

    @router.get(
        f"/{plural}/{{name}}",
        name=f"read_{name_of_kind}",
        operation_id=f"read_{name_of_kind}",
        description=kind.read_text,
        response_model=kind.answer,
        responses=problem_responses("not_found"),
    )
    async def read_object(read: Read, response: Response, name: str) -> M:
        row = await kind.get(read, name)
        response.headers["ETag"] = etag(row.revision)
        return await kind.presenter(read)(row)

    @router.put(
        f"/{plural}/{{name}}",
        name=f"configure_{name_of_kind}",
        operation_id=f"configure_{name_of_kind}",
        description=f"Create a {name_of_kind} (`If-None-Match: *`) or change it (`If-Match`).",
        status_code=202,
        response_model=Accepted,
        openapi_extra=request_body(kind.config),
        responses=CONFIGURE_RESPONSES,
    )
    async def configure_object(
        read: Read,
        write: Write,
        name: str,
        config: Annotated[Any, Depends(body_of(kind.config))],
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
    ) -> Accepted:
        authorize(read.caller, Action.OPERATE)
        kind.validate(config)
        row = await kind.find(read, valid_name(name, name_of_kind))
        current = row.revision if row is not None else None
        revision = check_condition(f"{name_of_kind} {name}", current, if_match, if_none_match)
        event = kind.change(name, config, as_revision(revision))
        return await write.record(name, event)

    @router.delete(
        f"/{plural}/{{name}}",
        name=f"delete_{name_of_kind}",
        operation_id=f"delete_{name_of_kind}",
        description=kind.delete_text,
        status_code=202,
        response_model=Accepted,
        responses=DELETE_RESPONSES,
    )
    async def delete_object(
        read: Read, write: Write, name: str, if_match: IfMatch = None
    ) -> Accepted:
        authorize(read.caller, Action.OPERATE)
        row = await kind.get(read, name)
        revision = check_condition(f"{name_of_kind} {name}", row.revision, if_match)
        users = await kind.users(read, name)
        if users is not None:
            raise errors.InUse(what=f"{name_of_kind} {name}", found=users)
        event = kind.deletion(name, as_revision(revision))
        return await write.record(name, event)

    return router
