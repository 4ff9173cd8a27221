"""Why a task starts or waits, by the quotas of its project and of the departments above it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from yardmaster_core.scheduling.planner.feasibility import could_fit
from yardmaster_core.scheduling.planner.policy import PoolView
from yardmaster_core.scheduling.policies.claiming.amounts import (
    NOTHING,
    RESOURCES,
    SUFFIXES,
    Amounts,
    first_exceeded,
    held_by_task,
    least_requested,
    minus,
    placed_amounts,
    plus,
    requested,
    requested_for_limits,
)
from yardmaster_core.scheduling.policies.min_runtime import protected_wait, wait_behind_protected
from yardmaster_core.scheduling.policies.quota.index import index_of, queue_of
from yardmaster_core.scheduling.policies.quota.oldest import wait_for_oldest, with_reserved_from
from yardmaster_core.scheduling.policies.quota.pool_sums import stays_within_sum, sum_over_pools
from yardmaster_core.scheduling.policies.quota.project_order import priority_above
from yardmaster_core.scheduling.policies.quota.protections import (
    delayed_until_ms,
    queue_min_runtime_s,
)
from yardmaster_core.scheduling.policies.quota.queues import Queue, differing
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import LIMITED
from yardmaster_schemas.reasons import Start, Wait, WaitCode


def nothing_without(_: Queue) -> Amounts:
    """All that a queue uses counts towards its limit."""
    return NOTHING


def wait_for_quota(
    view: PoolView,
    group: Group,
    task: Task,
    *,
    without: Callable[[Queue], Amounts] = nothing_without,
    gone: Amounts = NOTHING,
    gpu_milli: int | None = None,
) -> Wait | None:
    """Return the wait reason of a task with which a queue would hold more than its limit; or more
    than it deserves, if the task cannot be preempted, or would be protected by a minimum run time
    while another task waits for such victims; else None.

    Queues are checked from the project up, and the first one that refuses is named. Only resources
    that the task requests count: if a limit of GPUs was lowered below the GPUs held, tasks without
    GPUs still start.

    A bound that the task alone exceeds comes first: the reason does not change with what others
    hold.

    `without`: of what a queue uses, what does not count towards limits. `gone`: the amounts of
    preemptible tasks of the project that do not count at all. `gpu_milli`: the amount that the task
    takes; None: the least that it may take.
    """
    index_of(view).divide(view.state)
    never = exceeds_alone(view, group, task)
    if never is not None:
        return never
    project_queue = queue_of(view, task)
    request = requested_for_limits(view.pool, group.shape, task, gpu_milli)
    least = least_requested(view.pool, group.shape)
    reservation = task.reserved
    # What is reserved for the task in this pool already counts for its queues.
    counted = NOTHING
    if reservation is not None and reservation.pool_name == view.pool.name:
        counted = placed_amounts(reservation.placements)
    # rule: limits and at_deserved at every level
    for queue in project_queue.ancestors():
        used = plus(minus(minus(minus(queue.used, without(queue)), gone), counted), request)
        # rule: limits: of requested resources only
        resource = first_exceeded(used, queue.limit, among=request)
        # rule: limits
        if resource is not None:
            return _wait(WaitCode.AT_LIMIT, queue, resource, request[resource], least[resource])
        # rule: at_deserved: not for preemptible tasks
        if not group.shape.preemptible:
            # rule: at_deserved: counts tasks that are not preemptible
            used = plus(minus(queue.non_preemptible, counted), request)
            resource = first_exceeded(used, queue.deserved, among=request)
            # rule: at_deserved
            if resource is not None:
                return _wait(
                    WaitCode.AT_DESERVED, queue, resource, request[resource], least[resource]
                )
    if not group.shape.preemptible and reservation is None:
        # rule: sum over pools: bounds tasks that are not preemptible
        wait = _wait_for_sum(view, project_queue, task, request)
        if wait is not None:
            return wait
    if reservation is not None:
        return None
    if is_protected_beyond_deserved(view, group, task, gone):
        guaranteed = partial(_is_guaranteed_before, view, task)
        preempts = partial(_would_preempt, view, task)
        wait = wait_behind_protected(view, group, task, guaranteed, preempts)
        if wait is not None:
            return wait
    return wait_for_oldest(view, group, task)


def exceeds_quota(view: PoolView, task: Task, gpu_milli: int) -> Wait | None:
    """Return the wait reason of a task that a quota refuses if it takes that gpu_milli; else None.

    A bound that refuses it whatever it takes does not count.
    """
    group = task.group
    assert group is not None
    wait = wait_for_quota(view, group, task, gpu_milli=gpu_milli)
    return wait if wait is not None and wait.code in LIMITED else None


def exceeds_alone(view: PoolView, group: Group, task: Task) -> Wait | None:
    """Return the wait reason of a group whose tasks alone exceed a bound of a queue; else None."""
    if not index_of(view).never_starts(view.state, group):
        return None
    least = least_requested(view.pool, group.shape)
    for queue in queue_of(view, task).ancestors():
        bounds = [(WaitCode.AT_LIMIT, queue.limit)]
        if not group.shape.preemptible:
            bounds.append((WaitCode.AT_DESERVED, queue.deserved))
        for code, bound in bounds:
            resource = first_exceeded(least, bound)
            if resource is not None:
                return _wait(code, queue, resource, least[resource], least[resource])
    return None


def is_protected_beyond_deserved(
    view: PoolView, group: Group, task: Task, gone: Amounts = NOTHING
) -> bool:
    """Whether a preemptible task would be protected by a minimum run time, and a queue above it
    would hold more than it deserves, without the amounts of `gone`.
    """
    shape, project_queue = group.shape, queue_of(view, task)
    if not shape.preemptible:
        return False
    if not group.min_runtimes and not any(queue.reclaim_s for queue in project_queue.path):
        return False
    request = requested(view.pool, shape)
    more = minus(request, gone)
    return not stays_within_sum(view, task.job.project, more) or any(
        first_exceeded(plus(queue.allocated, more), queue.deserved, among=request) is not None
        for queue in project_queue.path
    )


def _is_guaranteed_before(view: PoolView, task: Task, other: Group) -> bool:
    """Whether the first task of another group stays within what its queue deserves, while `task`
    would exceed what its own does, where the queues of the two differ; and does not wait behind
    protected tasks itself.
    """
    first = other.queue.first
    if first.job.project is task.job.project or is_protected_beyond_deserved(view, other, first):
        return False
    ahead, own = differing(queue_of(view, first), queue_of(view, task))
    return not _exceeds_deserved(view, ahead, first) and _exceeds_deserved(view, own, task)


def _would_preempt(view: PoolView, task: Task, other: Task) -> bool:
    """Whether a task could preempt another one of its project as soon as that runs.

    A delay of the task does not count: nothing would wake the task at its end.
    """
    spec = other.job.spec
    if "preempt" not in view.options.claiming or task.job.project is not other.job.project:
        return False
    if not spec.preemptible or spec.min_runtime_s:
        return False
    above = priority_above(view, task.job.shape, task.job.priority)
    lower = above is None or other.job.priority > above
    return lower and not queue_min_runtime_s(queue_of(view, task), reclaim=False)


def _exceeds_deserved(view: PoolView, queue: Queue, task: Task) -> bool:
    """Whether a queue above a task, or its project in all its pools, would hold more than it
    deserves with the task.
    """
    request = requested(view.pool, task.job.shape)
    more = plus(queue.allocated, request)
    return first_exceeded(more, queue.deserved, among=request) is not None or (
        queue.is_project and not stays_within_sum(view, task.job.project, request)
    )


def _wait_for_sum(
    view: PoolView, project_queue: Queue, task: Task, request: Amounts
) -> Wait | None:
    """Return the wait reason of a task that cannot be preempted and with which its project would
    hold more than it deserves in all its pools; else None.

    The project would hold no more than it deserves in this pool.
    """
    sums = sum_over_pools(view, task.job.project)
    if sums is None:
        return None
    resource = first_exceeded(plus(sums.non_preemptible, request), sums.deserved, among=request)
    if resource is None:
        return None
    least = least_requested(view.pool, task.job.shape)[resource]
    wait = _wait(WaitCode.AT_DESERVED, project_queue, resource, request[resource], least)
    in_all_pools = sums.numbers(resource, sums.non_preemptible)
    return replace(wait, numbers={**wait.numbers, **in_all_pools})


def _wait(code: WaitCode, queue: Queue, resource: int, asked: int, least: int) -> Wait:
    """Return the wait reason at the limit, or at the deserved amount, of a queue. If the task alone
    requests more, wherever it is placed (`least`), the reason says that it can never start.
    """
    suffix = SUFFIXES[resource]
    at_limit = code is WaitCode.AT_LIMIT
    bound = (queue.limit if at_limit else queue.deserved)[resource]
    assert bound is not None, "an unlimited amount was exceeded"
    name = f"{'limit' if at_limit else 'deserved'}_{suffix}"
    # rule: exceeds_limit and exceeds_deserved
    if least > bound:
        never = WaitCode.EXCEEDS_LIMIT if at_limit else WaitCode.EXCEEDS_DESERVED
        numbers = {f"asked_{suffix}": least, name: bound}
        return Wait(code=never, numbers=numbers, about=queue.name)
    used = (queue.used if at_limit else queue.non_preemptible)[resource]
    numbers = {name: bound, f"used_{suffix}": used, f"asked_{suffix}": asked}
    return Wait(code=code, numbers=numbers, about=queue.name)


def start_reason(view: PoolView, task: Task) -> Start:
    """Return the rule by which `task` starts: within what its project deserves, or beyond."""
    index_of(view).divide(view.state)
    project_queue = queue_of(view, task)
    request = requested(view.pool, task.job.shape)
    reserved = NOTHING
    if task.reserved is not None:
        reserved = placed_amounts(task.reserved.placements)
    allocated = minus(project_queue.allocated, reserved)
    deserved = project_queue.deserved[0]
    numbers = {"fair_share_milli": project_queue.fair[0], "used_milli": allocated[0]}
    if deserved is not None:
        numbers["deserved_milli"] = deserved
    if first_exceeded(plus(allocated, request), project_queue.deserved) is not None:
        return Start(rule="over_quota", numbers=numbers)
    sums = sum_over_pools(view, task.job.project)
    if sums is not None:
        in_all_pools = minus(sums.allocated, reserved)
        resource = first_exceeded(plus(in_all_pools, request), sums.deserved)
        if resource is not None:
            numbers |= sums.numbers(resource, in_all_pools)
            return Start(rule="over_quota", numbers=numbers)
    return Start(rule="within_deserved", numbers=numbers)


def _wait_until(view: PoolView, task: Task) -> Wait | None:
    """Return the wait reason of a task that must not preempt others yet, or that found only victims
    within their minimum run time; else None.
    """
    until_ms = delayed_until_ms(view, task)
    if until_ms:
        return Wait(code=WaitCode.PREEMPTION_DELAY, numbers={"until_at_ms": until_ms})
    # Else it would keep others behind it for victims that do not make it fit.
    return protected_wait(view, task) if could_fit(view.pool, task.job.shape) else None


def starts_without(view: PoolView, task: Task, victims: Sequence[Task]) -> bool:
    """Whether no quota refuses the task once these tasks of its project, and all that stop in time,
    are gone.
    """
    group = task.group
    assert group is not None
    gone = NOTHING
    for victim in victims:
        gone = plus(gone, held_by_task(view.pool, victim))

    wait = wait_for_quota(view, group, task, without=attrgetter("freed_in_time"), gone=gone)
    if wait is not None and wait.code is WaitCode.BEHIND_TASK:
        view.memo["behind", task] = wait
    return wait is None


def waits_at_limit(view: PoolView, task: Task) -> bool:
    """Whether a limit keeps a task from starting until tasks that release their slots are gone."""
    group = task.group
    assert group is not None
    wait = wait_for_quota(view, group, task)
    return (
        wait is not None
        and wait.code is WaitCode.AT_LIMIT
        and wait_for_quota(view, group, task, without=attrgetter("leaving")) is None
    )


def at_limit_wait(view: PoolView, task: Task, wait: Wait) -> Wait:
    """Return the wait reason of a task at a limit that found no victims in its project: when it may
    preempt, or when a victim is no longer protected, or the task that it waits behind although its
    victims would suffice ; else `wait`.
    """
    group = task.group
    assert group is not None
    behind: Wait | None = view.memo.pop(("behind", task), None)
    return exceeds_alone(view, group, task) or _wait_until(view, task) or behind or wait


def no_victims_wait(view: PoolView, task: Task, wait: Wait) -> Wait:
    """Return the wait reason of a task that neither fits nor found victims.

    If the task must not preempt yet, or its victims are within their minimum run time, the reason
    names the time when this ends. Else the reason is `wait`, with the numbers of one resource if
    the task may ever reclaim slots.

    If the project would hold more of a resource than its share, the task reclaims nothing, and the
    numbers are those of the first such resource. Else the numbers are those of the first resource
    that the task requests, and `others_above` is the number of projects that the task may reclaim
    from.
    """
    until = _wait_until(view, task)
    if until is not None:
        return until
    wait = with_reserved_from(view, task, wait)
    if not _may_ever_reclaim(view, task):
        return wait
    project_queue = queue_of(view, task)
    request, over = requested(view.pool, task.job.shape), first_resource_over_share(view, task)
    resource = next((i for i in RESOURCES if request[i]), 0) if over is None else over
    suffix, deserved = SUFFIXES[resource], project_queue.deserved[resource]
    numbers = {
        f"asked_{suffix}": request[resource],
        f"fair_share_{suffix}": project_queue.fair[resource],
        f"used_{suffix}": project_queue.allocated[resource],
    }
    if deserved is not None:
        numbers[f"deserved_{suffix}"] = deserved
    if over is None:
        numbers["others_above"] = view.memo.get(("others_above", task), 0)
    return replace(wait, numbers={**wait.numbers, **numbers})


def first_resource_over_share(view: PoolView, task: Task) -> int | None:
    """Return the first resource that the task's project would hold above its share with the task;
    else None.
    """
    index_of(view).divide(view.state)
    queue = queue_of(view, task)
    return first_exceeded(plus(queue.allocated, requested(view.pool, task.job.shape)), queue.fair)


def _may_ever_reclaim(view: PoolView, task: Task) -> bool:
    """Whether the pool's actions include reclaim, and the last starts of the task did not fail."""
    return "reclaim" in view.options.claiming and not task.shape.start_failed


def share_decides_now(view: PoolView, task: Task, wait: Wait) -> bool:
    """Whether the task's project would be above its share of a resource that the wait reason does
    not name, so that the reason is out of date.
    """
    if not _may_ever_reclaim(view, task):
        return False
    resource = first_resource_over_share(view, task)
    if resource is None:
        return False
    numbers = wait.numbers
    return "others_above" in numbers or f"fair_share_{SUFFIXES[resource]}" not in numbers
