"""The tasks that are moved to other slots, so that a task fits; none is preempted.

The rules are those of KAI-Scheduler at d5bc503a (actions/consolidation).
"""

from collections.abc import Iterator, Sequence

from yardmaster_core.scheduling.planner.policy import Claim, PoolView, StopReason
from yardmaster_core.scheduling.policies.min_runtime import unprotected
from yardmaster_core.scheduling.policies.quota.index import QuotaIndex, index_of
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.policies.quota.order import in_victim_order
from yardmaster_core.scheduling.policies.quota.protections import delayed_until_ms
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.tasks import Task


def movable(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield all preemptible tasks, if what is free in all suffices for the task."""
    if not may_move_others(view, task) or delayed_until_ms(view, task):
        return
    index: QuotaIndex = index_of(view)
    leaves = (
        (
            index.queue_of(view.state, project),
            unprotected(view, task, index.running(view, project)),
        )
        for project in list(index.victims)
    )
    yield from in_victim_order(view.pool, leaves, all_over=follows_kai(view))


def may_move_others(view: PoolView, task: Task) -> bool:
    """Whether enough is free in all for a task for which others may be moved."""
    return enough_to_move(view, task.job.shape)


def enough_to_move(view: PoolView, shape: Shape) -> bool:
    """Do the same for all tasks of a shape."""
    if follows_kai(view) and not shape.preemptible:
        return False
    return view.pool.least_milli(shape) <= view.pool.future.free_milli


def move_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is moved for `task`."""
    numbers = {
        "held_milli": view.pool.held_milli(victim),
        "asked_milli": view.pool.most_milli(task.job.shape),
    }
    return StopReason(rule="moved", for_task=task.id, numbers=numbers)


def always(_: PoolView, __: Task, ___: Sequence[Task]) -> bool:
    """`permits` of claims whose candidates may all be preempted together."""
    return True


def consolidation(max_moves: int) -> Claim:
    """Return the claim that moves at most so many tasks, and preempts none."""
    return Claim(
        victims=movable,
        stop_reason=move_stop_reason,
        permits=always,
        max_moves=max_moves,
        applies=may_move_others,
    )
