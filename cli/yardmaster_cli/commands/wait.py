"""`yard wait`: wait until tasks end or reach a phase, and return their exit code."""

import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import click

from yardmaster_cli.errors import CliError, Exit, exit_of_all, exit_of_end
from yardmaster_cli.output.columns import counted, ended, reason
from yardmaster_cli.output.formats import Output
from yardmaster_cli.server.remote import Ref, Remote
from yardmaster_cli.session import Session, command
from yardmaster_cli.waiting import interruptible, timeout_s
from yardmaster_schemas.api import List, Phase, Task
from yardmaster_schemas.reasons import WaitClass

#: The longest wait of one request, in seconds.
REQUEST_S: Final = 10.0
#: A task must be "never" for this long before the wait ends: nodes may be joining.
NEVER_S: Final = 3.0

#: The most tasks of a job that are reported one by one.
BY_NAME: Final = 10
#: The phases of tasks that ended without success.
UNSUCCESSFUL: Final = (Phase.FAILED, Phase.CANCELLED, Phase.REJECTED)

#: Phases in the order of a task's life; a later phase counts as reached.
_ORDER: Final = (Phase.SUBMITTED, Phase.PENDING, Phase.STARTING, Phase.RUNNING)


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
    remote: Remote,
    refs: Sequence[Ref],
    out: Output,
    *,
    phase: Phase | None = None,
    position: str | None = None,
) -> int:
    """Wait until every task has ended or reached `phase`; returns the exit code for all.

    Raises:
        CliError: 105 when none of the remaining tasks can ever fit.
    """
    never_since: float | None = None
    watched = [_watched(remote, ref, position, phase, out) for ref in refs]
    while True:
        for one in watched:
            one.update()
        open_ = [one for one in watched if one.open]
        if not open_:
            return exit_of_all(code for one in watched for code in one.codes())
        now = time.monotonic()
        if all(one.never() for one in open_):
            never_since = now if never_since is None else never_since
            if now - never_since >= NEVER_S:
                raise _never_fits(open_[0].first())
        else:
            never_since = None
        request_s = NEVER_S if never_since is not None else REQUEST_S
        remote.client.task(open_[0].first().task_id, wait_for=phase or "ended", timeout_s=request_s)


class _Watched(Protocol):
    """The tasks of a reference: a few, or those of a large job."""

    #: Tasks that have neither ended nor reached the phase.
    open: int

    def update(self) -> None:
        """Read their phases, and report ended tasks on stderr."""

    def first(self) -> Task:
        """An open task."""

    def never(self) -> bool:
        """Whether no open task can ever fit."""

    def codes(self) -> Iterable[int]:
        """The exit codes of the ended tasks."""


def _watched(
    remote: Remote, ref: Ref, position: str | None, phase: Phase | None, out: Output
) -> _Watched:
    if ref.index is None and remote.client.job(ref.job_id, min_position=position).tasks > BY_NAME:
        return _Many(remote, ref, phase, out)
    return _Few(remote, ref, position, phase, out)


class _Few:
    """A task, or the tasks of a small job: the end of each is reported."""

    def __init__(
        self, remote: Remote, ref: Ref, position: str | None, phase: Phase | None, out: Output
    ) -> None:
        self._remote, self._ref, self._position = remote, ref, position
        self._phase, self._out = phase, out
        self._ended: dict[str, Task] = {}
        self._open: list[Task] = []
        self.open = 0

    def update(self) -> None:
        tasks = self._remote.tasks_of(self._ref, self._position)
        for task in tasks:
            if task.phase.final and task.task_id not in self._ended:
                self._ended[task.task_id] = task
                self._out.note(f"{task.task_id} {_how(task)}")
        self._open = [
            task for task in tasks if not task.phase.final and not reached(task.phase, self._phase)
        ]
        self.open = len(self._open)

    def first(self) -> Task:
        return self._open[0]

    def never(self) -> bool:
        return all(map(_never, self._open))

    def codes(self) -> Iterable[int]:
        ended_ = self._ended.values()
        return (exit_of(task) for task in ended_ if not reached(task.phase, self._phase))


class _Many:
    """The tasks of a large job: only counted; failed tasks are read at the end."""

    def __init__(self, remote: Remote, ref: Ref, phase: Phase | None, out: Output) -> None:
        self._remote, self._ref, self._phase, self._out = remote, ref, phase, out
        self._phases: dict[Phase, int] = {}
        self._waiting: list[Phase] = []
        self._sample: list[Task] = []
        self.open = 0

    def update(self) -> None:
        if self._phases and not self.open:
            return
        while True:
            self._phases = self._remote.client.job(self._ref.job_id).phases
            self._waiting = [
                phase
                for phase, count in self._phases.items()
                if count and not phase.final and not reached(phase, self._phase)
            ]
            self.open = sum(self._phases[phase] for phase in self._waiting)
            if not self.open:
                self._summarize()
                return
            self._sample = self._tasks(self._waiting).items
            if self._sample:
                return  # otherwise their phase changed after the job was read

    def first(self) -> Task:
        return self._sample[0]

    def never(self) -> bool:
        # Tasks of a job have the same request: one page represents all of them.
        return all(map(_never, self._sample))

    def codes(self) -> Iterable[int]:
        phases = [
            phase.value
            for phase in UNSUCCESSFUL
            if self._phases.get(phase) and not reached(phase, self._phase)
        ]
        if not phases:
            return [int(Exit.DONE)]
        found = self._remote.client.all_tasks(job_id=self._ref.job_id, phase=phases)
        return [exit_of(task) for task in found]

    def _tasks(self, phases: Sequence[Phase]) -> List[Task]:
        return self._remote.client.tasks(
            job_id=self._ref.job_id,
            phase=[phase.value for phase in phases],
            sort="submitted_at",
            limit=BY_NAME,
        )

    def _summarize(self) -> None:
        unsuccessful = sum(self._phases.get(phase, 0) for phase in UNSUCCESSFUL)
        if unsuccessful:
            named = self._tasks(UNSUCCESSFUL).items
            for task in named:
                self._out.note(f"{task.task_id} {_how(task)}")
            if unsuccessful > len(named):
                self._out.note(f"and {unsuccessful - len(named)} more that did not succeed")
        self._out.note(f"{self._ref.job_id}: {counted(self._phases)}")


def reached(phase: Phase, wanted: Phase | None) -> bool:
    """Whether `phase` is `wanted`, or a later phase of a task that has not ended."""
    if wanted is None or phase is wanted:
        return phase is wanted
    if phase in _ORDER and wanted in _ORDER:
        return _ORDER.index(phase) >= _ORDER.index(wanted)
    return False


def _never(task: Task) -> bool:
    return task.wait is not None and task.wait.wait_class is WaitClass.NEVER


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
        hint=f"it stays queued; yard explain {task.task_id} shows why, yard cancel removes it",
    )


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

    Being requeued does not count as ending. The exit code is 0 when all tasks succeeded, else their
    highest exit code. The wait continues after a restart of the server.
    """
    limit_s = timeout_s(timeout)
    chosen = ("--for", phase) if phase else ()
    with interruptible(session, session.command("wait", *refs, *chosen), limit_s):
        found = [session.remote.resolve(ref) for ref in refs]
        return wait_for_end(
            session.remote, found, session.out, phase=Phase(phase) if phase else None
        )
