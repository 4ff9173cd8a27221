"""The order in which the queue of a pool is listed."""

from yardmaster_core.scheduling.planner.policy import OrderKey, PoolView, QueueTraits, Rank
from yardmaster_core.scheduling.policies.quota.options import QuotaOptions
from yardmaster_core.scheduling.policies.quota.ranks import rank_of
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_schemas.events.decisions import Among


def failed_last(traits: QueueTraits) -> Rank:
    """Tasks whose last starts failed after all others."""
    return (traits.failed,)


def always_in_rank(_: QueueTraits) -> bool:
    """Whether the ranks of projects order these tasks."""
    return True


def within_project(options: QuotaOptions, traits: QueueTraits) -> Rank:
    """`by_priority` or `firm_first` for the listed queue."""
    if options.order == "kai":
        return (traits.priority,)
    return traits.preemptible, traits.priority


def projects(_: QuotaOptions) -> Among:
    """The kind of the claimants."""
    return Among.PROJECT


def listed_order(view: PoolView, group: Group, task: Task) -> OrderKey:
    """The order of the listed queue, which `QueueOrder` replaces in a cycle: the most deprived
    queue first by what it holds now, whatever its next task requests.
    """
    shape = group.shape
    traits = QueueTraits(group.priority, shape.preemptible, bool(shape.queue_class), False)
    rank = rank_of(view, task.job.project)
    return 0, rank, within_project(view.options, traits), task.key
