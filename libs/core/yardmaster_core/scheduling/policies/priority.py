"""`priority`: lower number first, with or without preemption, with or without backfilling.

After Determined's priority scheduler, as its newer documentation has it and its resource manager
computes it, without the quirks of that code: victims whose removal did not help are handed back, a
task that may not start reserves nothing, and what a task's victims free is kept for it.

- Among equals the earlier submission goes first; a requeued task keeps its place. One that does not
  fit lets equals behind it pass.
- Nothing of a worse priority starts while a better one waits for room, also for room that no node
  has, unless `backfill` (only preemptible tasks, and only with `preemption`, since they can be
  taken back).
- With `preemption`, a task that does not fit may have others stopped: of worse priority, worst
  first, the youngest first; of its own priority only those of jobs submitted later. Only if it fits
  then. While slots are being freed for it, nothing of a worse priority starts, though what is
  preemptible may have others stopped meanwhile.
- Tasks without GPUs and tasks with GPUs do not block each other.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.policy import OrderKey, Policy, PoolView
from yardmaster_core.scheduling.policies.fair_share.claimants import could_fit
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_schemas.fields import CLOSED
from yardmaster_schemas.reasons import Start, Stop, StopCode, Wait, WaitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityOptions:
    """`preemption`: running tasks may be stopped for better ones; `backfill`: room that the first
    in line cannot use may be lent.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    preemption: bool = True
    backfill: bool = True


def by_priority(_: PoolView, group: Group, task: Task) -> OrderKey:
    """Best priority first, then the earliest submission."""
    return group.priority, task.key


def wait_behind_higher_priority(view: PoolView, group: Group) -> Wait | None:
    """Whether a group must wait for one of better priority, or for whom slots are being freed."""
    outstanding = view.pool.stopping_for[group.shape.queue_class]
    stopping_for = min(outstanding) if outstanding else None
    if stopping_for is not None and stopping_for < group.priority:
        numbers = {"priority": group.priority, "priority_ahead": stopping_for}
        return Wait(code=WaitCode.BEHIND_TASK, numbers=numbers)
    return wait_behind_blocked_priority(view, group)


def wait_behind_blocked_priority(view: PoolView, group: Group) -> Wait | None:
    """Whether a group must let one of better priority, which waits for room, go first."""
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
    """What groups have in common of which a later one may start or have others stopped only where
    an earlier one may.
    """
    return group.priority, group.shape.preemptible


def lowest_priority_first(view: PoolView, task: Task) -> Iterator[Task]:
    """Whom `task` may have stopped: worst priority first, youngest first; only younger equals."""
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
    # All of them would not do, and whoever comes after may ask for no others.
    view.memo["insufficient", task.job.shape.fit] = (own, task.job.submitted_ms)


def _known_insufficient(view: PoolView, task: Task) -> bool:
    """Whether it is known without trying that nobody's going helps."""
    shape = task.job.shape
    tried = view.memo.get(("insufficient", shape.fit))
    if tried is not None and tried <= (task.job.priority, task.job.submitted_ms):
        return True
    preempted = sum(sum(queue_class.values()) for queue_class in view.pool.stopping_for)
    # Where something stops that could not be preempted, there will be more than that.
    return view.pool.stopping == preempted and not could_fit(view.pool, shape)


def _submitted_later(victim: Task, task: Task) -> bool:
    # By job: tasks of one job, or of jobs of one moment, do not stop each other.
    return victim.job.submitted_ms > task.job.submitted_ms


def min_runtime_wait(view: PoolView, task: Task) -> Wait | None:
    """The wait of a task that could have others stopped, were they not within their minimum run
    time.
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
    """Why `victim` is stopped for `task`."""
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
    """By which rule `task` starts."""
    queue_class = view.pool.queue_classes[task.job.shape.queue_class]
    backfilled = queue_class.mask & ((1 << task.job.priority) - 1)
    rule = "backfill" if backfilled else "priority"
    return _start(rule, task.job.priority)


@lru_cache(maxsize=256)
def _start(rule: str, priority: int) -> Start:
    return Start(rule=rule, numbers={"priority": priority})


def may_preempt(options: PriorityOptions) -> bool:
    """Whether tasks may have others stopped for themselves."""
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
