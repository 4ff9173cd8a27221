"""Preempt: the victims of a task in its own project.

The rules are those of KAI-Scheduler at d5bc503a (actions/preempt).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from yardmaster_core.scheduling.planner.policy import (
    AtLimit,
    PoolView,
    PreemptionAction,
    StopReason,
)
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    RESOURCES,
    Amounts,
    held_by_task,
    minus,
    plus,
    requested,
)
from yardmaster_core.scheduling.policies.min_runtime import unprotected
from yardmaster_core.scheduling.policies.quota.exchanges import reclaiming_task
from yardmaster_core.scheduling.policies.quota.index import index_of, queue_of
from yardmaster_core.scheduling.policies.quota.price import by_price
from yardmaster_core.scheduling.policies.quota.project_order import priority_above
from yardmaster_core.scheduling.policies.quota.protections import (
    delayed_until_ms,
    queue_min_runtime_s,
)
from yardmaster_core.scheduling.policies.quota.queues import is_over_share
from yardmaster_core.scheduling.policies.quota.start import (
    at_limit_wait,
    starts_without,
    waits_at_limit,
)
from yardmaster_core.scheduling.policies.waiting_groups import wait_behind
from yardmaster_core.scheduling.state.tasks import Task


def _running_below(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the preemptible tasks of the same project that `task` may preempt, also those within
    their minimum run time.
    """
    above = priority_above(view, task.job.shape, task.job.priority)
    return index_of(view).running(view, task.job.project, below=above)


def own_victims(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the preemptible tasks of the same project that `task` may preempt and that are not
    within their minimum run time.
    """
    # rule: protections: delay of preempt
    if delayed_until_ms(view, task):
        return
    # rule: protections: preempt has its own
    least_s = queue_min_runtime_s(queue_of(view, task), reclaim=False)
    yield from by_price(view, task, unprotected(view, task, _running_below(view, task), least_s))


def own_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task` of its project."""
    priority, for_priority = victim.job.priority, task.job.priority
    return StopReason(
        rule="better_priority" if for_priority < priority else "within_deserved",
        for_task=task.id,
        numbers={
            "priority": priority,
            "for_priority": for_priority,
            "held_milli": view.pool.held_milli(victim),
            "asked_milli": view.pool.most_milli(task.job.shape),
        },
    )


def may_preempt(view: PoolView, task: Task, victims: Sequence[Task]) -> bool:
    """Whether the victims may be preempted for a task of their project, or it may take over their
    reserved slots.

    If a queue then holds more of a resource than before, the amount must be within the share of the
    queue, and no task of another project must wait that would reclaim it. Else other queues would
    reclaim slots from the task, and it would preempt again, without end.
    """
    more = _more_held(view, task, victims)
    return _stays_within_share(view, task, more) and reclaiming_task(view, task, more) is None


def may_take_over(view: PoolView, task: Task, owners: Sequence[Task]) -> bool:
    """Whether a task may take over the reserved slots of these tasks behind it; if not, other
    changes than those of capacity may let it, so note its project.
    """
    permitted = may_preempt(view, task, owners)
    if not permitted:
        index_of(view).refused_owners[queue_of(view, task)] = None
    return permitted


def _may_preempt_at_limit(view: PoolView, task: Task, victims: Sequence[Task]) -> bool:
    """As `may_preempt`; note the task that would reclaim slots, for `at_limit_wait`."""
    more = _more_held(view, task, victims)
    if not _stays_within_share(view, task, more):
        return False
    ahead = reclaiming_task(view, task, more)
    if ahead is not None:
        view.memo["behind", task] = wait_behind(task, ahead)
    return ahead is None


def _more_held(view: PoolView, task: Task, victims: Sequence[Task]) -> Amounts:
    """Return how much more the project would hold with a task instead of the victims."""
    taken = NOTHING
    for victim in victims:
        taken = plus(taken, held_by_task(view.pool, victim))
    return minus(requested(view.pool, task.job.shape), taken)


def _stays_within_share(view: PoolView, task: Task, more: Amounts) -> bool:
    """Whether each queue that holds more of a resource than before stays within its share."""
    index_of(view).divide(view.state)
    return not any(
        more[i] > 0 and is_over_share(queue, plus(queue.allocated, more), i)
        for queue in queue_of(view, task).path
        for i in RESOURCES
    )


def has_own_victims(view: PoolView, task: Task) -> bool:
    """Whether the project has tasks that `task` may preempt, also within their minimum run time."""
    return next(_running_below(view, task), None) is not None


def limit_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task` of its project, which is at a limit."""
    return replace(own_stop_reason(view, victim, task), rule="at_limit")


#: How a task preempts others of its project if a limit keeps it from starting.
AT_LIMIT: Final = AtLimit(
    victims=own_victims,
    stop_reason=limit_stop_reason,
    hold_without=starts_without,
    permits=_may_preempt_at_limit,
    waits=waits_at_limit,
    wait=at_limit_wait,
)

PREEMPT: Final = PreemptionAction(
    victims=own_victims,
    stop_reason=own_stop_reason,
    permits=may_preempt,
    judges_moved=True,
    applies=has_own_victims,
)
