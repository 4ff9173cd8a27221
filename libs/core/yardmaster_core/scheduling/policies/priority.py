"""`priority`: higher priority first, with or without preemption, with or without backfilling.

A smaller number is a higher priority. The policy follows Determined's priority scheduler, as its
newer documentation describes it and its resource manager computes it, with these differences:
victims that turn out unnecessary keep running, a task that must not start reserves nothing, and the
slots of a task's victims are reserved for it.

- Of equal priority, the earlier submission comes first; a requeued task keeps its position. A task
  that does not fit lets tasks of equal priority behind it pass.
- While a higher-priority task is pending for capacity, no lower-priority task starts, even if no
  node could ever fit the pending one. With `backfill`, lower-priority tasks may start if they are
  preemptible; that needs `preemption`, so that they can be preempted again.
- With `preemption`, a task that does not fit may preempt tasks of lower priority, the lowest
  priority first and the latest submission first; of its own priority only tasks of jobs submitted
  later. It preempts only if it fits then. While victims release their slots for it, no
  lower-priority task starts, though preemptible tasks may preempt meanwhile.
- Tasks without GPUs and tasks with GPUs do not block each other.

The planner asks, in this order: `order` by priority; `may_start` (does a higher-priority task
wait?); for a task that must not start, `may_reserve`; for a task that does not fit, `victims` and
`stop_reason`, else `min_runtime_wait`.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.planner.policy import OrderKey, Policy, PoolView
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_schemas.fields import CLOSED
from yardmaster_schemas.reasons import Start, Stop, StopCode, Wait, WaitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityOptions:
    """`preemption`: tasks may preempt running tasks of lower priority. `backfill`: preemptible
    tasks may start on capacity that a waiting higher-priority task cannot use.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    preemption: bool = True
    backfill: bool = True


def by_priority(_: PoolView, group: Group, task: Task) -> OrderKey:
    """Order by priority, the highest (smallest number) first, then by submission."""
    return group.priority, task.key


def wait_behind_higher_priority(view: PoolView, group: Group) -> Wait | None:
    """Return the wait reason of a group behind a higher-priority task that waits for capacity or
    for victims, or None.
    """
    outstanding = view.pool.stopping_for[group.shape.queue_class]
    stopping_for = min(outstanding) if outstanding else None
    if stopping_for is not None and stopping_for < group.priority:
        numbers = {"priority": group.priority, "priority_ahead": stopping_for}
        return Wait(code=WaitCode.BEHIND_TASK, numbers=numbers)
    return wait_behind_blocked_priority(view, group)


def wait_behind_blocked_priority(view: PoolView, group: Group) -> Wait | None:
    """Return the wait reason of a group behind a higher-priority task that waits for capacity, or
    None.
    """
    queue_class = view.pool.queue_classes[group.shape.queue_class]
    better = queue_class.mask & ((1 << group.priority) - 1)
    if not better:
        return None
    if view.options.preemption and view.options.backfill and group.shape.preemptible:
        return None
    ahead = (better & -better).bit_length() - 1
    code = WaitCode.BEHIND_TASK if not view.options.preemption else WaitCode.BACKFILL_NOT_ALLOWED
    first = queue_class.first(ahead)
    return Wait(
        code=code,
        numbers={"priority": group.priority, "priority_ahead": ahead},
        about=first.id if first is not None else None,
    )


def same_priority_and_kind(_: PoolView, group: Group) -> Hashable:
    """Return the priority and whether the group is preemptible: if one group of that key neither
    starts nor preempts, no later one does.
    """
    return group.priority, group.shape.preemptible


def lowest_priority_first(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the tasks that `task` may preempt: lowest priority first, latest submission first.

    Of its own priority only tasks of jobs submitted later.
    """
    if not view.options.preemption or _known_insufficient(view, task):
        return
    own = task.job.priority
    for priority in sorted(view.pool.victims, reverse=True):
        if priority < own:
            break
        running = view.memo.get(("victims", priority))
        if running is None:
            running = view.pool.victims[priority].reverse_scan()
            view.memo["victims", priority] = running
        for victim in running:
            if priority == own and not _submitted_later(victim, task):
                break
            same_queue_class = victim.job.shape.queue_class == task.job.shape.queue_class
            if same_queue_class and min_runtime_until_ms(view.state, victim) <= view.state.now_ms:
                yield victim
    # All of them together do not suffice, and a later task may preempt no others.
    view.memo["insufficient", task.job.shape.fit] = (own, task.job.submitted_ms)


def _known_insufficient(view: PoolView, task: Task) -> bool:
    """Whether an earlier search, or `could_fit`, shows that no set of victims suffices."""
    shape = task.job.shape
    tried = view.memo.get(("insufficient", shape.fit))
    if tried is not None and tried <= (task.job.priority, task.job.submitted_ms):
        return True
    preempted = sum(sum(queue_class.values()) for queue_class in view.pool.stopping_for)
    # If a task stops that could not be preempted, more will be free than `could_fit` counts.
    return view.pool.stopping == preempted and not could_fit(view.pool, shape)


def _submitted_later(victim: Task, task: Task) -> bool:
    # Compared by job: tasks of one job, or of jobs submitted at the same time, do not preempt each
    # other.
    return victim.job.submitted_ms > task.job.submitted_ms


def min_runtime_wait(view: PoolView, task: Task) -> Wait | None:
    """Return the wait reason of a task whose victims are all within their minimum run time, or
    None.
    """
    if not view.options.preemption or not view.pool.has_min_runtimes:
        return None
    now = view.state.now_ms
    until = [
        moment
        for priority, running in sorted(view.pool.victims.items())
        if priority >= task.job.priority
        for victim in running.in_order()
        if (priority > task.job.priority or _submitted_later(victim, task))
        and victim.job.shape.queue_class == task.job.shape.queue_class
        and (moment := min_runtime_until_ms(view.state, victim)) > now
    ]
    if not until:
        return None
    numbers = {"victims": len(until), "until_at_ms": min(until)}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def stop_reason(_: PoolView, victim: Task, task: Task) -> Stop:
    """Return why `victim` is preempted for `task`."""
    job, of = victim.job, task.job
    requested = of.shape.total_gpu_milli
    return _stop(task.id, of.priority, requested, job.priority, job.shape.total_gpu_milli)


@lru_cache(maxsize=256)
def _stop(task_id: str, own: int, requested: int, priority: int, held: int) -> Stop:
    return Stop(
        code=StopCode.PRIORITY,
        rule="better_priority" if own < priority else "earlier_submission",
        for_task=task_id,
        numbers={
            "priority": priority,
            "for_priority": own,
            "held_milli": held,
            "asked_milli": requested,
        },
    )


def start_reason(view: PoolView, task: Task) -> Start:
    """Return the rule by which `task` starts."""
    queue_class = view.pool.queue_classes[task.job.shape.queue_class]
    backfilled = queue_class.mask & ((1 << task.job.priority) - 1)
    rule = "backfill" if backfilled else "priority"
    return _start(rule, task.job.priority)


@lru_cache(maxsize=256)
def _start(rule: str, priority: int) -> Start:
    return Start(rule=rule, numbers={"priority": priority})


def may_preempt(options: PriorityOptions) -> bool:
    """Whether tasks may preempt others."""
    return options.preemption


PRIORITY: Final = Policy(
    name="priority",
    version=1,
    options=PriorityOptions,
    order=by_priority,
    may_start=wait_behind_higher_priority,
    may_reserve=wait_behind_blocked_priority,
    victims=lowest_priority_first,
    min_runtime_wait=min_runtime_wait,
    stop_reason=stop_reason,
    start_reason=start_reason,
    equivalence=same_priority_and_kind,
    preempts=may_preempt,
)
