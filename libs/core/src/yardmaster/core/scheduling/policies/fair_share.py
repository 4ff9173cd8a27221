"""`fair_share`: a pool is divided by weight among its jobs, or among its projects.

After Determined's fair-share scheduler, as documented (`demand_proportional`) or as its resource
manager computes it (`max_min`), without the slips of that code: whoever waits counts also when the
pool is full, what cannot be stopped is counted once, and starts use up room as they are planned.

- What a party holds above its share is given back, while somebody who is below his waits: running
  tasks are stopped until no more than the share is left, with `demand_proportional` the youngest
  first, with `max_min` the oldest first. What is above a party's own bound is given back always.
- A task starts if its party stays within its share and it fits; the party that asks for least comes
  first, then the oldest, and of one party the earliest submission. One that does not fit lets
  others pass.
- Tasks without GPUs are apart: first come, first served.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

from yardmaster.core.scheduling.entities import Group, Project, Task
from yardmaster.core.scheduling.parties import (
    Party,
    Share,
    bound_of,
    could_fit,
    held_by,
    party_of,
    shares_of,
)
from yardmaster.core.scheduling.policy import OrderKey, Policy, PoolView
from yardmaster.core.scheduling.protection import protected_until_ms
from yardmaster.core.scheduling.shares import VARIANTS
from yardmaster.core.scheduling.waits import no_room
from yardmaster.schemas.fields import CLOSED
from yardmaster.schemas.reasons import Start, Stop, StopCode, Wait, WaitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareOptions:
    """`variant`: how the pool is divided; `among`: whether jobs or projects are the parties."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    variant: Literal["demand_proportional", "max_min"] = "demand_proportional"
    among: Literal["job", "project"] = "job"


def _shares(view: PoolView) -> dict[Party, Share]:
    # Once a cycle: what it starts and stops meanwhile moves nobody's share until the next.
    found: dict[Party, Share] | None = view.memo.get("shares")
    if found is None:
        options = view.options
        shares = shares_of(view.pool, options.among, VARIANTS[options.variant])
        found = view.memo["shares"] = {share.party: share for share in shares}
    return found


def _party(view: PoolView, group: Group) -> Party:
    shape = group.shape
    if view.options.among == "project":
        return view.state.projects[shape.project]
    assert shape.job_id is not None, "a job that shares a pool is equal to no other"
    return view.state.jobs[shape.job_id]


def _used(view: PoolView, party: Party) -> int:
    return held_by(view.pool, party) + view.promises.of(party, view.pool)


def least_asked_first(view: PoolView, group: Group, task: Task) -> OrderKey:
    """The party that asks for least, then the oldest; of one party the earliest submission."""
    share = _shares(view).get(party_of(task.job, view.options.among)) if group.shape.lane else None
    if share is None:
        return int(group.shape.lane), 0, (0, 0), task.key
    return 1, share.demand, share.age, task.key


def within_its_share(view: PoolView, group: Group) -> Wait | None:
    """Whether one more task of a group would take its party past its share."""
    shape = group.shape
    if not shape.lane:
        return None
    if not could_fit(view.pool, shape):
        return no_room(view.pool, shape)
    party = _party(view, group)
    share = _shares(view).get(party)
    offer = share.offer if share is not None else 0
    used = _used(view, party)
    if used + shape.total_gpu_milli <= offer:
        return None
    return Wait(
        code=WaitCode.OVER_FAIR_SHARE,
        numbers={
            "fair_share_milli": offer,
            "weight": share.weight if share is not None else 1,
            "used_milli": used,
            "asked_milli": shape.total_gpu_milli,
        },
        about=_name(party),
    )


def _name(party: Party) -> str:
    return party.name if isinstance(party, Project) else party.id


def nobody(_: PoolView, __: Task) -> Iterator[Task]:
    """No task has others stopped for itself: what is over a share is given back first."""
    return iter(())


def over_a_share(view: PoolView) -> Iterator[tuple[Task, Stop]]:
    """What is to be given back: above a share if somebody is to get it, above a bound always."""
    over = [s for s in _shares(view).values() if held_by(view.pool, s.party) > s.offer]
    if not over:
        return
    taker = _taker(view)
    holders: dict[Party, list[Task]] = {share.party: [] for share in over}
    for job, holding in view.pool.held.items():
        tasks = holders.get(party_of(job, view.options.among))
        if tasks is not None and job.spec.preemptible:
            tasks.extend(holding.tasks)
    for share in over:
        bound = bound_of(view.pool, share.party)
        most = share.offer if taker is not None else bound
        if most is not None:
            yield from _given_back(view, share, most, holders[share.party], taker)


def _given_back(
    view: PoolView, share: Share, most: int, tasks: list[Task], taker: Task | None
) -> Iterator[tuple[Task, Stop]]:
    held = view.pool.held
    left = used = held_by(view.pool, share.party)
    tasks.sort(reverse=view.options.variant == "demand_proportional")
    staying = []
    for task in tasks:
        run = task.run
        if run is None or run.stop is not None or run.ended:
            left -= held[task.job].tasks[task]
        else:
            staying.append(task)
    for task in staying:
        if left <= most:
            return
        until_ms = protected_until_ms(view.state, task)
        if until_ms > view.state.now_ms:
            view.memo.setdefault("protected", []).append(until_ms)
            continue
        left -= held[task.job].tasks[task]
        yield task, _stop(view, share, used, taker)


def _stop(view: PoolView, share: Share, used: int, taker: Task | None) -> Stop:
    numbers = {"fair_share_milli": share.offer, "weight": share.weight, "used_milli": used}
    if taker is None:
        rule = "over_bound"
    else:
        rule = "over_fair_share"
        party = party_of(taker.job, view.options.among)
        other = _shares(view)[party]
        numbers["for_fair_share_milli"] = other.offer
        numbers["for_weight"] = other.weight
        numbers["for_used_milli"] = _used(view, party)
    return Stop(
        code=StopCode.FAIR_SHARE,
        rule=rule,
        for_task=taker.id if taker is not None else None,
        numbers=numbers,
        about=_name(share.party),
    )


def _taker(view: PoolView) -> Task | None:
    """The first task that waits on behalf of a party below its share, rather one that has room."""
    shares = _shares(view)
    best: tuple[tuple[bool, OrderKey], Task] | None = None
    for group in view.pool.groups.values():
        if not group.shape.lane or not group.queue.live:
            continue
        share = shares.get(_party(view, group))
        room = share.offer - _used(view, share.party) if share is not None else 0
        if room > 0 and could_fit(view.pool, group.shape):
            task = next(group.queue.in_order())
            key = (group.shape.total_gpu_milli > room, least_asked_first(view, group, task))
            if best is None or key < best[0]:
                best = key, task
    return best[1] if best is not None else None


def soonest_unprotected(view: PoolView, task: Task) -> Wait | None:
    """The wait of a task whose share others hold who are within their minimum run time."""
    until_ms = view.memo.get("protected") if task.job.shape.lane else None
    if not until_ms:
        return None
    numbers = {"victims": len(until_ms), "until_at_ms": min(until_ms)}
    return Wait(code=WaitCode.VICTIMS_PROTECTED, numbers=numbers)


def for_its_share(view: PoolView, _: Task, task: Task) -> Stop:
    """Why somebody is stopped for `task`."""
    return Stop(code=StopCode.FAIR_SHARE, rule="over_fair_share", for_task=task.id)


def by_its_share(view: PoolView, task: Task) -> Start:
    """By which rule `task` starts, and its party's share."""
    if not task.job.shape.lane:
        return Start(rule="no_gpus")
    party = party_of(task.job, view.options.among)
    share = _shares(view)[party]
    numbers = {
        "fair_share_milli": share.offer,
        "weight": share.weight,
        "used_milli": held_by(view.pool, party),
    }
    return Start(rule="fair_share", numbers=numbers)


def among_jobs(options: FairShareOptions) -> bool:
    """Whether each job is a party."""
    return options.among == "job"


FAIR_SHARE: Final = Policy(
    name="fair_share",
    version=1,
    options=FairShareOptions,
    order=least_asked_first,
    may_start=within_its_share,
    may_claim=within_its_share,
    victims=nobody,
    protected=soonest_unprotected,
    stop_for=for_its_share,
    start=by_its_share,
    surplus=over_a_share,
    per_job=among_jobs,
)
