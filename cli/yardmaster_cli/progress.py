"""Report on a terminal how far work is, and the phases of tasks that a command waits for."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from yardmaster.errors import ApiError
from yardmaster_cli.output.columns import counted, wait_words
from yardmaster_cli.output.formats import Output, Row
from yardmaster_cli.server.reader import Reader
from yardmaster_cli.server.remote import Remote
from yardmaster_schemas.backoff import Backoff
from yardmaster_schemas.phases import ENDED

#: The shortest and the longest pause between two reads, in seconds. The pause is short after a
#: change and then doubles.
FIRST_S: Final = 0.5
LONGEST_S: Final = 5.0
#: The most jobs and tasks whose changes are reported; more would hide the output.
MOST_REPORTED: Final = 10


@contextmanager
def reporting(remote: Remote, out: Output, refs: Sequence[str]) -> Iterator[None]:
    """Within this context, print a line on stderr at each change of phase or reason.

    `refs` are complete ids of jobs and tasks. Nothing is printed with -q, or if stderr is not a
    terminal. Outages of the gateway are not reported here: the waiting command reports them.
    """
    if not out.progress or out.quiet or len(refs) > MOST_REPORTED:
        yield
        return
    stop = threading.Event()
    reader = remote.second_reader()
    threading.Thread(target=_report, args=(reader, out, refs, stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()


@contextmanager
def uploading(out: Output) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of the sent and all bytes of an upload, which shows a bar on stderr.

    Nothing is shown with -q, or if stderr is not a terminal.
    """
    if not out.progress or out.quiet:
        yield lambda sent, total: None
        return
    bar: Any = None

    def show(sent: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            bar = click.progressbar(length=total, label="uploading the context", file=sys.stderr)
            bar.render_progress()
        # A repeated attempt begins at 0 again, and the bar goes back.
        bar.update(sent - bar.pos)

    try:
        yield show
    finally:
        if bar is not None:
            bar.render_finish()


@contextmanager
def share_bar(out: Output, label: str, *, shown: bool = True) -> Iterator[Callable[[float], None]]:
    """Yield a function that sets a bar on stderr to the completed part of the work, 0 to 1.

    Nothing is shown with -q, or if stderr is not a terminal.
    """
    if not (shown and out.progress) or out.quiet:
        yield lambda part: None
        return
    steps = 1000
    with click.progressbar(length=steps, label=label, file=sys.stderr) as bar:
        yield lambda part: bar.update(max(0, int(part * steps) - bar.pos))


def _report(reader: Reader, out: Output, refs: Sequence[str], stop: threading.Event) -> None:
    seen: dict[str, str | None] = {}
    pauses = Backoff(FIRST_S, LONGEST_S)
    while not stop.is_set():
        for ref in refs:
            try:
                line = _line_of(reader, ref)
            except ApiError:
                continue
            if line != seen.get(ref):
                seen[ref] = line
                pauses.reset()
                if line is not None and not stop.is_set():
                    out.note(line)
        stop.wait(pauses.next_s())


def _line_of(reader: Reader, ref: str) -> str | None:
    """The line about the present state of a task or job; None if it has ended."""
    if "." in ref:
        return _task_line(reader.task(ref))
    found = reader.task_groups(job_id=ref, limit=1)
    active = [group["first"] for group in found["items"] if group["first"]["phase"] not in ENDED]
    if not active:
        return None
    if sum(found["phases"].values()) == 1:
        return _task_line(active[0])
    reasons = sorted({text for task in active if _waits(task) and (text := _detail(task))})
    shown = f"{ref} has {counted(found['phases'], found['counted_most'])}"
    return f"{shown} ({', '.join(reasons)})" if reasons else shown


def _task_line(task: Row) -> str | None:
    described = describe(task)
    return None if described is None else f"{task['task_id']} {described}"


def describe(task: Row) -> str | None:
    """The state of a task: `pending: insufficient_free`, `running on node-1`; None if it ended."""
    if task["phase"] in ENDED:
        return None
    detail = _detail(task)
    if detail is None:
        return str(task["phase"])
    return f"{task['phase']}: {detail}" if _waits(task) else f"{task['phase']} {detail}"


def _waits(task: Row) -> bool:
    return task["phase"] in ("submitted", "pending", "stopping")


def _detail(task: Row) -> str | None:
    """Why a task waits or stops, or where it runs."""
    if task["phase"] == "stopping":
        return task["stop"]["code"] if task.get("stop") else None
    if task["phase"] == "submitted":
        return "waits for admission"
    if task["phase"] == "pending":
        wait = task.get("wait")
        if task.get("paused"):
            return "paused"
        if wait is None:
            return None
        return wait_words(wait)
    return f"on {','.join(task['nodes'])}" if task.get("nodes") else None
