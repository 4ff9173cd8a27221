"""Pages of rows as API answers."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import BaseModel

from yardmaster_gateway import errors
from yardmaster_gateway.context import ReadContext
from yardmaster_projections import queries
from yardmaster_projections.queries import Filters
from yardmaster_projections.rows import R
from yardmaster_schemas.api import List

M = TypeVar("M", bound=BaseModel)


async def page_of(
    read: ReadContext, kind: type[R], filters: Filters, present: Callable[[R], Awaitable[M]]
) -> List[M]:
    """One page of rows that the caller may see, each converted by `present`.

    Raises:
        BadCursor.
    """
    try:
        page = await queries.rows(read.store, kind, filters, read.visibility)
    except queries.BadCursor:
        raise errors.BadCursor() from None
    return List(
        items=[await present(row) for row in page.rows],
        next_cursor=queries.cursor_of(page.next),
        position=str(read.position),
    )
