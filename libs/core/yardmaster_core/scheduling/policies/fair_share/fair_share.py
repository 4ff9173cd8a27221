"""`fair_share`: a pool is divided by weight among its jobs, or among its projects.

After Determined's fair-share scheduler, as documented (`demand_proportional`) or as its resource
manager computes it (`max_min`), without the slips of that code: whoever waits counts also when the
pool is full, what cannot be stopped is counted once, and starts use up room as they are planned.

- What a claimant holds above its share is given back, while somebody who is below his waits:
  running tasks are stopped until no more than the share is left, with `demand_proportional` the
  youngest first, with `max_min` the oldest first. What is above a claimant's own limit is given
  back always.
- A task starts if its claimant stays within its share and it fits; the claimant that asks for least
  comes first, then the oldest, and of one claimant the earliest submission. One that does not fit
  lets others pass.
- Tasks without GPUs are apart: first come, first served.
- A task whose last starts failed counts in no share, so that nothing is stopped for it. It starts
  on what is free while no other task waits for its share.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.policy import OrderKey, Policy, PoolView, no_victims
from yardmaster_core.scheduling.planner.wait_reasons import no_capacity
from yardmaster_core.scheduling.policies.fair_share.claimants import (
    Claimant,
    claimant_limit,
    claimant_of,
    could_fit,
    held_by,
    retained_by,
    weight_of,
)
from yardmaster_core.scheduling.policies.fair_share.demand_tracker import (
    DemandTracker,
    current_demands,
)
from yardmaster_core.scheduling.policies.fair_share.division import VARIANTS
from yardmaster_core.scheduling.policies.fair_share.shares import Share, Shares
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.state.ordered_tasks import QueueKey
from yardmaster_core.scheduling.state.preemptible import ReclaimableTasks
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.shapes import WHOLE
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_schemas.fields import CLOSED
from yardmaster_schemas.reasons import Start, Stop, StopCode, Wait, WaitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareOptions:
    """`variant`: how the pool is divided; `among`: whether jobs or projects are the claimants."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    variant: Literal["demand_proportional", "max_min"] = "demand_proportional"
    among: Literal["job", "project"] = "job"


def _demands(view: PoolView) -> DemandTracker:
    # Once a cycle: what it starts and stops meanwhile moves nobody's share until the next.
    found: DemandTracker | None = view.memo.get("demands")
    if found is None:
        # As Determined's code counts: also what no task of a claimant makes of its limit.
        whole_tasks = view.options.variant != "max_min"
        among = view.options.among
        found = current_demands(view.state, view.pool, among, whole_tasks=whole_tasks)
        view.memo["demands"] = found
    return found


def _shares(view: PoolView) -> Shares:
    found: Shares | None = view.memo.get("shares")
    if found is None:
        divide = VARIANTS[view.options.variant]
        found = view.memo["shares"] = _demands(view).divide(view.state.pools, divide)
    return found


def _claimant_of(view: PoolView, group: Group) -> Claimant:
    shape = group.shape
    if view.options.among == "project":
        return view.state.projects[shape.project]
    assert shape.job_id is not None, "a job that shares a pool is equal to no other"
    return view.state.jobs[shape.job_id]


def _used(view: PoolView, claimant: Claimant) -> int:
    return held_by(view.pool, claimant) + view.reservations.of(claimant, view.pool)


def smallest_demand_first(view: PoolView, group: Group, task: Task) -> OrderKey:
    """The claimant that asks for least, then the oldest; of one claimant the earliest
    submission.
    """
    share = (
        _shares(view).of(claimant_of(task.job, view.options.among))
        if group.shape.queue_class
        else None
    )
    if share is None:
        return int(group.shape.queue_class), 0, (0, 0), task.key
    return 1, share.demand, share.age, task.key


def over_share_wait(view: PoolView, group: Group) -> Wait | None:
    """Whether one more task of a group would take its claimant past its share."""
    shape = group.shape
    if not shape.queue_class:
        return None
    if not could_fit(view.pool, shape):
        return no_capacity(view.pool, shape)
    claimant = _claimant_of(view, group)
    if shape.start_failed and not _any_pending_below(view):
        return None  # what is free is in no other task's share
    share = _shares(view).of(claimant)
    share_milli = share.share_milli if share is not None else 0
    used = _used(view, claimant)
    if used + shape.total_gpu_milli <= share_milli and not shape.start_failed:
        return None
    return Wait(
        code=WaitCode.OVER_FAIR_SHARE,
        numbers={
            "fair_share_milli": share_milli,
            "weight": share.weight if share is not None else 1,
            "used_milli": used,
            "asked_milli": shape.total_gpu_milli,
        },
        about=_name(claimant),
    )


def _name(claimant: Claimant) -> str:
    return claimant.name if isinstance(claimant, Project) else claimant.id


def reclaim_above_share(view: PoolView) -> Iterator[tuple[Task, Stop]]:
    """What is to be given back: above a limit always, above a share if somebody is to get it, and
    with `max_min` always, the oldest first, as Determined's code does it.
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
            until_ms = min_runtime_until_ms(view.state, task)
            # Who is above a limit of his own gives back at once: nothing would come back to it.
            if until_ms > view.state.now_ms and (limit is None or holder.left <= limit):
                view.memo.setdefault("protected", []).append(until_ms)
                continue
            holder.left -= view.pool.usage_by_job[task.job].tasks[task]
            yield task, _stop(view, share, used, receiver)


@dataclass(slots=True)
class AboveShare:
    """A claimant that holds more than its share: what it holds less what is stopping."""

    share: Share
    left: int
    line: ReclaimableTasks
    youngest_first: bool
    #: Which tasks can be stopped, once all of them were asked for.
    _listed: list[Task] | None = None

    @property
    def tasks(self) -> list[Task]:
        """Which tasks can be stopped, in the order in which they are."""
        if self._listed is None:
            self._listed = list(self._reclaim_order())
        return self._listed

    def in_order(self, first: Collection[Task]) -> Iterator[Task]:
        """The same, those in `first` before the others."""
        if not first:
            yield from self._reclaim_order()
            return
        yield from (task for task in self.tasks if task in first)
        yield from (task for task in self.tasks if task not in first)

    def _reclaim_order(self) -> Iterator[Task]:
        return self.line.in_reverse() if self.youngest_first else self.line.in_order()


def _above_share(view: PoolView, share: Share) -> AboveShare:
    claimant, pool = share.claimant, view.pool
    line = pool.reclaimable.get(claimant)
    if line is None:
        line = pool.reclaimable[claimant] = ReclaimableTasks(pool.name)
        holders = pool.usage_by_project.get(claimant) if isinstance(claimant, Project) else None
        jobs = (
            [claimant] if isinstance(claimant, Job) else holders.jobs if holders is not None else ()
        )
        tasks = (t for job in jobs if job.spec.preemptible for t in pool.usage_by_job[job].tasks)
        for task in sorted(tasks, key=_key):
            line.add(task)
    youngest_first = view.options.variant == "demand_proportional"
    return AboveShare(share, retained_by(pool, claimant), line, youngest_first)


def _useful_victims(
    view: PoolView, above: Mapping[Claimant, AboveShare], receivers: list[tuple[Group, Task, int]]
) -> set[Task]:
    """Of what can be given back, what makes those fit who are to get it."""
    # Any slot is as good as another to who asks for one.
    if view.find_victims is None or all(_fits_any_slot(group) for group, _, _ in receivers):
        return set()
    now_ms = view.state.now_ms
    victims = [
        task
        for holder in above.values()
        if holder.left > holder.share.share_milli
        for task in holder.tasks
        if min_runtime_until_ms(view.state, task) <= now_ms
    ]
    if not victims:
        return set()
    return view.find_victims(_tasks_in_order(view, receivers), victims, SurplusBudget(view, above))


class SurplusBudget:
    """What claimants hold above their shares: of each so many tasks may go that one less would not
    do.
    """

    def __init__(self, view: PoolView, above: Mapping[Claimant, AboveShare]) -> None:
        self._held = view.pool.usage_by_job
        self._among = view.options.among
        self._above = above
        #: Of a claimant's tasks that are to go, what they hold together, and the largest.
        self._spent: dict[Claimant, tuple[int, int]] = {}

    def permits(self, victim: Task) -> bool:
        """Whether one more may be stopped."""
        claimant = claimant_of(victim.job, self._among)
        return self._within(claimant, self._plus(self._spent, claimant, victim))

    def spend(self, victims: Sequence[Task]) -> bool:
        """Whether all of these may be stopped too; if so they count from now on."""
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
    shape = group.shape
    elsewhere = shape.node_types or shape.avoid_nodes or shape.cpu_milli or shape.memory_mib
    return shape.total_gpu_milli == shape.gpu_milli == WHOLE and not elsewhere


def _tasks_in_order(view: PoolView, receivers: list[tuple[Group, Task, int]]) -> Iterator[Task]:
    capacities: dict[Claimant, int] = {}
    for group, _, capacity in receivers:
        claimant = _claimant_of(view, group)
        for task in group.queue.in_order():
            left = capacities.get(claimant, capacity) - group.shape.total_gpu_milli
            if left < 0:
                break
            capacities[claimant] = left
            yield task


def _key(task: Task) -> QueueKey:
    return task.key


def _stop(view: PoolView, share: Share, used: int, receiver: Task | None) -> Stop:
    numbers = {"fair_share_milli": share.share_milli, "weight": share.weight, "used_milli": used}
    rule = "over_fair_share"
    if receiver is None:
        limit = claimant_limit(view.pool, share.claimant, view.state.pools)
        if limit is not None and used > limit:
            rule = "over_bound"
    else:
        claimant = claimant_of(receiver.job, view.options.among)
        other = _shares(view).of(claimant)
        assert other is not None, "it takes what it has no share of"
        numbers["for_fair_share_milli"] = other.share_milli
        numbers["for_weight"] = other.weight
        numbers["for_used_milli"] = _used(view, claimant)
    return Stop(
        code=StopCode.FAIR_SHARE,
        rule=rule,
        for_task=receiver.id if receiver is not None else None,
        numbers=numbers,
        about=_name(share.claimant),
    )


def _receivers(view: PoolView) -> list[tuple[Group, Task, int]]:
    """Who waits on behalf of claimants below their shares, with the first task and what is left of
    the share; first those for whom that is enough.
    """
    found: list[tuple[tuple[bool, OrderKey], tuple[Group, Task, int]]] = []
    for share, group in _below(view):
        capacity = share.share_milli - _used(view, share.claimant)
        if capacity > 0 and could_fit(view.pool, group.shape):
            task = next(group.queue.in_order())
            if limit_reached(view.pool, task.job, group, view.reservations) is not None:
                continue
            key = (group.shape.total_gpu_milli > capacity, smallest_demand_first(view, group, task))
            found.append((key, (group, task, capacity)))
    found.sort(key=itemgetter(0))
    return [receiver for _, receiver in found]


def _below(view: PoolView) -> Iterator[tuple[Share, Group]]:
    for share in _shares(view).below():
        for group in _demands(view).groups_of(share.claimant):
            yield share, group


def _any_pending_below(view: PoolView) -> bool:
    """Whether a task waits that is within the share of its claimant; looked at again once something
    was placed or promised.
    """
    changes = (view.pool.free.changes, view.pool.future.changes)
    known: tuple[tuple[int, int], bool] | None = view.memo.get("any_pending_below")
    if known is None or known[0] != changes:
        found = any(
            group.queue.live
            and share.share_milli - _used(view, share.claimant) >= group.shape.total_gpu_milli
            and could_fit(view.pool, group.shape)
            and limit_reached(view.pool, group.queue.first.job, group, view.reservations) is None
            for share, group in _below(view)
        )
        known = view.memo["any_pending_below"] = changes, found
    return known[1]


def groups_within_share(view: PoolView) -> Iterator[Group]:
    """Of those who wait for their share, whom it is enough for now."""
    over = view.pool.over_share
    if over:
        failed = (group for group in over if group.shape.start_failed)
        for group in chain((group for _, group in _below(view)), failed):
            if group in over and over_share_wait(view, group) is None:
                yield group


def min_runtime_wait(view: PoolView, task: Task) -> Wait | None:
    """The wait of a task whose share others hold who are within their minimum run time."""
    until_ms = view.memo.get("protected") if task.job.shape.queue_class else None
    if not until_ms:
        return None
    numbers = {"victims": len(until_ms), "until_at_ms": min(until_ms)}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def stop_reason(view: PoolView, _: Task, task: Task) -> Stop:
    """Why somebody is stopped for `task`."""
    return Stop(code=StopCode.FAIR_SHARE, rule="over_fair_share", for_task=task.id)


def start_reason(view: PoolView, task: Task) -> Start:
    """By which rule `task` starts, and its claimant's share."""
    if not task.job.shape.queue_class:
        return Start(rule="no_gpus")
    claimant = claimant_of(task.job, view.options.among)
    share = _shares(view).of(claimant)
    # A task whose last starts failed is not counted, and starts on what is in no share.
    assert share is not None or task.shape.start_failed, "it starts without a share"
    numbers = {
        "fair_share_milli": share.share_milli if share is not None else 0,
        "weight": weight_of(claimant),
        "used_milli": held_by(view.pool, claimant),
    }
    return Start(rule="fair_share", numbers=numbers)


def among_jobs(options: FairShareOptions) -> bool:
    """Whether each job is a claimant."""
    return options.among == "job"


FAIR_SHARE: Final = Policy(
    name="fair_share",
    version=1,
    options=FairShareOptions,
    order=smallest_demand_first,
    may_start=over_share_wait,
    may_reserve=over_share_wait,
    victims=no_victims,
    min_runtime_wait=min_runtime_wait,
    stop_reason=stop_reason,
    start_reason=start_reason,
    reclaim=reclaim_above_share,
    wake=groups_within_share,
    per_job=among_jobs,
)
