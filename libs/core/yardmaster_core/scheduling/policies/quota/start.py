"""Why a task starts or waits, by the quotas of its project and of the departments above it."""

from dataclasses import replace

from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    RESOURCES,
    SUFFIXES,
    exceeded,
    limited,
    minus,
    placed,
    plus,
    requested,
)
from yardmaster_core.scheduling.policies.min_runtime import protected_wait
from yardmaster_core.scheduling.policies.quota.index import index_of
from yardmaster_core.scheduling.policies.quota.pool_sums import sum_over_pools
from yardmaster_core.scheduling.policies.quota.protections import delayed_until_ms
from yardmaster_core.scheduling.policies.quota.queues import Queue
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_schemas.reasons import Start, Wait, WaitCode


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


def min_runtime_wait(view: PoolView, task: Task) -> Wait | None:
    """Return the wait reason of a task that must not preempt others yet, or whose victims are
    within their minimum run time; else None.
    """
    delay_ms = delayed_until_ms(view, task)
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


def share_decides_now(view: PoolView, task: Task, wait: Wait) -> bool:
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
