"""Ships a replica's output to the topic `task-logs`.

The replica writes its streams to files; the ledger has the position up to which they are shipped.
The pieces of a batch are written to the ledger before they are appended to the log. After a kill -9
the agent therefore appends the same pieces with the same numbers, and readers drop the repeats.
"""

from typing import Final

from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable
from yardmaster_eventlog.port import BATCH_OVERHEAD, Record
from yardmaster_node_agent.agent_state import Piece, Replica
from yardmaster_node_agent.executors.port import Process, StreamName
from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_node_agent.ports import AgentContext
from yardmaster_node_agent.reports import MAX_BATCH_BYTES
from yardmaster_schemas.events.expiring import Stream, TaskOutputV1
from yardmaster_schemas.topics import KIB, TASK_LOGS

#: Bytes of a piece; its record fits into a batch even if JSON escapes each byte.
PIECE_BYTES: Final = 16 * KIB
#: The most pending lines of the agent; further lines are dropped.
MAX_LINES: Final = 20
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

    def add_line(self, text: str) -> None:
        """Queue a line of the agent about the replica."""
        if len(self._lines) < MAX_LINES:
            self._lines.append(text)

    async def ship(self, process: Process | None, *, final: bool = False) -> bool:
        """Append one batch of new output; return whether there was any.

        Unless `final`, an incomplete character at the end stays pending. If the append fails, the
        next call retries the batch.
        """
        replica, output = self._replica, self._replica.output
        if process is not None and not self._arrived:
            records = [record for piece in output.last if (record := self._record(process, piece))]
            if not await self._append(records):
                return False
            self._arrived = True
        if process is not None and output.cut:
            # Not earlier: pieces that are not known to be in the log are read again to retry them.
            process.drop_output()
        lines, self._lines = self._lines, []
        records = [self._agent_record(line) for line in lines]
        if process is not None:
            pieces = self._gather(process, final, records)
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

    def _gather(self, process: Process, final: bool, records: list[Record]) -> list[Piece]:
        """Take pieces of both streams in turn until the batch is full, and add their records."""
        output, limit = self._replica.output, self._context.settings.output_limit_bytes
        pieces: list[Piece] = []
        size = BATCH_OVERHEAD + sum(record.size for record in records)
        ahead = [Stream.STDOUT, Stream.STDERR]
        while ahead and not output.cut:
            stream = ahead.pop(0)
            start = output.stdout if stream is Stream.STDOUT else output.stderr
            left_bytes = limit - output.stdout - output.stderr
            data = process.read_output(_NAMES[stream], start, min(PIECE_BYTES, left_bytes + 1))
            over = len(data) > left_bytes
            if over:
                self._cut(limit)
                data = data[:left_bytes]
            at_its_end = over or (final and len(data) < PIECE_BYTES)
            whole = data if at_its_end else whole_characters(data)
            if not whole:
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
            ahead.append(stream)
        return pieces

    def _cut(self, limit: int) -> None:
        self._replica.output.cut = True
        self._metrics.output_cut.inc()
        self.add_line(f"output is cut here: the node ships at most {limit} bytes of an attempt")

    def _agent_record(self, line: str) -> Record:
        record = self._output(Stream.AGENT, line.encode() + b"\n", self._replica.output.seq)
        self._replica.output.seq += 1
        return record

    def _record(self, process: Process, piece: Piece) -> Record | None:
        data = process.read_output(_NAMES[piece.stream], piece.start, piece.end - piece.start)
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
