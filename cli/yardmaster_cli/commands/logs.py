"""`yard logs`: print and follow the output of tasks."""

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import click

from yardmaster.client import Piece
from yardmaster.errors import ApiError
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.output.cells import RESET, colored
from yardmaster_cli.output.failed_fetches import failed_fetch_lines
from yardmaster_cli.output.formats import Output, Row
from yardmaster_cli.progress import reporting
from yardmaster_cli.server.remote import Remote
from yardmaster_cli.session import Session, command
from yardmaster_cli.waiting import interruptible, timeout_s

#: The most tasks that are followed at once.
MAX_FOLLOWED: Final = 32
#: The last lines of an attempt that never started, which agents wrote.
AGENT_LINES: Final = 64


@command("logs")
@click.argument("ref", metavar="REF")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the task ends.")
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="Print only the last N lines."
)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Print only this attempt.")
@click.option("--replica", type=click.IntRange(min=0), metavar="N", help="Print only this replica.")
@click.option("--timeout", metavar="TIME", help="Stop --follow after this long: 90s, 2h.")
def logs(
    session: Session,
    ref: str,
    follow: bool,
    tail: int | None,
    attempt: int | None,
    replica: int | None,
    timeout: str | None,
) -> None:
    """Print the output of a task, or of every task of a job.

    If several tasks are printed, lines start with the task index: [3]. Lines of a gang start with
    the replica: [0], or with both: [3.0].
    """
    if timeout is not None and not follow:
        raise BadUsage("--timeout needs --follow")
    remote, out = session.remote, session.out
    if follow:
        with interruptible(session, session.again(), timeout_s(timeout)):
            found = remote.resolve(ref)
            tasks = remote.rows_of(found)
            with reporting(remote, out, [found.id]):
                follow_all(remote, tasks, out, attempt=attempt, replica=replica, tail=tail)
        return
    tasks = remote.rows_of(remote.resolve(ref))
    for task in tasks:
        writers = _Writers(out, task, many=len(tasks) > 1, replica=replica)
        try:
            for piece in remote.client.output(
                task["task_id"], attempt=attempt, replica=replica, tail=tail
            ):
                writers.write(piece)
            writers.end()
        finally:
            writers.reset_style()


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
    """Print the output of tasks as it is written, until all of them have ended.

    `meanwhile` runs in a separate thread; its exception ends the output.

    Raises:
        ApiError: the server failed.
        BadUsage: more tasks than can be followed at once.
        Exception: `meanwhile` raised it.
    """
    if len(tasks) > MAX_FOLLOWED:
        raise BadUsage(
            f"cannot follow {len(tasks)} tasks at once, only {MAX_FOLLOWED}",
            hint=f"follow one: yard logs -f {tasks[0]['task_id']}",
        )
    pieces: queue.SimpleQueue[tuple[str, Piece | Exception | None]] = queue.SimpleQueue()

    def in_thread(task_id: str, work: Callable[[], object]) -> None:
        """Run `work` in a thread; the queue receives its error, or None at its end."""

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
        in_thread(task_id, partial(follow, task_id))
    if meanwhile is not None:
        in_thread("", meanwhile)
    open_ = set(writers)
    try:
        while open_:
            task_id, piece = pieces.get()
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, Piece):
                writers[task_id].write(piece)
            elif task_id in open_:
                writers[task_id].end()
                open_.discard(task_id)
    finally:
        for each in writers.values():
            each.reset_style()


def last_lines(remote: Remote, task: Row, lines: int) -> list[str]:
    """The last `lines` lines of a task's newest attempt; a gang's line starts with its replica."""
    found: list[str] = []
    writers = _Writers(None, task, many=False, replica=None, take=found.append)
    for piece in remote.client.output(task["task_id"], tail=lines):
        writers.write(piece)
    writers.end()
    return "".join(found).splitlines()


def failed_fetch(remote: Remote, task_id: str, attempts: Sequence[Row] | None = None) -> list[str]:
    """The lines about the last start of a task, if its image or commit could not be had."""

    def output(attempt: int) -> Iterator[tuple[int, str]]:
        try:
            for piece in remote.client.output(task_id, attempt=attempt, tail=AGENT_LINES):
                yield piece.replica, piece.text
        except ApiError as error:
            if error.document["code"] != "not_found":
                raise

    runs = remote.reader.attempts(task_id) if attempts is None else attempts
    return failed_fetch_lines(runs, output)


class _Writers:
    """Prints the output of one task; if several tasks or replicas write, each line has a prefix.

    `many`: other tasks are printed too. `replica`: the only replica to print; None: all.
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
        #: The unfinished line of each replica.
        self._open: dict[int, str] = {}
        #: Whether the output on the terminal has colors that no later sequence has reset.
        self._styled = False

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

    def reset_style(self) -> None:
        """End the colors of the output, which would otherwise stay on the terminal."""
        if self._styled:
            self._styled = False
            sys.stdout.write(RESET)
            sys.stdout.flush()

    def _mark(self, replica: int) -> str:
        """The prefix of a line: `[3] ` in an array, `[0] ` in a gang, `[3.0] ` in both."""
        parts = [self._index] if self._index else []
        if self._by_replica:
            parts.append(str(replica))
        return f"[{'.'.join(parts)}] " if parts else ""

    def _print(self, text: str) -> None:
        if self._out is not None and self._out.terminal:
            text = colored(text)
            last = text.rfind("\x1b[")
            if last >= 0:
                self._styled = not text.startswith(RESET, last)
        sys.stdout.write(text)
        sys.stdout.flush()
