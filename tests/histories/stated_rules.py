"""The stated rules by which a task waits although it fits, for each policy, and the order in which
tasks come before others (docs/reference/policies.md); computed from the facts of the state.

`waits_by_rule` is the whole list for work conservation: a task that fits on idle capacity that is
not reserved, and that no rule of its policy keeps waiting, starts.

`comes_before` is the order for `order.py`.
"""

from collections.abc import Iterator
from typing import Final

from tests.histories.free_capacity import fits_on_empty_nodes, is_simple
from tests.histories.quota_properties import (
    Amounts,
    Queues,
    exceeds,
    lost_with,
    minus,
    plus,
    request_of,
    sum_of,
)
from yardmaster_core.scheduling.policies import options_of
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Group, Job, Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING, IMPOSSIBLE
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import WaitCode

#: The policies with strict queues: no task passes an earlier one of its queue.
STRICT: Final = ("fifo", "sjf", "lrtp", "rand", "fitgpp")


def pending_groups(pool: Pool) -> Iterator[Group]:
    """Yield the groups with tasks that may start: not paused, in back-off or ended."""
    for group in list(pool.groups.values()):
        if group.queue.live:
            yield group


def code_of(pool: Pool, group: Group) -> WaitCode | None:
    """The recorded reason why a group waits in a pool."""
    record = group.waits.get(pool.name)
    return record[0].code if record is not None else None


def is_protected(task: Task) -> bool:
    """Whether a task cannot be preempted as soon as it runs, by its job."""
    return not task.job.spec.preemptible or task.job.spec.min_runtime_s > 0


# Limits


def is_limited(state: ClusterState, pool: Pool, task: Task) -> bool:
    """Whether a limit of its job, its project or a department keeps a task from starting."""
    job, project = task.job, task.job.project
    config = project.config
    if config is not None and config.pools and pool.name not in config.pools:
        return True
    asked = pool.least_milli(job.shape)
    if not asked:
        return False
    bounds: list[tuple[Job | Project | Department, str | None, int | None]] = [
        (job, None, job.max_slots_milli)
    ]
    if config is not None:
        bounds += [(project, None, config.limit_milli)]
    queue: Project | Department | None = project
    while queue is not None:
        quota: Quota | None = None
        if queue.config is not None:
            quota = queue.config.quotas.get(pool.name)
        bounds.append((queue, pool.name, quota.limit_milli if quota is not None else None))
        if isinstance(queue, Project):
            queue = queue.department
        else:
            parent = queue.config.parent if queue.config is not None else None
            queue = state.departments.get(parent) if parent is not None else None
    return any(
        limit is not None and _held(state, owner, name) + asked > limit
        for owner, name, limit in bounds
    )


def _held(state: ClusterState, owner: Job | Project | Department, name: str | None) -> int:
    """The gpu_milli of an owner in a pool (None: in all), with what is reserved for its tasks."""
    held = 0
    for task in state.tasks.values():
        if not _belongs_to(state, task, owner):
            continue
        by_pool: dict[str, int] = {}
        run, reserved = task.run, task.reserved
        if run is not None:
            by_pool[run.pool_name] = state.pools[run.pool_name].held_milli(task)
        if reserved is not None:
            # A task that is moved counts once in a pool.
            before = by_pool.get(reserved.pool_name, 0)
            by_pool[reserved.pool_name] = max(before, reserved.gpu_milli)
        held += sum(milli for of, milli in by_pool.items() if name in (None, of))
    return held


def _belongs_to(state: ClusterState, task: Task, owner: Job | Project | Department) -> bool:
    if owner in (task.job, task.job.project):
        return True
    department: Department | None = task.job.project.department
    while department is not None:
        if department is owner:
            return True
        parent = department.config.parent if department.config is not None else None
        department = state.departments.get(parent) if parent is not None else None
    return False


# What keeps a task waiting


def waits_by_rule(state: ClusterState, pool: Pool, group: Group) -> bool:
    """Whether a rule of the policy keeps the first task of a group from starting where it fits."""
    assert pool.config is not None
    task, name = group.queue.first, pool.config.policy.name
    if is_limited(state, pool, task):
        return True
    if name == "priority":
        return _waits_by_priority(pool, group)
    if name in STRICT:
        return _waits_in_queue(state, pool, group)
    if name == "fair_share":
        return code_of(pool, group) is WaitCode.OVER_FAIR_SHARE
    if name == "quota":
        return _waits_for_quota(state, pool, group)
    assert name == "starved_first", name
    if waits_for_the_oldest(state, pool, group) or is_at_bound(state, pool, task):
        return True
    return is_held_by_protection(group) and _some_are_protected(pool)


def waits_for_the_oldest(state: ClusterState, pool: Pool, group: Group) -> bool:
    """Whether another task of the owner waits for capacity, a limit or a quota, has done so for
    `reserve_oldest_s`, and comes first; under `quota` the share of the project could hold it.
    """
    assert pool.config is not None
    options, task = options_of(pool.config.policy), group.queue.first
    if options.reserve_oldest_s is None:
        return False
    overdue_ms = state.now_ms - options.reserve_oldest_s * 1000
    for other in pending_groups(pool):
        first = other.queue.first
        if other is group or _owner_of(pool, first) != _owner_of(pool, task):
            continue
        code = code_of(pool, other)
        waits = code in BLOCKING or code in (WaitCode.AT_LIMIT, WaitCode.AT_DESERVED)
        if not waits or code is WaitCode.NODES_UNAVAILABLE or first.queued_ms > overdue_ms:
            continue
        if _place_within(pool, first) > _place_within(pool, task):
            continue
        if pool.config.policy.name == "quota":
            queues = Queues(state, pool)
            if exceeds(request_of(pool, first), queues.fair[first.job.project]):
                continue
        return True
    return False


def _owner_of(pool: Pool, task: Task) -> str:
    assert pool.config is not None
    by_user = pool.config.policy.name == "starved_first" and (
        options_of(pool.config.policy).owners == "user" and task.job.user is not None
    )
    return f"user {task.job.user}" if by_user else f"project {task.job.project.name}"


def _place_within(pool: Pool, task: Task) -> tuple[bool, int, object]:
    assert pool.config is not None
    policy = pool.config.policy
    last = policy.name == "quota" and options_of(policy).order == "document"
    return last and task.job.spec.preemptible, task.job.priority, task.key


def is_at_bound(state: ClusterState, pool: Pool, task: Task) -> bool:
    """Whether the tasks of the owner that cannot be preempted would hold more than the part of the
    pool that `starved_first` lets them hold.
    """
    assert pool.config is not None
    asked = pool.most_milli(task.shape)
    if task.job.spec.preemptible or not asked:
        return False
    permille = options_of(pool.config.policy).non_preemptible_permille
    most = -(-sum(node.gpus for node in pool.nodes.values()) * permille // 1000) * 1000
    for other in state.tasks.values():
        if other.job.spec.preemptible or _owner_of(pool, other) != _owner_of(pool, task):
            continue
        if other.reserved is not None and other.reserved.pool_name == pool.name:
            asked += other.reserved.gpu_milli
        elif other.run is not None and other.run.pool_name == pool.name:
            asked += pool.held_milli(other)
    return bool(asked > most)


def is_held_by_protection(group: Group) -> bool:
    """Whether a task of a group could not be preempted at once."""
    return group.min_runtimes > 0 or not group.shape.preemptible


def _some_are_protected(pool: Pool) -> bool:
    """Whether a task of the pool waits for victims within their minimum run times."""
    return any(code_of(pool, group) is WaitCode.VICTIMS_PROTECTED for group in pending_groups(pool))


def _waits_by_priority(pool: Pool, group: Group) -> bool:
    """A task of higher priority is pending for capacity or for its reserved slots, unless the task
    is backfilled: it can be preempted at once. A task with a minimum run time and GPUs may wait for
    victims that a task without GPUs waits for, and the other way round.
    """
    assert pool.config is not None
    options = options_of(pool.config.policy)
    task = group.queue.first
    backfills = options.preemption and options.backfill and task.job.spec.preemptible
    if backfills and not group.min_runtimes:
        return False
    for other in pool.groups.values():
        firsts = _reserved_of(other)
        if other.queue.live and blocks(pool, other):
            firsts.append(other.queue.first)
        if all(first.job.priority >= task.job.priority for first in firsts):
            continue
        if other.shape.queue_class == group.shape.queue_class:
            return True
        if backfills and code_of(pool, other) is WaitCode.VICTIMS_PROTECTED:
            return True
    return False


def blocks(pool: Pool, group: Group) -> bool:
    """Whether a group waits for capacity, so that it keeps others pending.

    One that fits on no node, or only on those that are not available, does so only with
    `impossible_block`.
    """
    assert pool.config is not None
    code = code_of(pool, group)
    if code in BLOCKING:
        return True
    if not pool.config.policy.options.get("impossible_block"):
        return False
    only_pool = len(group.shape.pools) == 1
    return code is WaitCode.NODES_UNAVAILABLE or (code in IMPOSSIBLE and only_pool)


def _reserved_of(group: Group) -> list[Task]:
    return [group.reserved.first] if group.reserved.live else []


def _waits_in_queue(state: ClusterState, pool: Pool, group: Group) -> bool:
    """The task has a minimum run time, and another one waits for such victims; or an earlier task
    of its queue waits for that reason or for capacity (`fitgpp` with `backfill_s`: and is overdue).
    """
    task, some_are_protected = group.queue.first, _some_are_protected(pool)
    if some_are_protected and _may_wait_for_protected(group):
        return True
    for other in pool.groups.values():
        firsts = _reserved_of(other)
        if other.queue.live and (
            blocks(pool, other)
            or (
                some_are_protected
                and _may_wait_for_protected(other)
                and _could_start(state, pool, other.queue.first)
            )
        ):
            firsts.append(other.queue.first)
        if any(comes_before(state, pool, first, task) for first in firsts):
            return True
    return False


def _may_wait_for_protected(group: Group) -> bool:
    """Whether a task of a strict queue may not start while another one waits for victims within
    their minimum run times: it would be such a victim.
    """
    return group.shape.preemptible and group.min_runtimes > 0


def _could_start(state: ClusterState, pool: Pool, task: Task) -> bool:
    """Whether no limit keeps a task waiting, and the usable nodes could hold it; else the tasks of
    its queue pass it.
    """
    possible = not is_simple(task) or fits_on_empty_nodes(pool, task)
    return possible and not is_limited(state, pool, task)


def _waits_for_quota(state: ClusterState, pool: Pool, group: Group) -> bool:
    """`actions` leave `allocate` out; or a queue would hold more than its limit, or more than it
    deserves in tasks that cannot be preempted; or more than it deserves at all, while the task
    would be protected and another task waits for such victims; or an earlier task of its project
    has waited for long.
    """
    assert pool.config is not None
    task = group.queue.first
    if "allocate" not in options_of(pool.config.policy).in_order:
        return True
    if waits_for_the_oldest(state, pool, group):
        return True
    queues, asked = Queues(state, pool), request_of(pool, task)
    path = queues.path(task.job.project)
    for queue in path:
        held = queues.held[queue]
        if exceeds(plus(held.used, asked), queues.limit(queue), of=asked):
            return True
        if not task.job.spec.preemptible and exceeds(
            plus(held.non_preemptible, asked), queues.deserved(queue), of=asked
        ):
            return True
    if not task.job.spec.preemptible:
        return queues.has_too_many_non_preemptible(task.job.project, asked, of=asked)
    return takes_beyond_deserved(queues, task) and _some_are_protected(pool)


def takes_beyond_deserved(queues: Queues, task: Task, more: Amounts | None = None) -> bool:
    """Whether a preemptible task is protected by a minimum run time, and a queue would hold more
    with it than it deserves. `more`: how much more the queue would hold; None: what it requests.
    """
    group, project = task.group, task.job.project
    path = queues.path(project)
    by_queue = any(
        queue.config is not None and queue.config.reclaim_min_runtime_s for queue in path
    )
    if not by_queue and not (group is not None and group.min_runtimes):
        return False
    asked = request_of(queues.pool, task)
    more = asked if more is None else more
    if queues.has_more_in_all(project, more):
        return True
    return any(
        exceeds(plus(queues.held[queue].allocated, more), queues.deserved(queue), of=asked)
        for queue in path
    )


def waits_behind_protected_with(state: ClusterState, pool: Pool, task: Task, victim: Task) -> bool:
    """Whether a task, which has reserved slots now, would wait behind one whose victims are within
    their minimum run times, if a task that was preempted for it at a limit were not.
    """
    reserved = task.reserved
    if not task.job.spec.preemptible or reserved is None:
        return False
    more = plus(request_of(pool, task), lost_with(pool, victim))
    more = minus(more, sum_of(reserved.placements))
    return takes_beyond_deserved(Queues(state, pool), task, more) and any(
        code_of(pool, group) is WaitCode.VICTIMS_PROTECTED
        for group in pending_groups(pool)
        if group is not task.group
    )


# Order


def comes_before(state: ClusterState, pool: Pool, one: Task, other: Task) -> bool:
    """Whether a task that waits for capacity keeps another one of a strict queue from starting."""
    assert pool.config is not None
    name, options = pool.config.policy.name, options_of(pool.config.policy)
    if name == "sjf":
        return _by_estimate(one) < _by_estimate(other)
    if name != "fifo" and one.job.spec.preemptible != other.job.spec.preemptible:
        return False
    backfill_s = options.backfill_s if name == "fitgpp" else None
    if backfill_s is not None and one.reserved is not None:
        return False
    if backfill_s is not None and one.job.submitted_ms + backfill_s * 1000 > state.now_ms:
        return False
    return one.key < other.key


def _by_estimate(task: Task) -> tuple[bool, int, object]:
    estimate_s = task.job.spec.runtime_estimate_s
    return estimate_s is None, estimate_s or 0, task.key
