"""Output of tasks: what was written, and what is being written."""

import queue
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import click

from yardmaster.client import Piece
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.output.cells import colored
from yardmaster_cli.output.formats import Output, Row
from yardmaster_cli.server.remote import Remote
from yardmaster_cli.session import Session, command
from yardmaster_cli.waiting import interruptible, timeout_s

#: So many tasks are followed at once; more say to choose.
MAX_FOLLOWED: Final = 32


@command("logs")
@click.argument("ref", metavar="REF")
@click.option("-f", "--follow", is_flag=True, help="Wait for more until the task ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this attempt only.")
@click.option("--replica", type=click.IntRange(min=0), metavar="N", help="Of this replica only.")
@click.option("--timeout", metavar="TIME", help="With --follow: end after this long: 90s, 2h.")
def logs(
    session: Session,
    ref: str,
    follow: bool,
    tail: int | None,
    attempt: int | None,
    replica: int | None,
    timeout: str | None,
) -> None:
    """Print what a task, or every task of a job, wrote.

    Lines of an array begin with the task's number, [3]; those of a gang with the replica's, [0].
    """
    if timeout is not None and not follow:
        raise BadUsage("--timeout is for --follow")
    remote, out = session.remote, session.out
    if follow:
        with interruptible(session, session.again(), timeout_s(timeout)):
            tasks = remote.rows_of(remote.resolve(ref))
            follow_all(remote, tasks, out, attempt=attempt, replica=replica, tail=tail)
        return
    tasks = remote.rows_of(remote.resolve(ref))
    for task in tasks:
        writers = _Writers(out, task, many=len(tasks) > 1, replica=replica)
        for piece in remote.client.output(
            task["task_id"], attempt=attempt, replica=replica, tail=tail
        ):
            writers.write(piece)
        writers.end()


def follow_all(
    remote: Remote,
    tasks: Sequence[Row],
    out: Output,
    *,
    attempt: int | None = None,
    replica: int | None = None,
    tail: int | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> None:
    """Print the output of tasks as it comes, until all of them have ended.

    `meanwhile` runs in a thread of its own; what it raises ends the following.

    Raises:
        ApiError: the server failed.
        BadUsage: more tasks than can be followed at once.
        Whatever `meanwhile` raises.
    """
    if len(tasks) > MAX_FOLLOWED:
        raise BadUsage(
            f"{len(tasks)} tasks are more than the {MAX_FOLLOWED} that can be followed at once",
            hint=f"follow one: yard logs -f {tasks[0]['task_id']}",
        )
    pieces: queue.SimpleQueue[tuple[str, Piece | Exception | None]] = queue.SimpleQueue()

    def aside(task_id: str, work: Callable[[], object]) -> None:
        """Do `work` in a thread; the queue gets its error, or None when it is done."""

        def run() -> None:
            end: Exception | None = None
            try:
                work()
            except Exception as error:  # noqa: BLE001 the main thread raises it
                end = error
            pieces.put((task_id, end))

        threading.Thread(target=run, daemon=True).start()

    def follow(task_id: str) -> None:
        for piece in remote.client.output(
            task_id, follow=True, attempt=attempt, replica=replica, tail=tail
        ):
            pieces.put((task_id, piece))

    writers = {
        task["task_id"]: _Writers(out, task, many=len(tasks) > 1, replica=replica) for task in tasks
    }
    for task_id in writers:
        aside(task_id, partial(follow, task_id))
    if meanwhile is not None:
        aside("", meanwhile)
    open_ = set(writers)
    while open_:
        task_id, piece = pieces.get()
        if isinstance(piece, Exception):
            raise piece
        if isinstance(piece, Piece):
            writers[task_id].write(piece)
        elif task_id in open_:
            writers[task_id].end()
            open_.discard(task_id)


def last_lines(remote: Remote, task: Row, lines: int) -> list[str]:
    """The last lines that a task's newest attempt wrote, those of a gang with their replica."""
    found: list[str] = []
    writers = _Writers(None, task, many=False, replica=None, take=found.append)
    for piece in remote.client.output(task["task_id"], tail=lines):
        writers.write(piece)
    writers.end()
    return "".join(found).splitlines()


class _Writers:
    """Prints pieces of one task's output; line by line with its mark where there are several.

    `many`: other tasks are printed too; `replica`: the only one that was asked for.
    """

    def __init__(
        self,
        out: Output | None,
        task: Row,
        *,
        many: bool,
        replica: int | None,
        take: Callable[[str], object] | None = None,
    ) -> None:
        self._out = out
        self._index = str(task["index"]) if many else ""
        gang = task["replicas_max"] > 1 or task.get("layout") == "whole_nodes"
        self._by_replica = gang and replica is None
        self._take = take if take is not None else self._print
        #: Of each replica, a line that has begun.
        self._open: dict[int, str] = {}

    def write(self, piece: Piece) -> None:
        mark = self._mark(piece.replica)
        if not mark:
            self._take(piece.text)
            return
        *lines, rest = (self._open.get(piece.replica, "") + piece.text).split("\n")
        self._open[piece.replica] = rest
        for line in lines:
            self._take(f"{mark}{line}\n")

    def end(self) -> None:
        for replica, rest in sorted(self._open.items()):
            if rest:
                self._take(f"{self._mark(replica)}{rest}\n")
        self._open.clear()

    def _mark(self, replica: int) -> str:
        """`[3] ` of an array, `[0] ` of a gang, `[3.0] ` of an array of gangs."""
        parts = [self._index] if self._index else []
        if self._by_replica:
            parts.append(str(replica))
        return f"[{'.'.join(parts)}] " if parts else ""

    def _print(self, text: str) -> None:
        terminal = self._out is not None and self._out.terminal
        sys.stdout.write(colored(text) if terminal else text)
        sys.stdout.flush()
