"""The victims that a task of a starved owner may take slots from.

A task may preempt others if its owner holds less than its equal part. Victims are tasks of owners
that hold more than theirs, and more than the task's owner will hold with it. So each preemption
lowers the larger one of two owners, and no two owners take slots from each other in turn, also
where equal parts are no whole tasks.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import takewhile
from typing import Final

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.planner.policy import Claim, PoolView, StopReason
from yardmaster_core.scheduling.policies.min_runtime import unprotected
from yardmaster_core.scheduling.policies.starved_first.index import Owner, index_of
from yardmaster_core.scheduling.state.tasks import Task


def may_claim(view: PoolView, task: Task) -> bool:
    """Whether an owner may lose tasks to the owner of `task`, and the task could fit then."""
    index = index_of(view)
    owner = index.owner(task.job)
    asked = task.job.shape.total_gpu_milli
    if not asked or owner.standing >= index.part(owner):
        return False
    most = next(index.above(), None)
    if most is None or most.standing <= owner.standing + asked:
        return False
    # If a task stops that could not be preempted, more will be free than `could_fit` counts.
    return view.pool.stopping_firm > 0 or could_fit(view.pool, task.job.shape)


def victims(view: PoolView, task: Task) -> Iterator[Task]:
    """Yield the tasks that `task` may preempt, each time the next one of the owner that would hold
    the most without those before: the lowest priority first, then the latest submission.
    """
    if not may_claim(view, task):
        return
    index = index_of(view)
    after = index.owner(task.job).standing + task.job.shape.total_gpu_milli
    owners = takewhile(lambda owner: owner.standing > after, index.above())
    following = next(owners, None)
    tasks: dict[Owner, Iterator[Task]] = {}
    # By what owners hold without those before.
    heap = [] if following is None else [(-following.standing, following.name, following)]
    while heap:
        negative, name, owner = heappop(heap)
        if owner is following:
            tasks[owner] = unprotected(view, task, index.running(view, name))
            following = next(owners, None)
            if following is not None:
                heappush(heap, (-following.standing, following.name, following))
        victim = next(tasks[owner], None)
        if victim is not None:
            yield victim
            heappush(heap, (negative + index.held_by(victim), name, owner))


def may_preempt(view: PoolView, task: Task, stopped: Sequence[Task]) -> bool:
    """Whether the victims may be preempted together: each one leaves an owner that, with those
    before it gone, still holds more than its equal part, and more than the task's owner will.
    """
    index = index_of(view)
    after = index.owner(task.job).standing + task.job.shape.total_gpu_milli
    left: dict[Owner, int] = {}
    for victim in stopped:
        owner = index.owner(victim.job)
        remaining = left.get(owner, owner.standing)
        if remaining <= max(index.part(owner), after):
            return False
        left[owner] = remaining - index.held_by(victim)
    return True


def stop_reason(view: PoolView, victim: Task, task: Task) -> StopReason:
    """Return why `victim` is preempted for `task`."""
    index = index_of(view)
    owner, starved = index.owner(victim.job), index.owner(task.job)
    kind, name = owner.name
    return StopReason(
        rule="above_equal_part",
        for_task=task.id,
        numbers={
            "equal_part_milli": index.part(owner),
            "used_milli": owner.standing,
            "for_equal_part_milli": index.part(starved),
            "for_used_milli": starved.standing,
            "held_milli": index.held_by(victim),
            "asked_milli": task.job.shape.total_gpu_milli,
        },
        about=name if kind == "project" else None,
    )


PREEMPT: Final = Claim(
    victims=victims, stop_reason=stop_reason, permits=may_preempt, applies=may_claim
)
