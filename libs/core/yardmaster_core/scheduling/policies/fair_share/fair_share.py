"""`fair_share`: a pool is divided by weight among its claimants, which are its jobs or its
projects.

After Determined's fair-share scheduler, as documented (`demand_proportional`) or as its resource
manager computes it (`max_min`), with corrections: pending tasks count also when the pool is full,
tasks that cannot be preempted are counted once, and each start in a cycle reduces the free capacity
for the next start.

- A claimant above its share releases tasks as soon as another claimant below its share has a
  pending task that no limit blocks: running tasks are preempted until no more than the share is
  left, with `demand_proportional` the latest submission first, with `max_min` the earliest first.
  Tasks of a claimant above its own limit are preempted in any case.
- A task starts if it fits and its claimant stays within its share. Tasks that cannot be preempted
  come first: what they hold reduces the shares of the others, which are then computed again. The
  claimant with the smallest demand comes first, then the oldest; within a claimant the earliest
  submission. A task that does not fit lets others pass.
- Tasks without GPUs have no shares: first come, first served.
- A task whose last starts failed counts in no share, so that no task is preempted for it. It starts
  on free capacity while no other task waits for its share.

The planner asks, in this order: `reclaim` (preempt tasks above a share) and `wake` (groups that fit
into their share now), then the order and `wait_for_share` for each group. It has no preemption
actions: no single task preempts others.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
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
    StopReason,
    Wake,
)
from yardmaster_core.scheduling.planner.wait_reasons import no_capacity
from yardmaster_core.scheduling.policies.fair_share.claimants import (
    Claimant,
    claimant_limit,
    claimant_of,
    held_by,
    retained_by,
    weight_of,
)
from yardmaster_core.scheduling.policies.fair_share.demand_tracker import DemandTracker
from yardmaster_core.scheduling.policies.fair_share.division import VARIANTS
from yardmaster_core.scheduling.policies.fair_share.index import (
    FairShareIndex,
    ReclaimableTasks,
    index_of,
)
from yardmaster_core.scheduling.policies.fair_share.shares import Share, Shares
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.shapes import WHOLE
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_schemas.events.decisions import Among
from yardmaster_schemas.fields import CLOSED
from yardmaster_schemas.reasons import Start, Wait, WaitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareOptions:
    """`variant`: the rule that divides the pool. `among`: what the claimants are."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    variant: Literal["demand_proportional", "max_min"] = "demand_proportional"
    among: Literal["job", "project"] = "job"


def _demands(view: PoolView) -> DemandTracker:
    # Counted once per division: other starts and stops change no share until the next cycle.
    found: DemandTracker | None = view.memo.get("demands")
    if found is None:
        found = view.memo["demands"] = index_of(view).current_demands(view.state)
    return found


def _shares(view: PoolView) -> Shares:
    """Return the shares; divide the pool at the first call in a cycle, and keep the result in the
    memo.
    """
    found: Shares | None = view.memo.get("shares")
    if found is None:
        divide = VARIANTS[view.options.variant]
        found = view.memo["shares"] = _demands(view).divide(view.state.pools, divide)
        view.memo["divided_at"] = view.pool.max_free_changes
    return found


def _claimant_of(view: PoolView, group: Group) -> Claimant:
    """Return the claimant of a group's tasks."""
    shape = group.shape
    if view.options.among == "project":
        return view.state.projects[shape.project]
    assert shape.job_id is not None, "a job that is a claimant has equals in other jobs"
    return view.state.jobs[shape.job_id]


def _used(view: PoolView, claimant: Claimant) -> int:
    """Return what a claimant holds and what is reserved for its tasks (gpu_milli)."""
    return held_by(view.pool, claimant) + view.pool.reserved_milli.get(claimant, 0)


def smallest_demand_first(view: PoolView, group: Group, task: Task) -> OrderKey:
    """Order tasks that cannot be preempted before others, then by the claimant's demand, smallest
    first, then by its age; within a claimant by submission.
    """
    shape = group.shape
    if not shape.queue_class:
        return 0, 0, (0, 0), task.key
    share = _shares(view).of(claimant_of(task.job, view.options.among))
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
        del view.memo["demands"], view.memo["shares"]
        _shares(view)
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
    share = _shares(view).of(claimant)
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
        about=_name(claimant),
    )


def _name(claimant: Claimant) -> str:
    return claimant.name if isinstance(claimant, Project) else claimant.id


def reclaim_above_share(view: PoolView) -> Iterator[tuple[Task, StopReason]]:
    """Yield the tasks to preempt because their claimant is above its limit or its share.

    Tasks of a claimant above its limit are always yielded, tasks of a claimant above its share only
    if a pending task receives the slots. With `max_min` no receiver is needed, and the oldest tasks
    come first, as in Determined's code. The ends of minimum run times that protect tasks are added
    to the memo, for `min_runtime_wait`.
    """
    shares = _shares(view)
    over = shares.above_of(_demands(view).above_limit)
    if not over and not shares.any_above:
        return
    as_determined = view.options.variant == "max_min"
    receivers = _receivers(view)
    receiver = receivers[0][1] if receivers else None
    if receiver is not None or as_determined:
        over = shares.above()
    above = {share.claimant: _above_share(view, share) for share in over}
    first = _useful_victims(view, above, receivers) if not as_determined else ()
    for holder in above.values():
        share = holder.share
        used = held_by(view.pool, share.claimant)
        limit = claimant_limit(view.pool, share.claimant, view.state.pools)
        most = share.share_milli if receiver is not None or as_determined else limit
        if most is None:
            continue
        for task in holder.in_order(first):
            if holder.left <= most:
                break
            if task.starts_past_others:
                # Once this task runs, the pool is divided again, and it is preempted first.
                holder.left -= view.pool.held_by_job[task.job].tasks[task]
                continue
            until_ms = min_runtime_until_ms(view.state, task)
            # Above its own limit, a claimant releases tasks within their minimum run time too.
            if until_ms > view.state.now_ms and (limit is None or holder.left <= limit):
                view.memo.setdefault("protected", []).append(until_ms)
                continue
            holder.left -= view.pool.held_by_job[task.job].tasks[task]
            yield task, _stop(view, share, used, receiver)


@dataclass(slots=True)
class AboveShare:
    """A claimant above its share. `left` is the amount that it holds without releasing tasks
    (gpu_milli).
    """

    share: Share
    left: int
    reclaimable: ReclaimableTasks
    youngest_first: bool
    #: All preemptible tasks, once they were listed.
    _listed: list[Task] | None = None

    @property
    def tasks(self) -> list[Task]:
        """The preemptible tasks, in the order in which they are preempted."""
        if self._listed is None:
            self._listed = list(self._reclaim_order())
        return self._listed

    def in_order(self, first: Collection[Task]) -> Iterator[Task]:
        """The preemptible tasks: first those in `first`, then the others, each in reclaim order."""
        if not first:
            yield from self._reclaim_order()
            return
        yield from (task for task in self.tasks if task in first)
        yield from (task for task in self.tasks if task not in first)

    def _reclaim_order(self) -> Iterator[Task]:
        return self.reclaimable.in_reverse() if self.youngest_first else self.reclaimable.in_order()


def _above_share(view: PoolView, share: Share) -> AboveShare:
    """Return a claimant above its share, with its tasks in the order of preemption."""
    claimant, pool = share.claimant, view.pool
    reclaimable = index_of(view).reclaimable_of(claimant)
    youngest_first = view.options.variant == "demand_proportional"
    return AboveShare(share, retained_by(pool, claimant), reclaimable, youngest_first)


def _useful_victims(
    view: PoolView, above: Mapping[Claimant, AboveShare], receivers: list[tuple[Group, Task, int]]
) -> set[Task]:
    """Return the preemptible tasks whose removal lets the receiving tasks fit."""
    # If every receiver needs one slot only, any slot is as good as another.
    if view.find_victims is None or all(_fits_any_slot(group) for group, _, _ in receivers):
        return set()
    now_ms = view.state.now_ms
    victims = [
        task
        for holder in above.values()
        if holder.left > holder.share.share_milli
        for task in holder.tasks
        if not task.starts_past_others and min_runtime_until_ms(view.state, task) <= now_ms
    ]
    if not victims:
        return set()
    return view.find_victims(_tasks_in_order(view, receivers), victims, SurplusBudget(view, above))


class SurplusBudget:
    """The surplus of claimants above their shares: it limits how many tasks may be preempted.

    The preempted tasks of a claimant, without the largest of them, must hold less than its surplus:
    so with one task fewer the claimant would still be above its share.
    """

    def __init__(self, view: PoolView, above: Mapping[Claimant, AboveShare]) -> None:
        self._held = view.pool.held_by_job
        self._among = view.options.among
        self._above = above
        #: Claimant -> gpu_milli of its preempted tasks together, and of the largest.
        self._spent: dict[Claimant, tuple[int, int]] = {}

    def permits(self, victim: Task) -> bool:
        """Whether `victim` may be preempted in addition."""
        claimant = claimant_of(victim.job, self._among)
        return self._within(claimant, self._plus(self._spent, claimant, victim))

    def spend(self, victims: Sequence[Task]) -> bool:
        """Whether all of `victims` may be preempted too; if so, count them as spent."""
        spent: dict[Claimant, tuple[int, int]] = {}
        for victim in victims:
            claimant = claimant_of(victim.job, self._among)
            spent.setdefault(claimant, self._spent.get(claimant, (0, 0)))
            spent[claimant] = self._plus(spent, claimant, victim)
        if not all(self._within(claimant, amounts) for claimant, amounts in spent.items()):
            return False
        self._spent |= spent
        return True

    def _plus(
        self, spent: Mapping[Claimant, tuple[int, int]], claimant: Claimant, victim: Task
    ) -> tuple[int, int]:
        together, largest = spent.get(claimant, (0, 0))
        milli = self._held[victim.job].tasks[victim]
        return together + milli, max(largest, milli)

    def _within(self, claimant: Claimant, amounts: tuple[int, int]) -> bool:
        together, largest = amounts
        holder = self._above[claimant]
        return together - largest < holder.left - holder.share.share_milli


def _fits_any_slot(group: Group) -> bool:
    """Whether a task of the group needs one whole slot and nothing else of a node."""
    shape = group.shape
    elsewhere = shape.node_types or shape.avoid_nodes or shape.cpu_milli or shape.memory_mib
    return shape.total_gpu_milli == shape.gpu_milli == WHOLE and not elsewhere


def _tasks_in_order(view: PoolView, receivers: list[tuple[Group, Task, int]]) -> Iterator[Task]:
    """Yield the pending tasks that the rests of their claimants' shares suffice for."""
    left_milli: dict[Claimant, int] = {}
    for group, _, share_left in receivers:
        claimant = _claimant_of(view, group)
        for task in group.queue.in_order():
            left = left_milli.get(claimant, share_left) - view.pool.most_milli(group.shape)
            if left < 0:
                break
            left_milli[claimant] = left
            yield task


def _stop(view: PoolView, share: Share, used: int, receiver: Task | None) -> StopReason:
    """Return why a task of a claimant above its share or limit is preempted."""
    numbers = {"fair_share_milli": share.share_milli, "weight": share.weight, "used_milli": used}
    rule = "over_fair_share"
    if receiver is None:
        limit = claimant_limit(view.pool, share.claimant, view.state.pools)
        if limit is not None and used > limit:
            rule = "over_bound"
    else:
        claimant = claimant_of(receiver.job, view.options.among)
        receiver_share = _shares(view).of(claimant)
        assert receiver_share is not None, "a receiver has no share"
        numbers["for_fair_share_milli"] = receiver_share.share_milli
        numbers["for_weight"] = receiver_share.weight
        numbers["for_used_milli"] = _used(view, claimant)
    return StopReason(
        rule=rule,
        for_task=receiver.id if receiver is not None else None,
        numbers=numbers,
        about=_name(share.claimant),
    )


def _receivers(view: PoolView) -> list[tuple[Group, Task, int]]:
    """Return pending groups of claimants below their shares, each with its first task and the rest
    of the share (gpu_milli).

    Groups whose first task fits into that rest come first.
    """
    found: list[tuple[tuple[bool, OrderKey], tuple[Group, Task, int]]] = []
    for share, group in _below(view):
        left_milli = share.share_milli - _used(view, share.claimant)
        if left_milli > 0 and group.queue.live and could_fit(view.pool, group.shape):
            task = next(group.queue.in_order())
            if limit_reached(view.state, view.pool, task) is not None:
                continue
            key = (
                view.pool.most_milli(group.shape) > left_milli,
                smallest_demand_first(view, group, task),
            )
            found.append((key, (group, task, left_milli)))
    found.sort(key=itemgetter(0))
    return [receiver for _, receiver in found]


def _below(view: PoolView) -> Iterator[tuple[Share, Group]]:
    """Yield the pending groups of claimants that hold less than their shares, with the share."""
    for share in _shares(view).below():
        for group in _demands(view).groups_of(share.claimant):
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
            and share.share_milli > _used(view, share.claimant)
            and could_fit(view.pool, group.shape)
            and limit_reached(view.state, view.pool, group.queue.first) is None
            for share, group in _below(view)
        )
        known = view.memo["any_pending_below"] = changes, found
    return known[1]


def groups_within_share(view: PoolView) -> Iterator[Group]:
    """Yield the groups with the wait reason `over_fair_share` whose next task would now stay within
    its claimant's share.

    Groups whose last starts failed are yielded only while no other pending task has a share in the
    free capacity.
    """
    over = index_of(view).over_share
    if over:
        failed = (group for group in over if group.shape.start_failed)
        for group in chain((group for _, group in _below(view)), failed):
            if group in over and over_share_wait(view, group, group.queue.first) is None:
                yield group


def min_runtime_wait(view: PoolView, task: Task, wait: Wait) -> Wait:
    """Return the wait reason of a task whose share is held by tasks within their minimum run time;
    else `wait`.
    """
    until_ms = view.memo.get("protected") if task.job.shape.queue_class else None
    if not until_ms:
        return wait
    numbers = {"victims": len(until_ms), "until_at_ms": min(until_ms)}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def start_reason(view: PoolView, task: Task) -> Start:
    """Return the rule by which `task` starts, with its claimant's share."""
    if not task.job.shape.queue_class:
        return Start(rule="no_gpus")
    claimant = claimant_of(task.job, view.options.among)
    share = _shares(view).of(claimant)
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
    return {_name(share.claimant): share.share_milli for share in _shares(view).all()}


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


def changed_ranks(view: PoolView) -> Iterator[tuple[Claimant, Rank]]:
    """Yield the claimants whose rank is not the recorded one, with their rank: demand, then age.

    All ranks are those of the last division. A claimant whose last pending task with GPUs
    has started since has no rank. Claimants without a demand come first.
    """
    if "shares" not in view.memo:
        return
    demands, shares, pool = _demands(view), _shares(view), view.pool
    served = dict.fromkeys(demands.served(view.state.projects))
    for claimant in served:
        if claimant.ranks.get(pool.name):
            yield claimant, ()
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
            yield claimant, rank


FAIR_SHARE: Final = Policy(
    name="fair_share",
    version=1,
    options=FairShareOptions,
    order=Order(key=smallest_demand_first),
    start=StartRules(must_wait=wait_for_share, reason=start_reason),
    preemption=Preemption(reclaim=reclaim_above_share, no_victims_wait=min_runtime_wait),
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
