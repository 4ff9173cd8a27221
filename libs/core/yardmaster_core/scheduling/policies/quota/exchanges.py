"""Whether other projects would reclaim the slots that a task takes of tasks of its project.

A task beyond what its project deserves could take slots that were reclaimed for one within it. Then
the project is one that others reclaim from within what they deserve; where they do the same, the
two projects take slots from each other in turn.
"""

from collections.abc import Hashable, Iterator, Mapping

from yardmaster_core.scheduling.planner.feasibility import could_fit_after_stops
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import (
    Amounts,
    first_exceeded,
    plus,
    requested,
)
from yardmaster_core.scheduling.policies.quota.index import index_of, queue_of
from yardmaster_core.scheduling.policies.quota.pool_sums import stays_within_sum
from yardmaster_core.scheduling.policies.quota.queues import Queue, differing
from yardmaster_core.scheduling.state.tasks import Group, Task

#: A project, what a task of it requests, and the nodes that the task may use.
_Request = tuple[Queue, Amounts, int]


def reclaiming_task(view: PoolView, task: Task, more: Amounts) -> Task | None:
    """Return a task of another project that waits and would reclaim slots, within what its queues
    deserve, once the queues of `task` hold `more` than now, and none before; else None.
    """
    own = queue_of(view, task)
    exceeding = [
        queue
        for queue in own.path
        if first_exceeded(queue.allocated, queue.deserved) is None
        and first_exceeded(plus(queue.allocated, more), queue.deserved) is not None
    ]
    if not exceeding:
        return None
    nodes = view.pool.future.matching(task.job.shape)
    for (other, request, others_nodes), group in _requests(view).items():
        if other is own or not nodes & others_nodes:
            continue
        claimant, losing = differing(other, own)
        if losing in exceeding and _is_within(plus(claimant.allocated, request), claimant):
            return group.queue.first
    return None


def _is_within(amounts: Amounts, queue: Queue) -> bool:
    return first_exceeded(amounts, queue.deserved) is None


def _requests(view: PoolView) -> Mapping[_Request, Group]:
    """Return the different requests with which a project would hold no more than it deserves, each
    with a group that waits for it.
    """
    index = index_of(view)
    changes: Hashable = len(index.changed_leaves), index.blocked_changes
    known: tuple[Hashable, dict[_Request, Group]] | None = view.memo.get("within_deserved")
    if known is None or known[0] != changes:
        found: dict[_Request, Group] = {}
        for queue, group in _waiting(view):
            shape = group.shape
            request = requested(view.pool, shape)
            row = queue, request, view.pool.future.matching(shape)
            if (
                row not in found
                and _is_within(plus(queue.allocated, request), queue)
                and stays_within_sum(view, group.queue.first.job.project, request)
                and could_fit_after_stops(view.pool, shape)
            ):
                found[row] = group
        known = view.memo["within_deserved"] = changes, found
    return known[1]


def _waiting(view: PoolView) -> Iterator[tuple[Queue, Group]]:
    """Yield the groups that did not fit, and those that have no result yet."""
    yield from index_of(view).blocked_within_share(view.state)
    for group in view.pool.awake:
        new = view.pool.name not in group.waits
        if new and group.queue.live and not group.shape.start_failed:
            yield queue_of(view, group.queue.first), group
