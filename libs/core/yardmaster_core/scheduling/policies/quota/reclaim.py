"""The victims of a task in other queues that hold more than their share, or than they deserve.

The rules are those of KAI-Scheduler at d5bc503a (actions/reclaim and
plugins/proportion/reclaimable).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from yardmaster_core.scheduling.planner.policy import Claim, PoolView, StopReason
from yardmaster_core.scheduling.policies.claiming.amounts import (
    CPU,
    GPU,
    MEMORY,
    NOTHING,
    RESOURCES,
    SUFFIXES,
    Amounts,
    held,
    minus,
    plus,
    requested,
)
from yardmaster_core.scheduling.policies.min_runtime import unprotected
from yardmaster_core.scheduling.policies.quota.index import index_of, project_queue
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.policies.quota.order import in_victim_order
from yardmaster_core.scheduling.policies.quota.pool_sums import (
    excess_over_sum,
    stays_within_sum,
    sum_over_pools,
)
from yardmaster_core.scheduling.policies.quota.protections import (
    delayed_until_ms,
    queue_min_runtime_s,
)
from yardmaster_core.scheduling.policies.quota.queues import Queue, differing, is_over_share
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Task


def reclaim_victims(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the tasks of other queues that hold more than is theirs, if the task's own queue stays
    within its share.
    """
    if delayed_until_ms(view, task) or not stays_within_share(view, task):
        return
    index = index_of(view)
    leaf, ask = project_queue(view, task), requested(view.pool, task.job.shape)
    guaranteed = stays_within_sum(view, task.job.project, ask)
    others = list(_may_lose(view, leaf, ask, guaranteed=guaranteed))
    view.memo["others_above", task] = len(others)
    if _too_little(view, leaf, task, ask, others, guaranteed=guaranteed):
        return
    leaves = (
        (
            other,
            unprotected(view, task, index.running(view, project), _reclaim_s(view, leaf, other)),
        )
        for other, project in others
    )
    yield from in_victim_order(view.pool, leaves, all_over=follows_kai(view))


def _too_little(
    view: PoolView,
    leaf: Queue,
    task: Task,
    ask: Amounts,
    others: Sequence[tuple[Queue, Project]],
    *,
    guaranteed: bool,
) -> bool:
    """Whether what is free, and the most GPUs that the others may lose, do not suffice.

    A queue may lose what it holds above its bound, and the rest of the task with which it reaches
    that bound. It costs a step per queue, whatever the number of nodes.
    """
    missing = view.pool.least_milli(task.job.shape) - view.pool.future.free_milli
    if missing <= 0:
        return False
    projects: dict[Queue, list[Project]] = {}
    for other, project in others:
        projects.setdefault(differing(leaf, other)[1], []).append(project)
    for its, some in projects.items():
        own = next(queue for queue in leaf.path if queue.parent is its.parent)
        bound = its.allocatable[GPU]
        deserves = guaranteed and _deserves(own, plus(own.standing, ask))
        excess = NOTHING
        if deserves:
            deserved = its.deserved[GPU]
            bound = bound if deserved is None else min(bound, deserved)
            excess = _excess(view, its)
        over = max(its.standing[GPU] - bound, excess[GPU])
        if any(excess[i] or _over(its, i, deserves=deserves) for i in (CPU, MEMORY)):
            over = its.standing[GPU]
        missing -= min(its.standing[GPU], over) if over > 0 else 0
        if missing <= 0:
            # The frequent case: what is above the bound suffices without the rest of a task.
            return False
        if over > 0:
            largest = max(_largest_task(view, project) for project in some)
            missing -= min(its.standing[GPU], over - 1 + largest) - min(its.standing[GPU], over)
    return missing > 0


def _over(its: Queue, resource: int, *, deserves: bool) -> bool:
    """Whether a queue holds more of a resource than its share, or than it deserves."""
    held, deserved = its.standing[resource], its.deserved[resource]
    return is_over_share(its, its.standing, resource) or (
        deserves and deserved is not None and held > deserved
    )


def _excess(view: PoolView, its: Queue, taken: Amounts = NOTHING) -> Amounts:
    """Return what a project, without `taken`, has beyond what it deserves in all its pools.

    A department has no sum over pools.
    """
    project = view.state.projects.get(its.name) if its.is_project else None
    return NOTHING if project is None else excess_over_sum(view, project, taken)


def _largest_task(view: PoolView, project: Project) -> int:
    """The most gpu_milli that one task of a project holds."""
    key = ("largest", project)
    found: int | None = view.memo.get(key)
    if found is None:
        usage = view.pool.usage_by_project.get(project)
        jobs = usage.jobs if usage is not None else ()
        found = view.memo[key] = max((view.pool.most_milli(job.shape) for job in jobs), default=0)
    return found


def stays_within_share(view: PoolView, task: Task) -> bool:
    """Whether the task's project would stay within its share."""
    index_of(view).divide(view.state)
    leaf = project_queue(view, task)
    after, fair = plus(leaf.standing, requested(view.pool, task.job.shape)), leaf.fair
    return after[0] <= fair[0] and after[1] <= fair[1] and after[2] <= fair[2]


def _reclaim_s(view: PoolView, leaf: Queue, other: Queue) -> int:
    if view.options.min_runtime_of == "queue":
        return queue_min_runtime_s(other, reclaim=True)
    return queue_min_runtime_s(differing(leaf, other)[1], reclaim=True)


def _may_lose(
    view: PoolView, leaf: Queue, ask: Amounts, *, guaranteed: bool
) -> Iterator[tuple[Queue, Project]]:
    """Yield the other projects of which tasks may be reclaimed at all, compared at the first
    ancestors that differ, or because the project has more than it deserves in all its pools.

    `guaranteed`: the task's project stays within what it deserves in all its pools. It costs a step
    per sibling of a queue of the path.
    """
    victims, projects = index_of(view).victims, view.state.projects
    for own in leaf.path:
        deserves = guaranteed and _deserves(own, plus(own.standing, ask))
        assert own.parent is not None
        for its in own.parent.children:
            if its is own or not _loses(view, its, ask, deserves=deserves):
                continue
            for other in its.leaves():
                project = projects.get(other.name) if other.is_project else None
                if project is not None and any(
                    next(some.in_order(), None) is not None
                    for some in victims.get(project, {}).values()
                ):
                    yield other, project


def _loses(view: PoolView, its: Queue, ask: Amounts, *, deserves: bool) -> bool:
    """Whether a queue may lose tasks to a sibling of which that is true."""
    standing = its.standing
    if not deserves:
        return any(is_over_share(its, standing, i) for i in RESOURCES)
    over, below = False, False
    for i in RESOURCES:
        deserved = its.deserved[i]
        if ask[i] and deserved is not None:
            over |= standing[i] > deserved
            below |= standing[i] < deserved
    return over or not below or any(_excess(view, its))


def _deserves(queue: Queue, amounts: Amounts) -> bool:
    return all(
        bound is None or amount <= bound
        for amount, bound in zip(amounts, queue.deserved, strict=True)
    )


def may_reclaim(view: PoolView, task: Task, victims: Sequence[Task]) -> bool:
    """Whether the victims may be reclaimed together.

    Each one must leave a queue that, with those before it gone, still holds more than its share; or
    more than it deserves, in the pool or as a project in all its pools, if the task stays within
    what its own queue deserves. And the task's queues must not become fuller, in proportion to
    their shares, than those that lose tasks.
    """
    index = index_of(view)
    leaf, ask = project_queue(view, task), requested(view.pool, task.job.shape)
    guaranteed = stays_within_sum(view, task.job.project, ask)
    taken: dict[Queue, Amounts] = {}
    touched: dict[Queue, Queue] = {}
    involved = [bool(amount) for amount in ask]
    for victim in victims:
        other = index.queue_of(view.state, victim.job.project)
        own, its = differing(leaf, other)
        touched[its] = own
        remaining = minus(its.standing, taken.get(its, NOTHING))
        deserves = guaranteed and _deserves(own, plus(own.standing, ask))
        if not (
            any(is_over_share(its, remaining, i) for i in RESOURCES)
            or (deserves and not _deserves(its, remaining))
            or (deserves and any(_excess(view, its, taken.get(its, NOTHING))))
        ):
            return False
        amounts = held(view.pool, victim)
        involved = [a or bool(b) for a, b in zip(involved, amounts, strict=True)]
        for queue in other.path:
            taken[queue] = plus(taken.get(queue, NOTHING), amounts)
    return not any(
        _saturates(view, own, its, ask, taken, i)
        for its, own in touched.items()
        for i in RESOURCES
        if involved[i]
    )


def _saturates(
    view: PoolView, own: Queue, its: Queue, ask: Amounts, taken: dict[Queue, Amounts], i: int
) -> bool:
    """Whether a queue would be above its share, and fuller than one that loses tasks to it."""
    if not own.fair[i] or not its.fair[i]:
        return False
    after = own.standing[i] - taken.get(own, NOTHING)[i] + ask[i]
    left = its.standing[i] - taken.get(its, NOTHING)[i]
    if after <= own.fair[i]:
        return False
    # after / fair * saturation >= left / its fair
    saturation = view.options.saturation_permille
    return bool(after * saturation * its.fair[i] >= left * own.fair[i] * 1000)


def reclaim_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is reclaimed for `task`, at the level that decided."""
    own, its = differing(project_queue(view, task), project_queue(view, victim))
    excess = _excess(view, its)
    resource = _deciding(its, excess)
    suffix = SUFFIXES[resource]
    numbers = {
        f"fair_share_{suffix}": its.fair[resource],
        f"used_{suffix}": its.standing[resource],
        f"for_fair_share_{suffix}": own.fair[resource],
        f"for_used_{suffix}": own.standing[resource],
    }
    for name, queue in (("deserved", its), ("for_deserved", own)):
        deserved = queue.deserved[resource]
        if deserved is not None:
            numbers[f"{name}_{suffix}"] = deserved
    if excess[resource]:
        sums = sum_over_pools(view, victim.job.project)
        assert sums is not None, "an excess over no sum"
        numbers |= sums.numbers(resource, sums.standing)
    over = is_over_share(its, its.standing, resource)
    return StopReason(
        rule="over_fair_share" if over else "over_deserved",
        for_task=task.id,
        numbers=numbers,
        about=its.name,
    )


def _deciding(queue: Queue, excess: Amounts) -> int:
    """The first resource of which a queue holds more than its share, else than it deserves in the
    pool, else in all its pools.
    """
    for i in RESOURCES:
        if is_over_share(queue, queue.standing, i):
            return i
    for i in RESOURCES:
        deserved = queue.deserved[i]
        if deserved is not None and queue.standing[i] > deserved:
            return i
    return next((i for i in RESOURCES if excess[i]), GPU)


RECLAIM: Final = Claim(
    victims=reclaim_victims,
    stop_reason=reclaim_stop_reason,
    permits=may_reclaim,
    applies=stays_within_share,
)
