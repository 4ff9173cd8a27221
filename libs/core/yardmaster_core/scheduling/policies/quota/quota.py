"""`quota`: departments and projects with guaranteed quotas, and what is left divided among them.

After Run:ai's scheduler, as its documentation describes it, and its open descendant KAI-Scheduler
at d5bc503a. Where the two differ, an option selects; `order: document` and `order: kai` select for
all options that are not set.

- Each queue (a department or project) deserves amounts of GPUs, CPUs and memory, and may have
  limits. Per pool, the total is divided level by level: first what is deserved and requested, then
  the rest by rank and weight (`division.py`). That is the queue's share.
- The most deprived queue starts a task first (`order.py`); within a project tasks come by priority,
  then by submission. Tasks start on any idle capacity, also beyond their project's share.
- A task that cannot be preempted starts only within what its project, and every department above
  it, deserves (`at_deserved`).
- A task that does not fit may, in the order of `actions`: preempt tasks of lower priority of its
  own project (`preempt`); have preemptible tasks moved to other slots (`consolidation`); reclaim
  slots from other queues that hold more than is theirs (`reclaim`), if its project stays within its
  share.

The planner asks, in this order: `wake` (groups that may claim more than before), then for each
group in the order of the queues `may_start`, then the `claims`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.planner.group_queue import NO_CAPACITY, code_of, id_order
from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.policy import (
    CandidateOrder,
    Claim,
    OrderKey,
    Policy,
    PoolView,
    QueueTraits,
    Rank,
)
from yardmaster_core.scheduling.policies.min_runtime import protected_wait
from yardmaster_core.scheduling.policies.quota import claims as claiming
from yardmaster_core.scheduling.policies.quota.amounts import (
    NOTHING,
    RESOURCES,
    SUFFIXES,
    UNLIMITED,
    exceeded,
    limited,
    minus,
    placed,
    plus,
    requested,
)
from yardmaster_core.scheduling.policies.quota.blocked_order import Placed, Request
from yardmaster_core.scheduling.policies.quota.index import QuotaIndex, index_of, mark
from yardmaster_core.scheduling.policies.quota.order import QueueOrder, place_among_siblings
from yardmaster_core.scheduling.policies.quota.pool_sums import sum_over_pools
from yardmaster_core.scheduling.policies.quota.queue_heap import QueueKey
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.policies.quota.ranks import changed_ranks, rank_of
from yardmaster_core.scheduling.policies.quota.share_rows import project_shares, queue_shares
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_schemas.events.decisions import Among
from yardmaster_schemas.fields import CLOSED
from yardmaster_schemas.reasons import Start, Wait, WaitCode

Action = Literal["allocate", "consolidation", "preempt", "reclaim"]
ACTIONS: Final[dict[str, tuple[Action, ...]]] = {
    "document": ("allocate", "preempt", "consolidation", "reclaim"),
    "kai": ("allocate", "consolidation", "reclaim", "preempt"),
}


#: A year.
MAX_HALF_LIFE_S: Final = 366 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOptions:
    """The options of `quota`.

    `order`: `document`, tasks that cannot be preempted come first in their project and may preempt
    its others, or `kai`, only the priority counts. `actions`: what is done for tasks, in order;
    without `allocate` they start only on slots that others release. `over_quota`: what is left is
    divided in proportion to what is deserved, or by `weight`. `max_moves`: the most tasks that are
    moved for one (0: none). `saturation_permille`: a queue above its share must stay less full than
    the queues that it reclaims from; how much its fullness counts, 1000 for equally.
    `preemption_delay_s`: for how long a task must be pending before it preempts. `min_runtime_of`:
    the minimum run time against reclaim is that of the queue below the lowest common ancestor
    (`lca`), or of the victim's own queue. `usage_half_life_s`: after how long what a
    project held counts half as much (0: it does not count); `usage_weight_permille`: how much that
    counts when GPUs are divided beyond what is deserved.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    order: Literal["document", "kai"] = "document"
    actions: tuple[Action, ...] | None = None
    over_quota: Literal["deserved", "weight"] = "deserved"
    max_moves: int = 16
    saturation_permille: int = 1000
    preemption_delay_s: int = 0
    min_runtime_of: Literal["lca", "queue"] = "lca"
    usage_half_life_s: int = 0
    usage_weight_permille: int = 1000

    def __post_init__(self) -> None:
        if self.actions is not None and len(set(self.actions)) < len(self.actions):
            raise ValueError("each action once")
        numbers = (self.max_moves, self.saturation_permille, self.preemption_delay_s)
        if min(*numbers, self.usage_half_life_s, self.usage_weight_permille) < 0:
            raise ValueError("numbers of 0 or more")
        if self.usage_half_life_s > MAX_HALF_LIFE_S:
            raise ValueError(f"a half-life of at most {MAX_HALF_LIFE_S} s")

    @property
    def in_order(self) -> tuple[Action, ...]:
        """The actions that can do something."""
        actions = self.actions if self.actions is not None else ACTIONS[self.order]
        return tuple(each for each in actions if each != "consolidation" or self.max_moves)

    @property
    def claiming(self) -> tuple[Action, ...]:
        """The actions for tasks that do not fit."""
        return tuple(each for each in self.in_order if each != "allocate")


#: Wait codes of tasks that may find victims although no slots were released.
CLAIMING: Final = frozenset({*NO_CAPACITY, WaitCode.VICTIMS_PROTECTED})


def by_priority(view: PoolView, group: Group) -> OrderKey:
    """Order within a project, before the submission: the highest priority first; last those that
    can never start, because a queue is represented by its first task.
    """
    return index_of(view).never_starts(view.state, group), group.priority


def firm_first(view: PoolView, group: Group) -> OrderKey:
    """Do the same, but tasks that cannot be preempted first."""
    never = index_of(view).never_starts(view.state, group)
    return never, group.shape.preemptible, group.priority


def candidates(view: PoolView, turns: int) -> CandidateOrder:
    """Return the order of one cycle."""
    options = view.options
    kai = options.order == "kai"
    after = 1 + options.claiming.index("preempt") if "preempt" in options.claiming else 0
    within = by_priority if kai else firm_first
    return QueueOrder(view, turns, all_over=kai, within=within, after=after)


def wait_for_quota(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason of a task beyond a limit, or beyond what is deserved if it cannot be
    preempted; else None.

    Checked from the project up: the first queue that refuses is named. Only what the task requests
    counts: a limit of GPUs that was lowered below what is held keeps no task without GPUs waiting.
    """
    index = index_of(view)
    index.divide(view.state)
    leaf = index.queue_of(view.state, task.job.project)
    ask = limited(view.pool, group.shape)
    own = task.reserved
    # Its reserved slots here are part of what its queues use.
    kept = own is not None and own.pool_name == view.pool.name
    mine = placed(own.placements) if own is not None and kept else NOTHING
    for queue in leaf.ancestors():
        found = exceeded(plus(minus(queue.used, mine), ask), queue.limit, of=ask)
        if found is not None:
            return _wait(WaitCode.AT_LIMIT, queue, found, ask[found])
        if not group.shape.preemptible:
            found = exceeded(plus(minus(queue.firm, mine), ask), queue.deserved, of=ask)
            if found is not None:
                return _wait(WaitCode.AT_DESERVED, queue, found, ask[found])
    if not group.shape.preemptible and own is None:
        return _wait_for_sum(view, leaf, task)
    return None


def _wait_for_sum(view: PoolView, leaf: Queue, task: Task) -> Wait | None:
    """Return the wait reason of a task that cannot be preempted and is within what is deserved in
    this pool, but beyond what its project deserves in all its pools; else None.
    """
    sums = sum_over_pools(view, task.job.project)
    ask = limited(view.pool, task.job.shape)
    found = None if sums is None else exceeded(plus(sums.firm, ask), sums.deserved, of=ask)
    if sums is None or found is None:
        return None
    known = _wait(WaitCode.AT_DESERVED, leaf, found, ask[found])
    return replace(known, numbers={**known.numbers, **sums.numbers(found, sums.firm)})


def _wait(code: WaitCode, queue: Queue, resource: int, asked: int) -> Wait:
    suffix = SUFFIXES[resource]
    at_limit = code is WaitCode.AT_LIMIT
    bound = (queue.limit if at_limit else queue.deserved)[resource]
    assert bound is not None, "an unlimited amount was exceeded"
    name = f"{'limit' if at_limit else 'deserved'}_{suffix}"
    if asked > bound:
        never = WaitCode.EXCEEDS_LIMIT if at_limit else WaitCode.EXCEEDS_DESERVED
        numbers = {f"asked_{suffix}": asked, name: bound}
        return Wait(code=never, numbers=numbers, about=queue.name)
    used = (queue.used if at_limit else queue.firm)[resource]
    numbers = {name: bound, f"used_{suffix}": used, f"asked_{suffix}": asked}
    return Wait(code=code, numbers=numbers, about=queue.name)


def start_reason(view: PoolView, task: Task) -> Start:
    """Return the rule by which `task` starts: within what its project deserves, or beyond."""
    index_of(view).divide(view.state)
    leaf = index_of(view).queue_of(view.state, task.job.project)
    standing = leaf.standing
    if task.reserved is not None:
        standing = minus(standing, placed(task.reserved.placements))
    after = plus(standing, requested(view.pool, task.job.shape))
    deserved = leaf.deserved[0]
    numbers = {"fair_share_milli": leaf.fair[0], "used_milli": standing[0]}
    if deserved is not None:
        numbers["deserved_milli"] = deserved
    if exceeded(after, leaf.deserved) is not None:
        return Start(rule="over_quota", numbers=numbers)
    sums = sum_over_pools(view, task.job.project)
    if sums is not None:
        in_all = sums.standing
        if task.reserved is not None:
            in_all = minus(in_all, placed(task.reserved.placements))
        found = exceeded(plus(in_all, requested(view.pool, task.job.shape)), sums.deserved)
        if found is not None:
            return Start(rule="over_quota", numbers={**numbers, **sums.numbers(found, in_all)})
    return Start(rule="within_deserved", numbers=numbers)


def claims(options: QuotaOptions) -> tuple[Claim, ...]:
    """Return the ways in which a task may preempt others, in the order of the actions."""
    found = {
        "preempt": claiming.PREEMPT,
        "reclaim": claiming.RECLAIM,
        "consolidation": claiming.consolidation(options.max_moves),
    }
    return tuple(found[action] for action in options.claiming)


def starts_on_idle(options: QuotaOptions) -> bool:
    """Whether tasks start on idle capacity."""
    return "allocate" in options.in_order


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
    return _claims_for(view, group) and claiming.has_own_victims(view, group.queue.first)


def _is_outdated(view: PoolView, group: Group) -> bool:
    return _claims_for(view, group) and _share_decides_now(
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
            if _claims_for(view, group) and claiming.stays_within_share(view, group.queue.first):
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
        if not claiming.enough_to_move(view, example.shape):
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
        and not claiming.delayed_until_ms(view, task)
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
        self._all_over = view.options.order == "kai"
        self._within = by_priority if self._all_over else firm_first

    def groups_of(self, leaf: Queue) -> list[Placed]:
        """See `BlockedGroups`."""
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
        """See `BlockedGroups`."""
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


def equivalence(view: PoolView, group: Group) -> Hashable:
    """Return the properties on which the result for a group depends, apart from its request."""
    return group.shape.project, group.priority, group.shape.preemptible


def min_runtime_wait(view: PoolView, task: Task) -> Wait | None:
    """Return the wait reason of a task that must not preempt others yet, or whose victims are
    within their minimum run time; else None.
    """
    delay_ms = claiming.delayed_until_ms(view, task)
    if delay_ms:
        return Wait(code=WaitCode.PREEMPTION_DELAY, numbers={"until_at_ms": delay_ms})
    return protected_wait(view, task)


def no_victims_wait(view: PoolView, task: Task, wait: Wait) -> Wait:
    """Return the wait reason of a task that neither fits nor found victims, with the numbers of its
    project's share.

    They are those of the resource of which the project would hold more than its share, so that it
    takes nothing from others; else `others_above` is the number of projects that it may take from.
    """
    if not _may_ever_reclaim(view, task):
        return wait
    leaf = index_of(view).queue_of(view.state, task.job.project)
    ask, above = requested(view.pool, task.job.shape), _above_share(view, task)
    decided = next((i for i in RESOURCES if ask[i]), 0) if above is None else above
    suffix, deserved = SUFFIXES[decided], leaf.deserved[decided]
    numbers = {
        f"asked_{suffix}": ask[decided],
        f"fair_share_{suffix}": leaf.fair[decided],
        f"used_{suffix}": leaf.standing[decided],
    }
    if deserved is not None:
        numbers[f"deserved_{suffix}"] = deserved
    if above is None:
        numbers["others_above"] = view.memo.get(("others_above", task), 0)
    return replace(wait, numbers={**wait.numbers, **numbers})


def _above_share(view: PoolView, task: Task) -> int | None:
    """Return the first resource of which the task's project would hold more than its share, or
    None.
    """
    index_of(view).divide(view.state)
    leaf = index_of(view).queue_of(view.state, task.job.project)
    return exceeded(plus(leaf.standing, requested(view.pool, task.job.shape)), leaf.fair)


def _may_ever_reclaim(view: PoolView, task: Task) -> bool:
    return "reclaim" in view.options.claiming and not task.shape.start_failed


def _share_decides_now(view: PoolView, task: Task, wait: Wait) -> bool:
    """Whether a task is above its project's share of a resource that its wait reason does not name,
    so that the reason is out of date.
    """
    if not _may_ever_reclaim(view, task):
        return False
    above = _above_share(view, task)
    if above is None:
        return False
    numbers = wait.numbers
    return "others_above" in numbers or f"fair_share_{SUFFIXES[above]}" not in numbers


def quota_index(pool: Pool, options: QuotaOptions) -> QuotaIndex:
    """Return a new index of a pool with this policy."""
    return QuotaIndex(
        pool,
        by_weight=options.over_quota == "weight",
        usage_half_life_ms=options.usage_half_life_s * 1000,
        usage_weight=Fraction(options.usage_weight_permille, 1000),
    )


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


QUOTA: Final = Policy(
    name="quota",
    version=1,
    options=QuotaOptions,
    order=listed_order,
    candidates=candidates,
    may_start=wait_for_quota,
    start_reason=start_reason,
    claims=claims,
    starts_on_idle=starts_on_idle,
    min_runtime_wait=min_runtime_wait,
    no_victims_wait=no_victims_wait,
    equivalence=equivalence,
    wake=claimants,
    offer=offer,
    under_limits=under_limits,
    index=quota_index,
    place=failed_last,
    in_rank=always_in_rank,
    within=within_project,
    claimants=projects,
    ranks=changed_ranks,
    project_shares=project_shares,
    shares=queue_shares,
)
