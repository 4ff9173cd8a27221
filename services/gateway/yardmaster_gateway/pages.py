"""Pages of rows as answers."""

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
    read: ReadContext, kind: type[R], filters: Filters, show: Callable[[R], Awaitable[M]]
) -> List[M]:
    """One page of a kind, as the caller may see it.

    Raises:
        BadCursor.
    """
    try:
        page = await queries.rows(read.store, kind, filters, read.sight)
    except queries.BadCursor:
        raise errors.BadCursor() from None
    return List(
        items=[await show(row) for row in page.rows],
        next_cursor=queries.cursor_of(page.next),
        position=str(read.position),
    )
