"""The tasks that claimants above their shares release.

A task within its claimant's share that does not fit preempts tasks of claimants above their shares,
if it starts on what they release. Idle capacity comes first, also that of its other pools, and then
slots that are being released anyway. The claimant with the largest surplus loses first; of its
tasks, with `demand_proportional` the latest submission, with `max_min` the earliest.

The tasks that a claimant loses, without the largest of them, hold less than its surplus: with one
task fewer it would still be above its share. It starts none of them again beyond its share.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from yardmaster_core.scheduling.planner.policy import PoolView, PreemptionAction, StopReason
from yardmaster_core.scheduling.policies.fair_share.claimants import (
    Claimant,
    claimant_limit,
    claimant_of,
    held_by,
    retained_by,
)
from yardmaster_core.scheduling.policies.fair_share.index import index_of
from yardmaster_core.scheduling.policies.fair_share.pool_shares import (
    demands_of,
    name_of,
    shares_of,
    used_by,
)
from yardmaster_core.scheduling.policies.fair_share.shares import Share
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.state.tasks import Task


def _above(view: PoolView) -> dict[Claimant, Share]:
    """Return the claimants above their shares, the largest surplus at the division first, then the
    oldest.
    """
    found: dict[Claimant, Share] | None = view.memo.get("above")
    if found is None:
        shares = shares_of(view)
        above = shares.above() if shares.any_above else []
        above.sort(key=lambda share: share.share_milli - share.retained)
        found = view.memo["above"] = {share.claimant: share for share in above}
    return found


def _surplus(view: PoolView, share: Share) -> int:
    """Return what a claimant holds above its share (gpu_milli), without its tasks that stop, and
    without preemptible ones that start on reserved slots: one of these is preempted once it runs,
    instead of an older one now.
    """
    claimant = share.claimant
    retained = retained_by(view.pool, claimant) - index_of(view).passing_milli(claimant)
    return retained - share.share_milli


def may_preempt(view: PoolView, task: Task) -> bool:
    """Whether a claimant is above its share.

    A task without GPUs preempts nothing, and neither does one that was preempted since the last
    change that was no answer to decisions.
    """
    if not task.job.shape.queue_class or task.id in index_of(view).preempted:
        return False
    above = _above(view)
    while above:
        share = next(iter(above.values()))
        if _surplus(view, share) > 0:
            return True
        # Nothing starts beyond a share, so it is not above it again in this cycle.
        del above[share.claimant]
    return False


def victims(view: PoolView, _: Task) -> Iterator[Task]:
    """Yield the preemptible tasks of the claimants above their shares, without those that were
    preempted since the last change that was no answer to decisions.
    """
    for claimant, share in _above(view).items():
        if _surplus(view, share) > 0:
            yield from _unprotected(view, _in_reclaim_order(view, claimant))


def _unprotected(view: PoolView, tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield the tasks that are neither preempted already nor within their minimum run time.

    The ends of the minimum run times of the others are added to the memo, for `min_runtime_wait`.
    """
    preempted = index_of(view).preempted
    for task in tasks:
        if task.id in preempted:
            continue
        until_ms = min_runtime_until_ms(view.state, task)
        if until_ms <= view.state.now_ms:
            yield task
        else:
            view.memo.setdefault("protected", {})[task] = until_ms


def _in_reclaim_order(view: PoolView, claimant: Claimant) -> Iterator[Task]:
    """Yield the preemptible tasks of a claimant, in the order in which it releases them."""
    reclaimable = index_of(view).reclaimable_of(claimant)
    return reclaimable.in_reverse() if _youngest_first(view) else reclaimable.in_order()


def _youngest_first(view: PoolView) -> bool:
    return bool(view.options.variant == "demand_proportional")


class SurplusBudget:
    """The surplus of claimants above their shares: it limits which tasks are preempted together.

    The preempted tasks of a claimant, without the largest of them, must hold less than its surplus.
    """

    def __init__(self, view: PoolView) -> None:
        self._view = view
        #: Claimant -> gpu_milli of its preempted tasks together, and of the largest.
        self._spent: dict[Claimant, tuple[int, int]] = {}

    def spend(self, victims: Sequence[Task]) -> bool:
        """Whether all of `victims` may be preempted too; if so, count them as spent."""
        view = self._view
        spent: dict[Claimant, tuple[int, int]] = {}
        for victim in victims:
            claimant = claimant_of(victim.job, view.options.among)
            together, largest = spent.get(claimant) or self._spent.get(claimant, (0, 0))
            milli = view.pool.held_by_job[victim.job].tasks[victim]
            spent[claimant] = together + milli, max(largest, milli)
        for claimant, (together, largest) in spent.items():
            share = _above(view).get(claimant)
            if share is None or together - largest >= _surplus(view, share):
                return False
        self._spent |= spent
        return True


def stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task`, with the shares of both claimants."""
    shares, among = shares_of(view), view.options.among
    claimant, receiver = claimant_of(victim.job, among), claimant_of(task.job, among)
    share, received = shares.of(claimant), shares.of(receiver)
    assert share is not None, "a task is preempted of a claimant without a demand"
    assert received is not None, "a task is preempted for one without a share"
    return StopReason(
        rule="over_fair_share",
        for_task=task.id,
        numbers={
            "fair_share_milli": share.share_milli,
            "weight": share.weight,
            "used_milli": held_by(view.pool, claimant),
            "for_fair_share_milli": received.share_milli,
            "for_weight": received.weight,
            "for_used_milli": used_by(view, receiver),
        },
        about=name_of(claimant),
    )


def release(view: PoolView) -> Iterator[tuple[Task, StopReason]]:
    """Yield the tasks that stop although none starts for them: those above their claimant's own
    limit, also within their minimum run time; with `release: at_once`, those above its share too.
    """
    above_limit, at_once = demands_of(view).above_limit, view.options.release == "at_once"
    if not above_limit and not at_once:
        return
    shares = shares_of(view)
    for share in shares.above() if at_once else shares.above_of(above_limit):
        yield from _released(view, share, at_once=at_once)


def _released(view: PoolView, share: Share, *, at_once: bool) -> Iterator[tuple[Task, StopReason]]:
    """Yield the tasks that a claimant above its limit or its share releases, each with the
    reason.
    """
    claimant = share.claimant
    limit = claimant_limit(view.pool, claimant, view.state.pools)
    most = share.share_milli if at_once else limit
    if most is None:
        return
    used, left = held_by(view.pool, claimant), retained_by(view.pool, claimant)
    numbers = {"fair_share_milli": share.share_milli, "weight": share.weight, "used_milli": used}
    rule = "over_bound" if limit is not None and used > limit else "over_fair_share"
    for task in _in_reclaim_order(view, claimant):
        if left <= most:
            return
        protected = min_runtime_until_ms(view.state, task) > view.state.now_ms
        if protected and (limit is None or left <= limit):
            continue
        left -= view.pool.held_by_job[task.job].tasks[task]
        # A task that passed others stops once it runs.
        if not task.starts_past_others:
            yield task, StopReason(rule=rule, numbers=numbers, about=name_of(claimant))


class SurplusRules:
    """The rules of a search among the tasks of claimants above their shares."""

    def __init__(self, view: PoolView) -> None:
        self._view = view
        self.searched = index_of(view).searched
        self.limits: dict[Claimant, int] = {}
        for claimant, share in _above(view).items():
            surplus = _surplus(view, share)
            if surplus > 0:
                self.limits[claimant] = surplus

    def new_budget(self) -> SurplusBudget:
        """Return an unspent budget."""
        return SurplusBudget(self._view)

    def victims_of(self, owner: Claimant) -> Iterator[Task]:
        """Yield the preemptible tasks of a claimant."""
        return _in_reclaim_order(self._view, owner)

    def among(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield those of `tasks` that are victims, in the order of `victims`."""
        view, by_claimant = self._view, dict[Claimant, list[Task]]()
        for task in tasks:
            claimant = claimant_of(task.job, view.options.among)
            if claimant in self.limits and task.job.shape.queue_class and task.job.spec.preemptible:
                by_claimant.setdefault(claimant, []).append(task)
        for claimant in self.limits:
            some = by_claimant.get(claimant)
            if some:
                live = index_of(view).reclaimable_of(claimant).is_live
                some.sort(reverse=_youngest_first(view))
                yield from _unprotected(view, filter(live, some))

    def is_protected(self) -> bool:
        """Whether tasks within their minimum run time were left out."""
        return "protected" in self._view.memo


PREEMPT: Final = PreemptionAction(
    victims=victims, stop_reason=stop_reason, budget=SurplusRules, applies=may_preempt
)
