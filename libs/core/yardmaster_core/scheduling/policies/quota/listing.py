"""The order in which the queue of a pool is listed."""

from yardmaster_core.scheduling.planner.policy import (
    OrderKey,
    PoolView,
    Precedence,
    QueueTraits,
    Rank,
)
from yardmaster_core.scheduling.policies.quota.options import QuotaOptions
from yardmaster_core.scheduling.policies.quota.ranks import rank_of
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_schemas.events.decisions import Among


def failed_last(traits: QueueTraits) -> Rank:
    """Return the place of a task: those whose last starts failed come after all others."""
    return (traits.failed,)


def always_in_rank(_: QueueTraits) -> bool:
    """Whether the ranks of projects order these tasks."""
    return True


def within_project(options: QuotaOptions, traits: QueueTraits) -> Rank:
    """Return the place of a task within its project, as `project_order.py` orders groups."""
    if options.order == "kai":
        return (traits.priority,)
    return traits.preemptible, traits.priority


def project_precedence(view: PoolView, task: Task) -> Precedence:
    """Return the project and the place within it: slots reserved for a later task of the project
    go to an earlier one.
    """
    shape = task.job.shape
    traits = QueueTraits(task.job.priority, shape.preemptible, bool(shape.queue_class), False)
    return task.job.project, within_project(view.options, traits)


def claimant_kind(_: QuotaOptions) -> Among:
    """Return the kind of the claimants whose ranks order the listed queue."""
    return Among.PROJECT


def listed_order(view: PoolView, group: Group, task: Task) -> OrderKey:
    """Return the place of a task in the listed queue: the most deprived queue first, by the amounts
    that it holds now. In a cycle `QueueOrder` replaces this order.
    """
    shape = group.shape
    traits = QueueTraits(group.priority, shape.preemptible, bool(shape.queue_class), False)
    rank = rank_of(view, task.job.project)
    return 0, rank, within_project(view.options, traits), task.key
