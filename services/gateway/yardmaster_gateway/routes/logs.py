"""`/v1/tasks/{id}/logs`: a task's output, as text or as server-sent events that can be followed.

The topic `task-logs` contains unverified claims of agents. A piece of output counts only if the
node on which the attempt's replica was placed wrote it.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogTruncated, OffsetGone, ReadPastEnd
from yardmaster_eventlog.port import Partition, StoredRecord
from yardmaster_eventlog.reader import continue_at, first_offset
from yardmaster_gateway import errors
from yardmaster_gateway.context import Read, ReadContext, bearer_token
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.sse import SSE, encode_event, event_schema
from yardmaster_gateway.routes.tasks import find_task
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.rows import AttemptRow, OutputRow, TaskRow
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.expiring import TaskOutputV1
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.sources import written_by_agent
from yardmaster_schemas.topics import DECISIONS, TASK_LOGS

router = APIRouter(tags=["tasks"])

#: Records per read.
MAX_READ: Final = 200
#: The upper bound of the parameter `tail`, in lines.
MAX_TAIL: Final = 100_000
#: If an attempt has output but is not in the views, the views are read again: at most LATE_READS
#: times, LATE_PAUSE_S seconds apart. The topic `decisions` contains the allocation of every attempt
#: with output, so while the views are behind its end, they are read up to BEHIND_READS times.
LATE_READS: Final = 20
BEHIND_READS: Final = 600
LATE_PAUSE_S: Final = 0.05
#: The interval at which a stream checks whether unavailable views are back.
UNAVAILABLE_PAUSE_S: Final = 1.0


class Output:
    """Reads the verified pieces of a task's output, each once."""

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
        #: How often the views may still be read again for missing attempts. The numbers start again
        #: only when an attempt was found: so forged output of attempts that do not exist delays a
        #: stream only once.
        self._late_reads = LATE_READS
        self._behind_reads = BEHIND_READS
        self.offset = 0

    async def span(self, attempt: int) -> tuple[int, int]:
        """The range of offsets that contains the attempt's output; empty if it has none."""
        row = await self._read.store.get(OutputRow, f"{self._task_id}/{attempt}")
        return (0, 0) if row is None else (row.first, row.last + 1)

    async def check_kept(self, after: int, oldest: int, newest: int) -> None:
        """Check that the log still has all output of attempts `oldest` to `newest` after an offset.

        Raises: PositionExpired.
        """
        first, until = (await self.span(oldest))[0], (await self.span(newest))[1]
        kept = await first_offset(self._log, self._partition)
        if max(first, after + 1) < min(until, kept):
            raise errors.PositionExpired(position=after, oldest=kept - 1)

    async def indexed_until(self) -> int:
        """The offset before which the views have indexed all output.

        Call this before `span`. The result of `span` then covers all output of the attempt before
        this offset; later output must be searched in the log.
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
            except (OffsetGone, LogTruncated, ReadPastEnd) as error:
                # Old output has expired, or new output was lost: continue after it.
                self.offset = await continue_at(self._log, self._partition, error)
                continue
            if not read:
                return
            for stored in read:
                piece = await self._verified(stored)
                # Advance only now: if reading the views failed, the piece must be read again.
                self.offset = stored.offset + 1
                if piece is not None:
                    yield stored.offset, piece

    async def _verified(self, stored: StoredRecord) -> TaskOutputV1 | None:
        """Return the piece in a record if it is wanted, new, and from the right node; else None."""
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
        placed = (await self._nodes_of(data.attempt)).get(data.replica)
        if placed is None or placed != data.node or not written_by_agent(envelope.source, placed):
            return None
        last = self._seen.get((data.attempt, data.replica), -1)
        if data.seq <= last:
            return None
        self._seen[data.attempt, data.replica] = data.seq
        return data

    async def _nodes_of(self, attempt: int) -> dict[int, str]:
        """The node of each replica of an attempt."""
        known = self._nodes.get(attempt)
        if known is None:
            row = await self._read.store.get(AttemptRow, f"{self._task_id}/{attempt}")
            while row is None and await self._may_appear():
                await self._read.gateway.ports.clock.sleep(LATE_PAUSE_S)
                row = await self._read.store.get(AttemptRow, f"{self._task_id}/{attempt}")
            if row is None:
                return {}
            self._late_reads, self._behind_reads = LATE_READS, BEHIND_READS
            known = {r.placement.replica: r.placement.node for r in row.replicas}
            self._nodes[attempt] = known
        return known

    async def _may_appear(self) -> bool:
        """Whether to read the views again for an attempt that has output; counts these reads."""
        if self._late_reads > 0:
            self._late_reads -= 1
            return True
        position = await self._read.store.position()
        end = await self._read.gateway.end(DECISIONS.name)
        self._behind_reads -= 1
        return self._behind_reads >= 0 and (position.of(DECISIONS.name) or 0) < end

    async def end(self) -> int:
        """The end offset of the topic."""
        return await self._log.end(self._partition)

    async def more(self, timeout_s: float) -> bool:
        """Wait for more records of any task; return whether there are some."""
        # If the log lost output, its end is lower now, and new output begins there.
        self.offset = min(self.offset, await self.end())
        return await self._log.wait({self._partition: self.offset}, timeout_s)


@router.get(
    "/tasks/{task_id}/logs",
    operation_id="read_output",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Text; with pieces or follow, server-sent events",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                SSE: {"schema": event_schema("output", "bookmark", "end")},
            },
        },
        **problem_responses("not_found", "position_expired"),
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
    """Read the output of a task's newest attempt, or of the given attempt.

    With `pieces`, the answer is a stream of events, each with its attempt and replica. With
    `follow`, the stream continues until the task has ended; `Last-Event-ID` resumes it.
    """
    row = await find_task(read, task_id)
    if row.job.erased:
        raise errors.NotFound(what=f"output of task {task_id}, because its job was erased")
    await _check_exists(read, row, attempt, replica)
    headers = {"Yard-Position": str(read.position)}
    if follow:
        read.gateway.check_stream_limit()
        output = Output(read, task_id, attempt, replica)
        after = None if last_event_id is None else int(last_event_id)
        if after is not None:
            await output.check_kept(after, attempt or 1, attempt or row.attempt)
        return StreamingResponse(
            _follow(read, bearer_token(request), task_id, attempt, output, tail, after),
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


async def _check_exists(
    read: ReadContext, row: TaskRow, attempt: int | None, replica: int | None
) -> None:
    """Check that the task has the given attempt and replica.

    Raises:
        NotFound: with the attempts or replicas that the task has.
    """
    if attempt is not None and attempt > max(1, row.attempt):
        has = f"attempts 1 to {row.attempt}" if row.attempt > 1 else "attempt 1 only"
        has = has if row.attempt else "no attempt yet"
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


async def _cut(pieces: _Pieces, max_bytes: int) -> _Pieces:
    """Yield the first pieces, up to `max_bytes` bytes of text in total."""
    size = 0
    async for offset, piece in pieces:
        size += len(piece.text.encode())
        if size > max_bytes:
            return
        yield offset, piece


async def _last(pieces: _Pieces, lines: int) -> _Pieces:
    """Yield the pieces with the last `lines` lines; cut the first piece to start with a line."""
    kept: deque[tuple[int, TaskOutputV1]] = deque()
    breaks = 0
    async for offset, piece in pieces:
        kept.append((offset, piece))
        breaks += piece.text.count("\n")
        # A last line without a line break counts as a line.
        while kept and breaks - kept[0][1].text.count("\n") > lines:
            breaks -= kept.popleft()[1].text.count("\n")
    if not kept:
        return
    # The number of lines to skip at the start of the kept pieces.
    skip = breaks + (not kept[-1][1].text.endswith("\n")) - lines
    for offset, piece in kept:
        text, found = piece.text, piece.text.count("\n")
        if skip > 0:
            text = text.split("\n", skip)[skip] if found >= skip else ""
            skip -= min(skip, found)
        if text:
            yield offset, replace(piece, text=text)


async def _as_events(pieces: _Pieces, row: TaskRow) -> AsyncIterator[bytes]:
    async for offset, piece in pieces:
        yield encode_event("output", _piece_body(piece), str(offset))
    yield encode_event("end", {"phase": row.phase}, None)


async def _follow(
    read: ReadContext,
    token: str,
    task_id: str,
    attempt: int | None,
    output: Output,
    tail: int | None,
    after: int | None,
) -> AsyncIterator[bytes]:
    """Yield the pieces as events as they are written, until the task has ended and all were sent.

    The stream starts after the offset `after`, or else with the last `tail` lines, or else with the
    first piece. It continues while the views are unavailable: the output is in the log, and the
    nodes of known attempts are cached. Whether the task has ended is checked when they are back.
    The caller is authenticated again after each `bookmark_s`; the stream ends if the caller may no
    longer see the task.
    """
    gateway = read.gateway
    clock = gateway.ports.clock
    async with gateway.stream(read.caller.user, token):
        row = await find_task(read, task_id)
        indexed = await output.indexed_until()
        first, until = await output.span(attempt if attempt is not None else max(1, row.attempt))
        # If the views know no range of the attempt, search all output that they have not indexed.
        output.offset = first if until else indexed
        if after is not None:
            # The client may have seen an earlier attempt, so its output is included.
            output.offset = max(
                (await output.span(attempt if attempt is not None else 1))[0], after + 1
            )
        elif tail is not None:
            async for offset, piece in _last(output.pieces(await output.end()), tail):
                yield encode_event("output", _piece_body(piece), str(offset))
            # A client that resumes here gets the output from now on, not the last lines again.
            yield encode_event("bookmark", {}, str(output.offset - 1) if output.offset else None)
        stop = clock.monotonic_s() + gateway.settings.stream_s
        checked = clock.monotonic_s()
        while True:
            unavailable = False
            if clock.monotonic_s() - checked >= gateway.settings.bookmark_s:
                checked = clock.monotonic_s()
                with suppress(ViewsUnavailable):
                    seen = await gateway.visibility_of(token)
                    if seen is None or not seen.includes(row.job.project):
                        return
            try:
                row = await find_task(read, task_id)
            except (ViewsUnavailable, errors.NotFound):
                # NotFound means that the views were emptied: they contained the task before.
                unavailable = True
            try:
                async for offset, piece in output.pieces(await output.end()):
                    yield encode_event("output", _piece_body(piece), str(offset))
            except ViewsUnavailable:
                unavailable = True
            left = stop - clock.monotonic_s()
            if left <= 0 or (row.phase.final and not unavailable):
                yield encode_event("end", {"phase": row.phase}, None)
                return
            if unavailable:
                await clock.sleep(min(left, UNAVAILABLE_PAUSE_S))
                yield encode_event("bookmark", {}, None)
            elif not await output.more(min(left, gateway.settings.bookmark_s)):
                yield encode_event("bookmark", {}, None)


def _piece_body(piece: TaskOutputV1) -> dict[str, Any]:
    return {
        "attempt": piece.attempt,
        "replica": piece.replica,
        "stream": piece.stream,
        "seq": piece.seq,
        "at": rfc3339(piece.at_ms),
        "text": piece.text,
    }
