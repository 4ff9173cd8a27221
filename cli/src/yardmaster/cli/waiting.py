"""Waiting for tasks: until they end, until they reach a phase; the exit code is theirs."""

import time
from collections.abc import Sequence
from typing import Final

import click

from yardmaster.cli.errors import BadUsage, CliError, Exit, exit_of_all, exit_of_end
from yardmaster.cli.output import Output
from yardmaster.cli.remote import Ref, Remote
from yardmaster.cli.session import Session, command, detaching
from yardmaster.cli.tables import ended, reason
from yardmaster.schemas.api import Phase, Task
from yardmaster.schemas.quantities import duration_s
from yardmaster.schemas.reasons import WaitClass

#: The longest that one question to the server waits, in seconds.
ASK_S: Final = 10.0
#: A task must be "never" for this long before waiting for it is given up: nodes may be joining.
NEVER_S: Final = 3.0

#: Phases in the order in which a task passes them; what is further counts as reached.
_ORDER: Final = (Phase.SUBMITTED, Phase.PENDING, Phase.STARTING, Phase.RUNNING)


def deadline_after(timeout: str | None) -> float | None:
    """The moment (monotonic seconds) when `--timeout` has passed; None for no limit."""
    if timeout is None:
        return None
    try:
        return time.monotonic() + duration_s(timeout)
    except ValueError as error:
        raise BadUsage(f"--timeout: {error}") from None


def exit_of(task: Task) -> int:
    """The exit code of a task that has ended."""
    end = task.end
    return exit_of_end(
        task.phase,
        code=end.code if end else None,
        exit_code=end.exit_code if end else None,
        signal=end.signal if end else None,
    )


def wait_for_end(
    remote: Remote,
    refs: Sequence[Ref],
    out: Output,
    *,
    deadline: float | None = None,
    phase: Phase | None = None,
    position: str | None = None,
) -> int:
    """Wait until every task of `refs` has ended (or reached `phase`); the exit code for all.

    Raises:
        CliError: 124 when the deadline passes, 105 when all that is left can never fit.
    """
    never_since: float | None = None
    told: set[str] = set()
    while True:
        tasks = [task for ref in refs for task in remote.tasks_of(ref, position)]
        for task in tasks:
            if task.phase.final and task.task_id not in told:
                told.add(task.task_id)
                out.note(f"{task.task_id} {_how(task)}")
        if phase is not None:
            tasks = [task for task in tasks if not _reached(task, phase)]
        open_ = [task for task in tasks if not task.phase.final]
        if not open_:
            return exit_of_all(exit_of(task) for task in tasks)
        now = time.monotonic()
        if all(task.wait and task.wait.wait_class is WaitClass.NEVER for task in open_):
            never_since = now if never_since is None else never_since
            if now - never_since >= NEVER_S:
                raise _never_fits(open_[0])
        else:
            never_since = None
        ask_s = NEVER_S if never_since is not None else ASK_S
        if deadline is not None:
            if now >= deadline:
                raise CliError(
                    f"{len(open_)} of {len(open_) + len(told)} tasks have not ended in time",
                    exit_code=Exit.TIMEOUT,
                    hint=f"they go on; come back with: yard wait {' '.join(r.id for r in refs)}",
                )
            ask_s = min(ask_s, max(1.0, deadline - now))
        remote.client.task(open_[0].task_id, wait_for=phase or "ended", timeout_s=ask_s)


def _reached(task: Task, phase: Phase) -> bool:
    if task.phase is phase:
        return True
    if task.phase in _ORDER and phase in _ORDER:
        return _ORDER.index(task.phase) >= _ORDER.index(phase)
    return False


def _how(task: Task) -> str:
    row = task.model_dump(mode="json")
    if task.phase is Phase.SUCCEEDED:
        return "succeeded"
    return f"{task.phase.value}: {ended(row['end']) if row.get('end') else reason(row)}"


def _never_fits(task: Task) -> CliError:
    wait = task.wait
    code = wait.code if wait else "unschedulable"
    return CliError(
        f"{task.task_id} can never fit: {code}",
        exit_code=Exit.NEVER_FITS,
        hint=f"it stays queued; yard explain {task.task_id} says why, yard cancel ends it",
    )


@command("wait")
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@click.option(
    "--for",
    "phase",
    type=click.Choice([phase.value for phase in Phase]),
    help="Wait for this phase instead of the end.",
)
@click.option("--timeout", metavar="TIME", help="Give up after this long: 90s, 2h.")
def wait(session: Session, refs: tuple[str, ...], phase: str | None, timeout: str | None) -> int:
    """Wait for tasks to end, however they end.

    A stop with requeue is no end. The exit code is 0 when all succeeded, else their highest.
    """
    deadline = deadline_after(timeout)
    with detaching(f"yard wait {' '.join(refs)}"):
        found = [session.remote.resolve(ref) for ref in refs]
        return wait_for_end(
            session.remote,
            found,
            session.out,
            deadline=deadline,
            phase=Phase(phase) if phase else None,
        )
