"""`/v1/watch`: a snapshot, then every change, as server-sent events.

Events: `snapshot` (`{kind, items, complete}`, one or more), `upsert` (`{kind, item}`), `delete`
(`{kind, key}`), and `bookmark` (`{}`, when nothing changed for a while). An `id` is a position. A
client resumes with `Last-Event-ID` or `after`; if the store no longer keeps the changes after that
position, the stream starts with a new snapshot. The gateway keeps no queue per client: each
stream reads the store's changes at its own pace. If a stream is so slow that the store has dropped
its next changes, the gateway closes the stream, and the client resumes.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from yardmaster_gateway.context import (
    PositionQuery,
    Read,
    ReadContext,
    bearer_token,
    parse_position,
)
from yardmaster_gateway.http.filters import split_values
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.sse import SSE, encode_event, event_schema
from yardmaster_projections import queries
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.presenter import Presenter
from yardmaster_projections.queries import LIVE, Filters, Visibility
from yardmaster_projections.rows import (
    DepartmentRow,
    JobRow,
    NodeRow,
    PoolRow,
    ProjectRow,
    Row,
    TaskRow,
)
from yardmaster_projections.store import ChangeSet, Delete
from yardmaster_schemas.api import Phase, WatchKind
from yardmaster_schemas.position import POSITION_PATTERN, Position

router = APIRouter(tags=["watch"])

KINDS: Final[dict[str, type[Row]]] = {
    WatchKind.TASK: TaskRow,
    WatchKind.JOB: JobRow,
    WatchKind.NODE: NodeRow,
    WatchKind.POOL: PoolRow,
    WatchKind.PROJECT: ProjectRow,
    WatchKind.DEPARTMENT: DepartmentRow,
}
#: Rows in one event of a snapshot.
SNAPSHOT_ITEMS: Final = 200


def _visible(row: Row, visibility: Visibility) -> bool:
    """Whether a watch shows a row: the caller may see it, and lists of this kind contain it."""
    match row:
        case TaskRow():
            return visibility.includes(row.job.project)
        case JobRow():
            return visibility.includes(row.facts.project)
        case ProjectRow():
            return visibility.includes(row.name)
        case NodeRow():
            return row.offer is not None
        case DepartmentRow():
            return visibility.projects is None
        case _:
            return True


async def _presented(presenter: Presenter, row: Row) -> BaseModel | None:
    match row:
        case TaskRow():
            return await presenter.task(row)
        case JobRow():
            return await presenter.job(row)
        case NodeRow():
            return await presenter.node(row)
        case PoolRow():
            return await presenter.pool(row)
        case ProjectRow():
            return await presenter.project(row)
        case DepartmentRow():
            return await presenter.department(row)
        case _:
            return None


class Watcher:
    """One open watch."""

    def __init__(self, read: ReadContext, kinds: Sequence[str], token: str) -> None:
        self._gateway = read.gateway
        self._store = read.store
        self._kinds = kinds
        self._token = token
        self._user = read.caller.user
        self._visibility = read.visibility

    def _presenter(self) -> Presenter:
        return Presenter(self._store, self._gateway.ports.clock.now_ms(), self._visibility)

    async def events(self, after: Position | None) -> AsyncIterator[bytes]:
        """The events, until the stream's lifetime is over or its client is too slow.

        The stream also ends when the views become unavailable; a client that resumes gets a problem
        document until the views are back.
        """
        with suppress(ViewsUnavailable):
            async for part in self._events(after):
                yield part

    async def _events(self, after: Position | None) -> AsyncIterator[bytes]:
        async with self._gateway.stream(self._user, self._token):
            clock = self._gateway.ports.clock
            settings = self._gateway.settings
            stop = clock.monotonic_s() + settings.stream_s
            checked = clock.monotonic_s()
            position = after
            if position is None or await self._store.changes(position) is None:
                position = await self._store.position()
                async for part in self._snapshot(position):
                    yield part
            while (left := stop - clock.monotonic_s()) > 0:
                # Read the position before the changes: later changes are for the next iteration.
                reached = await self._store.position()
                sets = await self._store.changes(position)
                if sets is None:
                    return  # the client is too slow: the next changes are no longer kept
                for one in sets:
                    async for part in self._changes(one):
                        yield part
                    position = one.position
                if not position.covers(reached):
                    position = reached  # the changes in between are of kinds that are not watched
                changed = await self._store.changed(position, min(left, settings.bookmark_s))
                # Check the caller even if the watch is never idle.
                if not changed or clock.monotonic_s() - checked >= settings.bookmark_s:
                    if not await self._still_allowed():
                        return
                    checked = clock.monotonic_s()
                if not changed:
                    yield encode_event("bookmark", {}, str(position))

    async def _still_allowed(self) -> bool:
        """Authenticate the caller again; return False if the token is not valid any more.

        If the roles have changed, the stream shows what the new roles allow from now on.
        """
        visibility = await self._gateway.visibility_of(self._token)
        if visibility is None:
            return False
        self._visibility = visibility
        return True

    async def _snapshot(self, position: Position) -> AsyncIterator[bytes]:
        """All rows of the watched kinds; of jobs and tasks, only those that have not ended.

        A row may be newer than `position`. Its change is then sent again, which has no effect.
        """
        for number, kind in enumerate(self._kinds, 1):
            cursor: str | None = None
            while True:
                filters = Filters(
                    phases=frozenset(map(Phase, LIVE)) if kind in ("task", "job") else frozenset(),
                    newest_first=False,
                    limit=SNAPSHOT_ITEMS,
                    cursor=cursor,
                )
                page = await queries.rows(self._store, KINDS[kind], filters, self._visibility)
                presenter = self._presenter()
                items = [
                    await _presented(presenter, row)
                    for row in page.rows
                    if _visible(row, self._visibility)
                ]
                cursor = queries.cursor_of(page.next)
                body = {"kind": kind, "items": items, "complete": cursor is None}
                last = cursor is None and number == len(self._kinds)
                yield encode_event("snapshot", body, str(position) if last else None)
                if cursor is None:
                    break

    async def _changes(self, step: ChangeSet) -> AsyncIterator[bytes]:
        """The changes of one step. Only the last event has an id, so resuming loses no change."""
        wanted = [
            change
            for change in step.changes
            if change.kind in self._kinds and _visible(change.row, self._visibility)
        ]
        presenter = self._presenter()
        for number, change in enumerate(wanted, 1):
            id_ = str(step.position) if number == len(wanted) else None
            if isinstance(change, Delete):
                yield encode_event("delete", {"kind": change.kind, "key": change.key}, id_)
            else:
                item: Any = await _presented(presenter, change.row)
                yield encode_event("upsert", {"kind": change.kind, "item": item}, id_)


@router.get(
    "/watch",
    operation_id="watch",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events snapshot, upsert, delete, bookmark",
            "content": {
                SSE: {"schema": event_schema("snapshot", "upsert", "delete", "bookmark")},
            },
        },
        **problem_responses(),
    },
)
async def watch(
    request: Request,
    read: Read,
    kinds: Annotated[
        str,
        Query(pattern=f"^({'|'.join(WatchKind)})(,({'|'.join(WatchKind)})){{0,5}}$"),
    ] = "task",
    after: PositionQuery = None,
    last_event_id: Annotated[str | None, Header(pattern=POSITION_PATTERN, max_length=160)] = None,
) -> StreamingResponse:
    """Watch tasks, jobs, nodes, pools, projects and departments: a snapshot, then every change."""
    resume = parse_position(last_event_id if last_event_id is not None else after)
    if resume is not None:
        await read.gateway.check_position(resume)
    read.gateway.check_stream_limit()
    chosen = [kind for kind in KINDS if kind in split_values(kinds)]
    watcher = Watcher(read, chosen, bearer_token(request))
    headers = {
        "Yard-Position": str(read.position),
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",
    }
    return StreamingResponse(watcher.events(resume), media_type=SSE, headers=headers)
