"""`/v1/tasks/{id}/logs`: a task's output, as text or as server-sent events, which may be followed.

Pieces count only from the node that the attempt's replica was placed on; the topic holds claims.
"""

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import OffsetGone
from yardmaster_eventlog.port import Partition, StoredRecord
from yardmaster_gateway import errors
from yardmaster_gateway.context import Read, ReadContext
from yardmaster_gateway.problems import problem_responses
from yardmaster_gateway.sse import SSE, encode_event, event_schema
from yardmaster_gateway.tasks import find_task
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.rows import AttemptRow, OutputRow, TaskRow
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.expiring import TaskOutputV1
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.sources import written_by_agent
from yardmaster_schemas.topics import DECISIONS, TASK_LOGS

router = APIRouter(tags=["tasks"])

#: Records read at once.
MAX_READ: Final = 200
#: Lines that `tail` may ask for.
MAX_TAIL: Final = 100_000
#: So often, and this long apart, the views are asked for an attempt that has output; more often
#: while they have not reached the end of `decisions`, which has every allocation before its output.
LATE_LOOKS: Final = 20
BEHIND_LOOKS: Final = 600
LATE_PAUSE_S: Final = 0.05
#: How often a stream looks whether the views are back.
AWAY_PAUSE_S: Final = 1.0


class Output:
    """Reads the pieces of a task's output that are its own, each once."""

    def __init__(
        self, read: ReadContext, task_id: str, attempt: int | None, replica: int | None
    ) -> None:
        self._read = read
        self._task_id = task_id
        self._wanted = attempt
        self._replica = replica
        gateway = read.gateway
        self._log = gateway.ports.log
        self._partition = Partition(TASK_LOGS.name, gateway.settings.partition)
        self._nodes: dict[int, dict[int, str]] = {}
        self._seen: dict[tuple[int, int], int] = {}
        #: Left of LATE_LOOKS; who forges output of attempts that are not there uses them up once.
        self._late_looks = LATE_LOOKS
        self._behind_looks = BEHIND_LOOKS
        self.offset = 0

    async def span(self, attempt: int) -> tuple[int, int]:
        """From which offset to before which the attempt's output lies; empty when it has none."""
        row = await self._read.store.get(OutputRow, f"{self._task_id}/{attempt}")
        return (0, 0) if row is None else (row.first, row.last + 1)

    async def noted(self) -> int:
        """Up to which offset the views know whose output there is.

        Asked before `span`: what lies before it `span` knows, and what comes after is read.
        """
        offset = (await self._read.store.notes()).get(TASK_LOGS.name)
        return offset if isinstance(offset, int) else 0

    async def pieces(self, until: int) -> AsyncIterator[tuple[int, TaskOutputV1]]:
        """The task's pieces before offset `until`, each with its offset."""
        while self.offset < until:
            try:
                read = await self._log.read(
                    self._partition, self.offset, max_records=min(MAX_READ, until - self.offset)
                )
            except OffsetGone as gone:
                start = gone.fields.get("start")
                self.offset = start if isinstance(start, int) else self.offset + 1
                continue
            if not read:
                return
            for stored in read:
                piece = await self._own(stored)
                # After the look at the views, which may fail: the piece is read again then.
                self.offset = stored.offset + 1
                if piece is not None:
                    yield stored.offset, piece

    async def _own(self, stored: StoredRecord) -> TaskOutputV1 | None:
        if stored.record.key != self._task_id.encode():
            return None
        try:
            envelope = decode(stored.record)
        except SchemaError:
            return None
        data: Any = envelope.data
        if not isinstance(data, TaskOutputV1) or data.task_id != self._task_id:
            return None
        if self._wanted is not None and data.attempt != self._wanted:
            return None
        if self._replica is not None and data.replica != self._replica:
            return None
        placed = (await self._placed(data.attempt)).get(data.replica)
        if placed is None or placed != data.node or not written_by_agent(envelope.source, placed):
            return None
        last = self._seen.get((data.attempt, data.replica), -1)
        if data.seq <= last:
            return None
        self._seen[data.attempt, data.replica] = data.seq
        return data

    async def _placed(self, attempt: int) -> dict[int, str]:
        """The node of each replica of an attempt."""
        known = self._nodes.get(attempt)
        if known is None:
            row = await self._read.store.get(AttemptRow, f"{self._task_id}/{attempt}")
            while row is None and await self._may_come():
                await self._read.gateway.ports.clock.sleep(LATE_PAUSE_S)
                row = await self._read.store.get(AttemptRow, f"{self._task_id}/{attempt}")
            if row is None:
                return {}
            self._late_looks, self._behind_looks = LATE_LOOKS, BEHIND_LOOKS
            known = {r.placement.replica: r.placement.node for r in row.replicas}
            self._nodes[attempt] = known
        return known

    async def _may_come(self) -> bool:
        """Whether the views may yet show an attempt that has output."""
        if self._late_looks > 0:
            self._late_looks -= 1
            return True
        position = await self._read.store.position()
        end = await self._read.gateway.end(DECISIONS.name)
        self._behind_looks -= 1
        return self._behind_looks >= 0 and (position.of(DECISIONS.name) or 0) < end

    async def end(self) -> int:
        """The offset that the topic's next record will get."""
        return await self._log.end(self._partition)

    async def more(self, timeout_s: float) -> bool:
        """Wait for more records of any task."""
        return await self._log.wait({self._partition: self.offset}, timeout_s)


@router.get(
    "/tasks/{task_id}/logs",
    operation_id="read_output",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Text; with pieces or follow, server-sent events `output` and `end`",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                SSE: {"schema": event_schema("output", "bookmark", "end")},
            },
        },
        **problem_responses("not_found"),
    },
)
async def read_output(
    request: Request,
    read: Read,
    task_id: str,
    follow: bool = False,
    pieces: bool = False,
    attempt: Annotated[int | None, Query(ge=1, le=2**31)] = None,
    replica: Annotated[int | None, Query(ge=0, lt=4096)] = None,
    tail: Annotated[int | None, Query(ge=0, le=MAX_TAIL)] = None,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,18}$")] = None,
) -> StreamingResponse:
    """A task's output: of its newest attempt, or of the one named; `tail` gives the last lines.

    `pieces` gives what there is piece by piece, each with its attempt and replica; `follow` also
    waits for more until the task has ended. `Last-Event-ID` resumes a followed output after it.
    """
    row = await find_task(read, task_id)
    if row.job.erased:
        raise errors.NotFound(what=f"output of task {task_id}: its job was erased")
    await _check_place(read, row, attempt, replica)
    headers = {"Yard-Position": str(read.position)}
    if follow:
        read.gateway.check_stream_limit()
        output = Output(read, task_id, attempt, replica)
        after = None if last_event_id is None else int(last_event_id)
        return StreamingResponse(
            _followed(read, task_id, attempt, output, tail, after),
            media_type=SSE,
            headers=headers,
        )
    newest = attempt if attempt is not None else row.attempt
    output = Output(read, task_id, newest, replica)
    output.offset, until = await output.span(newest)
    found = _cut(output.pieces(until), read.gateway.settings.max_log_bytes)
    if tail is not None:
        found = _last(found, tail)
    if pieces:
        return StreamingResponse(_as_events(found, row), media_type=SSE, headers=headers)
    text = (piece.text.encode() async for _, piece in found)
    return StreamingResponse(text, media_type="text/plain; charset=utf-8", headers=headers)


async def _check_place(
    read: ReadContext, row: TaskRow, attempt: int | None, replica: int | None
) -> None:
    """Refuse an attempt or replica that the task does not have.

    Raises:
        NotFound: naming those that it has.
    """
    if attempt is not None and attempt > max(1, row.attempt):
        has = f"attempts 1 to {row.attempt}" if row.attempt else "no attempt yet"
        raise errors.NotFound(what=f"attempt {attempt} of task {row.task_id}; it has {has}")
    if replica is None:
        return
    number = attempt if attempt is not None else row.attempt
    found = await read.store.get(AttemptRow, f"{row.task_id}/{number}")
    count = 0 if found is None else len(found.replicas)
    if 0 < count <= replica:
        has = "replica 0 only" if count == 1 else f"replicas 0 to {count - 1}"
        raise errors.NotFound(what=f"replica {replica} of task {row.task_id}; it has {has}")


_Pieces = AsyncIterator[tuple[int, TaskOutputV1]]


async def _cut(pieces: _Pieces, most: int) -> _Pieces:
    """Pieces of `most` bytes of text together."""
    size = 0
    async for offset, piece in pieces:
        size += len(piece.text.encode())
        if size > most:
            return
        yield offset, piece


async def _last(pieces: _Pieces, lines: int) -> _Pieces:
    """The pieces of the last `lines` lines; the first one without what comes before them."""
    kept: deque[tuple[int, TaskOutputV1]] = deque()
    breaks = 0
    async for offset, piece in pieces:
        kept.append((offset, piece))
        breaks += piece.text.count("\n")
        # The last line may be open: it counts as one.
        while kept and breaks - kept[0][1].text.count("\n") > lines:
            breaks -= kept.popleft()[1].text.count("\n")
    if not kept:
        return
    #: Lines that come before the first one wanted.
    spare = breaks + (not kept[-1][1].text.endswith("\n")) - lines
    for offset, piece in kept:
        text, found = piece.text, piece.text.count("\n")
        if spare > 0:
            text = text.split("\n", spare)[spare] if found >= spare else ""
            spare -= min(spare, found)
        if text:
            yield offset, replace(piece, text=text)


async def _as_events(pieces: _Pieces, row: TaskRow) -> AsyncIterator[bytes]:
    async for offset, piece in pieces:
        yield encode_event("output", _shown(piece), str(offset))
    yield encode_event("end", {"phase": row.phase}, None)


async def _followed(
    read: ReadContext,
    task_id: str,
    attempt: int | None,
    output: Output,
    tail: int | None,
    after: int | None,
) -> AsyncIterator[bytes]:
    """Pieces as they come, until the task has ended and all of it was sent.

    It starts after the offset `after`, else with the last `tail` lines, else with all there is.
    While the views are unavailable it continues: the output is in the log, and where an attempt
    that was seen runs is known. Whether the task has ended is asked again when they are back.
    """
    gateway = read.gateway
    clock = gateway.ports.clock
    async with gateway.stream():
        row = await find_task(read, task_id)
        noted = await output.noted()
        first, until = await output.span(attempt if attempt is not None else max(1, row.attempt))
        # Where nothing is known yet, everything that the views have not seen may be the task's.
        output.offset = first if until else noted
        if after is not None:
            # The attempt that was followed may have been followed by another meanwhile.
            output.offset = max(
                (await output.span(attempt if attempt is not None else 1))[0], after + 1
            )
        elif tail is not None:
            async for offset, piece in _last(output.pieces(await output.end()), tail):
                yield encode_event("output", _shown(piece), str(offset))
            # A reader that resumes here gets all that is written from now on, not the last lines.
            yield encode_event("bookmark", {}, str(output.offset - 1) if output.offset else None)
        stop = clock.monotonic_s() + gateway.settings.stream_s
        while True:
            away = False
            try:
                row = await find_task(read, task_id)
            except (ViewsUnavailable, errors.NotFound):
                away = True  # or emptied: the task was there
            try:
                async for offset, piece in output.pieces(await output.end()):
                    yield encode_event("output", _shown(piece), str(offset))
            except ViewsUnavailable:
                away = True
            left = stop - clock.monotonic_s()
            if left <= 0 or (row.phase.final and not away):
                yield encode_event("end", {"phase": row.phase}, None)
                return
            if away:
                await clock.sleep(min(left, AWAY_PAUSE_S))
                yield encode_event("bookmark", {}, None)
            elif not await output.more(min(left, gateway.settings.bookmark_s)):
                yield encode_event("bookmark", {}, None)


def _shown(piece: TaskOutputV1) -> dict[str, Any]:
    return {
        "attempt": piece.attempt,
        "replica": piece.replica,
        "stream": piece.stream,
        "seq": piece.seq,
        "at": rfc3339(piece.at_ms),
        "text": piece.text,
    }
