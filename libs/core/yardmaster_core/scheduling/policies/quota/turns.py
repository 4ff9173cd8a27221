"""Whether a project that loses tasks by a share could take slots back: then two projects would
preempt each other in turn.
"""

from collections.abc import Mapping, Sequence, Set

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import (
    GPU,
    NOTHING,
    Amounts,
    first_exceeded,
    held_by_task,
    minus,
    plus,
    requested,
)
from yardmaster_core.scheduling.policies.quota.index import index_of
from yardmaster_core.scheduling.policies.quota.project_order import priority_above
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.reasons import PolicyStop

#: The amounts that a task requests, and the priority below which it preempts tasks of its project;
#: None: of any priority.
Pending = tuple[Amounts, int | None]


def could_reclaim(view: PoolView, lost: Sequence[Task], taken: Mapping[Queue, Amounts]) -> bool:
    """Whether a project, after it lost these tasks, could reclaim slots.

    Args:
        view: the pool.
        lost: the tasks that are taken, of one project or more.
        taken: by queue, the amounts that are taken from it.
    """
    index = index_of(view)
    for project, victims in _by_project(lost).items():
        queue = index.queue_of(view.state, project)
        kept = minus(queue.allocated, taken[queue])
        if _has_task_within_share(view, project, queue, victims, kept):
            return True
    return False


def could_regain_deserved(
    view: PoolView, reclaimee: Queue, lost: Sequence[Task], taken: Mapping[Queue, Amounts]
) -> bool:
    """Whether a queue that keeps the GPUs that it deserves could hold fewer after the tasks that it
    lost preempted others of their projects, and then reclaim slots within what it deserves.

    Tasks are preempted whole, so an exchange may release more than it takes.
    """
    if "preempt" not in view.options.claiming:
        return False
    by_project = _by_project(lost).items()
    released = sum(_most_released(view, project, victims) for project, victims in by_project)
    if not released:
        return False
    requests = {requested(view.pool, victim.job.shape) for victim in lost}
    for project, _ in by_project:
        requests.update(request for request, _ in _returning(view, project))
    for queue in reclaimee.leaves():
        requests.update(request for request, _ in _pending(view, queue))
    kept = minus(reclaimee.allocated, taken[reclaimee])
    after = minus(kept, (released, 0, 0))
    return any(
        first_exceeded(plus(after, request), reclaimee.deserved) is None
        and first_exceeded(plus(kept, request), reclaimee.deserved) is not None
        for request in requests
    )


def _most_released(view: PoolView, project: Project, lost: Sequence[Task]) -> int:
    """Return by how many gpu_milli tasks that a project lost could lower what it holds, if they
    preempted others of it: on each node tasks of one size, no more than a replica needs.
    """
    running = _running_without(view, project, lost)
    released, exchanged, least = 0, 0, 0
    for task in lost:
        (milli, _, _), above = _as_pending(view, task)
        below = [rows for other, rows in running.items() if above is None or other > above]
        held = sum(amounts[GPU] for amounts, _ in below)
        if not milli or not held:
            continue
        nodes = task.job.shape.replicas
        sizes = {size[GPU] for _, requests in below for size in requests if size[GPU]}
        released += nodes * max(-(milli // nodes) % size for size in sizes)
        exchanged, least = max(exchanged, held), min(least or milli, milli)
    return max(0, min(released, exchanged - least))


def _has_task_within_share(
    view: PoolView, project: Project, queue: Queue, lost: Sequence[Task], kept: Amounts
) -> bool:
    """Whether a project that keeps these amounts has a pending task with which it stays within its
    share; or would have one after a pending task preempted the tasks of the project that it may.
    """
    pending = _pending(view, queue) | _returning(view, project)
    pending |= {_as_pending(view, task) for task in lost}

    def within_share(held: Amounts, request: Amounts) -> bool:
        return first_exceeded(plus(held, request), queue.fair) is None

    if any(within_share(kept, request) for request, _ in pending):
        return True
    if "preempt" not in view.options.claiming:
        return False
    running = _running_without(view, project, lost)
    for request, above in pending:
        left, again = plus(kept, request), {other for other, _ in pending}
        exchanged = NOTHING
        for priority, (held, requests) in running.items():
            if above is None or priority > above:
                exchanged = plus(exchanged, held)
                again |= requests
        if any(exchanged) and any(within_share(minus(left, exchanged), other) for other in again):
            return True
    return False


def _by_project(tasks: Sequence[Task]) -> Mapping[Project, Sequence[Task]]:
    found: dict[Project, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.job.project, []).append(task)
    return found


def _as_pending(view: PoolView, task: Task) -> Pending:
    shape = task.job.shape
    return requested(view.pool, shape), priority_above(view, shape, task.job.priority)


def _pending(view: PoolView, queue: Queue) -> frozenset[Pending]:
    """Return what the pending tasks of a project request."""
    key = ("pending", queue)
    found: frozenset[Pending] | None = view.memo.get(key)
    if found is None:
        found = view.memo[key] = frozenset(
            (requested(view.pool, group.shape), priority_above(view, group.shape, group.priority))
            for group in queue.waiting
            if group.queue.live and not group.shape.start_failed
        )
    return found


def _returning(view: PoolView, project: Project) -> frozenset[Pending]:
    """Return what the tasks of a project request that stop for others, and so will be pending."""
    index, key = index_of(view), ("returning", project)
    changes = len(index.changed_leaves)
    known: tuple[int, frozenset[Pending]] | None = view.memo.get(key)
    if known is None or known[0] != changes:
        holders = view.pool.held_by_project.get(project)
        jobs = holders.jobs.values() if holders is not None and holders.releasing_milli else ()
        found = frozenset(
            _as_pending(view, task)
            for held in jobs
            for task in held.releasing
            if task.run is not None and isinstance(task.run.stop, PolicyStop) and not task.reserved
        )
        known = view.memo[key] = changes, found
    return known[1]


def _running_without(
    view: PoolView, project: Project, lost: Sequence[Task]
) -> Mapping[int, tuple[Amounts, Set[Amounts]]]:
    """Return `_running` without what these tasks of the project hold."""
    running = dict(_running(view, project))
    for task in lost:
        if task.run is None:
            continue
        priority = task.job.priority
        held, requests = running[priority]
        running[priority] = minus(held, held_by_task(view.pool, task)), requests
    return running


def _running(view: PoolView, project: Project) -> Mapping[int, tuple[Amounts, Set[Amounts]]]:
    """Return, by priority, the amounts that the preemptible tasks of a project hold, and what
    single ones request. They are counted once, until something changes in the cycle.
    """
    index, key = index_of(view), ("running", project)
    changes = len(index.changed_leaves)
    known: tuple[int, dict[int, tuple[Amounts, Set[Amounts]]]] | None = view.memo.get(key)
    if known is None or known[0] != changes:
        by_priority: dict[int, tuple[Amounts, Set[Amounts]]] = {}
        for priority, tasks in index.victims.get(project, {}).items():
            held, requests = NOTHING, set()
            for task in tasks.in_order():
                held = plus(held, held_by_task(view.pool, task))
                requests.add(requested(view.pool, task.job.shape))
            by_priority[priority] = held, requests
        known = view.memo[key] = changes, by_priority
    return known[1]
