"""The groups that did not fit, or wait for a limit, and may start or preempt others now."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from typing import Final

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.planner.group_queue import NO_CAPACITY, code_of, id_order
from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import RESOURCES, UNLIMITED
from yardmaster_core.scheduling.policies.quota.blocked_order import Placed, Request
from yardmaster_core.scheduling.policies.quota.consolidation import enough_to_move
from yardmaster_core.scheduling.policies.quota.index import index_of, mark
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.policies.quota.order import place_among_siblings
from yardmaster_core.scheduling.policies.quota.preempt import has_own_victims
from yardmaster_core.scheduling.policies.quota.project_order import order_in_project
from yardmaster_core.scheduling.policies.quota.protections import delayed_until_ms
from yardmaster_core.scheduling.policies.quota.queue_heap import QueueKey
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.policies.quota.reclaim import stays_within_share
from yardmaster_core.scheduling.policies.quota.start import share_decides_now, wait_for_quota
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Group
from yardmaster_schemas.reasons import WaitCode

#: Wait codes of tasks that may find victims although no slots were released.
CLAIMING: Final = frozenset({*NO_CAPACITY, WaitCode.VICTIMS_PROTECTED})


def claimants(view: PoolView) -> Iterable[Group]:
    """Return the groups that did not fit and may claim more than before, or wait for another reason
    than the recorded one.

    All groups whose project stays within its share may: what they may reclaim depends on what
    others have, also in other pools.
    """
    index = index_of(view)
    _check(view, index.take_unchecked(view.state))
    actions = view.options.claiming
    found: dict[Group, None] = {}
    if "preempt" in actions:
        found.update(dict.fromkeys(_preempting(view)))
    if "consolidation" in actions:
        found.update(dict.fromkeys(_moving(view)))
    if "reclaim" in actions:
        found.update(dict.fromkeys(_reclaiming(view)))
        found.update(dict.fromkeys(_outdated(view)))
    return found


def _check(view: PoolView, leaves: Iterable[Queue]) -> None:
    """Find which of these leaves are growing, and which have outdated reasons."""
    index, preempts = index_of(view), "preempt" in view.options.claiming
    for leaf in leaves:
        standing, fair = leaf.standing, leaf.fair
        has_room = preempts and any(standing[i] < fair[i] for i in RESOURCES)
        mark(index.growing, leaf, has_room and any(_preempts_own(view, g) for g in leaf.blocked))
        mark(index.outdated, leaf, any(_is_outdated(view, group) for group in leaf.blocked))


def _claims_for(view: PoolView, group: Group) -> bool:
    """Whether any claim could help a group that did not fit."""
    if not group.queue.live or code_of(group, view.pool) not in CLAIMING:
        return False
    return not group.shape.start_failed and could_fit(view.pool, group.shape)


def _preempts_own(view: PoolView, group: Group) -> bool:
    return _claims_for(view, group) and has_own_victims(view, group.queue.first)


def _is_outdated(view: PoolView, group: Group) -> bool:
    return _claims_for(view, group) and share_decides_now(
        view, group.queue.first, group.waits[view.pool.name][0]
    )


def _preempting(view: PoolView) -> Iterator[Group]:
    """Yield the groups that may preempt tasks of their project: because the project changed, or
    could hold more within its share, or on nodes that changed.
    """
    index, pool = index_of(view), view.pool
    for leaf in (*index.changed_queues(view.state), *index.growing):
        yield from (group for group in leaf.blocked if _preempts_own(view, group))
    for ordinal in index.changed_nodes:
        node, capacity = pool.nodes.get(ordinal), pool.future.capacities.get(ordinal)
        if node is None or capacity is None:
            continue
        for project, milli in _held_on(node).items():
            leaf = index.queue_of(view.state, project)
            for group in leaf.blocked:
                shape = group.shape
                if shape.replicas > 1 or shape.whole_nodes:
                    most = leaf.held[0] + pool.future.free_milli
                else:
                    most = capacity.gpu_milli + milli
                if pool.least_milli(shape) <= most and _preempts_own(view, group):
                    yield group


def _held_on(node: Node) -> dict[Project, int]:
    """Return the gpu_milli that preemptible tasks of each project hold on a node."""
    held: dict[Project, int] = {}
    for (_, replica), task in node.open.items():
        run = task.run
        if run is not None and run.stop is None and task.job.spec.preemptible:
            placement = run.placements[replica]
            milli = placement.gpu_milli * len(placement.slots)
            held[task.job.project] = held.get(task.job.project, 0) + milli
    return held


def _reclaiming(view: PoolView) -> Iterator[Group]:
    """Yield the groups whose project stays within its share."""
    for leaf in index_of(view).below_share:
        for group in leaf.blocked:
            if _claims_for(view, group) and stays_within_share(view, group.queue.first):
                yield group


def _moving(view: PoolView) -> Iterator[Group]:
    """Yield the first group of each request for which others may be moved, if nodes or the order of
    victims changed: the result is the same for all of them.
    """
    index = index_of(view)
    if not index.changed_nodes and not index.reconfigured:
        return
    for request, groups in list(index.by_request.items()):
        passed: set[Group] = set()
        example = next(iter(groups))
        if example.shape.start_failed or not example.queue.live:
            continue
        if not enough_to_move(view, example.shape):
            continue
        while (group := _first_of(view, frozenset((request,)), passed)) is not None:
            if _claims_for(view, group) and _may_claim(view, group):
                yield group
                break
            passed.add(group)


def _may_claim(view: PoolView, group: Group) -> bool:
    task = group.queue.first
    return (
        limit_reached(view.state, view.pool, task) is None
        and wait_for_quota(view, group, task) is None
        and not delayed_until_ms(view, task)
    )


def _outdated(view: PoolView) -> Iterator[Group]:
    """Yield the groups that wait for another reason than the recorded one."""
    for leaf in index_of(view).outdated:
        yield from (group for group in leaf.blocked if _is_outdated(view, group))


class _Blocked:
    """`BlockedGroups` of a cycle."""

    def __init__(self, view: PoolView) -> None:
        self._view = view
        self._placed = index_of(view).placed
        self._all_over = follows_kai(view)
        self._within = order_in_project(view)

    def groups_of(self, leaf: Queue) -> list[Placed]:
        found = self._placed.get(leaf)
        if found is None:
            found = self._placed[leaf] = sorted(
                (
                    self._within(self._view, group),
                    (first := group.first).key,
                    id_order(first),
                    group,
                )
                for group in leaf.blocked
            )
        return found

    def key(self, queue: Queue, group: Group) -> QueueKey:
        # Not its first task: it may have none any more, until its leaf is refreshed.
        return place_among_siblings(self._view, queue, group.shape, all_over=self._all_over)


def _first_of(view: PoolView, requests: frozenset[Request], passed: Set[Group]) -> Group | None:
    source: _Blocked | None = view.memo.get("blocked")
    if source is None:
        source = view.memo["blocked"] = _Blocked(view)
    return index_of(view).first_blocked(view.state, requests, source, passed)


def offer(view: PoolView, fits: Callable[[Group], bool], passed: Set[Group]) -> Group | None:
    """Return the first group that did not fit and would now."""
    index, pool = index_of(view), view.pool
    index.root(view.state)
    now = (pool.free.changes, pool.future.changes, bool(pool.stopping), index.request_changes)
    known: tuple[Hashable, frozenset[Request]] | None = view.memo.get("fitting")
    if known is None or known[0] != now:
        requests = (
            request for request, groups in index.by_request.items() if fits(next(iter(groups)))
        )
        known = view.memo["fitting"] = now, frozenset(requests)
    return _first_of(view, known[1], passed) if known[1] else None


def under_limits(view: PoolView, projects: Iterable[Project]) -> Iterator[Group]:
    """Yield the groups that did not fit of these projects, and of all others in a department with a
    limit above one of them.
    """
    index = index_of(view)
    tops: dict[Queue, None] = {}
    for project in projects:
        leaf = index.queue_of(view.state, project)
        bounded = (queue for queue in leaf.path if queue.limit != UNLIMITED)
        tops[next(bounded, leaf)] = None
    for top in tops:
        for leaf in top.leaves():
            for group in list(leaf.blocked):
                if group.queue.live:
                    yield group
