"""What strict policies share: nobody passes who comes first in his line (`Policy.line`).

Only who waits for room holds others up. Who is held back by a bound, or could never fit on the
nodes there are, is passed: else one job that asks for too much would close the pool.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.policy import OrderKey, PoolView
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_schemas.fields import CLOSED
from yardmaster_schemas.reasons import Start, Stop, StopCode, Wait, WaitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """The options of policies that have none."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED


_FIRST_IN_QUEUE: Final = Start(rule="first_in_line")


def by_queue_position(view: PoolView, _: Group, task: Task) -> OrderKey:
    """Line by line, each in its order; both turns of one come before the next is considered."""
    assert view.pool.strict_queues is not None
    return (view.pool.strict_queues.position_of(task),)


def wait_behind_first(view: PoolView, group: Group) -> Wait | None:
    """Whether a group must wait for one ahead of it in its line, which waits for room."""
    pool = view.pool
    assert pool.strict_queues is not None
    ahead = pool.strict_queues.first_ahead(group, _pending_for_capacity(pool))
    if ahead is None:
        return None
    numbers = {
        "submitted_at_ms": group.queue.first.job.submitted_ms,
        "submitted_ahead_at_ms": ahead.job.submitted_ms,
    }
    return Wait(code=WaitCode.BEHIND_TASK, numbers=numbers, about=ahead.id)


def _pending_for_capacity(pool: Pool) -> Iterator[Group]:
    for queue_class in pool.queue_classes:
        for groups in queue_class.blocked.values():
            for group in groups:
                if group.waits[pool.name][0].code in BLOCKING and not _may_be_passed(pool, group):
                    yield group


def _may_be_passed(pool: Pool, group: Group) -> bool:
    """Whether a group holds up none behind it: it would preempt others, but may not, since its last
    starts failed, so it may wait for long.
    """
    return group.shape.start_failed and pool.preempts and not group.shape.preemptible


def running_victims(view: PoolView) -> list[Task]:
    """All that runs in the pool and could be stopped, by priority and submission."""
    lines = view.pool.victims
    return [task for priority in sorted(lines) for task in lines[priority].in_order()]


def allowed_victims(view: PoolView, task: Task) -> list[Task]:
    """Those of them that may be stopped for `task`: only one that cannot be stopped itself may have
    others stopped, and nobody within his minimum run time.
    """
    if task.job.spec.preemptible:
        return []
    now_ms = view.state.now_ms
    found = running_victims(view)
    if not view.pool.has_min_runtimes:
        return found
    return [victim for victim in found if min_runtime_until_ms(view.state, victim) <= now_ms]


def min_runtime_wait(view: PoolView, task: Task) -> Wait | None:
    """The wait of a task that could have others stopped, were they not within their minimum run
    time.
    """
    if task.job.spec.preemptible or not view.pool.has_min_runtimes:
        return None
    ends = (min_runtime_until_ms(view.state, victim) for victim in running_victims(view))
    until = [moment for moment in ends if moment > view.state.now_ms]
    if not until:
        return None
    numbers = {"victims": len(until), "until_at_ms": min(until)}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def no_min_runtime_wait(_: PoolView, __: Task) -> None:
    """`protected` of policies under which nobody is stopped."""


def no_stop_reason(_: PoolView, victim: Task, __: Task) -> Stop:
    """`stop_for` of the same: it is never asked for."""
    raise AssertionError(f"{victim.id} is stopped under a policy that stops nobody")


def first_in_queue(_: PoolView, __: Task) -> Start:
    """By which rule a task starts."""
    return _FIRST_IN_QUEUE


def always(_: object) -> bool:
    """`preempts` of policies under which tasks have others stopped, whatever the options."""
    return True


def stop_for_task(victim: Task, task: Task, code: StopCode, rule: str, **numbers: int) -> Stop:
    """A stop with the numbers of both sides."""
    both = {
        "held_milli": victim.job.shape.total_gpu_milli,
        "asked_milli": task.job.shape.total_gpu_milli,
    }
    return Stop(code=code, rule=rule, for_task=task.id, numbers={**numbers, **both})
