"""Output of tasks: what was written, and what is being written."""

import queue
import sys
import threading
from collections.abc import Sequence
from typing import Final

import click

from yardmaster.cli.cells import coloured
from yardmaster.cli.errors import BadUsage, CliError
from yardmaster.cli.output import Output
from yardmaster.cli.remote import Remote, api_error
from yardmaster.cli.session import Session, command, detaching
from yardmaster.client.transport import ApiError

#: So many tasks are followed at once; more say to choose.
MAX_FOLLOWED: Final = 32


@command("logs")
@click.argument("ref", metavar="REF")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this attempt only.")
@click.option("--replica", type=click.IntRange(min=0), metavar="N", help="Of this replica only.")
def logs(
    session: Session,
    ref: str,
    follow: bool,
    tail: int | None,
    attempt: int | None,
    replica: int | None,
) -> None:
    """Print what a task, or every task of a job, wrote."""
    remote, out = session.remote, session.out
    with detaching(f"yard logs {'-f ' if follow else ''}{ref}"):
        found = remote.resolve(ref)
        ids = [task.task_id for task in remote.tasks_of(found)]
        if follow:
            follow_all(remote, ids, out, attempt=attempt, replica=replica, tail=tail)
            return
        for task_id in ids:
            mark = f"[{task_id.partition('.')[2]}] " if len(ids) > 1 else ""
            writer = _Writer(out, mark)
            for text in remote.client.logs(task_id, attempt=attempt, replica=replica, tail=tail):
                writer.write(text)
            writer.end()


def follow_all(
    remote: Remote,
    task_ids: Sequence[str],
    out: Output,
    *,
    attempt: int | None = None,
    replica: int | None = None,
    tail: int | None = None,
) -> None:
    """Print the output of tasks as it comes, until all of them have ended.

    Raises:
        CliError: the server failed.
        BadUsage: more tasks than can be followed at once.
    """
    if len(task_ids) > MAX_FOLLOWED:
        raise BadUsage(
            f"{len(task_ids)} tasks are more than the {MAX_FOLLOWED} that can be followed at once",
            hint=f"follow one: yard logs -f {task_ids[0]}",
        )
    pieces: queue.SimpleQueue[tuple[str, str | CliError | None]] = queue.SimpleQueue()

    def follow(task_id: str) -> None:
        end: CliError | None = None
        try:
            for text in remote.client.logs(
                task_id, follow=True, attempt=attempt, replica=replica, tail=tail
            ):
                pieces.put((task_id, text))
        except ApiError as error:
            end = api_error(error)
        pieces.put((task_id, end))

    many = len(task_ids) > 1
    writers = {
        task_id: _Writer(out, f"[{task_id.partition('.')[2]}] " if many else "")
        for task_id in task_ids
    }
    for task_id in task_ids:
        threading.Thread(target=follow, args=(task_id,), daemon=True).start()
    open_ = set(task_ids)
    while open_:
        task_id, piece = pieces.get()
        if isinstance(piece, CliError):
            raise piece
        if piece is None:
            writers[task_id].end()
            open_.discard(task_id)
        else:
            writers[task_id].write(piece)


class _Writer:
    """Prints pieces of one task's output; where there are several, line by line with its mark."""

    def __init__(self, out: Output, mark: str) -> None:
        self._terminal = out.terminal
        self._mark = mark
        self._open = ""

    def write(self, text: str) -> None:
        if not self._mark:
            self._print(text)
            return
        *lines, self._open = (self._open + text).split("\n")
        for line in lines:
            self._print(f"{self._mark}{line}\n")

    def end(self) -> None:
        if self._open:
            self._print(f"{self._mark}{self._open}\n")
            self._open = ""

    def _print(self, text: str) -> None:
        sys.stdout.write(coloured(text) if self._terminal else text)
        sys.stdout.flush()
