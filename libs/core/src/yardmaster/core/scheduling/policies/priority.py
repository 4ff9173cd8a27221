"""`priority`: lower number first, with or without preemption, with or without backfilling.

After Determined's priority scheduler, as its newer documentation has it and its resource manager
computes it, without the quirks of that code: victims whose removal did not help are handed back, a
task that may not start reserves nothing, and what a task's victims free is kept for it.

- Among equals the earlier submission goes first; a requeued task keeps its place. One that does not
  fit lets equals behind it pass.
- Nothing of a worse priority starts while a better one waits for room, unless `backfill` (only
  preemptible tasks, and only with `preemption`, since they can be taken back).
- With `preemption`, a task that does not fit may have others stopped: of worse priority, worst
  first, the youngest first; of its own priority only younger ones. Only if it fits then. While
  slots are being freed for it, nothing of a worse priority starts.
- Tasks without GPUs and tasks with GPUs do not block each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from pydantic import ConfigDict

from yardmaster.core.scheduling.entities import Group, Phase, Task
from yardmaster.core.scheduling.policy import OrderKey, Policy, PoolView
from yardmaster.schemas.fields import CLOSED
from yardmaster.schemas.reasons import Start, Stop, StopCode, Wait, WaitCode


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


def nothing_better_waits(view: PoolView, group: Group) -> Wait | None:
    """Whether a group must wait for one of better priority."""
    pool = view.pool
    lane = pool.lanes[group.shape.lane]
    better = lane.mask & ((1 << group.priority) - 1)
    ahead = (better & -better).bit_length() - 1 if better else None
    outstanding = pool.stopping_for[group.shape.lane]
    stopping_for = min(outstanding) if outstanding else None
    if stopping_for is not None and stopping_for < group.priority:
        numbers = {"priority": group.priority, "priority_ahead": stopping_for}
        return Wait(code=WaitCode.BEHIND_TASK, numbers=numbers)
    if ahead is None:
        return None
    if view.options.preemption and view.options.backfill and group.shape.preemptible:
        return None
    code = WaitCode.BEHIND_TASK if not view.options.preemption else WaitCode.BACKFILL_NOT_ALLOWED
    first = min(
        (task for g in lane.blocked[ahead] if (task := next(g.queue.in_order(), None))),
        default=None,
    )
    return Wait(
        code=code,
        numbers={"priority": group.priority, "priority_ahead": ahead},
        about=first.id if first is not None else None,
    )


def worse_then_younger(view: PoolView, task: Task) -> Iterator[Task]:
    """Whom `task` may have stopped: worst priority first, youngest first; only younger equals."""
    if not view.options.preemption:
        return
    own = task.job.priority
    for priority in sorted(view.pool.victims, reverse=True):
        if priority < own:
            return
        for victim in view.pool.victims[priority].in_reverse():
            if priority == own and victim.key < task.key:
                break
            same_lane = victim.job.shape.lane == task.job.shape.lane
            if same_lane and _protected_until(view, victim) <= view.state.now_ms:
                yield victim


def _protected_until(view: PoolView, victim: Task) -> int:
    run = victim.run
    if run is None:
        return 0
    least = victim.job.spec.min_runtime_s
    since = run.running_ms if victim.phase is Phase.RUNNING else view.state.now_ms
    return since + least * 1000 if least else 0


def soonest_unprotected(view: PoolView, task: Task) -> Wait | None:
    """The wait of a task that could have others stopped, were they not within their minimum run
    time.
    """
    if not view.options.preemption or not view.pool.protects:
        return None
    now = view.state.now_ms
    until = [
        moment
        for priority, running in sorted(view.pool.victims.items())
        if priority >= task.job.priority
        for victim in running.in_order()
        if (priority > task.job.priority or victim.key > task.key)
        and victim.job.shape.lane == task.job.shape.lane
        and (moment := _protected_until(view, victim)) > now
    ]
    if not until:
        return None
    numbers = {"victims": len(until), "until_at_ms": min(until)}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def for_better_priority(_: PoolView, victim: Task, task: Task) -> Stop:
    """Why `victim` is stopped for `task`."""
    return Stop(
        code=StopCode.PRIORITY,
        rule="better_priority" if task.job.priority < victim.job.priority else "earlier_submission",
        for_task=task.id,
        numbers={
            "priority": victim.job.priority,
            "for_priority": task.job.priority,
            "held_milli": victim.job.shape.total_gpu_milli,
            "asked_milli": task.job.shape.total_gpu_milli,
        },
    )


def first_in_line(view: PoolView, task: Task) -> Start:
    """By which rule `task` starts."""
    lane = view.pool.lanes[task.job.shape.lane]
    backfilled = lane.mask & ((1 << task.job.priority) - 1)
    rule = "backfill" if backfilled else "priority"
    return _start(rule, task.job.priority)


@lru_cache(maxsize=256)
def _start(rule: str, priority: int) -> Start:
    return Start(rule=rule, numbers={"priority": priority})


PRIORITY: Final = Policy(
    name="priority",
    version=1,
    options=PriorityOptions,
    order=by_priority,
    may_start=nothing_better_waits,
    victims=worse_then_younger,
    protected=soonest_unprotected,
    stop_for=for_better_priority,
    start=first_in_line,
)
