"""`yard wait`: wait until tasks end or reach a phase, and return their exit code."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import click

from yardmaster.errors import NeverFits
from yardmaster.waiting import ENDED, FEW_TASKS, reached
from yardmaster_cli.errors import CliError, Exit, exit_of_all, exit_of_end
from yardmaster_cli.output.columns import counted, ended, reason
from yardmaster_cli.output.describe import END_TEXTS
from yardmaster_cli.output.formats import Output
from yardmaster_cli.progress import reporting
from yardmaster_cli.session import Session, command
from yardmaster_cli.waiting import interruptible, timeout_s
from yardmaster_schemas.api import Phase, Submitted, Task

#: The phases of tasks that ended without success.
UNSUCCESSFUL: Final = (Phase.FAILED, Phase.CANCELLED, Phase.REJECTED)


def exit_of(task: Task) -> int:
    """The exit code of an ended task."""
    end = task.end
    return exit_of_end(
        task.phase,
        code=end.code if end else None,
        exit_code=end.exit_code if end else None,
        signal=end.signal if end else None,
    )


def wait_for_end(
    session: Session,
    refs: Sequence[str | Submitted],
    out: Output,
    *,
    wanted: str = ENDED,
    hints: bool = True,
) -> int:
    """Wait until every task has ended or reached `wanted`; returns the exit code for all.

    `refs` are complete ids of jobs and tasks, or answers to submissions. With `hints`, a hint
    names the command that shows the output of the first task that failed.

    Raises:
        CliError: 105 when none of the remaining tasks can ever fit.
    """
    reported: set[str] = set()

    def report(task: Task) -> None:
        reported.add(task.task_id)
        out.note(f"{task.task_id} {_how(task)}")

    try:
        tasks = session.remote.client.wait(*refs, for_=wanted, on_end=report)
    except NeverFits as error:
        task_id = error.task.task_id
        raise CliError(
            f"{task_id} can never fit: {error.reason}",
            exit_code=Exit.NEVER_FITS,
            hint=f"it stays queued; yard explain {task_id} shows why, yard cancel removes it",
        ) from None
    jobs: dict[str, list[Task]] = {}
    for task in tasks:
        if task.task_id not in reported:
            jobs.setdefault(task.job_id, []).append(task)
    for job_id, of_job in jobs.items():
        if len(of_job) > FEW_TASKS:
            _summarize(job_id, of_job, out)
    if hints:
        _hint_at_output(session, tasks)
    failed = (task for task in tasks if task.phase.final and not reached(task.phase, wanted))
    return exit_of_all(exit_of(task) for task in (tasks if wanted == ENDED else failed))


def _hint_at_output(session: Session, tasks: Sequence[Task]) -> None:
    """Name the command that shows the output of the first task that failed, if one ran."""
    for task in tasks:
        if task.phase is Phase.FAILED and task.end and (task.end.exit_code or task.end.signal):
            shown = session.command("show", task.task_id)
            session.out.note(f"hint: the last lines of its output: {shown}")
            return


def _summarize(job_id: str, tasks: Sequence[Task], out: Output) -> None:
    """Print a summary of a large job: the first unsuccessful tasks, and the count of each phase."""
    unsuccessful = [task for task in tasks if task.phase in UNSUCCESSFUL]
    for task in unsuccessful[:FEW_TASKS]:
        out.note(f"{task.task_id} {_how(task)}")
    if len(unsuccessful) > FEW_TASKS:
        out.note(f"and {len(unsuccessful) - FEW_TASKS} more that did not succeed")
    out.note(f"{job_id}: {counted(Counter(task.phase for task in tasks))}")


def _how(task: Task) -> str:
    row = task.model_dump(mode="json")
    if task.phase is Phase.SUCCEEDED:
        return "succeeded"
    why = ended(row["end"]) if row.get("end") else reason(row)
    if why in (None, task.phase.value):
        return task.phase.value
    text = END_TEXTS.get(row["end"]["code"]) if row.get("end") else None
    return f"{task.phase.value}: {why}" + (f" ({text})" if text else "")


@command("wait")
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@click.option(
    "--for",
    "phase",
    type=click.Choice([phase.value for phase in Phase]),
    help="Wait for this phase instead of the end.",
)
@click.option("--timeout", metavar="TIME", help="Stop waiting after this long: 90s, 2h.")
def wait(session: Session, refs: tuple[str, ...], phase: str | None, timeout: str | None) -> int:
    """Wait for tasks to end, with or without success.

    A task that is requeued has not ended. The exit code is 0 if all tasks succeeded, else their
    highest exit code. The wait continues after a restart of the server. On a terminal, each change
    of phase or reason is printed on stderr.
    """
    limit_s = timeout_s(timeout)
    chosen = ("--for", phase) if phase else ()
    with interruptible(session, session.command("wait", *refs, *chosen), limit_s):
        remote, out = session.remote, session.out
        found = [remote.resolve(ref).id for ref in refs]
        with reporting(remote, out, found):
            return wait_for_end(session, found, out, wanted=phase or ENDED)
