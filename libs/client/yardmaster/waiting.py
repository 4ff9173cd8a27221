"""`Client.wait`: wait until tasks end or reach a phase, also while the gateway restarts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Final, TypeVar

from pydantic import BaseModel

from yardmaster.connection import all_items, quoted
from yardmaster.errors import ApiError, InputError, NeverFits, WaitTimeout
from yardmaster.job_calls import JobCalls, JobOrTask
from yardmaster.retry import Deadline, Params
from yardmaster_schemas.api import Job, List, Phase, Submitted, Task
from yardmaster_schemas.reasons import WaitClass

M = TypeVar("M", bound=BaseModel)

#: The longest wait of one request, in seconds.
REQUEST_S: Final = 10.0
#: For how long no task may be able to fit before the wait fails, in seconds, because nodes may be
#: joining meanwhile.
NEVER_S: Final = 3.0
#: If a job has at most this many tasks, each round reads all of them. If it has more, each round
#: reads only tasks that have not ended.
FEW_TASKS: Final = 10

#: The goals of a wait that are not phases.
ENDED: Final = "ended"
ADMITTED: Final = "admitted"
#: Phases in the order of a task's life; a later phase counts as reached.
_ORDER: Final = (Phase.SUBMITTED, Phase.PENDING, Phase.STARTING, Phase.RUNNING)


def reached(phase: Phase, wanted: str) -> bool:
    """Whether `phase` is `wanted` (a phase, `admitted` or `ended`) or a later phase.

    A task that has ended in another phase than `wanted` has not reached it.
    """
    if wanted == ENDED:
        return phase.final
    if wanted == ADMITTED:
        return phase is not Phase.SUBMITTED
    if phase in _ORDER and wanted in _ORDER:
        return _ORDER.index(phase) >= _ORDER.index(Phase(wanted))
    return phase == wanted


@dataclass(slots=True)
class _Awaited:
    """The tasks of one job or task that a wait watches."""

    id: str
    #: The position that the next read must cover.
    min_position: str | None
    #: The job has more than `FEW_TASKS` tasks.
    large: bool = False
    #: The tasks that have neither ended nor reached the phase; of a large job only the first ones.
    open: list[Task] = field(default_factory=list)
    #: All tasks in the order of their index; for a large job, empty until no task is open.
    tasks: list[Task] = field(default_factory=list)
    #: The ids of the tasks whose end was reported.
    reported: set[str] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Whether every task has ended or reached the phase."""
        return bool(self.tasks) and not self.open


def _remaining(awaited: list[_Awaited]) -> list[Task]:
    return [task for each in awaited for task in each.open]


class Waits(JobCalls):
    """The call that waits for tasks; see `Client`."""

    def wait(
        self,
        *jobs_or_tasks: JobOrTask,
        for_: str = ENDED,
        timeout_s: float | None = None,
        on_end: Callable[[Task], object] | None = None,
    ) -> list[Task]:
        """Wait until every task has ended or reached a phase; return the tasks as they are then.

        The tasks are in the order of the arguments, those of a job by index. A task that ends
        without reaching the phase is not waited for any longer. Being requeued is not an end.

        The wait covers what this client submitted before, and continues after a restart of the
        gateway: the pauses between attempts double from 0.2 s to 5 s, and after
        `longest_outage_s` without an answer the wait fails.

        Args:
            jobs_or_tasks: complete ids of jobs or tasks, or answers that contain one.
            for_: `ended`, `admitted`, or a phase such as `running`; a later phase counts, too.
            timeout_s: the longest wait, in seconds; None: no limit.
            on_end: is called once for each task that has ended, soon after its end, but not for
                the tasks of a job that has more than 10 tasks.

        Raises:
            WaitTimeout: a task has neither ended nor reached the phase within `timeout_s`.
            NeverFits: none of the remaining tasks can ever fit on the cluster.
            ApiError: a job or task does not exist, or the outage was too long.
            InputError: `for_` is not a phase, `ended` or `admitted`.
        """
        if for_ not in (ENDED, ADMITTED, *Phase):
            known = ", ".join((ENDED, ADMITTED, *Phase))
            raise InputError(f"for_: there is no phase {for_!r}", hint=f"one of {known}")
        newest = self._transport.tolerance.position
        awaited = [_awaited(each, newest) for each in jobs_or_tasks]
        deadline = self._transport.deadline(timeout_s)
        reconnection = self._transport.reconnection(deadline)
        never_for: Deadline | None = None
        while True:
            try:
                for each in awaited:
                    if not each.complete:
                        self._look(each, for_, deadline, on_end)
                if all(each.complete for each in awaited):
                    return [task for each in awaited for task in each.tasks]
                open_ = _remaining(awaited)
                never_for = self._never_deadline(open_, never_for)
                if open_:
                    request_s = REQUEST_S if never_for is None else NEVER_S
                    self._await_change(open_[0], for_, request_s, deadline)
                    reconnection.record_answer()
                else:
                    reconnection.pause()
            except ApiError as error:
                if deadline.left_s() > 0:
                    reconnection.pause(error)
            if deadline.left_s() == 0:
                raise WaitTimeout(_remaining(awaited), for_, timeout_s or 0.0)

    def _never_deadline(self, open_: list[Task], before: Deadline | None) -> Deadline | None:
        """The time at which the wait fails because none of the remaining tasks can ever fit.

        `before` is the deadline that the previous round returned. None: a task can fit, or no task
        remains.

        Raises:
            NeverFits: the deadline has passed.
        """
        if not open_ or not all(map(_never, open_)):
            return None
        if before is None:
            return self._transport.deadline(NEVER_S)
        if before.left_s() == 0:
            raise NeverFits(open_[0])
        return before

    def _look(
        self,
        awaited: _Awaited,
        wanted: str,
        deadline: Deadline,
        on_end: Callable[[Task], object] | None,
    ) -> None:
        """Read the tasks of a job or task; report those that have ended since the last time."""

        def read(path: str, model: type[M], params: Params) -> M:
            params = {**params, "min_position": awaited.min_position}
            found = self._get(path, model, params, deadline=deadline)
            awaited.min_position = self._transport.tolerance.position
            return found

        def page(**filters: int | str | list[str] | None) -> List[Task]:
            query = {"job_id": awaited.id, "sort": "submitted_at", **filters}
            return read("/v1/tasks", List[Task], query)

        if "." in awaited.id:
            tasks = [read(f"/v1/tasks/{quoted(awaited.id)}", Task, {})]
        elif awaited.large:
            phases = [each for each in Phase if not each.final and not reached(each, wanted)]
            sample = page(phase=[each.value for each in phases], limit=FEW_TASKS).items
            if sample:
                awaited.open = sample
                return
            # A task may have changed its phase while the page was read, so an empty page is no
            # proof; only a read of all tasks is.
            tasks = list(all_items(page, {}))
        else:
            first = page(limit=FEW_TASKS)
            awaited.large = first.next_cursor is not None
            tasks = first.items
            if not tasks:
                read(f"/v1/jobs/{quoted(awaited.id)}", Job, {})  # fails if there is no such job
            if awaited.large:
                self._look(awaited, wanted, deadline, on_end)
                return
        if not tasks:
            return
        awaited.tasks = sorted(tasks, key=lambda task: task.index)
        awaited.open = list(_open(awaited.tasks, wanted))
        if on_end is None or awaited.large:
            return
        for task in awaited.tasks:
            if task.phase.final and task.task_id not in awaited.reported:
                awaited.reported.add(task.task_id)
                on_end(task)

    def _await_change(self, task: Task, wanted: str, request_s: float, deadline: Deadline) -> None:
        """Wait until one task has reached the phase or ended, at most `request_s` seconds."""
        wait_s = min(request_s, deadline.left_s())
        params: Params = {"wait_for": wanted, "timeout_s": ceil(wait_s)}
        self._get(f"/v1/tasks/{quoted(task.task_id)}", Task, params, wait_s, deadline)


def _awaited(which: JobOrTask, newest: str | None) -> _Awaited:
    match which:
        case Submitted():
            return _Awaited(which.job_id, which.position)
        case Job():
            return _Awaited(which.job_id, newest)
        case Task():
            return _Awaited(which.task_id, newest)
        case _:
            return _Awaited(which, newest)


def _open(tasks: list[Task], wanted: str) -> Iterator[Task]:
    return (task for task in tasks if not task.phase.final and not reached(task.phase, wanted))


def _never(task: Task) -> bool:
    return task.wait is not None and task.wait.wait_class is WaitClass.NEVER
