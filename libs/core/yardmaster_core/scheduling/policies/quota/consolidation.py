"""Consolidation: the tasks that are moved to other slots so that a task fits.

The rules are those of KAI-Scheduler at d5bc503a (actions/consolidation). But tasks are moved only
to slots that are free already. And others are moved for a task beyond the share of its project only
after all tasks within the shares of theirs tried to reclaim slots, and while none of them waits;
else the task would start, and the slots would be reclaimed next.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence

from yardmaster_core.scheduling.planner.feasibility import could_fit_after_stops
from yardmaster_core.scheduling.planner.policy import PoolView, PreemptionAction, StopReason
from yardmaster_core.scheduling.policies.min_runtime import unprotected
from yardmaster_core.scheduling.policies.quota.index import index_of, queue_of
from yardmaster_core.scheduling.policies.quota.options import QuotaOptions, follows_kai
from yardmaster_core.scheduling.policies.quota.order import in_victim_order
from yardmaster_core.scheduling.policies.quota.protections import delayed_until_ms
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.policies.quota.reclaim import stays_within_share
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.scheduling.state.tasks import Task

#: A count of changes, and by queue class and matching nodes the projects with waiting tasks.
_Waiting = tuple[Hashable, dict[tuple[int, int], list[Queue]]]


def movable(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield all preemptible tasks, in the order of victims, if others may be moved for `task`."""
    # rule: protections: delay of moves
    if not may_move_others(view, task) or delayed_until_ms(view, task):
        return
    index = index_of(view)
    if not could_be_moved_for(view, task.job.shape):
        return
    tasks_by_queue = (
        (
            index.queue_of(view.state, project),
            unprotected(view, task, index.running(view, project)),
        )
        for project in list(index.victims)
    )
    yield from in_victim_order(view.pool, tasks_by_queue, over_in_all=follows_kai(view))


def may_move_others(view: PoolView, task: Task) -> bool:
    """Whether others may be moved for `task`, and the free GPUs of all nodes together suffice."""
    return enough_to_move(view, task.job.shape)


def enough_to_move(view: PoolView, shape: Shape) -> bool:
    """Whether others may be moved for tasks of a shape, and the free GPUs of all nodes together
    suffice. With `order: kai`, others are moved for preemptible tasks only.
    """
    # rule: moves: for preemptible tasks only (kai)
    # rule: moves: for any task (document)
    if follows_kai(view) and not shape.preemptible:
        return False
    return view.pool.least_milli(shape) <= view.pool.future.free_milli


def could_be_moved_for(view: PoolView, shape: Shape) -> bool:
    """Whether some node could hold a task of this shape if any other tasks were moved from it, by
    what is free on the nodes.
    """
    milli = view.pool.least_milli(shape)
    if shape.replicas > 1 or shape.whole_nodes or not milli:
        return True
    return index_of(view).node_bounds.most_on_one_node(frozenset()) >= milli


def move_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is moved for `task`."""
    numbers = {
        "held_milli": view.pool.held_milli(victim),
        "asked_milli": view.pool.most_milli(task.job.shape),
    }
    return StopReason(rule="moved", for_task=task.id, numbers=numbers)


def always(_: PoolView, __: Task, ___: Sequence[Task]) -> bool:
    """Permit any set of victims: the `permits` of an action that moves tasks."""
    return True


def consolidation(
    max_moves: int, applies: Callable[[PoolView, Task], bool] = may_move_others
) -> PreemptionAction:
    """Return the action that moves at most `max_moves` tasks and preempts none, for the tasks to
    which it `applies`.
    """
    return PreemptionAction(
        victims=movable,
        stop_reason=move_stop_reason,
        permits=always,
        max_moves=max_moves,
        applies=applies,
    )


def may_move_within_share(view: PoolView, task: Task) -> bool:
    """Whether others may be moved for a task with which its project stays within its share."""
    return may_move_others(view, task) and stays_within_share(view, task)


def may_move_beyond_share(view: PoolView, task: Task) -> bool:
    """Whether others may be moved for a task with which its project exceeds its share."""
    return (
        may_move_others(view, task)
        and not stays_within_share(view, task)
        and not must_leave_moves(view, task)
    )


def reclaims_after_moves(options: QuotaOptions) -> bool:
    """Whether tasks reclaim slots, and try first whether others may be moved."""
    names = options.claiming
    return "consolidation" in names and "reclaim" in names[names.index("consolidation") :]


def must_leave_moves(view: PoolView, task: Task) -> bool:
    """Whether a task of another project waits for nodes that `task` could use, and would stay
    within the share of its project.
    """
    own = queue_of(view, task)
    return any(queue is not own for queue in waiting_within_share(view, task.job.shape))


def waiting_within_share(view: PoolView, shape: Shape) -> Sequence[Queue]:
    """Return two projects, or all if there are fewer, with a task that waits for nodes that suit
    `shape` and would stay within the share of the project.
    """
    index, future = index_of(view), view.pool.future
    changes = len(index.changed_leaves), index.blocked_changes
    known: _Waiting | None = view.memo.get("within_share")
    if known is None or known[0] != changes:
        waiting: dict[tuple[int, int], list[Queue]] = {}
        for queue, group in index.blocked_within_share(view.state):
            other = group.shape
            queues = waiting.setdefault((other.queue_class, future.matching(other)), [])
            if len(queues) == 2 or queue in queues:
                continue
            if could_fit_after_stops(view.pool, other):
                queues.append(queue)
        known = view.memo["within_share"] = changes, waiting
    nodes = future.matching(shape)
    found: dict[Queue, None] = {}
    for (queue_class, matching), queues in known[1].items():
        if queue_class == shape.queue_class and matching & nodes:
            found.update(dict.fromkeys(queues))
    return list(found)[:2]
