"""The order of the groups within a project."""

from collections.abc import Callable

from yardmaster_core.scheduling.planner.policy import OrderKey, PoolView
from yardmaster_core.scheduling.policies.quota.index import index_of
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.state.tasks import Group


def by_priority(view: PoolView, group: Group) -> OrderKey:
    """Order within a project, before the submission: the highest priority first; last those that
    can never start, because a queue is represented by its first task.
    """
    return index_of(view).never_starts(view.state, group), group.priority


def firm_first(view: PoolView, group: Group) -> OrderKey:
    """Do the same, but tasks that cannot be preempted first."""
    never = index_of(view).never_starts(view.state, group)
    return never, group.shape.preemptible, group.priority


def order_in_project(view: PoolView) -> Callable[[PoolView, Group], OrderKey]:
    """Return the function that orders the groups of a project."""
    return by_priority if follows_kai(view) else firm_first
