"""Ships a replica's output to the topic `task-logs`.

The replica writes its streams to files; the ledger has the position up to which they are shipped.
The pieces of a batch are written to the ledger before they are appended to the log. After a kill -9
the agent therefore appends the same pieces with the same numbers, and readers drop the repeats.

The topic only grows, so only two parts of a long output are shipped: the *head*, as it is written,
and the *tail*, the newest bytes, when the replica has ended. The tail has the error of a failed
task. Until it is shipped, it stays in the replica's output files, whose middle `bound` frees. So it
takes no memory and survives the agent. After a replica's end, at most the tail is left to ship.
"""

from typing import Final

from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable
from yardmaster_eventlog.port import BATCH_OVERHEAD, Record
from yardmaster_node_agent.agent_state import Piece, Replica
from yardmaster_node_agent.executors.port import ReplicaFiles, StreamName
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_node_agent.ports import AgentContext
from yardmaster_node_agent.reports import MAX_BATCH_BYTES
from yardmaster_schemas.events.expiring import Stream, TaskOutputV1
from yardmaster_schemas.topics import KIB, MIB, TASK_LOGS

#: The most bytes of a piece. The piece's record fits into a batch even if JSON escapes each byte.
PIECE_BYTES: Final = 16 * KIB
#: The most lines of the agent that may wait to be shipped; further lines are dropped.
MAX_LINES: Final = 20
#: The setting that limits the output, as the agent's lines name it.
SETTING: Final = "YARD_AGENT_OUTPUT_LIMIT_BYTES of the node's agent"
_STREAMS: Final[tuple[StreamName, StreamName]] = ("stdout", "stderr")
_NAMES: Final[dict[Stream, StreamName]] = {Stream.STDOUT: "stdout", Stream.STDERR: "stderr"}


class OutputShipper:
    """Ships the output of one replica, and the agent's own lines about it."""

    def __init__(self, context: AgentContext, replica: Replica, metrics: AgentMetrics) -> None:
        self._context = context
        self._replica = replica
        self._metrics = metrics
        self._lines: list[str] = []
        #: Whether the pieces in `output.last` are known to be in the log.
        self._arrived = not replica.output.last
        self._limit = context.settings.output_limit_bytes
        self._tail_bytes = self._limit // 4
        self._head_bytes = self._limit - self._tail_bytes
        #: Whether the last shipped output ends without a line break; None: not known yet.
        self._in_a_line: bool | None = None
        #: Whether the output files were truncated: the file system cannot free their middle.
        self._truncated = False

    def add_line(self, text: str) -> None:
        """Queue a line of the agent for the replica's output; drop it if `MAX_LINES` wait."""
        if len(self._lines) < MAX_LINES:
            self._lines.append(text)

    def bound(self, files: ReplicaFiles) -> None:
        """Free the disk space of output that will not be shipped."""
        output, head = self._replica.output, self._head_bytes
        if output.cut and self._arrived:
            head = 0
            if output.last:
                # A later agent process must not read the pieces again, which are freed now.
                output.last = ()
                self._context.save(self._replica, durable=False)
        if not files.bound_output(head, self._tail_bytes) and not self._truncated:
            self._truncated = True
            self.add_line(
                f"the newest output is lost from here on: more than {_size(self._limit)} were "
                "written, and the file system of the agent's data_dir cannot free a part of a file"
            )

    async def ship(self, files: ReplicaFiles | None, *, final: bool = False) -> bool:
        """Append one batch of new output; return whether there was any.

        `final`: the replica has no process any more, so the tail is shipped too. Without `final`,
        an incomplete character at the end of the output stays pending. If the append fails, the
        next call retries the batch.
        """
        replica, output = self._replica, self._replica.output
        if files is not None and not self._arrived:
            records = [record for piece in output.last if (record := self._record(files, piece))]
            if not await self._append(records):
                return False
            self._arrived = True
        if files is not None and final and output.cut:
            self.skip_to_tail(files)
        lines, self._lines = self._lines, []
        records = self._agent_records(files, lines)
        if files is not None and self._has_new(files):
            pieces = self._gather(files, final, records)
            if pieces:
                output.last, self._arrived = tuple(pieces), False
        if not records:
            return False
        self._context.save(replica, durable=False)
        if not await self._append(records):
            self._lines = [*lines, *self._lines]
            return False
        self._arrived = True
        return True

    def has_work(self, files: ReplicaFiles) -> bool:
        """Return whether there is anything that `ship` may append."""
        return bool(self._lines) or not self._arrived or self._has_new(files)

    def behind(self, files: ReplicaFiles) -> bool:
        """Return whether there is at least a whole piece of output that is to be shipped now."""
        return not self._replica.output.cut and self._has_new(files, PIECE_BYTES)

    def _has_new(self, files: ReplicaFiles, count: int = 1) -> bool:
        """Return whether a stream has `count` bytes or more that are to be shipped."""
        if self._replica.output.cut and not self._replica.output.tail:
            return False
        positions = zip(_STREAMS, self._positions, strict=True)
        return any(files.output_size(name) - at >= count for name, at in positions)

    def skip_to_tail(self, files: ReplicaFiles) -> None:
        """Skip all output that is not shipped yet, except the newest bytes of both streams (tail).

        Each stream may use half of the tail, and what the other stream does not need. Call this
        when the replica has no process any more.
        """
        output, tail = self._replica.output, self._tail_bytes
        if output.tail:
            return
        sizes = [files.output_size("stdout"), files.output_size("stderr")]
        left = [max(0, size - at) for size, at in zip(sizes, self._positions, strict=True)]
        half = tail // 2
        takes = [min(left[n], max(half, tail - left[1 - n])) for n in (0, 1)]
        starts = [
            _line_start(files, name, size - take, size) if take < rest else size - take
            for name, size, take, rest in zip(_STREAMS, sizes, takes, left, strict=True)
        ]
        omitted = sum(starts) - sum(self._positions)
        output.cut = output.tail = True
        if omitted > 0:
            self._metrics.output_cut.inc()
            self.add_line(
                f"{_size(omitted)} of output are left out here: the agent ships at most "
                f"{_size(self._limit)} of an attempt ({SETTING}); the newest output follows"
            )
            output.stdout, output.stderr = starts

    @property
    def _positions(self) -> tuple[int, int]:
        return self._replica.output.stdout, self._replica.output.stderr

    def _gather(self, files: ReplicaFiles, final: bool, records: list[Record]) -> list[Piece]:
        """Take pieces of stdout, then of stderr, until the batch is full; add them to `records`.

        Because of this order, the error of a failed task follows its output, even if both are
        shipped late.
        """
        output = self._replica.output
        pieces: list[Piece] = []
        size = BATCH_OVERHEAD + sum(record.size for record in records)
        ahead = [Stream.STDOUT, Stream.STDERR]
        while ahead and (output.tail or not output.cut):
            stream = ahead.pop(0)
            start = output.stdout if stream is Stream.STDOUT else output.stderr
            left_bytes = PIECE_BYTES
            if not output.tail:
                left_bytes = self._head_bytes - output.stdout - output.stderr
            data = files.read_output(_NAMES[stream], start, min(PIECE_BYTES, left_bytes + 1))
            over = len(data) > left_bytes
            if over:
                data = data[:left_bytes]
            at_its_end = final and len(data) < PIECE_BYTES and not over
            whole = data if at_its_end else whole_characters(data)
            if over:
                whole = whole[: whole.rfind(b"\n") + 1] or whole
            if not whole:
                if over:
                    self._end_head()
                continue
            piece = Piece(stream=stream, start=start, end=start + len(whole), seq=output.seq)
            record = self._output(stream, whole, output.seq)
            size += record.size
            if pieces and size > MAX_BATCH_BYTES:
                break
            records.append(record)
            pieces.append(piece)
            output.seq += 1
            if stream is Stream.STDOUT:
                output.stdout = piece.end
            else:
                output.stderr = piece.end
            self._metrics.output_bytes.inc(len(whole))
            self._in_a_line = not whole.endswith(b"\n")
            if over:
                self._end_head()
            ahead.insert(0, stream)
        return pieces

    def _end_head(self) -> None:
        self._replica.output.cut = True
        self.add_line(
            f"output is cut here: {_size(self._head_bytes)} of it are shipped; of the rest, the "
            f"newest {_size(self._tail_bytes)} follow when the attempt ends. The agent ships at "
            f"most {_size(self._limit)} of an attempt ({SETTING})"
        )

    def _agent_records(self, files: ReplicaFiles | None, lines: list[str]) -> list[Record]:
        """Return the records of the agent's lines; the first one begins a new line."""
        output, records = self._replica.output, []
        if self._in_a_line is None and files is not None:
            last = output.last[-1:]
            ends = [files.read_output(_NAMES[piece.stream], piece.end - 1, 1) for piece in last]
            self._in_a_line = any(end != b"\n" for end in ends)
        for line in lines:
            begin = "\n" if self._in_a_line else ""
            self._in_a_line = False
            records.append(self._output(Stream.AGENT, f"{begin}{line}\n".encode(), output.seq))
            output.seq += 1
        return records

    def _record(self, files: ReplicaFiles, piece: Piece) -> Record | None:
        data = files.read_output(_NAMES[piece.stream], piece.start, piece.end - piece.start)
        return self._output(piece.stream, data, piece.seq) if data else None

    def _output(self, stream: Stream, data: bytes, seq: int) -> Record:
        key = self._replica.key
        event = TaskOutputV1(
            task_id=key.task_id,
            attempt=key.attempt,
            replica=key.replica,
            node=self._context.settings.node,
            stream=stream,
            seq=seq,
            at_ms=self._context.ports.clock.now_ms(),
            text=data.decode(errors="replace"),
        )
        return self._context.writer.record(event, subject=key.task_id, key=key.task_id)

    async def _append(self, records: list[Record]) -> bool:
        if not records:
            return True
        try:
            await self._context.writer.append(TASK_LOGS.name, records, retry=False)
        except (LogUnavailable, AppendOutcomeUnknown):
            self._metrics.output_failed.inc()
            return False
        return True


def whole_characters(data: bytes) -> bytes:
    """Return `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        needs = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return data[:-back] if byte >= 0xC0 and needs > back else data
    return data


def _line_start(files: ReplicaFiles, stream: StreamName, at: int, end: int) -> int:
    """Return where a line starts after `at`; if none starts nearby, where a character starts."""
    data = files.read_output(stream, at, min(PIECE_BYTES, end - at))
    newline = data.find(b"\n")
    if 0 <= newline < len(data) - 1:
        return at + newline + 1
    return at + next((n for n, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


def _size(size: int) -> str:
    """Return a number of bytes for a line of the agent: `16 MiB`."""
    return f"{round(size / MIB, 1):g} MiB" if size >= MIB else f"{size} bytes"
