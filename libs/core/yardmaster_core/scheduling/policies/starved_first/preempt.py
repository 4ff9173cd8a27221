"""The victims that a task of a starved owner may take slots from.

A task may preempt others if its owner holds less than its equal part. Each victim must belong to an
owner that, without the victims before it, holds more than its equal part, and more than the task's
owner will hold with the task. Afterwards no owner of a victim may hold less than the task's owner
did before. So a preemption takes slots from the larger one of two owners, and leaves it with no
less than the smaller one held before. Therefore no two owners take slots from each other in turn,
also where equal parts are no whole tasks, or tasks differ in size.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import takewhile
from typing import Final

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.planner.policy import PoolView, PreemptionAction, StopReason
from yardmaster_core.scheduling.policies.min_runtime import unprotected
from yardmaster_core.scheduling.policies.starved_first.index import Owner, index_of
from yardmaster_core.scheduling.state.tasks import Task


def may_claim(view: PoolView, task: Task) -> bool:
    """Whether an owner may lose tasks to the owner of `task`, and the task could fit then."""
    index = index_of(view)
    owner = index.owner(task.job)
    asked = view.pool.most_milli(task.job.shape)
    if not asked or owner.allocated >= index.part(owner):
        return False
    most = next(index.above(), None)
    if most is None or most.allocated <= owner.allocated + asked:
        return False
    # If a task stops that could not be preempted, more will be free than `could_fit` counts.
    return view.pool.stopping_non_preemptible > 0 or could_fit(view.pool, task.job.shape)


def victims(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the tasks that `task` may preempt.

    Each belongs to the owner that would hold the most without the tasks yielded before. Of one
    owner, the lowest priority comes first, then the latest submission.
    """
    if not may_claim(view, task):
        return
    index = index_of(view)
    now = index.owner(task.job).allocated
    after = now + view.pool.most_milli(task.job.shape)
    owners = takewhile(lambda owner: owner.allocated > after, index.above())
    following = next(owners, None)
    tasks: dict[Owner, Iterator[Task]] = {}
    # Owners by the amount that they hold without the tasks yielded before.
    heap = [] if following is None else [(-following.allocated, following.name, following)]
    while heap:
        negative, name, owner = heappop(heap)
        if owner is following:
            tasks[owner] = unprotected(view, task, index.running(view, name))
            following = next(owners, None)
            if following is not None:
                heappush(heap, (-following.allocated, following.name, following))
        victim = next(tasks[owner], None)
        if victim is None:
            continue
        held = index.held_by(victim)
        # A task whose removal alone takes too much would hide smaller tasks of its node.
        if owner.allocated - held >= now:
            yield victim
            negative += held
        heappush(heap, (negative, name, owner))


def may_preempt(view: PoolView, task: Task, stopped: Sequence[Task]) -> bool:
    """Whether the victims may be preempted together: the owner of each one, without the victims
    before it, holds more than its equal part, and more than the task's owner will hold; and none of
    these owners is left with less than the task's owner holds now.
    """
    index = index_of(view)
    now = index.owner(task.job).allocated
    after = now + view.pool.most_milli(task.job.shape)
    left: dict[Owner, int] = {}
    for victim in stopped:
        owner = index.owner(victim.job)
        remaining = left.get(owner, owner.allocated)
        if remaining <= max(index.part(owner), after):
            return False
        left[owner] = remaining - index.held_by(victim)
    return all(remaining >= now for remaining in left.values())


def stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task`."""
    index = index_of(view)
    owner, starved = index.owner(victim.job), index.owner(task.job)
    kind, name = owner.name
    return StopReason(
        rule="above_equal_part",
        for_task=task.id,
        numbers={
            "fair_share_milli": index.part(owner),
            "used_milli": owner.allocated,
            "for_fair_share_milli": index.part(starved),
            "for_used_milli": starved.allocated,
            "held_milli": index.held_by(victim),
            "asked_milli": view.pool.most_milli(task.job.shape),
        },
        about=name if kind == "project" else None,
    )


PREEMPT: Final = PreemptionAction(
    victims=victims, stop_reason=stop_reason, permits=may_preempt, applies=may_claim
)
