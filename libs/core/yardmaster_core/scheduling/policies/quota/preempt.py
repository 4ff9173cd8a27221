"""The victims of a task in its own project.

The rules are those of KAI-Scheduler at d5bc503a (actions/preempt).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from yardmaster_core.scheduling.planner.policy import Claim, PoolView, StopReason
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    RESOURCES,
    held,
    minus,
    plus,
    requested,
)
from yardmaster_core.scheduling.policies.min_runtime import unprotected
from yardmaster_core.scheduling.policies.quota.index import index_of, project_queue
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.policies.quota.protections import (
    delayed_until_ms,
    queue_min_runtime_s,
)
from yardmaster_core.scheduling.policies.quota.queues import is_over_share
from yardmaster_core.scheduling.state.tasks import Task


def own_victims(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the tasks of the same project with a lower priority; with `order: document`, for a task
    that cannot be preempted, all that can.
    """
    if delayed_until_ms(view, task):
        return
    job = task.job
    document = not follows_kai(view)
    below = None if document and not job.shape.preemptible else job.priority
    tasks = index_of(view).running(view, job.project, below=below)
    least_s = queue_min_runtime_s(project_queue(view, task), reclaim=False)
    yield from unprotected(view, task, tasks, least_s)


def own_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task` of its project."""
    own, other = task.job.priority, victim.job.priority
    return StopReason(
        rule="better_priority" if own < other else "within_deserved",
        for_task=task.id,
        numbers={
            "priority": other,
            "for_priority": own,
            "held_milli": view.pool.held_milli(victim),
            "asked_milli": view.pool.most_milli(task.job.shape),
        },
    )


def may_preempt(view: PoolView, task: Task, victims: Sequence[Task]) -> bool:
    """Whether the victims may be preempted for a task of their project: not if a queue then held
    more than before, and more than its share. Others would reclaim it, and so on without end.
    """
    index_of(view).divide(view.state)
    taken = NOTHING
    for victim in victims:
        taken = plus(taken, held(view.pool, victim))
    more = minus(requested(view.pool, task.job.shape), taken)
    return not any(
        more[i] > 0 and is_over_share(queue, plus(queue.standing, more), i)
        for queue in project_queue(view, task).path
        for i in RESOURCES
    )


def has_own_victims(view: PoolView, task: Task) -> bool:
    """Whether the project may have tasks that `own_victims` yields."""
    firm_first = not follows_kai(view) and not task.job.shape.preemptible
    below = None if firm_first else task.job.priority
    running = index_of(view).running(view, task.job.project, below=below)
    return next(running, None) is not None


PREEMPT: Final = Claim(
    victims=own_victims,
    stop_reason=own_stop_reason,
    permits=may_preempt,
    applies=has_own_victims,
)
