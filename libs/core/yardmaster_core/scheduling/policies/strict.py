"""Functions that strict policies share: no task passes the first task of its strict queue
(`strict_queues.py`).

Only a task that waits for capacity blocks the tasks behind it. A task that waits for a limit, that
could never fit on the present nodes, or that fits only on nodes that are cordoned or lost is
passed: else one job with too large a request, or one lost node, would block the pool.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from yardmaster_core.scheduling.planner.policy import (
    OrderKey,
    PoolView,
    Precedence,
    PreemptionAction,
    StopReason,
)
from yardmaster_core.scheduling.planner.wait_reasons import fits_usable_nodes
from yardmaster_core.scheduling.policies.min_runtime import first_protected, min_runtime_until_ms
from yardmaster_core.scheduling.policies.preemptible import has_ended, holders_of
from yardmaster_core.scheduling.policies.strict_queues import strict_queues_of
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_schemas.reasons import Start, Wait, WaitCode

_FIRST_IN_QUEUE: Final = Start(rule="first_in_line")


def by_queue_position(view: PoolView, _: Group, task: Task) -> OrderKey:
    """Order queue by queue, and by position within a queue.

    The whole key is the tier: a group has both of its turns before the next group is considered.
    """
    return (strict_queues_of(view).position_of(task),)


def queue_precedence(view: PoolView, task: Task) -> Precedence:
    """Return the queue and the position in it: slots reserved for a later task go to an earlier."""
    return None, strict_queues_of(view).position_of(task)


def wait_behind_first(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason of a task behind another of its queue that waits for capacity or for
    its reserved slots; else None.
    """
    ahead = strict_queues_of(view).first_ahead(task, _pending_for_capacity(view.pool, group))
    if ahead is None:
        ahead = protected_ahead(view, group)
    return None if ahead is None else wait_behind_task(task, ahead)


def wait_behind_task(task: Task, ahead: Task) -> Wait:
    """Return the wait reason of a task that must not pass the task `ahead`."""
    numbers = {
        "submitted_at_ms": task.job.submitted_ms,
        "submitted_ahead_at_ms": ahead.job.submitted_ms,
    }
    return Wait(code=WaitCode.BEHIND_TASK, numbers=numbers, about=ahead.id)


def protected_ahead(view: PoolView, group: Group) -> Task | None:
    """Return the first task whose victims are within their minimum run time, if `group` has tasks
    with such a time that fit on the usable nodes; else None.

    Else such tasks, one after another, would keep the first task pending without end. Those that
    fit on none wait for that reason: the tasks of their queue pass them.
    """
    if not group.min_runtimes or not group.shape.preemptible:
        return None
    if not fits_usable_nodes(view.pool, group.shape):
        return None
    return first_protected(view)


def _pending_for_capacity(pool: Pool, follower: Group) -> Iterator[Task]:
    """Yield the first waiting task of each group; for `follower` only the first with reserved
    slots.
    """
    for queue_class in pool.queue_classes:
        for groups in queue_class.blocked.values():
            for group in groups:
                if (
                    group is not follower
                    and group.waits[pool.name][0].code in BLOCKING
                    and not _may_be_passed(pool, group)
                ):
                    yield group.queue.first
    for group in pool.reserved_groups:
        yield group.reserved.first


def _may_be_passed(pool: Pool, group: Group) -> bool:
    """Whether groups behind `group` may pass it.

    True for a group that would preempt others but must not, because its last starts failed: it may
    wait for long.
    """
    return group.shape.start_failed and pool.index.traits.preempts and not group.shape.preemptible


def running_victims(view: PoolView) -> list[Task]:
    """Return the tasks of the pool that may be preempted, by priority and submission."""
    return [task for task in _preemptible(view) if not has_ended(task)]


def _preemptible(view: PoolView) -> list[Task]:
    """Return the preemptible tasks of the pool that hold slots, by priority and submission."""
    holders = holders_of(view)
    return [task for priority in sorted(holders) for task in holders[priority].in_order()]


def allowed_victims(view: PoolView, task: Task) -> list[Task]:
    """Return the tasks that may be preempted for `task`.

    Only a task that is not preemptible may preempt, and never a task within its minimum run time.
    """
    if task.job.spec.preemptible:
        return []
    now_ms = view.state.now_ms
    found = running_victims(view)
    if not view.pool.has_min_runtimes:
        return found
    return [victim for victim in found if min_runtime_until_ms(view.state, victim) <= now_ms]


def min_runtime_wait(view: PoolView, task: Task, wait: Wait) -> Wait:
    """Return the wait reason of a task whose victims are all within their minimum run time; `wait`
    if it has no victims.
    """
    if task.job.spec.preemptible or not view.pool.has_min_runtimes:
        return wait
    ends = (min_runtime_until_ms(view.state, victim) for victim in _preemptible(view))
    until = [moment for moment in ends if moment > view.state.now_ms]
    if not until:
        return wait
    numbers = {"victims": len(until), "until_at_ms": min(until)}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def first_in_queue(_: PoolView, __: Task) -> Start:
    """Return the rule by which a task starts."""
    return _FIRST_IN_QUEUE


def only(action: PreemptionAction) -> Callable[[Any], tuple[PreemptionAction, ...]]:
    """Return the `actions` of a policy that has this one under any options."""

    def actions(_: Any) -> tuple[PreemptionAction, ...]:
        return (action,)

    return actions


def stop_for_task(
    view: PoolView, victim: Task, task: Task, rule: str, **numbers: int
) -> StopReason:
    """Return a stop reason with the requested and held gpu_milli of both tasks."""
    both = {
        "held_milli": view.pool.held_milli(victim),
        "asked_milli": view.pool.most_milli(task.job.shape),
    }
    return StopReason(rule=rule, for_task=task.id, numbers={**numbers, **both})
