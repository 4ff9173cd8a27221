"""`starved_first`: the owner that holds the fewest GPUs comes first, whatever it submits.

After Run:ai's post on fair scheduling with a two-level heap: a heap of owners by the GPUs allocated
to them, and for each owner a heap of its tasks by priority, then by submission.

- After each start the owners are compared again (`order.py`). Tasks start on any idle capacity.
- The pool is divided equally among the owners that hold or request GPUs (`equal_parts.py`). What an
  owner does not request goes to the others.
- If a task does not fit and its owner is below its equal part, the task may preempt tasks of
  owners above their equal parts, if it starts then (`preempt.py`). The preempted tasks return to
  the queue of their owner.
- Tasks of one owner that cannot be preempted hold at most a part of the pool (an option).

So an owner gets no more GPUs by more tasks or higher priorities: a priority only orders the tasks
of one owner. Tasks without GPUs start where they fit; they hold nothing and preempt nothing.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.feasibility import could_fit_after_stops
from yardmaster_core.scheduling.planner.policy import (
    CandidateOrder,
    Listing,
    Order,
    OrderKey,
    Policy,
    PoolView,
    Precedence,
    Preemption,
    PreemptionAction,
    QueueTraits,
    Rank,
    ShareReports,
    StartRules,
    Wake,
)
from yardmaster_core.scheduling.planner.wait_reasons import fits_usable_nodes
from yardmaster_core.scheduling.policies.min_runtime import (
    groups_behind,
    no_longer_ahead,
    protected_wait,
    wait_behind_protected,
)
from yardmaster_core.scheduling.policies.starved_first.index import OwnersIndex, index_of
from yardmaster_core.scheduling.policies.starved_first.order import OwnerOrder
from yardmaster_core.scheduling.policies.starved_first.preempt import PREEMPT, PREEMPT_POSTPONED
from yardmaster_core.scheduling.policies.waiting_groups import (
    RESERVE_OLDEST_S,
    may_use_equal_nodes,
    reserved_from_ms,
    wait_behind,
    with_reservation,
)
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import NO_CAPACITY
from yardmaster_schemas.events.decisions import Among
from yardmaster_schemas.fields import CLOSED, Permille, Positive
from yardmaster_schemas.reasons import Start, Wait, WaitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class StarvedFirstOptions:
    """`owners`: the pool is divided among users or among projects. A job that names no user belongs
    to its project. `non_preemptible_permille`: the part of the GPUs of the pool, in thousandths,
    that tasks of one owner that cannot be preempted may hold. `reserve_oldest_s`: how long (s)
    later tasks of an owner pass one that fits in its equal part but does not start; None: without
    end.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    owners: Literal["user", "project"] = "user"
    non_preemptible_permille: Permille = 500
    reserve_oldest_s: Positive | None = RESERVE_OLDEST_S


#: Wait codes of tasks that may find victims although no slots were released.
CLAIMING: Final = frozenset({*NO_CAPACITY, WaitCode.VICTIMS_PROTECTED})


def candidates(view: PoolView, _: int) -> CandidateOrder:
    """Return the order of one cycle."""
    return OwnerOrder(view)


def start_reason(view: PoolView, task: Task) -> Start:
    """Return the rule by which `task` starts: within the equal part of its owner, or beyond."""
    index = index_of(view)
    owner = index.owner(task.job)
    part, allocated = index.part(owner), owner.allocated - index.held_by(task)
    within = allocated + view.pool.most_milli(task.job.shape) <= part
    return Start(
        rule="within_equal_part" if within else "beyond_equal_part",
        numbers={"fair_share_milli": part, "used_milli": allocated},
    )


def wait_for_owner(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason of a task that cannot be preempted and with which its owner would hold
    too much in such tasks; or of one that must not pass another task; else None.
    """
    return (
        _wait_at_bound(view, group, task)
        or wait_behind_starved(view, group, task)
        or _wait_for_oldest(view, group, task)
    )


def _wait_at_bound(view: PoolView, group: Group, task: Task) -> Wait | None:
    if group.shape.preemptible:
        return None
    asked = view.pool.most_milli(group.shape)
    if not asked or (task.reserved is not None and task.reserved.pool_name == view.pool.name):
        return None
    index = index_of(view)
    owner, most = index.owner(task.job), index.most_non_preemptible()
    # A pool without GPUs refuses the task for that reason.
    if not most or owner.non_preemptible + asked <= most:
        return None
    kind, name = owner.name
    about = name if kind == "project" else None
    numbers = {"deserved_milli": most, "asked_milli": asked}
    if asked > most:
        return Wait(code=WaitCode.EXCEEDS_DESERVED, numbers=numbers, about=about)
    numbers = {**numbers, "used_milli": owner.non_preemptible}
    return Wait(code=WaitCode.AT_DESERVED, numbers=numbers, about=about)


def _wait_for_oldest(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason of a task that comes after the one of its owner that has waited for
    too long, and could take slots from it; else None.
    """
    after_s = view.options.reserve_oldest_s
    if after_s is None or task.reserved is not None:
        return None
    oldest = _oldest(view, task)
    if oldest is None or oldest.group is None or oldest.group is group:
        return None
    if reserved_from_ms(oldest, after_s) > view.state.now_ms:
        return None
    if (group.priority, task.key) < (oldest.group.priority, oldest.key):
        return None
    if not may_use_equal_nodes(view, oldest.group, group):
        return None
    return wait_behind(task, oldest)


def wait_behind_starved(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason of a task that would be protected, beyond the equal part of its owner,
    while another task waits for victims within their minimum run time; else None.
    """
    if task.reserved is not None or not is_protected_beyond_part(view, group):
        return None
    return wait_behind_protected(view, group, task, lambda other: not _is_beyond_part(view, other))


def is_protected_beyond_part(view: PoolView, group: Group) -> bool:
    """Whether a task could not be preempted at once, and its owner would hold more than its equal
    part.
    """
    if not group.min_runtimes and group.shape.preemptible:
        return False
    return _is_beyond_part(view, group)


def _is_beyond_part(view: PoolView, group: Group) -> bool:
    """Whether the owner would hold more than its equal part with a task of a group."""
    asked = view.pool.most_milli(group.shape)
    if not asked:
        return False
    index = index_of(view)
    owner = index.owner(group.queue.first.job)
    return owner.allocated + asked > index.part(owner)


def no_victims_wait(view: PoolView, task: Task, wait: Wait) -> Wait:
    """Return the wait reason of a task whose victims are within their minimum run time, else
    `wait`.
    """
    wait = protected_wait(view, task) or wait
    after_s = view.options.reserve_oldest_s
    if after_s is None or reserved_from_ms(task, after_s) > view.state.now_ms:
        return wait
    return with_reservation(task, after_s, wait) if _oldest(view, task) is task else wait


def _oldest(view: PoolView, task: Task) -> Task | None:
    """Return the task of the owner of `task` that waits, fits in the equal part of an owner and was
    submitted first; else None. Tasks that fit on no usable node, whatever else they wait for, keep
    no others pending.
    """
    index, pool = index_of(view), view.pool
    return index.first_waiting(
        task.job,
        lambda group: (
            pool.most_milli(group.shape) <= index.level() and fits_usable_nodes(pool, group.shape)
        ),
    )


def groups_to_wake(view: PoolView) -> Iterator[Group]:
    """Yield the groups that may start or find victims now, although no release woke them."""
    index = index_of(view)
    yield from index.groups_within_bound()
    behind: list[Wait] = []
    for group in groups_behind(view):
        if group.queue.live:
            wait = wait_for_owner(view, group, group.queue.first)
            if wait is None or wait.code is not WaitCode.BEHIND_TASK:
                yield group
            else:
                behind.append(wait)
    yield from no_longer_ahead(
        view,
        behind,
        lambda ahead: wait_for_owner(view, ahead, ahead.queue.first),
        partial(_may_preempt_any, view),
    )
    most = next(index.above(), None) if index.take_news() else None
    if most is None:
        return
    pool = view.pool
    for owner in index.below():
        for asked, groups in owner.waiting.items():
            if not asked or owner.allocated + asked >= most.allocated:
                continue
            for group in groups:
                known = group.waits.get(pool.name)
                if known is None or known[0].code not in CLAIMING:
                    continue
                if could_fit_after_stops(pool, group.shape):
                    yield group


def _may_preempt_any(view: PoolView, group: Group) -> bool:
    """Whether some owner holds more than its equal part, and more than the owner of a group would
    hold with a task of it.
    """
    index = index_of(view)
    most, asked = next(index.above(), None), view.pool.most_milli(group.shape)
    return most is not None and index.owner(group.first.job).allocated + asked < most.allocated


def groups_behind_oldest(view: PoolView, task: Task) -> Iterable[Group]:
    """Return the groups that waited behind a task, which has just got slots, and that wait for no
    other one; those that wait for another one on other nodes are found in the next cycle.
    """
    after_s = view.options.reserve_oldest_s
    if after_s is None or reserved_from_ms(task, after_s) > view.state.now_ms:
        return ()
    return index_of(view).behind(
        task.job, lambda group: _wait_for_oldest(view, group, group.queue.first) is None
    )


def equivalence(view: PoolView, group: Group) -> Hashable:
    """Return the properties on which the result for a group depends, apart from its request."""
    owner = index_of(view).owner_of(group.queue.first.job)
    return owner, group.shape.project, group.shape.preemptible, group.min_runtimes > 0


def owners_index(pool: Pool, options: StarvedFirstOptions) -> OwnersIndex:
    """Return a new index of a pool with this policy."""
    return OwnersIndex(
        pool,
        by_user=options.owners == "user",
        non_preemptible_permille=options.non_preemptible_permille,
        reserves=options.reserve_oldest_s is not None,
    )


def actions(_: StarvedFirstOptions) -> tuple[PreemptionAction, ...]:
    """Return the ways in which a task may preempt others, in order."""
    return PREEMPT, PREEMPT_POSTPONED


def owner_precedence(view: PoolView, task: Task) -> Precedence:
    """Return the owner and the priority: slots reserved for a lower priority of an owner go to a
    higher one.
    """
    return index_of(view).owner_of(task.job), (task.job.priority,)


def failed_last(traits: QueueTraits) -> Rank:
    """Return the place of a task: those whose last starts failed come after all others."""
    return (traits.failed,)


def always_in_rank(_: QueueTraits) -> bool:
    """Whether the ranks of projects order these tasks."""
    return True


def by_priority(_: StarvedFirstOptions, traits: QueueTraits) -> Rank:
    """Return the place of a task of an owner, before the submission: by priority."""
    return (traits.priority,)


def claimant_kind(options: StarvedFirstOptions) -> Among:
    """Return the kind of the claimants with recorded ranks, which are the owners."""
    return Among.PROJECT if options.owners == "project" else Among.USER


def changed_ranks(view: PoolView) -> Iterable[tuple[str, Rank]]:
    """Yield the owners whose rank is not the recorded one, with their rank: the GPUs they hold.

    An owner without pending tasks has no rank. An owner stays in `rank_stale` until its recorded
    rank is found to be right, because a draft may be rolled back.
    """
    index, pool = index_of(view), view.pool
    index.count()
    for name in list(index.rank_stale):
        owner = index.owners.get(name)
        rank = (owner.allocated,) if owner is not None and owner.waiting else ()
        kind, claimant = name
        if view.options.owners == "project":
            recorded = view.state.projects[claimant].ranks.get(pool.name, ())
        else:
            claimant = claimant if kind == "user" else f"{kind}/{claimant}"
            recorded = pool.user_ranks.get(claimant, ())
        if rank == recorded:
            del index.rank_stale[name]
        else:
            yield claimant, rank


def listed_order(view: PoolView, group: Group, task: Task) -> OrderKey:
    """Return the place of a task in the listed queue; in a cycle `OwnerOrder` replaces it."""
    return 0, index_of(view).owner(task.job).allocated, group.priority, task.key


def project_shares(view: PoolView) -> Mapping[str, int]:
    """Return the equal parts of the projects that hold or request GPUs. The parts of users are
    left out: metrics do not show the ids of users.
    """
    index = index_of(view)
    level = index.level()
    return {name: o.part(level) for (kind, name), o in index.owners.items() if kind == "project"}


STARVED_FIRST: Final = Policy(
    name="starved_first",
    version=1,
    options=StarvedFirstOptions,
    order=Order(key=listed_order, candidates=candidates, equivalence=equivalence),
    start=StartRules(must_wait=wait_for_owner, reason=start_reason),
    preemption=Preemption(
        actions=actions, no_victims_wait=no_victims_wait, precedence=owner_precedence
    ),
    listing=Listing(
        place=failed_last,
        in_rank=always_in_rank,
        within=by_priority,
        claimants=claimant_kind,
        ranks=changed_ranks,
    ),
    shares=ShareReports(of_projects=project_shares),
    wake=Wake(groups=groups_to_wake, behind=groups_behind_oldest),
    index=owners_index,
)
