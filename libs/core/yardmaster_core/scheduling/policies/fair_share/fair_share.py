"""`fair_share`: a pool is divided by weight among its claimants, which are its jobs or its
projects.

After Determined's fair-share scheduler, as documented (`demand_proportional`) or as its resource
manager computes it (`max_min`), with corrections: pending tasks count also when the pool is full,
tasks that cannot be preempted are counted once, and each start in a cycle reduces the free capacity
for the next start.

- A claimant above its share releases tasks for a pending task of another claimant that stays
  within its share, fits nowhere else and starts on what is released (`preempt.py`). Tasks of a
  claimant above its own limit stop in any case.
- A task starts if it fits and its claimant stays within its share. Tasks that cannot be preempted
  come first: what they hold reduces the shares of the others, which are then computed again. The
  claimant with the smallest demand comes first, then the oldest; within a claimant the earliest
  submission. A task that does not fit lets others pass.
- Tasks without GPUs have no shares: first come, first served.
- A task whose last starts failed counts in no share, so that no task is preempted for it. It starts
  on free capacity while no other task waits for its share.

The planner asks, in this order: `release` (tasks above a limit) and `groups_within_share` (groups
that fit into their share now), then the order and `wait_for_share` for each group, then the victims
of tasks that do not fit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.planner.limits import limit_reached, reserved_for
from yardmaster_core.scheduling.planner.policy import (
    Listing,
    Order,
    OrderKey,
    Policy,
    PoolView,
    Preemption,
    QueueTraits,
    Rank,
    ShareReports,
    StartRules,
    Wake,
)
from yardmaster_core.scheduling.planner.wait_reasons import no_capacity
from yardmaster_core.scheduling.policies.fair_share.claimants import (
    claimant_of,
    held_by,
    weight_of,
)
from yardmaster_core.scheduling.policies.fair_share.index import FairShareIndex, index_of
from yardmaster_core.scheduling.policies.fair_share.pool_shares import (
    demands_of,
    divide_again,
    name_of,
    shares_of,
    used_by,
)
from yardmaster_core.scheduling.policies.fair_share.preempt import PREEMPT, release
from yardmaster_core.scheduling.policies.fair_share.shares import Share
from yardmaster_core.scheduling.policies.strict import only
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_core.scheduling.state.wait_codes import NO_CAPACITY
from yardmaster_schemas.events.decisions import Among
from yardmaster_schemas.fields import CLOSED
from yardmaster_schemas.reasons import Start, Wait, WaitCode

#: Wait codes of tasks that may find victims although no slots were released.
CLAIMING: Final = frozenset({*NO_CAPACITY, WaitCode.VICTIMS_PROTECTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareOptions:
    """`variant`: the rule that divides the pool. `among`: what the claimants are. `release`: when
    tasks above a share stop: for a task that then starts, or at once, as in Determined's code.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    variant: Literal["demand_proportional", "max_min"] = "demand_proportional"
    among: Literal["job", "project"] = "job"
    release: Literal["for_others", "at_once"] = "for_others"


def smallest_demand_first(view: PoolView, group: Group, task: Task) -> OrderKey:
    """Order tasks that cannot be preempted before others, then by the claimant's demand, smallest
    first, then by its age; within a claimant by submission.
    """
    shape = group.shape
    if not shape.queue_class:
        return 0, 0, (0, 0), task.key
    share = shares_of(view).of(claimant_of(task.job, view.options.among))
    tier = 1 + shape.preemptible
    if share is None:
        return tier, 0, (0, 0), task.key
    return tier, share.demand, share.age, task.key


def wait_for_share(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason if the task would exceed its claimant's share, else None.

    The pool is divided again if a task that cannot be preempted started since the division: else a
    task would start within its share and be preempted in the next cycle.
    """
    divided_at = view.memo.get("divided_at", view.pool.max_free_changes)
    if group.shape.preemptible and divided_at != view.pool.max_free_changes:
        divide_again(view)
    return over_share_wait(view, group, task)


def over_share_wait(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason of a task beyond its claimant's last computed share, or None."""
    shape = group.shape
    if not shape.queue_class:
        return None
    if not could_fit(view.pool, shape):
        return no_capacity(view.pool, shape)
    claimant = claimant_of(task.job, view.options.among)
    if shape.start_failed and not _any_pending_below(view):
        return None  # no other pending task has a share in the free capacity
    share = shares_of(view).of(claimant)
    share_milli = share.share_milli if share is not None else 0
    used = held_by(view.pool, claimant) + reserved_for(view.pool, task, claimant)
    requested = view.pool.most_milli(shape)
    if used + requested <= share_milli and not shape.start_failed:
        return None
    return Wait(
        code=WaitCode.OVER_FAIR_SHARE,
        numbers={
            "fair_share_milli": share_milli,
            "weight": share.weight if share is not None else 1,
            "used_milli": used,
            "asked_milli": requested,
        },
        about=name_of(claimant),
    )


def _below(view: PoolView) -> Iterator[tuple[Share, Group]]:
    """Yield the pending groups of claimants that hold less than their shares, with the share."""
    for share in shares_of(view).below():
        for group in demands_of(view).groups_of(share.claimant):
            yield share, group


def _any_pending_below(view: PoolView) -> bool:
    """Whether a pending task could take the free part of its claimant's share.

    Recomputed after each placement or reservation.
    """
    changes = (view.pool.free.changes, view.pool.future.changes)
    known: tuple[tuple[int, int], bool] | None = view.memo.get("any_pending_below")
    if known is None or known[0] != changes:
        found = any(
            group.queue.live
            and share.share_milli > used_by(view, share.claimant)
            and could_fit(view.pool, group.shape)
            and limit_reached(view.state, view.pool, group.queue.first) is None
            for share, group in _below(view)
        )
        known = view.memo["any_pending_below"] = changes, found
    return known[1]


def groups_within_share(view: PoolView) -> Iterator[Group]:
    """Yield the groups with the wait reason `over_fair_share` whose next task would now stay within
    its claimant's share; while a claimant is above its share, also those that did not fit.

    Groups whose last starts failed are yielded only while no other pending task has a share in the
    free capacity.
    """
    over, pool, shares = index_of(view).over_share, view.pool, shares_of(view)
    any_above = shares.any_above
    if not over and not any_above:
        return
    demands = demands_of(view)
    for share in shares.below():
        # Checked here too, because most claimants hold their shares up to a part of a task.
        left = share.share_milli - used_by(view, share.claimant)
        if left <= 0:
            continue
        for group in demands.groups_of(share.claimant):
            if pool.most_milli(group.shape) > left:
                continue
            may_start = group in over or (any_above and group.wait_code(pool.name) in CLAIMING)
            if may_start and over_share_wait(view, group, group.queue.first) is None:
                yield group
    for group in over:
        if group.shape.start_failed and over_share_wait(view, group, group.queue.first) is None:
            yield group


def min_runtime_wait(view: PoolView, task: Task, wait: Wait) -> Wait:
    """Return the wait reason of a task whose share is held by tasks within their minimum run time;
    else `wait`.
    """
    protected = view.memo.get("protected") if task.job.shape.queue_class else None
    if not protected:
        return wait
    until_ms = protected.values()
    numbers = {"victims": len(until_ms), "until_at_ms": min(until_ms)}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def start_reason(view: PoolView, task: Task) -> Start:
    """Return the rule by which `task` starts, with its claimant's share."""
    if not task.job.shape.queue_class:
        return Start(rule="no_gpus")
    claimant = claimant_of(task.job, view.options.among)
    share = shares_of(view).of(claimant)
    # A task whose last starts failed is not counted, and starts on capacity that is in no share.
    assert share is not None or task.shape.start_failed, "a task starts without a share"
    numbers = {
        "fair_share_milli": share.share_milli if share is not None else 0,
        "weight": weight_of(claimant),
        "used_milli": held_by(view.pool, claimant),
    }
    return Start(rule="fair_share", numbers=numbers)


def project_shares(view: PoolView) -> Mapping[str, int]:
    """Return the share of each project by name (gpu_milli), if the claimants are projects.

    Empty before the first cycle that divides the pool.
    """
    if view.options.among != "project" or index_of(view).demands is None:
        return {}
    return {name_of(share.claimant): share.share_milli for share in shares_of(view).all()}


def fair_share_index(pool: Pool, options: FairShareOptions) -> FairShareIndex:
    """Return a new index of a pool with this policy."""
    # As Determined's code counts: with `max_min` also the part of a limit that makes no whole task.
    return FairShareIndex(pool, options.among, whole_tasks=options.variant != "max_min")


def without_gpus_first(traits: QueueTraits) -> Rank:
    """Return the place of a task: tasks without GPUs come first, then tasks that cannot be
    preempted, then the others. In each class, tasks whose last starts failed come last.
    """
    return traits.gpus, traits.gpus and traits.preemptible, traits.failed


def has_gpus(traits: QueueTraits) -> bool:
    """Whether the claimants' ranks order these tasks: only if the tasks have GPUs."""
    return traits.gpus


def claimants_among(options: FairShareOptions) -> Among:
    """Return the kind of the claimants: jobs or projects."""
    return Among(options.among)


def changed_ranks(view: PoolView) -> Iterator[tuple[str, Rank]]:
    """Yield the claimants whose rank is not the recorded one, with their rank: demand, then age.

    All ranks are those of the last division. A claimant whose last pending task with GPUs
    has started since has no rank. Claimants without a demand come first.
    """
    if "shares" not in view.memo:
        return
    demands, shares, pool = demands_of(view), shares_of(view), view.pool
    served = dict.fromkeys(demands.served(view.state.projects))
    for claimant in served:
        if claimant.ranks.get(pool.name):
            yield name_of(claimant), ()
    for claimant in list(demands.rank_stale):
        if claimant in served:
            continue
        job = claimant if isinstance(claimant, Job) else None
        if job is not None and view.state.jobs.get(job.id) is not job:
            del demands.rank_stale[claimant]
            continue
        rank: Rank = ()
        if demands.waits(claimant):
            share = shares.of(claimant)
            age = (job.submitted_ms, job.seq) if job is not None else ()
            rank = (share.demand, *share.age) if share is not None else (0, 0, *age)
        if rank == claimant.ranks.get(pool.name, ()):
            del demands.rank_stale[claimant]
        else:
            yield name_of(claimant), rank


FAIR_SHARE: Final = Policy(
    name="fair_share",
    version=1,
    options=FairShareOptions,
    order=Order(key=smallest_demand_first),
    start=StartRules(must_wait=wait_for_share, reason=start_reason),
    preemption=Preemption(actions=only(PREEMPT), reclaim=release, no_victims_wait=min_runtime_wait),
    listing=Listing(
        place=without_gpus_first,
        in_rank=has_gpus,
        claimants=claimants_among,
        ranks=changed_ranks,
    ),
    shares=ShareReports(of_projects=project_shares),
    wake=Wake(groups=groups_within_share),
    index=fair_share_index,
)
