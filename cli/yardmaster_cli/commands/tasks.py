"""`yard show`, `cancel`, `pause` and `resume`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from yardmaster.control_characters import plain
from yardmaster.errors import ApiError
from yardmaster_cli.confirm import confirm
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.job_file.write import job_file
from yardmaster_cli.listing.filters import filter_options, filters, narrowed
from yardmaster_cli.listing.rows import GroupedTasks
from yardmaster_cli.output.columns import GROUPS, TASKS, ended, of_job, without_one_pool
from yardmaster_cli.output.describe import job_lines, task_lines
from yardmaster_cli.output.exits import signal_words
from yardmaster_cli.output.failed_fetches import last_fetch_failed
from yardmaster_cli.output.formats import Column, Output, Row
from yardmaster_cli.server.remote import Ref, Refused, Remote, rows
from yardmaster_cli.session import Session, command
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.phases import ENDED

if TYPE_CHECKING:
    from yardmaster_schemas.api import Accepted


#: Lines of output at the end of a failed task's description.
LAST_LINES: Final = 10
#: The most tasks of a job that are listed one by one.
FEW_TASKS: Final = 20


@command("show")
@click.argument("ref", metavar="REF")
@click.option("--attempts", is_flag=True, help="Show each attempt with its replicas.")
@click.option("--events", is_flag=True, help="Show the records of the log about it.")
@click.option("--spec", is_flag=True, help="Print its job file, with all defaults.")
@click.option("--all", "every", is_flag=True, help="List every task of a large job.")
def show(session: Session, ref: str, attempts: bool, events: bool, spec: bool, every: bool) -> None:
    """Show a job or task: resources, wait reason, checkpoint and attempts.

    For a failed task the last lines of its output are printed. To edit a job and run it again: yard
    show JOB --spec > job.yaml, then yard submit job.yaml.
    """
    remote, out = session.remote, session.out
    found = remote.resolve(ref)
    job = remote.reader.job(found.job_id)
    if spec:
        _show_spec(remote, out, job)
        return
    if found.index is None and job["tasks"] > 1 and not (attempts or events):
        _show_job(remote, out, found, job, every)
        return
    task_id = found.id if found.index is not None else remote.one_task(ref)
    if events:
        _show_events(remote, out, task_id)
        return
    task = remote.reader.task(task_id)
    runs = remote.reader.attempts(task_id)
    if attempts:
        _show_attempts(out, runs)
        return

    def lines() -> list[str]:
        failed = task["phase"] == "failed"
        return [
            *task_lines(out, task, runs),
            *_failed_fetch(remote, task, runs),
            *(_last_output(session, task) if failed and runs else []),
        ]

    out.one({**task, "attempts": runs}, lines, "task_id")


def _show_job(remote: Remote, out: Output, ref: Ref, job: Row, every: bool) -> None:
    """Show a job of several tasks; formats for people group the tasks of a large job."""
    if every or not out.for_people or job["tasks"] <= FEW_TASKS:
        listed = remote.rows_of(ref)
        body: Row = {**job, "items": listed}
        out.one(body, lambda: job_lines(out, job, _table(out, listed, TASKS)), "job_id")
        return
    grouped = GroupedTasks(remote, {"job_id": ref.job_id}, GROUPS).read(FEW_TASKS)
    out.one(job, lambda: job_lines(out, job, _table(out, grouped.rows, GROUPS)), "job_id")
    if sum(row["count"] for row in grouped.rows) < job["tasks"]:
        out.note(f"{count_of(len(grouped.rows), 'row')} shown; --all lists every task")


def _table(out: Output, listed: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    if not (out.columns or out.sort):
        columns = of_job(columns, listed)
        if out.terminal and out.format == "table":
            columns = without_one_pool(columns, listed)
    return out.lines(listed, columns, name="task_id")


def _show_spec(remote: Remote, out: Output, job: Row) -> None:
    first = remote.reader.task(f"{job['job_id']}.0")
    params = []
    if first["params"]:
        params = [row["params"] for row in remote.rows_of(Ref(job["job_id"]))]
    if out.for_people:
        out.format = "yaml"
    out.one(job_file(job, params), list, "name")


def _failed_fetch(remote: Remote, task: Row, runs: Sequence[Row]) -> list[str]:
    """The lines about the last start of a task that has not run since."""
    if task["phase"] not in ("pending", "failed") or not last_fetch_failed(runs):
        return []
    # Imported here, as for `_last_output`.
    from yardmaster_cli.commands.logs import failed_fetch

    return failed_fetch(remote, task["task_id"], runs)


def _last_output(session: Session, task: Row) -> list[str]:
    """The last lines of a task's output; the title names the command that prints all of it."""
    # Imported here: the client for output needs models, which are slow to import.
    from yardmaster_cli.commands.logs import last_lines

    try:
        found = last_lines(session.remote, task, LAST_LINES)
    except ApiError as error:
        if error.document["code"] != "not_found":
            raise
        return []
    end = f"Failed      {ended(task['end'])}" if task.get("end") else ""
    if not found:
        return [end, "Output      none"]
    more = session.command("logs", task["task_id"])
    return [
        end,
        f"Output      the last lines; print all with: {more}",
        *(session.out.fit(f"  {plain(x)}") for x in found),
    ]


def _show_events(remote: Remote, out: Output, task_id: str) -> None:
    columns = (
        Column("POSITION", lambda row: row["position"]),
        Column("AT", lambda row: row["at"]),
        Column("TYPE", lambda row: row["type"]),
        Column("ACTOR", lambda row: row["actor"]),
        Column("ID", lambda row: row["id"], wide=True),
        Column("CAUSE", lambda row: row["cause"], wide=True),
    )
    out.items(rows(remote.client.task_events(task_id).items), columns, name="id")


def _show_attempts(out: Output, runs: Sequence[Row]) -> None:
    columns = (
        Column("ATTEMPT", lambda row: row["attempt"], right=True),
        Column("REPLICA", lambda row: row["replica"]["replica"], right=True),
        Column("NODE", lambda row: row["replica"]["node"]),
        Column("SLOTS", lambda row: ",".join(map(str, row["replica"]["slots"])) or None),
        Column("STARTED", lambda row: row["replica"]["started_at"]),
        Column("EXITED", lambda row: row["replica"]["exited_at"]),
        Column("RELEASED", lambda row: row["replica"]["released_at"]),
        Column("EXIT", lambda row: _exit(row["replica"]), right=True),
        Column("END", lambda row: row["end"]),
        Column("RULE", lambda row: row["rule"], wide=True),
        Column("STOP", lambda row: (row["stop"] or {}).get("code"), wide=True),
    )
    flat = [{**run, "replica": replica} for run in runs for replica in run["replicas"]]
    out.items(flat, columns, name="attempt", document=None)


def _exit(replica: Row) -> str | None:
    if replica["signal"] is not None:
        return signal_words(replica["signal"])
    return None if replica["exit_code"] is None else str(replica["exit_code"])


def _targets(
    session: Session, refs: Sequence[str], yes: bool, given: dict[str, Any], verb: str
) -> list[Ref]:
    """The jobs and tasks that a command names; the user confirms tasks that filters choose."""
    remote = session.remote
    if refs:
        if narrowed({**given, "project": None}):
            raise BadUsage("ids and filters exclude each other", hint="give either ids or filters")
        return [remote.resolve(ref) for ref in refs]
    if not narrowed(given) and not given["everything"]:
        raise BadUsage(
            "no job or task given",
            hint=f"give ids, or filters as for yard ls: yard {verb} -p nlp --phase pending",
        )
    found = [
        task
        for task in remote.reader.all_tasks(**filters(session, given))
        if task["phase"] not in ENDED
    ]
    if not found:
        session.out.note("no active task matches")
        return []
    if not yes:
        if session.out.terminal:
            session.out.items(found, TASKS, name="task_id")
        confirm(f"This would {verb} {count_of(len(found), 'task')}.", session.out)
    return [Ref(task["job_id"], task["index"]) for task in found]


def _request_all(
    session: Session,
    refs: Sequence[Ref],
    request: "Callable[[str], Accepted]",
    *,
    skip_ended: bool,
    wrong_phase: str | None = None,
) -> None:
    """Send a request for each job or task, then wait for the verdicts.

    `skip_ended`: a note replaces the error for a job or task that has ended by now. `wrong_phase`:
    the hint that says why quota refuses the request in some phases.
    """

    @contextmanager
    def skipping(ref: Ref) -> Iterator[None]:
        try:
            yield
        except (ApiError, Refused) as error:
            code = error.code if isinstance(error, Refused) else error.document["code"]
            if not (skip_ended and code == "wrong_phase"):
                if isinstance(error, Refused) and code == "wrong_phase" and wrong_phase is not None:
                    error.hint = f"{wrong_phase}; see {session.command('show', ref.id)}"
                raise
            session.out.note(f"{ref.id} has ended")

    pending = []
    for ref in refs:
        with skipping(ref):
            pending.append((ref, request(ref.id)))
    for ref, accepted in pending:
        with skipping(ref):
            session.remote.await_verdict(accepted, ref.id, session.out)
            session.out.say(ref.id)


@command("cancel")
@click.argument("refs", nargs=-1, metavar="REF...")
@filter_options
@click.option("--reason", metavar="TEXT", help="Reason, stored with the details of the job.")
@click.option("--now", is_flag=True, help="Kill at once, without grace.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def cancel(
    session: Session, refs: tuple[str, ...], reason: str | None, now: bool, yes: bool, **given: Any
) -> None:
    """Cancel jobs or tasks in any phase, by id or by the filters of ls."""
    targets = _targets(session, refs, yes, given, "cancel")
    client = session.remote.client
    _request_all(
        session,
        targets,
        lambda ref: client.cancel(ref, reason=reason, immediate=now),
        skip_ended=not refs,
    )


@command("pause")
@click.argument("refs", nargs=-1, metavar="REF...")
@filter_options
@click.option("--reason", metavar="TEXT", help="Reason, stored with the details of the job.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def pause(
    session: Session, refs: tuple[str, ...], reason: str | None, yes: bool, **given: Any
) -> None:
    """Stop jobs or tasks with a checkpoint until they are resumed."""
    targets = _targets(session, refs, yes, given, "pause")
    client = session.remote.client
    _request_all(
        session,
        targets,
        lambda ref: client.pause(ref, reason=reason),
        skip_ended=not refs,
        wrong_phase="it is already paused",
    )


@command("resume")
@click.argument("refs", nargs=-1, metavar="REF...")
@filter_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def resume(session: Session, refs: tuple[str, ...], yes: bool, **given: Any) -> None:
    """Resume paused jobs or tasks."""
    targets = _targets(session, refs, yes, given, "resume")
    _request_all(
        session,
        targets,
        session.remote.client.resume,
        skip_ended=not refs,
        wrong_phase="it is not paused",
    )
