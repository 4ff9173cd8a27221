"""Reclaim: the victims of a task in other queues that hold more than their share or quota.

The rules and words are those of KAI-Scheduler at d5bc503a (actions/reclaim and
plugins/proportion/reclaimable). The queue of the task's project and that of a victim's project are
compared by their first ancestors that differ, from the top, which are siblings: the reclaimer and
the reclaimee.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from yardmaster_core.scheduling.planner.policy import PoolView, PreemptionAction, StopReason
from yardmaster_core.scheduling.planner.victim_search import kept
from yardmaster_core.scheduling.policies.claiming.amounts import (
    CPU,
    GPU,
    MEMORY,
    NOTHING,
    RESOURCES,
    SUFFIXES,
    Amounts,
    held_by_task,
    minus,
    plus,
    requested,
)
from yardmaster_core.scheduling.policies.min_runtime import unprotected
from yardmaster_core.scheduling.policies.quota.index import index_of, queue_of
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.policies.quota.order import in_victim_order
from yardmaster_core.scheduling.policies.quota.pool_sums import (
    excess_over_sum,
    stays_within_sum,
    sum_over_pools,
)
from yardmaster_core.scheduling.policies.quota.price import by_price
from yardmaster_core.scheduling.policies.quota.protections import (
    delayed_until_ms,
    queue_min_runtime_s,
)
from yardmaster_core.scheduling.policies.quota.queues import Queue, differing, is_over_share
from yardmaster_core.scheduling.policies.quota.turns import could_reclaim, could_regain_deserved
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Reservation, Task


def reclaim_victims(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the tasks that `task` may reclaim slots from, if its project stays within its share.
    Each is the next task of the queue that would come last.
    """
    # rule: protections: delay of reclaim
    if delayed_until_ms(view, task) or not stays_within_share(view, task):
        return
    index = index_of(view)
    project_queue, request = queue_of(view, task), requested(view.pool, task.job.shape)
    guaranteed = stays_within_sum(view, task.job.project, request)
    victims = list(reclaimable_projects(view, project_queue, request, guaranteed=guaranteed))
    view.memo["others_above", task] = len(victims)
    if cannot_suffice(view, project_queue, task, request, victims, guaranteed=guaranteed):
        return
    if no_node_suffices(view, project_queue, task, request, victims, guaranteed=guaranteed):
        return
    owners = reserved_owners(view)
    tasks_by_queue = (
        (
            queue,
            chain(
                owners.get(project, ()),
                by_price(
                    view,
                    task,
                    unprotected(
                        view,
                        task,
                        index.running(view, project),
                        _protected_s(view, project_queue, queue),
                    ),
                ),
            ),
        )
        for queue, project in victims
    )
    yield from in_victim_order(view.pool, tasks_by_queue, over_in_all=follows_kai(view))


def reserved_owners(view: PoolView) -> Mapping[Project, Sequence[Task]]:
    """Return, by project, the pending preemptible tasks with reserved slots: those that come last
    in the project first. A task that is moved is not among them.

    Each reservation is reclaimed at most once in a cycle, and none that a cycle made after its
    first reclaim: so tasks do not take slots from each other within a cycle without end.
    """
    pool, memo = view.pool, view.memo
    first: list[tuple[Task, Reservation]] | None = memo.get("reservations")
    if first is None:
        first = memo["reservations"] = [
            (task, task.reserved)
            for task in pool.reserved
            if task.reserved is not None and task.run is None and task.job.shape.preemptible
        ]
        first.sort(key=lambda each: (each[0].job.priority, each[0].key), reverse=True)
    changes = pool.future.changes
    known: tuple[int, dict[Project, list[Task]]] | None = memo.get("reserved_owners")
    if known is None or known[0] != changes:
        owners: dict[Project, list[Task]] = {}
        for task, reservation in first:
            if task.reserved is reservation:
                owners.setdefault(task.job.project, []).append(task)
        known = memo["reserved_owners"] = changes, owners
    return known[1]


def cannot_suffice(
    view: PoolView,
    project_queue: Queue,
    task: Task,
    request: Amounts,
    victims: Sequence[tuple[Queue, Project]],
    *,
    guaranteed: bool,
) -> bool:
    """Whether the free GPUs, and the most that the projects in `victims` may lose, are fewer than
    `task` requests.

    A queue may lose what it holds above its bound, and the rest of the task with which it reaches
    that bound. The check costs a step per queue, whatever the number of nodes.
    """
    missing = view.pool.least_milli(task.job.shape) - view.pool.future.free_milli
    if missing <= 0:
        return False
    projects: dict[Queue, list[Project]] = {}
    for queue, project in victims:
        projects.setdefault(differing(project_queue, queue)[1], []).append(project)
    for reclaimee, below in projects.items():
        reclaimer = next(q for q in project_queue.path if q.parent is reclaimee.parent)
        allocated, bound = reclaimee.allocated[GPU], reclaimee.allocatable[GPU]
        within_deserved = guaranteed and _is_within_deserved(
            reclaimer, plus(reclaimer.allocated, request)
        )
        excess = NOTHING
        if within_deserved:
            deserved = reclaimee.deserved[GPU]
            bound = bound if deserved is None else min(bound, deserved)
            excess = excess_over_sum(view, reclaimee)
        over = max(allocated - bound, excess[GPU])
        if any(
            excess[i] or exceeds(reclaimee, i, within_deserved=within_deserved)
            for i in (CPU, MEMORY)
        ):
            over = allocated
        missing -= min(allocated, over) if over > 0 else 0
        if missing <= 0:
            # The frequent case: what is above the bound suffices without the rest of a task.
            return False
        if over > 0:
            largest = max(_largest_task(view, project) for project in below)
            missing -= min(allocated, over - 1 + largest) - min(allocated, over)
    return missing > 0


def no_node_suffices(
    view: PoolView,
    project_queue: Queue,
    task: Task,
    request: Amounts,
    victims: Sequence[tuple[Queue, Project]],
    *,
    guaranteed: bool,
) -> bool:
    """Whether no node could hold a task of one replica without the tasks that may be reclaimed, and
    those that may be moved to the free GPUs of other nodes.

    The check costs a step per queue, and one per node that changed since the last one.
    """
    shape = task.job.shape
    if shape.replicas > 1 or shape.whole_nodes or not view.pool.least_milli(shape):
        return False
    losing: dict[Queue, bool] = {}
    projects: list[Project] = []
    for queue, project in victims:
        reclaimer, reclaimee = differing(project_queue, queue)
        loses = losing.get(reclaimee)
        if loses is None:
            within_deserved = guaranteed and _is_within_deserved(
                reclaimer, plus(reclaimer.allocated, request)
            )
            loses = losing[reclaimee] = _holds_enough(
                view, reclaimee, NOTHING, within_deserved=within_deserved
            )
        if loses:
            projects.append(project)
    most = index_of(view).node_bounds.most_on_one_node(frozenset(projects))
    return most + most_reserved_on_one_node(view) < view.pool.least_milli(shape)


def most_reserved_on_one_node(view: PoolView) -> int:
    """Return the most gpu_milli of one node that are reserved for `reserved_owners`."""
    key, changes = "most_reserved", view.pool.future.changes
    known: tuple[int, int] | None = view.memo.get(key)
    if known is None or known[0] != changes:
        by_node: Counter[str] = Counter()
        owners = chain.from_iterable(reserved_owners(view).values())
        for placement in chain.from_iterable(map(kept, owners)):
            by_node[placement.node] += placement.gpu_milli * len(placement.slots)
        known = view.memo[key] = changes, max(by_node.values(), default=0)
    return known[1]


def exceeds(reclaimee: Queue, resource: int, *, within_deserved: bool) -> bool:
    """Whether a queue holds more of a resource than its share; or, for a reclaimer that is
    `within_deserved`, than it deserves.
    """
    allocated, deserved = reclaimee.allocated[resource], reclaimee.deserved[resource]
    return is_over_share(reclaimee, reclaimee.allocated, resource) or (
        within_deserved and deserved is not None and allocated > deserved
    )


def _largest_task(view: PoolView, project: Project) -> int:
    """Return the most gpu_milli that one task of a project holds."""
    key = ("largest", project)
    largest: int | None = view.memo.get(key)
    if largest is None:
        usage = view.pool.held_by_project.get(project)
        owners = reserved_owners(view).get(project, ())
        jobs = chain(usage.jobs if usage is not None else (), (owner.job for owner in owners))
        largest = max((view.pool.most_milli(job.shape) for job in jobs), default=0)
        view.memo[key] = largest
    return largest


def stays_within_share(view: PoolView, task: Task) -> bool:
    """Whether the project of `task` stays within its share when the task starts."""
    index_of(view).divide(view.state)
    project_queue = queue_of(view, task)
    after = plus(project_queue.allocated, requested(view.pool, task.job.shape))
    fair = project_queue.fair
    # rule: reclaim: pre-check
    # rule: reclaim: pre-check of each resource
    return after[0] <= fair[0] and after[1] <= fair[1] and after[2] <= fair[2]


def _protected_s(view: PoolView, project_queue: Queue, victim_queue: Queue) -> int:
    """Return the minimum run time (s) of the tasks in `victim_queue` against reclaim."""
    # rule: protections: queue
    if view.options.min_runtime_of == "queue":
        return queue_min_runtime_s(victim_queue, reclaim=True)
    reclaimee = differing(project_queue, victim_queue)[1]
    # rule: protections: lca
    return queue_min_runtime_s(reclaimee, reclaim=True)


def reclaimable_projects(
    view: PoolView, project_queue: Queue, request: Amounts, *, guaranteed: bool
) -> Iterator[tuple[Queue, Project]]:
    """Yield the other projects that have preemptible tasks that run or have reserved slots and from
    which some may be reclaimed, each with its queue.

    Two projects are compared by their first ancestors that differ, from the top: the reclaimer and
    the reclaimee. The comparison costs a step per project with preemptible tasks.

    Args:
        view: the pool.
        project_queue: the queue of the task's project.
        request: the amounts that the task requests.
        guaranteed: whether the task's project stays within what it deserves in all its pools.
    """
    index, state = index_of(view), view.state
    reclaimable: dict[Queue, bool] = {}
    owners = reserved_owners(view)
    for project in (*index.victims, *(owner for owner in owners if owner not in index.victims)):
        queue = index.queue_of(state, project)
        if queue is project_queue:
            continue
        reclaimer, reclaimee = differing(project_queue, queue)
        known = reclaimable.get(reclaimee)
        if known is None:
            within_deserved = guaranteed and _is_within_deserved(
                reclaimer, plus(reclaimer.allocated, request)
            )
            known = reclaimable[reclaimee] = is_reclaimable_from(
                view, reclaimee, request, within_deserved=within_deserved
            )
        by_priority = index.victims.get(project, {})
        if known and (
            project in owners
            or any(next(tasks.in_order(), None) is not None for tasks in by_priority.values())
        ):
            yield queue, project


def is_reclaimable_from(
    view: PoolView, reclaimee: Queue, request: Amounts, *, within_deserved: bool
) -> bool:
    """Whether a queue may lose tasks to a sibling; `within_deserved` says whether the sibling
    deserves what it will hold with the task.
    """
    allocated = reclaimee.allocated
    if not within_deserved:
        return any(is_over_share(reclaimee, allocated, i) for i in RESOURCES)
    over, below = False, False
    for i in RESOURCES:
        deserved = reclaimee.deserved[i]
        if request[i] and deserved is not None:
            over |= allocated[i] > deserved
            below |= allocated[i] < deserved
    # rule: reclaim: victims by what is requested
    return over or not below or any(excess_over_sum(view, reclaimee))


def _is_within_deserved(queue: Queue, amounts: Amounts) -> bool:
    """Whether a queue deserves these amounts."""
    return all(
        bound is None or amount <= bound
        for amount, bound in zip(amounts, queue.deserved, strict=True)
    )


class ReclaimedVictims:
    """Victims that may be reclaimed together: a `VictimSelection`.

    Each victim must leave a queue that, without the victims before it, still holds more than its
    share. If the reclaimer deserves what it will hold with the task, the queue must only hold more
    than it deserves: in the pool, or as a project in all its pools. Otherwise the victim must hold
    some of what its queue holds above that, and the queue must keep what it deserves, or have no
    task that it could reclaim slots for afterwards; in both cases also after an exchange of tasks
    in its projects. And the reclaimer must not become fuller, in proportion to its share, than a
    queue that loses tasks.
    """

    def __init__(self, view: PoolView, task: Task) -> None:
        self._view = view
        self._queue = queue_of(view, task)
        self._request = requested(view.pool, task.job.shape)
        self._guaranteed = stays_within_sum(view, task.job.project, self._request)
        self._taken: dict[Queue, Amounts] = {}
        #: By queue that loses tasks, the reclaimer that it is compared with.
        self._reclaimers: dict[Queue, Queue] = {}
        #: The victims of queues from which the reclaimer takes as much as its share only.
        self._by_share: dict[Queue, list[Task]] = {}
        self._involved = [bool(amount) for amount in self._request]

    def add(self, victim: Task) -> bool:
        """Add a victim unless its queue may not lose it, or too much with it."""
        involved, path = self._involved, self._path(victim)
        before = [(queue, self._taken.get(queue)) for queue in path]
        if not self.take(victim):
            return False
        reclaimee = differing(self._queue, path[-1])[1]
        if self._may_lose(reclaimee):
            return True
        self._involved = involved
        for queue, amounts in before:
            if amounts is None:
                del self._taken[queue]
            else:
                self._taken[queue] = amounts
        lost = self._by_share.get(reclaimee)
        if lost:
            lost.pop()
        return False

    def take(self, victim: Task) -> bool:
        """Take a victim if its queue, without those before it, holds enough; return whether it
        does.
        """
        path = self._path(victim)
        reclaimer, reclaimee = differing(self._queue, path[-1])
        taken_before = self._taken.get(reclaimee, NOTHING)
        within_deserved = self._guaranteed and _is_within_deserved(
            reclaimer, plus(reclaimer.allocated, self._request)
        )
        if not _holds_enough(self._view, reclaimee, taken_before, within_deserved=within_deserved):
            # rule: reclaim: each chunk must be above the share or what is deserved
            return False
        amounts = held_by_task(self._view.pool, victim)
        if not within_deserved:
            if not _holds_undeserved(reclaimee, taken_before, amounts):
                return False
            self._by_share.setdefault(reclaimee, []).append(victim)
        self._reclaimers[reclaimee] = reclaimer
        self._involved = [a or bool(b) for a, b in zip(self._involved, amounts, strict=True)]
        for queue in path:
            # rule: reclaim: each chunk reduces what is left
            self._taken[queue] = plus(self._taken.get(queue, NOTHING), amounts)
        return True

    def permitted(self) -> bool:
        """Whether the victims taken may be reclaimed together."""
        return all(self._may_lose(reclaimee) for reclaimee in self._reclaimers) and not any(
            could_regain_deserved(self._view, reclaimee, lost, self._taken)
            for reclaimee, lost in self._by_share.items()
            if lost
        )

    def _path(self, victim: Task) -> tuple[Queue, ...]:
        return index_of(self._view).queue_of(self._view.state, victim.job.project).path

    def _may_lose(self, reclaimee: Queue) -> bool:
        """Whether a queue may lose all that is taken from it."""
        taken = self._taken
        lost = self._by_share.get(reclaimee)
        # rule: reclaim: a share takes nothing that is deserved
        if (
            lost
            and _loses_deserved(reclaimee, taken[reclaimee])
            and could_reclaim(self._view, lost, taken)
        ):
            return False
        reclaimer = self._reclaimers[reclaimee]
        # rule: reclaim: saturation guard
        return not any(
            _becomes_fuller(self._view, reclaimer, reclaimee, self._request, taken, i)
            for i in RESOURCES
            if self._involved[i]
        )


def may_reclaim(view: PoolView, task: Task, victims: Sequence[Task]) -> bool:
    """Whether the victims may be reclaimed together (`ReclaimedVictims`)."""
    together = ReclaimedVictims(view, task)
    return all(together.take(victim) for victim in victims) and together.permitted()


def _holds_enough(
    view: PoolView, reclaimee: Queue, taken: Amounts, *, within_deserved: bool
) -> bool:
    """Whether a queue without `taken` may lose one more task; `within_deserved` says whether the
    reclaimer deserves what it will hold with the task.
    """
    remaining = minus(reclaimee.allocated, taken)
    return (
        # rule: reclaim: above its share
        any(is_over_share(reclaimee, remaining, i) for i in RESOURCES)
        # rule: reclaim: above what is deserved, for a deserving queue
        # rule: reclaim: only a deserving queue takes from a share
        or (within_deserved and not _is_within_deserved(reclaimee, remaining))
        or (within_deserved and any(excess_over_sum(view, reclaimee, taken)))
    )


def _holds_undeserved(reclaimee: Queue, taken: Amounts, amounts: Amounts) -> bool:
    """Whether a queue, without `taken`, holds more than it deserves of a resource that a task with
    these amounts holds. Else the queue deserves the task, and would reclaim its slots again.
    """
    remaining = minus(reclaimee.allocated, taken)
    return any(
        amount and deserved is not None and left > deserved
        for amount, deserved, left in zip(amounts, reclaimee.deserved, remaining, strict=True)
    )


def may_lose_tasks(view: PoolView, reclaimee: Queue) -> bool:
    """Whether a queue may lose a task to any sibling."""
    return _holds_enough(view, reclaimee, NOTHING, within_deserved=True)


def _loses_deserved(reclaimee: Queue, taken: Amounts) -> bool:
    """Whether a queue holds more of a resource than it deserves, and less without `taken`."""
    allocated = reclaimee.allocated
    return any(
        deserved is not None and allocated[i] > deserved > allocated[i] - taken[i]
        for i, deserved in enumerate(reclaimee.deserved)
    )


def _becomes_fuller(
    view: PoolView,
    reclaimer: Queue,
    reclaimee: Queue,
    request: Amounts,
    taken: dict[Queue, Amounts],
    resource: int,
) -> bool:
    """Whether the reclaimer would be above its share of a resource, and fuller than the reclaimee.

    A queue without a share of the resource is not compared.
    """
    fair, reclaimee_fair = reclaimer.fair[resource], reclaimee.fair[resource]
    # rule: reclaim: saturation without a share
    if not fair or not reclaimee_fair:
        return False
    after = (
        reclaimer.allocated[resource] - taken.get(reclaimer, NOTHING)[resource] + request[resource]
    )
    remaining = reclaimee.allocated[resource] - taken.get(reclaimee, NOTHING)[resource]
    # rule: reclaim: saturation below the share
    if after <= fair:
        return False
    # after / fair * saturation >= remaining / reclaimee_fair
    # rule: reclaim: saturation_permille
    saturation = view.options.saturation_permille
    return bool(after * saturation * reclaimee_fair >= remaining * fair * 1000)


def reclaim_stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is reclaimed for `task`, with the numbers of the first resource that
    decides between reclaimer and reclaimee.
    """
    reclaimer, reclaimee = differing(queue_of(view, task), queue_of(view, victim))
    excess = excess_over_sum(view, reclaimee)
    resource = _deciding_resource(reclaimee, excess)
    suffix = SUFFIXES[resource]
    numbers = {
        f"fair_share_{suffix}": reclaimee.fair[resource],
        f"used_{suffix}": reclaimee.allocated[resource],
        f"for_fair_share_{suffix}": reclaimer.fair[resource],
        f"for_used_{suffix}": reclaimer.allocated[resource],
    }
    for name, queue in (("deserved", reclaimee), ("for_deserved", reclaimer)):
        deserved = queue.deserved[resource]
        if deserved is not None:
            numbers[f"{name}_{suffix}"] = deserved
    if excess[resource]:
        sums = sum_over_pools(view, victim.job.project)
        assert sums is not None, "an excess over no sum"
        numbers |= sums.numbers(resource, sums.allocated)
    over = is_over_share(reclaimee, reclaimee.allocated, resource)
    return StopReason(
        rule="over_fair_share" if over else "over_deserved",
        for_task=task.id,
        numbers=numbers,
        about=reclaimee.name,
    )


def _deciding_resource(reclaimee: Queue, excess: Amounts) -> int:
    """Return the first resource that the queue holds above its share; else above what it deserves
    in the pool; else above what it deserves in all its pools (`excess`).
    """
    for i in RESOURCES:
        if is_over_share(reclaimee, reclaimee.allocated, i):
            return i
    for i in RESOURCES:
        deserved = reclaimee.deserved[i]
        if deserved is not None and reclaimee.allocated[i] > deserved:
            return i
    return next((i for i in RESOURCES if excess[i]), GPU)


RECLAIM: Final = PreemptionAction(
    victims=reclaim_victims,
    stop_reason=reclaim_stop_reason,
    permits=may_reclaim,
    selection=ReclaimedVictims,
    applies=stays_within_share,
)
