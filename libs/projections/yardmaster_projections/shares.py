"""Queries of the shares of the queues of a pool, as the scheduler recorded them last."""

from collections.abc import Iterable
from dataclasses import dataclass

from yardmaster_projections.queries import MAX_LIMIT, Visibility
from yardmaster_projections.rows import ProjectRow, SharesRow
from yardmaster_projections.store import Query, ReadableViews
from yardmaster_schemas.events.admissions import Level
from yardmaster_schemas.events.decisions import QueueShare


@dataclass(frozen=True, slots=True)
class Division:
    """The division of a pool among its queues, each after the queue above it.

    `at_ms` and `cycle` tell when the division was recorded; None: none was recorded.
    """

    queues: tuple[QueueShare, ...] = ()
    at_ms: int | None = None
    cycle: int | None = None


async def division(store: ReadableViews, pool: str, visibility: Visibility) -> Division:
    """The newest division of a pool, with the queues that a caller may see.

    A caller may see its own projects and the departments above them.
    """
    query = Query(facets={"pool": frozenset({pool})}, limit=MAX_LIMIT)
    page = await store.page(SharesRow, query)
    parts: list[SharesRow] = list(page.rows)
    while page.next is not None:
        page = await store.page(SharesRow, Query(facets=query.facets, after=page.next))
        parts += page.rows
    if not parts:
        return Division()
    # The pages may be of different positions, so parts of an older division may be among them.
    newest = max(part.cycle for part in parts)
    queues = [queue for part in parts if part.cycle == newest for queue in part.queues]
    if visibility.projects is not None:
        queues = await _visible(store, queues, visibility.projects)
    at_ms = max(part.at_ms for part in parts)
    return Division(tuple(queues), at_ms, newest)


async def _visible(
    store: ReadableViews, queues: Iterable[QueueShare], projects: frozenset[str]
) -> list[QueueShare]:
    found = await store.get_all([(ProjectRow, name) for name in sorted(projects)])
    # A project that has and requests nothing is not in the division, but its department may be.
    departments = {row.config.department for row in found.rows if isinstance(row, ProjectRow)}
    kept: list[QueueShare] = []
    for queue in reversed(list(queues)):
        of_project = queue.level is Level.PROJECT
        if queue.name in (projects if of_project else departments):
            kept.append(queue)
            if queue.parent is not None:
                departments.add(queue.parent)
    return kept[::-1]
