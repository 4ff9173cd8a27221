"""`yard ls`: list tasks or jobs, once or as they change."""

import time
from collections.abc import Mapping
from typing import Any, Final

import click

from yardmaster.local_cluster import unsteady_processes
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.listing.filters import (
    filter_options,
    filters,
    matches,
    names_tasks,
    narrowed,
)
from yardmaster_cli.listing.rows import MOST_ROWS, EachTask, Listed, Listing, check_names, listing
from yardmaster_cli.output.columns import TASKS, without_one_pool
from yardmaster_cli.output.formats import Output, Row
from yardmaster_cli.session import Session, command
from yardmaster_cli.waiting import interruptible, timeout_s
from yardmaster_schemas.phases import ENDED

#: The interval of `--watch`, in seconds.
WATCH_S: Final = 1.0


@command("ls")
@filter_options
@click.option(
    "--queue", metavar="POOL", help="List pending tasks of a pool in the order of its policy."
)
@click.option("--jobs", is_flag=True, help="List jobs instead of tasks.")
@click.option("--all", "every", is_flag=True, help="List every task, without a limit.")
@click.option("-w", "--watch", is_flag=True, help="Redraw on a terminal; append changes in a pipe.")
@click.option("--timeout", metavar="TIME", help="Stop --watch after this long: 90s, 2h.")
def ls(
    session: Session,
    queue: str | None,
    jobs: bool,
    every: bool,
    watch: bool,
    timeout: str | None,
    **given: Any,
) -> None:
    """List tasks of your project, or of all projects if none is set; active tasks first.

    Pending tasks of an array are one row, ID.[3-299], as are ended tasks in the same phase. Shows
    active tasks and the 10 rows that ended last; see all that ended with --phase ended. With
    --phase, --node, --name, --label, --since, --limit or --sort, all that match are shown. At most
    100 rows are printed unless --limit or --all is given. Formats other than table and wide have
    every task. On a terminal, names are cut and columns are left out until the lines fit its width;
    -o wide has all columns.
    """
    out, remote = session.out, session.remote
    query = filters(session, given)
    if timeout is not None and not watch:
        raise BadUsage("--timeout needs --watch")
    group = out.for_people and not (every or out.sort or (watch and not out.terminal))
    recent = out.for_people and not (every or out.sort or out.limit is not None)
    recent = recent and not names_tasks(given)
    shown = listing(remote, query, queue=queue, jobs=jobs, group=group, recent=recent)
    # Sorting needs all rows.
    short = out.for_people and not every and queue is None
    most = None if out.sort else out.limit or (MOST_ROWS if short else None)
    if not watch:
        _show(out, shown, shown.read(most), given)
        if session.config.dev is not None:
            for line in unsteady_processes(session.config.dev.folder):
                out.note(line)
        return
    with interruptible(session, session.again(), timeout_s(timeout)):
        if out.terminal and out.for_people:
            while True:
                listed = shown.read(most)
                out.measure()
                click.clear()
                _show(out, shown, listed, given, fill=True)
                time.sleep(WATCH_S)
        elif isinstance(shown, EachTask):
            _append_changes(out, shown)
        else:
            _append(out, shown)


def _show(
    out: Output, shown: Listing, listed: Listed, given: Mapping[str, Any], *, fill: bool = False
) -> None:
    """Print a list; with `fill`, only the first lines that fit the height of the terminal."""
    if not listed.rows and narrowed(given):
        check_names(shown.remote.reader, shown.query)
    columns = shown.columns
    plain = out.terminal and out.format == "table" and not (out.columns or out.sort)
    if plain and shown.name == "task_id":
        columns = without_one_pool(columns, listed.rows)
    lines = out.lines(listed.rows, columns, name=shown.name)
    for line in out.fit_height(lines, more=1 if listed.summary else 0) if fill else lines:
        out.say(line)
    if listed.summary:
        out.note(out.fit(listed.summary) if fill else listed.summary)
    elif not listed.rows and narrowed(given):
        out.note("no task matches")
    elif not listed.rows:
        out.note("no tasks; submit one with: yard submit -- COMMAND")


def _append(out: Output, shown: Listing) -> None:
    """Read the list every `WATCH_S` seconds and print the rows that changed, without end."""
    seen: dict[str, str] = {}
    while True:
        listed = shown.read(None).rows
        changed = [row for row in listed if seen.get(row[shown.name]) != _mark(row)]
        _print(out, shown, changed)
        seen = {row[shown.name]: _mark(row) for row in listed}
        time.sleep(WATCH_S)


def _append_changes(out: Output, shown: EachTask) -> None:
    """Print matching tasks, then each change that the server reports."""
    client = shown.remote.client
    seen: dict[str, str] = {}
    known: set[str] | None = None
    listed: set[str] = set()

    def take(items: list[Row]) -> None:
        changed = [
            row
            for row in items
            if matches(row, shown.query) and seen.get(row["task_id"]) != _mark(row)
        ]
        seen.update({row["task_id"]: _mark(row) for row in changed})
        _print(out, shown, changed)

    for change in client.watch(["task"]):
        if change.event == "upsert":
            row = change.data["item"]
            take([row])
            if known is not None:
                note = known.discard if row["phase"] in ENDED else known.add
                note(row["task_id"])
        elif change.event == "snapshot":
            listed.update(row["task_id"] for row in change.data["items"])
            take(change.data["items"])
            if change.data["complete"]:
                # A snapshot has only active tasks. A task that is missing from a later snapshot
                # has ended, so its last state is read separately.
                if known is None and out.headers and out.format in ("table", "wide", "csv"):
                    _print(out, shown, [], even_empty=True)
                gone = sorted((known or set()) - listed)
                take([shown.remote.reader.task(task_id) for task_id in gone])
                known, listed = set(listed), set()


def _print(out: Output, shown: Listing, changed: list[Row], *, even_empty: bool = False) -> None:
    """Print rows, the first time with column headers; `even_empty`: headers even without rows."""
    if changed or even_empty:
        out.items(changed, TASKS if isinstance(shown, EachTask) else shown.columns, name=shown.name)
        out.headers = False


def _mark(row: Row) -> str:
    """The fields of a row as text; a row is printed again if this text changes."""
    named = ("phase", "phases", "attempt", "wait", "stop", "priority")
    return " ".join(str(row.get(name)) for name in named)
