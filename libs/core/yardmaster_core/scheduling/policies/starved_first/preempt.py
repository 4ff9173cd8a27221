"""The victims that a task of a starved owner may take slots from.

A task may preempt others if its owner holds less than its equal part. Each victim must belong to an
owner that, without the victims before it, holds more than its equal part, and more than the task's
owner will hold with the task. Afterwards each owner of a victim must hold more than the task's
owner did before. Of two owners that hold nothing, the one whose smallest task is larger counts as
the one that holds more: an owner with one large task may lose it to an owner that holds nothing.

So no owners take slots from each other in turn. Sort what the owners hold, the smallest amount
first, and compare two states by the first amount that differs. A start on idle slots only makes
amounts larger. A preemption makes the amount of the task's owner larger, and leaves those of the
others that change larger than that amount was before. So each preemption leads to a state that
compares as larger, also where equal parts are no whole tasks, or tasks differ in size, and no state
is reached twice while no task is submitted or ends and no node changes.

A task could still preempt the one for which it was preempted, if the owner of that one holds more
since. Then the first preemption was useless. So a task is judged with what its owner will hold: if
others of its owner may start on the slots that stay free, and an owner of victims could take slots
back then, the task preempts only after the first turns of these (`PREEMPT_POSTPONED`). And while
preempted tasks of an owner that holds less are stopping, a task preempts only within the equal part
of its owner, because the other owner comes first once they are pending. Starts in later cycles are
not foreseen, so this prevents most of such pairs, not all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import takewhile
from typing import Final

from yardmaster_core.scheduling.planner.feasibility import could_fit_after_stops
from yardmaster_core.scheduling.planner.policy import PoolView, PreemptionAction, StopReason
from yardmaster_core.scheduling.policies.min_runtime import unprotected
from yardmaster_core.scheduling.policies.price import least_beyond_first
from yardmaster_core.scheduling.policies.starved_first.index import Owner, index_of
from yardmaster_core.scheduling.state.tasks import Task


def may_claim(view: PoolView, task: Task) -> bool:
    """Whether an owner may lose tasks to the owner of `task`, and the task could fit then."""
    index = index_of(view)
    owner = index.owner(task.job)
    asked = view.pool.most_milli(task.job.shape)
    if not asked or owner.allocated >= index.part(owner):
        return False
    after = owner.allocated + asked
    most = next(index.above(), None)
    if most is None or most.allocated <= after:
        return False
    least_returning = index.least_returning()
    comes_first = least_returning is None or least_returning >= owner.allocated
    # An owner that holds less comes first, also while its preempted tasks stop: else it would take
    # back what this one holds beyond its equal part.
    if after > index.part(owner) and not comes_first:
        return False
    return could_fit_after_stops(view.pool, task.job.shape)


def victims(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the tasks that `task` may preempt.

    Each belongs to the owner that would hold the most without the tasks yielded before. Of one
    owner, the lowest priority comes first, then the fewest GPUs beyond the request, then the latest
    submission.
    """
    if not may_claim(view, task):
        return
    index = index_of(view)
    after = index.owner(task.job).allocated + view.pool.most_milli(task.job.shape)
    owners = takewhile(lambda owner: owner.allocated > after, index.above())
    following = next(owners, None)
    tasks: dict[Owner, Iterator[Task]] = {}
    # Owners by the amount that they hold without the tasks yielded before.
    heap = [] if following is None else [(-following.allocated, following.name, following)]
    while heap:
        negative, name, owner = heappop(heap)
        if owner is following:
            unprotected_tasks = unprotected(view, task, index.running(view, name))
            tasks[owner] = least_beyond_first(view, task, unprotected_tasks)
            following = next(owners, None)
            if following is not None:
                heappush(heap, (-following.allocated, following.name, following))
        victim = next(tasks[owner], None)
        if victim is None:
            continue
        held = index.held_by(victim)
        # A task whose removal alone takes too much would hide smaller tasks of its node.
        if _keeps_more(view, task, owner, owner.allocated - held, [victim]):
            yield victim
            negative += held
        heappush(heap, (negative, name, owner))


class PreemptedVictims:
    """Victims that may be preempted together: a `VictimSelection`.

    The owner of each one, without the victims before it, holds more than its equal part, and more
    than the task's owner will hold; and each of these owners is left with more than the task's
    owner holds now (see above for nothing).
    """

    def __init__(self, view: PoolView, task: Task) -> None:
        index = index_of(view)
        self._view, self._task, self._index = view, task, index
        self._after = index.owner(task.job).allocated + view.pool.most_milli(task.job.shape)
        self._left: dict[Owner, int] = {}
        self._lost: dict[Owner, list[Task]] = {}

    def add(self, victim: Task) -> bool:
        """Add a victim unless its owner may not lose it too."""
        owner = self._index.owner(victim.job)
        before = self._left.get(owner, owner.allocated)
        if before <= max(self._index.part(owner), self._after):
            return False
        remaining = before - self._index.held_by(victim)
        lost = [*self._lost.get(owner, ()), victim]
        if not _keeps_more(self._view, self._task, owner, remaining, lost):
            return False
        self._left[owner], self._lost[owner] = remaining, lost
        return True

    def could_take_back(self, more: int) -> bool:
        """Whether an owner of victims could take slots back for one of them, if the task's owner
        held `more` than with the task.
        """
        index, milli = self._index, self._view.pool.most_milli
        held = self._after + more
        return held > index.part(index.owner(self._task.job)) and any(
            remaining < index.part(owner)
            and remaining + min(milli(v.job.shape) for v in self._lost[owner]) < held
            for owner, remaining in self._left.items()
        )


def may_preempt(view: PoolView, task: Task, stopped: Sequence[Task]) -> bool:
    """Whether the victims may be preempted together (`PreemptedVictims`)."""
    together = PreemptedVictims(view, task)
    return all(together.add(victim) for victim in stopped)


def may_preempt_at_once(view: PoolView, task: Task, stopped: Sequence[Task]) -> bool:
    """Whether the victims may be preempted together, and no owner of them could take slots back if
    other tasks of the task's owner start on the slots that stay free. Else the task is postponed.
    """
    together = PreemptedVictims(view, task)
    if not all(together.add(victim) for victim in stopped):
        return False
    # Part of the others may not fit there: a task is rather postponed without need.
    others = index_of(view).owner(task.job).pending - view.pool.most_milli(task.job.shape)
    if not together.could_take_back(min(others, view.pool.future.free_milli)):
        return True
    view.memo["postponed", task] = True
    return False


def is_postponed(view: PoolView, task: Task) -> bool:
    """Whether a task may preempt once the other tasks of its owner have had their first turn."""
    return ("postponed", task) in view.memo and may_claim(view, task)


def _keeps_more(
    view: PoolView, task: Task, owner: Owner, remaining: int, stopped: Sequence[Task]
) -> bool:
    """Whether an owner that keeps `remaining` without the stopped tasks holds more than the owner
    of `task` holds now. Of two that hold nothing, the larger smallest task counts as more.
    """
    index, pool = index_of(view), view.pool
    claimant = index.owner(task.job)
    if remaining or claimant.allocated:
        return remaining > claimant.allocated
    if owner.returning:
        # Its tasks that are stopping may be smaller than the others.
        return False
    lost = [pool.most_milli(v.job.shape) for v in stopped if index.owner(v.job) is owner]
    return min(lost + owner.requests) > min(claimant.requests)


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
    victims=victims,
    stop_reason=stop_reason,
    permits=may_preempt_at_once,
    selection=PreemptedVictims,
    applies=may_claim,
)
PREEMPT_POSTPONED: Final = replace(PREEMPT, permits=may_preempt, applies=is_postponed)
