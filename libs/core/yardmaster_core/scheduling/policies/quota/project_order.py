"""The order of the groups within a project, and which of its tasks may be preempted for others; the
submission orders groups of equal place.

The first task of a project represents its queue among other queues, so groups that can never start
come last.
"""

from collections.abc import Callable

from yardmaster_core.scheduling.planner.policy import OrderKey, PoolView
from yardmaster_core.scheduling.policies.quota.index import index_of
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.tasks import Group


def by_priority(view: PoolView, group: Group) -> OrderKey:
    """Return the place of a group by priority, the highest first."""
    return index_of(view).never_starts(view.state, group), group.priority


def non_preemptible_first(view: PoolView, group: Group) -> OrderKey:
    """Return the place of a group: tasks that cannot be preempted first, then by priority."""
    never = index_of(view).never_starts(view.state, group)
    # rule: project: the priority
    # rule: project: not preemptible first
    return never, group.shape.preemptible, group.priority


def order_in_project(view: PoolView) -> Callable[[PoolView, Group], OrderKey]:
    """Return the function that orders the groups of a project."""
    # rule: project: only the priority (kai)
    return by_priority if follows_kai(view) else non_preemptible_first


def priority_above(view: PoolView, shape: Shape, priority: int) -> int | None:
    """Return the priority below which tasks of the same project may be preempted for a task of this
    shape and priority; None: of any priority.

    With `order: document` a task that cannot be preempted may preempt any preemptible task.
    """
    # rule: preempt: lower priorities only (kai)
    non_preemptible_first = not follows_kai(view)
    # rule: preempt: any priority for a task that cannot be preempted
    if non_preemptible_first and not shape.preemptible:
        return None
    return priority
