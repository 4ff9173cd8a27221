"""The groups to consider again: they may start or preempt others now, or wait for another reason.

Groups that did not fit are found from what changed since the last cycle (`groups_to_wake`), from
the capacity that was released (`offer`), from slots reserved for tasks behind them
(`ahead_of_owners`) and from limits that are no longer reached (`under_limits`). The state wakes all
other groups.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final

from yardmaster_core.scheduling.planner.feasibility import could_fit, could_fit_after_stops
from yardmaster_core.scheduling.planner.group_queue import code_of, id_order
from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.policy import OrderKey, PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    RESOURCES,
    UNLIMITED,
    Bounds,
    first_exceeded,
    least_requested,
    minus,
)
from yardmaster_core.scheduling.policies.min_runtime import groups_behind, no_longer_ahead
from yardmaster_core.scheduling.policies.quota.blocked_order import Placed, Request, request_of
from yardmaster_core.scheduling.policies.quota.consolidation import (
    enough_to_move,
    must_leave_moves,
    reclaims_after_moves,
    waiting_within_share,
)
from yardmaster_core.scheduling.policies.quota.index import index_of, set_member
from yardmaster_core.scheduling.policies.quota.oldest import unreported_oldest
from yardmaster_core.scheduling.policies.quota.options import follows_kai
from yardmaster_core.scheduling.policies.quota.order import place_among_siblings
from yardmaster_core.scheduling.policies.quota.preempt import has_own_victims
from yardmaster_core.scheduling.policies.quota.project_order import order_in_project
from yardmaster_core.scheduling.policies.quota.protections import delayed_until_ms
from yardmaster_core.scheduling.policies.quota.queue_heap import QueueKey
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.policies.quota.reclaim import stays_within_share
from yardmaster_core.scheduling.policies.quota.refused_claims import RefusedClaims
from yardmaster_core.scheduling.policies.quota.start import (
    share_decides_now,
    wait_for_quota,
)
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import NO_CAPACITY
from yardmaster_schemas.reasons import Wait, WaitCode

#: The wait codes of tasks that may find victims although no slots were released.
CLAIMING: Final = frozenset({*NO_CAPACITY, WaitCode.VICTIMS_PROTECTED})


def groups_to_wake(view: PoolView) -> Iterable[Group]:
    """Return the groups that did not fit and may find victims now, or wait for another reason than
    the recorded one.

    Each group whose project stays within its share is among them, unless no set of victims could
    suffice: the tasks that it may reclaim slots from depend on what other projects hold, also in
    other pools. If nothing changed since the last cycle, each of them was considered in that cycle.
    """
    index = index_of(view)
    if not view.pool.awake and not index.anything_changed(view.state):
        return ()
    _check(view, index.take_unchecked(view.state))
    actions = view.options.claiming
    groups: dict[Group, None] = {}
    if "preempt" in actions:
        groups.update(dict.fromkeys(_that_preempt(view)))
        groups.update(dict.fromkeys(_that_preempt_at_limit(view)))
        groups.update(dict.fromkeys(_that_limits_let_start_after_stops(view)))
    if "consolidation" in actions:
        groups.update(dict.fromkeys(_that_move_others(view)))
    if "reclaim" in actions:
        groups.update(dict.fromkeys(_that_reclaim(view)))
        groups.update(dict.fromkeys(_with_stale_reason(view)))
    groups.update(dict.fromkeys(_that_may_pass(view, (*view.pool.awake, *groups))))
    groups.update(dict.fromkeys(_that_keep_others_in_vain(view)))
    return groups


def _that_may_pass(view: PoolView, considered: Iterable[Group]) -> Iterator[Group]:
    """Yield the groups behind another task that now may pass it, or wait for another reason; the
    groups that others wait behind although their reason does not say so, or is out of date; and of
    each project the first group behind a task of another one that is considered in this cycle:
    later ones must not pass it before that task had its turns.
    """
    waits: dict[Group, Wait] = {}
    for group in groups_behind(view):
        if not group.queue.live:
            continue
        wait = wait_for_quota(view, group, group.queue.first)
        if wait is None or wait.code is not WaitCode.BEHIND_TASK:
            yield group
        else:
            waits[group] = wait
    if not waits:
        return
    stale = list(
        no_longer_ahead(
            view,
            waits.values(),
            lambda ahead: wait_for_quota(view, ahead, ahead.queue.first),
            partial(_may_ever_preempt, view),
        )
    )
    yield from stale
    firsts: dict[Project, Group] = {}
    considered = chain(considered, stale)
    tasks = {each.queue.first.id: each.queue.first for each in considered if each.queue.live}
    for group, wait in waits.items():
        task = group.queue.first
        if (oldest := unreported_oldest(view, task)) is not None:
            yield oldest
        ahead, project = tasks.get(wait.about or ""), task.job.project
        if ahead is not None and ahead.job.project is not project:
            first = firsts.setdefault(project, group)
            if _place(view, group, task) < _place(view, first, first.queue.first):
                firsts[project] = group
    yield from firsts.values()


def _may_ever_preempt(view: PoolView, group: Group) -> bool:
    """Whether a group may preempt tasks of its project, once they are not protected, or reclaim."""
    actions, task = view.options.claiming, group.queue.first
    return ("preempt" in actions and has_own_victims(view, task)) or (
        "reclaim" in actions and stays_within_share(view, task)
    )


def _that_keep_others_in_vain(view: PoolView) -> Iterator[Group]:
    """Yield the groups that others wait behind until victims may be preempted, and that would not
    fit without any of these victims now: they wait for another reason.
    """
    if next(groups_behind(view), None) is None:
        return
    for group in list(view.pool.protected):
        is_protected = code_of(group, view.pool) is WaitCode.VICTIMS_PROTECTED
        if group.queue.live and is_protected and not could_fit(view.pool, group.shape):
            yield group


def _check(view: PoolView, queues: Iterable[Queue]) -> None:
    """Update which of these leaves are in `may_preempt_own` and `reason_stale` of the index."""
    index, preempts = index_of(view), "preempt" in view.options.claiming
    for project_queue in queues:
        allocated, fair = project_queue.allocated, project_queue.fair
        has_room = preempts and any(allocated[i] < fair[i] for i in RESOURCES)
        # Whether a group could fit depends on nodes too, so it is checked when the sets are read.
        preempts_own = has_room and any(
            _claims(view, group) and has_own_victims(view, group.queue.first)
            for group in project_queue.blocked
        )
        set_member(index.may_preempt_own, project_queue, preempts_own)
        has_stale_reason = any(
            _claims(view, group) and _share_decides(view, group) for group in project_queue.blocked
        )
        set_member(index.reason_stale, project_queue, has_stale_reason)
        _check_owners(view, project_queue)


def _claims(view: PoolView, group: Group) -> bool:
    """Whether a group did not fit, and may preempt or move others."""
    if not group.queue.live or code_of(group, view.pool) not in CLAIMING:
        return False
    return not group.shape.start_failed


def _may_claim(view: PoolView, group: Group) -> bool:
    """Whether a group did not fit, and could fit if others were preempted or moved."""
    return _claims(view, group) and could_fit_after_stops(view.pool, group.shape)


def _preempts_own(view: PoolView, group: Group) -> bool:
    """Whether a group could fit if tasks of its own project were preempted."""
    return _may_claim(view, group) and has_own_victims(view, group.queue.first)


def _has_stale_reason(view: PoolView, group: Group) -> bool:
    """Whether a group that could preempt others waits for another reason than the recorded one."""
    return _may_claim(view, group) and _share_decides(view, group)


def _share_decides(view: PoolView, group: Group) -> bool:
    return share_decides_now(view, group.queue.first, group.waits[view.pool.name][0])


def _that_preempt(view: PoolView) -> Iterator[Group]:
    """Yield the groups that may preempt tasks of their project: if the project changed, or could
    hold more within its share, or has tasks on a node that changed.
    """
    index, pool = index_of(view), view.pool
    for project_queue in (*index.changed_queues(view.state), *index.may_preempt_own):
        yield from (group for group in project_queue.blocked if _preempts_own(view, group))
    for node, capacity_milli in _changed_nodes(view):
        for project, preemptible_milli in _preemptible_milli(node).items():
            project_queue = index.queue_of(view.state, project)
            for group in project_queue.blocked:
                shape = group.shape
                if shape.replicas > 1 or shape.whole_nodes:
                    most = project_queue.held[0] + pool.future.free_milli
                else:
                    most = capacity_milli + preemptible_milli
                if pool.least_milli(shape) <= most and _preempts_own(view, group):
                    yield group


def _that_preempt_at_limit(view: PoolView) -> Iterator[Group]:
    """Yield the groups at a limit that may preempt tasks of their project: if the project changed,
    or has tasks on a node that changed and could hold a replica without them.
    """
    index = index_of(view)
    #: By project, the most gpu_milli that one of its nodes could have; None: any.
    most: dict[Queue, int | None] = dict.fromkeys(index.changed_queues(view.state))
    for node, capacity_milli in _changed_nodes(view):
        for project, preemptible_milli in _preemptible_milli(node).items():
            project_queue = index.queue_of(view.state, project)
            known = most.get(project_queue, 0)
            if known is not None:
                most[project_queue] = max(known, capacity_milli + preemptible_milli)
    for project_queue, milli in most.items():
        for group in project_queue.at_limit:
            shape = group.shape
            if not group.queue.live or shape.start_failed:
                continue
            least = 0 if shape.whole_nodes else view.pool.least_milli(shape) // shape.replicas
            if milli is not None and least > milli:
                continue
            if has_own_victims(view, group.queue.first) and could_fit_after_stops(view.pool, shape):
                yield group


def _that_limits_let_start_after_stops(view: PoolView) -> Iterator[Group]:
    """Yield the groups at a limit that keeps them from starting only until tasks that stop are
    gone: if they then fit, within the share of their project, they get reserved slots.
    """
    index, pool = index_of(view), view.pool
    for project_queue in list(index.at_limit):
        if all(queue.freed_in_time == NOTHING for queue in project_queue.path):
            continue
        left = _left_after_stops(project_queue)
        for group in project_queue.at_limit:
            shape = group.shape
            least = least_requested(pool, shape)
            if first_exceeded(least, left, among=least) is not None:
                continue
            if not group.queue.live or shape.start_failed:
                continue
            task = group.queue.first
            freed = partial(index.freed_in_time_milli, view.state, task.job)
            if (
                could_fit_after_stops(pool, shape)
                and limit_reached(view.state, pool, task, freed=freed) is None
                and wait_for_quota(view, group, task, without=attrgetter("freed_in_time")) is None
            ):
                yield group


def _left_after_stops(project_queue: Queue) -> Bounds:
    """Return what the limits leave to a project once the tasks that stop in time are gone."""
    left = list(UNLIMITED)
    for queue in project_queue.path:
        kept = minus(queue.used, queue.freed_in_time)
        for i, bound in enumerate(queue.limit):
            if bound is not None:
                others = left[i]
                left[i] = bound - kept[i] if others is None else min(others, bound - kept[i])
    gpu, cpu, memory = left
    return gpu, cpu, memory


def _changed_nodes(view: PoolView) -> Iterator[tuple[Node, int]]:
    """Yield the changed nodes that take tasks, each with the gpu_milli that it will have free."""
    pool = view.pool
    for ordinal in index_of(view).changed_nodes:
        node, capacity = pool.nodes.get(ordinal), pool.future.capacities.get(ordinal)
        if node is not None and capacity is not None:
            yield node, capacity.gpu_milli


def _preemptible_milli(node: Node) -> dict[Project, int]:
    """Return the gpu_milli that preemptible tasks of each project hold on a node."""
    held: dict[Project, int] = {}
    for (_, replica), task in node.open.items():
        run = task.run
        if run is not None and run.stop is None and task.job.spec.preemptible:
            placement = run.placements[replica]
            milli = placement.gpu_milli * len(placement.slots)
            held[task.job.project] = held.get(task.job.project, 0) + milli
    return held


def _that_reclaim(view: PoolView) -> Iterator[Group]:
    """Yield the groups whose project stays within its share, without those for which no set of
    victims suffices.
    """
    refused = RefusedClaims(view)
    for project_queue in index_of(view).below_share:
        for group in project_queue.blocked:
            if refused.contains(project_queue, group):
                continue
            if _may_claim(view, group) and stays_within_share(view, group.queue.first):
                yield group


def _that_move_others(view: PoolView) -> Iterator[Group]:
    """Yield the first group of each request for which others may be moved, if nodes or the settings
    of owners changed, or tasks that others must leave the moves to no longer wait. The search has
    the same result for all groups of a request.
    """
    index = index_of(view)
    changed = index.changed_nodes or index.reconfigured
    if not changed and not index.changed_queues(view.state):
        return
    for request, groups in list(index.by_request.items()):
        passed: set[Group] = set()
        example = next(iter(groups))
        if example.shape.start_failed or not example.queue.live:
            continue
        if not enough_to_move(view, example.shape):
            continue
        while (group := _first_of(view, frozenset((request,)), passed)) is not None:
            if _may_claim(view, group) and _nothing_refuses(view, group):
                yield from _that_may_move(view, request, group)
                break
            passed.add(group)


def _that_may_move(view: PoolView, request: Request, group: Group) -> Iterator[Group]:
    """Yield the group, unless it must leave moves to a project that waits within its share; then a
    group of that project with the same request, if no other project does.
    """
    task = group.queue.first
    if (
        not reclaims_after_moves(view.options)
        or stays_within_share(view, task)
        or not must_leave_moves(view, task)
    ):
        yield group
        return
    queues = waiting_within_share(view, group.shape)
    if len(queues) == 1:
        for other in list(queues[0].blocked):
            if request_of(other) != request or not _may_claim(view, other):
                continue
            if _nothing_refuses(view, other):
                yield other
                return


def _nothing_refuses(view: PoolView, group: Group) -> bool:
    """Whether no limit, no quota and no delay keeps the group from having others moved."""
    task = group.queue.first
    return (
        limit_reached(view.state, view.pool, task) is None
        and wait_for_quota(view, group, task) is None
        and not delayed_until_ms(view, task)
    )


def _with_stale_reason(view: PoolView) -> Iterator[Group]:
    """Yield the groups that wait for another reason than the recorded one."""
    for project_queue in index_of(view).reason_stale:
        yield from (group for group in project_queue.blocked if _has_stale_reason(view, group))


class _Blocked:
    """The `BlockedGroups` of one cycle."""

    def __init__(self, view: PoolView) -> None:
        self._view = view
        self._groups_by_place = index_of(view).groups_by_place
        self._over_in_all = follows_kai(view)
        self._within = order_in_project(view)

    def groups_of(self, leaf: Queue) -> list[Placed]:
        groups = self._groups_by_place.get(leaf)
        if groups is None:
            groups = self._groups_by_place[leaf] = sorted(
                (
                    self._within(self._view, group),
                    (first := group.first).key,
                    id_order(first),
                    group,
                )
                for group in leaf.blocked
            )
        return groups

    def key(self, queue: Queue, group: Group) -> QueueKey:
        # By the group's shape, not its first task: until the leaf is refreshed, the group may have
        # no task.
        return place_among_siblings(self._view, queue, group.shape, over_in_all=self._over_in_all)


def _first_of(view: PoolView, requests: frozenset[Request], passed: Set[Group]) -> Group | None:
    """Return the first group in the order of queues that has one of these requests and is not in
    `passed`, or None.
    """
    return index_of(view).first_blocked(view.state, requests, _blocked(view), passed)


def _blocked(view: PoolView) -> _Blocked:
    source: _Blocked | None = view.memo.get("blocked")
    if source is None:
        source = view.memo["blocked"] = _Blocked(view)
    return source


def offer(
    view: PoolView, fits: Callable[[Group], bool], passed: Set[Group], before: Task | None
) -> Group | None:
    """Return the first group, in the order of queues, that did not fit before and fits now; with
    `before`, of those that come before this task in its project.
    """
    index_of(view).root(view.state)
    for requests in _fitting(view, fits):
        if before is None:
            found = _first_of(view, requests, passed)
        else:
            found = _first_before(view, requests, passed, before)
        if found is not None:
            return found
    return None


def ahead_of_owners(view: PoolView, may_start: Callable[[Group], bool]) -> Iterator[Group]:
    """Yield the groups that did not fit and may take over slots of a task behind them now, as
    something changed that it depends on: their project, its share, or the capacity of nodes.
    """
    index, pool = index_of(view), view.pool
    if not index.anything_changed(view.state):
        return
    asked = dict.fromkeys((*index.changed_queues(view.state), *index.refused_owners))
    for project_queue in asked:
        yield from _ahead_in(view, project_queue, may_start)
    if not index.changed_nodes:
        return
    most, free_milli = _most_with_reserved(view), pool.future.free_milli
    for project_queue, short_milli in index.gangs_before_owners.items():
        if short_milli <= free_milli:
            most.setdefault(project_queue, -1)
    for project_queue, milli in most.items():
        if project_queue in index.before_owners and project_queue not in asked:
            in_all = free_milli + project_queue.reserved[0]
            yield from _ahead_in(view, project_queue, may_start, (milli, in_all))


def _ahead_in(
    view: PoolView,
    project_queue: Queue,
    may_start: Callable[[Group], bool],
    most: tuple[int, int] | None = None,
) -> Iterator[Group]:
    """Yield the groups of a project that did not fit and come before a task with reserved slots.

    Of groups with equal requests that may start it is the first, because it comes before the most
    of these tasks. Whether rules refuse one of them is noted in `refused_owners` of the index.

    `most`: the gpu_milli that one node, and all nodes together, could have free; None: any.
    """
    index = index_of(view)
    index.refused_owners.pop(project_queue, None)
    seen: set[Request] = set()
    for group in _before_owners(view, project_queue):
        request, shape = request_of(group), group.shape
        if request in seen:
            continue
        if most is not None and view.pool.least_milli(shape) > most[_is_gang(group)]:
            continue
        if may_start(group):
            seen.add(request)
            yield group
        else:
            index.refused_owners[project_queue] = None


def _check_owners(view: PoolView, project_queue: Queue) -> None:
    """Update whether a leaf is in the sets of leaves before owners of the index."""
    index, groups = index_of(view), list(_before_owners(view, project_queue))
    set_member(index.before_owners, project_queue, bool(groups))
    # Its share, or the amounts of its tasks, may let it take over slots now.
    set_member(index.refused_owners, project_queue, bool(groups))
    gangs = [view.pool.least_milli(group.shape) for group in groups if _is_gang(group)]
    if gangs:
        index.gangs_before_owners[project_queue] = min(gangs) - project_queue.reserved[0]
    else:
        index.gangs_before_owners.pop(project_queue, None)


def _is_gang(group: Group) -> bool:
    """Whether the slots of a task may be on several nodes."""
    return group.shape.replicas > 1 or group.shape.whole_nodes


def _before_owners(view: PoolView, project_queue: Queue) -> Iterator[Group]:
    """Yield the groups of a project that did not fit and come before a task with reserved slots, in
    order.
    """
    if not any(group.reserved.live for group in project_queue.blocked):
        return
    placed = _blocked(view).groups_of(project_queue)
    last = next(row[0] for row in reversed(placed) if row[-1].reserved.live)
    for place, *_, group in placed:
        if place >= last:
            return
        if group.queue.live and not group.shape.start_failed:
            yield group


def _most_with_reserved(view: PoolView) -> dict[Queue, int]:
    """Return the most gpu_milli that a changed node could have free for each project that has
    reserved slots there, if it had them no more.
    """
    index = index_of(view)
    most: dict[Queue, int] = {}
    for node, capacity_milli in _changed_nodes(view):
        for project, reserved_milli in _reserved_milli(node).items():
            queue = index.queue_of(view.state, project)
            most[queue] = max(most.get(queue, 0), capacity_milli + reserved_milli)
    return most


def _reserved_milli(node: Node) -> dict[Project, int]:
    """Return the gpu_milli that are reserved on a node for tasks of each project."""
    reserved: dict[Project, int] = {}
    for task, replicas in node.reserved.items():
        assert task.reserved is not None
        placements = (task.reserved.placements[replica] for replica in replicas)
        milli = sum(placement.gpu_milli * len(placement.slots) for placement in placements)
        reserved[task.job.project] = reserved.get(task.job.project, 0) + milli
    return reserved


def _fitting(view: PoolView, fits: Callable[[Group], bool]) -> list[frozenset[Request]]:
    """Return the requests of groups that did not fit before and fit now: first those of tasks whose
    starts did not fail, then the others, each if there are any.
    """
    index, pool = index_of(view), view.pool
    changes = (pool.free.changes, pool.future.changes, bool(pool.stopping), index.request_changes)
    known: tuple[Hashable, list[frozenset[Request]]] | None = view.memo.get("fitting")
    if known is None or known[0] != changes:
        found: tuple[list[Request], list[Request]] = [], []
        for request, groups in index.by_request.items():
            group = next(iter(groups))
            if fits(group):
                found[group.shape.start_failed].append(request)
        requests = [frozenset(each) for each in found if each]
        known = view.memo["fitting"] = changes, requests
    return known[1]


def _first_before(
    view: PoolView, requests: frozenset[Request], passed: Set[Group], before: Task
) -> Group | None:
    """Return the first group of the project of a task that has one of these requests, is not in
    `passed` and comes before the task, or None.
    """
    leaf = index_of(view).queue_of(view.state, before.job.project)
    found = index_of(view).first_blocked(view.state, requests, _blocked(view), passed, leaf)
    if found is None or before.group is None:
        return None
    return found if _place(view, found, found.first) < _place(view, before.group, before) else None


def _place(view: PoolView, group: Group, task: Task) -> OrderKey:
    """Return the place of a group in its project, by the given one of its tasks."""
    return group.shape.start_failed, order_in_project(view)(view, group), task.key


def under_limits(view: PoolView, projects: Iterable[Project]) -> Iterator[Group]:
    """Yield the groups of these projects that did not fit; where a department above a project has a
    limit, the groups of all projects in that department.
    """
    index = index_of(view)
    tops: dict[Queue, None] = {}
    for project in projects:
        project_queue = index.queue_of(view.state, project)
        limited = (queue for queue in project_queue.path if queue.limit != UNLIMITED)
        tops[next(limited, project_queue)] = None
    for top in tops:
        for leaf in top.leaves():
            for group in list(leaf.blocked):
                if group.queue.live:
                    yield group
