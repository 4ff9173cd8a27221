"""`/v1/watch`: a snapshot, then every change, as server-sent events.

Events: `snapshot` (`{kind, items, complete}`, several of them), `upsert` (`{kind, item}`),
`delete` (`{kind, key}`), `bookmark` (`{}`, when quiet). An `id` is a position: `Last-Event-ID` or
`after` resumes from it without loss while the store keeps what changed since, else a snapshot
comes first. There is no queue a reader: each reads the store's changes at its own pace, and one
that falls behind what is kept is closed, to come back.
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
from yardmaster_gateway.filters import some
from yardmaster_gateway.problems import problem_responses
from yardmaster_gateway.sse import SSE, encode_event, event_schema
from yardmaster_projections import queries
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.presenter import Presenter
from yardmaster_projections.queries import LIVE, Filters, Sight
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


def _visible(row: Row, sight: Sight) -> bool:
    match row:
        case TaskRow():
            return sight.of(row.job.project)
        case JobRow():
            return sight.of(row.facts.project)
        case ProjectRow():
            return sight.of(row.name)
        case NodeRow():
            return row.offer is not None
        case DepartmentRow():
            return sight.projects is None
        case _:
            return True


async def _shown(presenter: Presenter, row: Row) -> BaseModel | None:
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
        self._sight = read.sight

    def _presenter(self) -> Presenter:
        return Presenter(self._store, self._gateway.ports.clock.now_ms(), self._sight)

    async def events(self, after: Position | None) -> AsyncIterator[bytes]:
        """All there is to send, until it has lasted long enough or its reader is too slow.

        It ends as well, whole, when the views are away: who resumes is told when they are back.
        """
        with suppress(ViewsUnavailable):
            async for part in self._events(after):
                yield part

    async def _events(self, after: Position | None) -> AsyncIterator[bytes]:
        async with self._gateway.stream():
            clock = self._gateway.ports.clock
            settings = self._gateway.settings
            stop = clock.monotonic_s() + settings.stream_s
            position = after
            if position is None or await self._store.changes(position) is None:
                position = await self._store.position()
                async for part in self._snapshot(position):
                    yield part
            while (left := stop - clock.monotonic_s()) > 0:
                # Asked first: what is applied while the changes are sent comes in the next round.
                reached = await self._store.position()
                sets = await self._store.changes(position)
                if sets is None:
                    return  # too slow: what came next is no longer kept
                for one in sets:
                    async for part in self._changes(one):
                        yield part
                    position = one.position
                if not position.covers(reached):
                    position = reached  # what came in between is of no watched kind
                if await self._store.changed(position, min(left, settings.bookmark_s)):
                    continue
                if not await self._still_allowed():
                    return
                yield encode_event("bookmark", {}, str(position))

    async def _still_allowed(self) -> bool:
        """Look again who the reader is: a token may be void by now, or have other roles."""
        caller = await self._gateway.ports.identity.identify(self._token)
        if caller is None:
            return False
        self._sight = await self._gateway.sight(caller)
        return True

    async def _snapshot(self, position: Position) -> AsyncIterator[bytes]:
        """What there is: all rows, of jobs and tasks those that have not ended.

        Rows may be newer than `position`; their changes come again then, which changes nothing.
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
                page = await queries.rows(self._store, KINDS[kind], filters, self._sight)
                presenter = self._presenter()
                items = [
                    await _shown(presenter, row) for row in page.rows if _visible(row, self._sight)
                ]
                cursor = queries.cursor_of(page.next)
                body = {"kind": kind, "items": items, "complete": cursor is None}
                last = cursor is None and number == len(self._kinds)
                yield encode_event("snapshot", body, str(position) if last else None)
                if cursor is None:
                    break

    async def _changes(self, step: ChangeSet) -> AsyncIterator[bytes]:
        """A step's changes; the last one carries the position, so that none is lost on resuming."""
        wanted = [
            change
            for change in step.changes
            if change.kind in self._kinds and _visible(change.row, self._sight)
        ]
        presenter = self._presenter()
        for number, change in enumerate(wanted, 1):
            id_ = str(step.position) if number == len(wanted) else None
            if isinstance(change, Delete):
                yield encode_event("delete", {"kind": change.kind, "key": change.key}, id_)
            else:
                item: Any = await _shown(presenter, change.row)
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
    """Follow tasks, jobs, nodes, pools, projects and departments as they change."""
    resume = parse_position(last_event_id if last_event_id is not None else after)
    if resume is not None:
        await read.gateway.known(resume)
    read.gateway.check_stream_limit()
    chosen = [kind for kind in KINDS if kind in some(kinds)]
    watcher = Watcher(read, chosen, bearer_token(request))
    headers = {
        "Yard-Position": str(read.position),
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",
    }
    return StreamingResponse(watcher.events(resume), media_type=SSE, headers=headers)
