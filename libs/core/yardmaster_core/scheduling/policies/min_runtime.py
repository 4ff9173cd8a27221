"""The minimum run time of a job: until it has passed, no policy preempts its tasks for others."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.waiting_groups import wait_behind
from yardmaster_core.scheduling.state.cell_view import CellView
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_schemas.reasons import Wait, WaitCode


def min_runtime_until_ms(state: CellView, victim: Task, least_s: int = 0) -> int:
    """Return the moment (ms since the epoch) until which a task must not be preempted; 0: it may
    be.

    `least_s`: the minimum run time of its queue (s).
    """
    run = victim.run
    # rule: protections: of the job
    # rule: protections: of queues
    least_s = max(least_s, victim.job.spec.min_runtime_s)
    if run is None or not least_s:
        return 0
    since_ms = run.running_ms if victim.phase is Phase.RUNNING else state.now_ms
    return since_ms + least_s * 1000


def unprotected(
    view: PoolView, task: Task, victims: Iterable[Task], least_s: int = 0
) -> Iterator[Task]:
    """Yield the tasks that are not within their minimum run time; note until when the others are,
    for `protected_wait`.
    """
    for victim in victims:
        until_ms = min_runtime_until_ms(view.state, victim, least_s)
        if until_ms <= view.state.now_ms:
            yield victim
        else:
            view.memo.setdefault(("protected", task), []).append(until_ms)


def protected_wait(view: PoolView, task: Task) -> Wait | None:
    """Return the wait reason of a task for which `unprotected` left out some; else None.

    What was left out is forgotten then: if the task is considered again in this cycle, others may
    be protected, or none.
    """
    until_ms: list[int] = view.memo.pop(("protected", task), [])
    if not until_ms:
        return None
    numbers = {"victims": len(until_ms), "until_at_ms": min(until_ms)}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def first_protected(view: PoolView) -> Task | None:
    """Return the first task of the pool whose victims are within their minimum run time."""
    firsts = [queue_class.first_protected() for queue_class in view.pool.queue_classes]
    return min((task for task in firsts if task is not None), default=None)


def preempts_none(_: Task) -> bool:
    """Return False: a task preempts no other one as soon as that runs."""
    return False


def wait_behind_protected(
    view: PoolView,
    group: Group,
    task: Task,
    is_guaranteed: Callable[[Group], bool],
    preempts: Callable[[Task], bool] = preempts_none,
) -> Wait | None:
    """Return the wait reason of a task behind the first one whose victims are within their minimum
    run time; None if there is none.

    For tasks that would be protected too once they run. Else such tasks, one after another, would
    keep the first one pending without end. If the task is the first one itself, or an equal of it,
    it waits behind the first of those that `is_guaranteed` accepts: these do not wait behind it.

    It waits behind none that `preempts` accepts, because it would preempt that one at once. The
    answer is the same for the tasks of a project and priority, with and without a protection.
    """
    ahead = first_protected(view)
    if ahead is None:
        return None
    if ahead.group is not group and preempts(ahead):
        firsts = chain(*(each.firsts_protected() for each in view.pool.queue_classes))
        ahead = min((first for first in firsts if not preempts(first)), default=None)
    if ahead is not None and ahead.group is group:
        ahead = min(
            (
                other.queue.first
                for other in view.pool.protected
                if other is not group
                and other.queue.live
                and other.waits[view.pool.name][0].code is WaitCode.VICTIMS_PROTECTED
                and is_guaranteed(other)
                and not preempts(other.queue.first)
            ),
            default=None,
        )
    return None if ahead is None else wait_behind(task, ahead)


def no_longer_ahead(
    view: PoolView,
    behind: Iterable[Wait],
    wait_now: Callable[[Group], Wait | None],
    may_preempt: Callable[[Group], bool],
) -> Iterator[Group]:
    """Yield the groups ahead of others by these wait reasons whose own recorded reason is out of
    date: now they wait behind another task themselves, or the victims that were protected cannot be
    preempted later either. So they must be considered, or they keep the others pending in vain.
    """
    for name in dict.fromkeys(wait.about for wait in behind):
        assert name is not None, "a task waits behind no other one"
        group = view.state.tasks[name].group
        record = group.waits.get(view.pool.name) if group is not None else None
        if group is None or record is None or not group.queue.live:
            continue
        code = record[0].code
        if code not in BLOCKING:
            continue
        wait = wait_now(group)
        is_behind = wait is not None and wait.code is WaitCode.BEHIND_TASK
        if is_behind or (code is WaitCode.VICTIMS_PROTECTED and not may_preempt(group)):
            yield group


def groups_behind(view: PoolView) -> Iterator[Group]:
    """Yield the groups that wait behind others (`wait_behind_protected`)."""
    for queue_class in view.pool.queue_classes:
        yield from queue_class.behind
