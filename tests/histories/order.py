"""Order: nothing that may not be preempted at once starts on capacity that an earlier task of the
order waits for and could use.

Judged from the state after each complete cycle: the tasks that started in it, and the tasks that
wait in the same pool and come before them by the stated order of the policy:

- `priority`: those of higher priority;
- `fifo`, `sjf`, `lrtp`, `rand`, `fitgpp`: those with an earlier place in the same strict queue; and
  before preemptible tasks those that cannot be preempted;
- `quota`: in a project those that cannot be preempted (not with `order: kai`), then those of higher
  priority; before the tasks of another queue with which that holds more than it deserves, the first
  task of a queue with which all its queues hold no more than they deserve;
- `starved_first`: of an owner those of higher priority; before the tasks of another owner with
  which that holds more than its equal part, those of an owner that holds less and does not exceed
  its own with them.

`fair_share` has no such order: a task starts within the share of its claimant.

No start, of whatever task, takes what an earlier task needs to start; but a preemptible task may
have started while a rule still kept the earlier one waiting, which the same cycle ended later. And
on slots that were not reserved for it, a task that cannot be preempted, or has a minimum run time,
takes no part of what an earlier task waits for, unless the policy says so (`_may_pass`). Reserved
slots that a task takes over go to it alone: a task that may not take them over from their owner too
is not before it. A task takes what an earlier one could use if both request GPUs (or neither does),
and a node of the one could hold a replica of the other. An earlier task that waits for a limit, or
whose last starts failed, does not count; nor does one that waits behind the later task by a rule.

On slots that were reserved for it before the cycle, a task starts before others are considered:
only a task that waited already, and may take over reserved slots (`_takes_over`), is before it; and
a preemptible task is preempted for that one at once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.histories.equal_parts import Division
from tests.histories.free_capacity import empty, fits, is_simple, may_use
from tests.histories.quota_properties import (
    NONE,
    Amounts,
    Queue,
    Queues,
    exceeds,
    lost_with,
    minus,
    plus,
    request_of,
    sum_of,
)
from tests.histories.stated_rules import (
    STRICT,
    blocks,
    code_of,
    comes_before,
    is_limited,
    is_protected,
    takes_beyond_deserved,
    waits_by_rule,
)
from yardmaster_core.scheduling.policies import options_of
from yardmaster_core.scheduling.policies.min_runtime import min_runtime_until_ms
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING, LIMITED
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.reasons import Wait, WaitCode


@dataclass(frozen=True, slots=True)
class Cycle:
    """The facts of a complete cycle: the tasks that it started and preempted, the ids of the tasks
    that had reserved slots before it, why the others waited, by task the reasons other than
    capacity that were recorded during it, and by task the reservations that others lost to it.
    """

    started: Collection[Task]
    preempted: Collection[Task]
    reserved_before: Collection[str]
    waits_before: Mapping[str, Wait]
    kept_waiting: Mapping[str, Wait]
    taken_from: Mapping[str, Sequence[dec.SlotsReservedV1]]

    def code_before(self, task: Task) -> WaitCode | None:
        """Why a task waited before the cycle."""
        wait = self.waits_before.get(task.id)
        return wait.code if wait is not None else None


def assert_in_order(state: ClusterState, cycle: Cycle) -> None:
    """Assert it for the tasks that a complete cycle started."""
    for pool in state.pools.values():
        if pool.config is None:
            continue
        here = [t for t in cycle.started if t.run is not None and t.run.pool_name == pool.name]
        for earlier in _waiting(state, pool) if here else ():
            for later in here:
                if not _could_use(pool, earlier, later):
                    continue
                if not _precedes(state, pool, earlier, later, cycle):
                    continue
                lost = cycle.taken_from.get(later.id)
                if lost and not _could_take_over(state, pool, earlier, later, lost):
                    continue
                if _waited_behind(state, pool, cycle, earlier, later):
                    continue
                before = cycle.code_before(earlier)
                if later.id not in cycle.reserved_before:
                    waited_by_rule = earlier.id in cycle.kept_waiting or not (
                        before is None or before in BLOCKING
                    )
                    if is_protected(later) or not waited_by_rule:
                        _assert_takes_nothing(state, pool, earlier, later)
                    if not _passes_within_part(state, pool, earlier, later, cycle):
                        _assert_may_pass(state, pool, earlier, later, cycle)
                elif (
                    is_protected(later)
                    and before in BLOCKING
                    and _takes_over(state, pool, earlier, later)
                ):
                    _assert_takes_nothing(state, pool, earlier, later)


def _waited_behind(
    state: ClusterState, pool: Pool, cycle: Cycle, earlier: Task, later: Task
) -> bool:
    """Whether a rule kept a task waiting behind the one that started.

    It did so in the cycle, or before it, and still holds for the task.
    """
    before, kept = cycle.waits_before.get(earlier.id), cycle.kept_waiting.get(earlier.id)
    assert pool.config is not None
    if kept is None and pool.config.policy.name == "quota":
        same = earlier.job.project is later.job.project
        if not same and not takes_beyond_deserved(Queues(state, pool), earlier):
            return False
    return any(
        wait is not None and (wait.code, wait.about) == (WaitCode.BEHIND_TASK, later.id)
        for wait in (before, kept)
    )


def waits_of(state: ClusterState) -> dict[str, Wait]:
    """Return why each task without reserved slots waits, in the last of its pools."""
    return {
        task.id: group.waits[pool.name][0]
        for pool in state.pools.values()
        for group in pool.groups.values()
        if pool.name in group.waits
        for task in group.queue.in_order()
    }


def _waiting(state: ClusterState, pool: Pool) -> Iterator[Task]:
    """Yield the first task of each group that waits, and the first of those with reserved slots."""
    for group in list(pool.groups.values()):
        firsts = [queue.first for queue in (group.queue, group.reserved) if queue.live]
        for task in firsts:
            if not is_simple(task) or group.shape.start_failed:
                continue
            if task.reserved is not None and task.reserved.pool_name != pool.name:
                continue
            # It may have been at a limit when the cycle considered it.
            if code_of(pool, group) in LIMITED or is_limited(state, pool, task):
                continue
            yield task


def _could_use(pool: Pool, earlier: Task, later: Task) -> bool:
    """Whether a node that a task started on could hold a replica of the earlier task."""
    if earlier.job.shape.queue_class != later.job.shape.queue_class:
        return False
    run = later.run
    assert run is not None
    nodes = [node for node in pool.nodes.values() if node.name in run.nodes]
    return any(may_use(earlier, node) and empty(pool, node).replicas_of(earlier) for node in nodes)


def _precedes(state: ClusterState, pool: Pool, earlier: Task, later: Task, cycle: Cycle) -> bool:
    """Whether a task that waits comes before one that has started, by the order of the policy."""
    assert pool.config is not None
    name = pool.config.policy.name
    if name == "priority":
        return earlier.job.priority < later.job.priority
    if name in STRICT:
        both = not earlier.job.spec.preemptible, later.job.spec.preemptible
        return comes_before(state, pool, earlier, later) or (
            name not in ("fifo", "sjf") and all(both)
        )
    if name == "quota":
        return _precedes_by_quota(state, pool, earlier, later, cycle)
    return name == "starved_first" and _precedes_by_part(state, pool, earlier, later, cycle)


def _precedes_by_quota(
    state: ClusterState, pool: Pool, earlier: Task, later: Task, cycle: Cycle
) -> bool:
    """Whether it does with what queues held when the cycle began: with what it preempted, and of
    the queue of the later task without what else it started or reserved.
    """
    assert pool.config is not None
    if earlier.job.project is later.job.project:
        return _place_in_project(pool, earlier) < _place_in_project(pool, later)
    queues = Queues(state, pool)
    own, its = queues.differing(earlier, later)
    if not _represents(pool, queues, own, earlier):
        return False
    with_later = queues.held[its].allocated
    for task in _begun(state, pool, cycle):
        if task is not later and its in queues.path(task.job.project):
            with_later = minus(with_later, request_of(pool, task))
    if not exceeds(with_later, queues.deserved(its)):
        return False
    asked = request_of(pool, earlier)
    for victim in cycle.preempted:
        if victim.run is not None and victim.run.pool_name == pool.name:
            queues.allocate(victim.job.project, request_of(pool, victim))
    if earlier.reserved is not None or queues.has_more_in_all(earlier.job.project, asked):
        return False
    return not any(
        exceeds(plus(queues.held[queue].allocated, asked), queues.deserved(queue))
        for queue in queues.path(earlier.job.project)
    )


def _place_in_project(pool: Pool, task: Task) -> tuple[bool, int]:
    assert pool.config is not None
    by_kind = options_of(pool.config.policy).order == "document"
    return by_kind and task.job.spec.preemptible, task.job.priority


def _represents(pool: Pool, queues: Queues, queue: Queue, task: Task) -> bool:
    """Whether a queue is compared with others by a task: it is the first one of the only project
    of the queue with pending tasks.
    """
    for group in pool.groups.values():
        for first in [each.first for each in (group.queue, group.reserved) if each.live]:
            if first is task or queue not in queues.path(first.job.project):
                continue
            if first.job.project is not task.job.project:
                return False
            places = [(*_place_in_project(pool, each), each.key) for each in (first, task)]
            if places[0] < places[1]:
                return False
    return True


def _begun(state: ClusterState, pool: Pool, cycle: Cycle) -> Iterator[Task]:
    """Yield the tasks that the cycle started in a pool, or reserved slots for."""
    for task in state.tasks.values():
        run, reserved = task.run, task.reserved
        started = task in cycle.started and run is not None and run.pool_name == pool.name
        # Also if it lost other reserved slots in the same cycle.
        new = reserved is not None and reserved.cycle == state.cycle
        if started or (new and reserved is not None and reserved.pool_name == pool.name):
            yield task


def _precedes_by_part(
    state: ClusterState, pool: Pool, earlier: Task, later: Task, cycle: Cycle
) -> bool:
    division = Division(state, pool)
    owner, its = division.owner(earlier), division.owner(later)
    if owner == its:
        return earlier.job.priority < later.job.priority
    if earlier.reserved is not None or division.allocated[its] <= division.parts[its]:
        return False
    # The order compares what owners hold before the start.
    begun = sum(
        pool.most_milli(task.job.shape)
        for task in _begun(state, pool, cycle)
        if division.owner(task) == its
    )
    held = division.allocated[owner] + sum(
        pool.held_milli(victim) for victim in cycle.preempted if division.owner(victim) == owner
    )
    if held >= division.allocated[its] - begun:
        return False
    with_it = held + pool.most_milli(earlier.job.shape)
    return with_it <= division.parts[owner]


def _passes_within_part(
    state: ClusterState, pool: Pool, earlier: Task, later: Task, cycle: Cycle
) -> bool:
    """Whether a task of `starved_first` passes an earlier one of its owner: with it, the owner
    held no more than its equal part.
    """
    assert pool.config is not None
    if pool.config.policy.name != "starved_first":
        return False
    division = Division(state, pool)
    owner = division.owner(later)
    if division.owner(earlier) != owner:
        return False
    others = sum(
        pool.most_milli(task.job.shape)
        for task in _begun(state, pool, cycle)
        if task is not later and division.owner(task) == owner
    )
    return division.allocated[owner] - others <= division.parts[owner]


def _could_take_over(
    state: ClusterState,
    pool: Pool,
    earlier: Task,
    later: Task,
    lost: Sequence[dec.SlotsReservedV1],
) -> bool:
    """Whether a task could have taken over the reserved slots that others lost to a later one:
    without that one, and with what the others had.
    """
    assert pool.config is not None
    owners = [state.task(event.task_id) for event in lost]
    if pool.config.policy.name != "quota":
        return all(_is_of_scope(state, pool, earlier, owner) for owner in owners)
    if not all(
        owner.job.project is earlier.job.project
        and _place_in_project(pool, earlier) < _place_in_project(pool, owner)
        for owner in owners
    ):
        return False
    queues = Queues(state, pool)
    amounts = sum_of([placement for event in lost for placement in event.placements])
    queues.allocate(later.job.project, minus(NONE, lost_with(pool, later)))
    queues.allocate(earlier.job.project, amounts)
    return _may_exchange(queues, earlier, amounts)


def _takes_over(state: ClusterState, pool: Pool, earlier: Task, later: Task) -> bool:
    """Whether a task may take over the slots of one that started on slots reserved for it, where it
    then fits.
    """
    assert pool.config is not None
    if pool.config.policy.name != "quota":
        return _is_of_scope(state, pool, earlier, later)
    return earlier.job.project is later.job.project and _may_exchange(
        Queues(state, pool), earlier, lost_with(pool, later)
    )


def _is_of_scope(state: ClusterState, pool: Pool, one: Task, other: Task) -> bool:
    """Whether one of two tasks takes over reserved slots of the other, if its place is before."""
    assert pool.config is not None
    if pool.config.policy.name == "starved_first":
        division = Division(state, pool)
        return division.owner(one) == division.owner(other)
    return True


def _may_exchange(queues: Queues, earlier: Task, lost: Amounts) -> bool:
    """Whether a project may hold a task instead of these amounts of later tasks: within its share,
    and without that another project would reclaim it.
    """
    more = minus(request_of(queues.pool, earlier), lost)
    return _stays_within_share(queues, earlier, more) and not _others_would_reclaim(
        queues, earlier, more
    )


def _stays_within_share(queues: Queues, earlier: Task, more: Amounts) -> bool:
    """Whether no queue of a task would hold more than its share with `more`, of a resource that the
    queue would hold more of.
    """
    of = (max(more[0], 0), max(more[1], 0), max(more[2], 0))
    return not any(
        exceeds(plus(queues.held[queue].allocated, more), queues.most(queue), of=of)
        for queue in queues.path(earlier.job.project)
    )


def _others_would_reclaim(queues: Queues, earlier: Task, more: Amounts) -> bool:
    """Whether a queue of a task would hold more than it deserves with `more`, and does not now,
    while a task of another project waits within what its queues deserve.
    """
    pool, path = queues.pool, queues.path(earlier.job.project)
    if not any(
        exceeds(plus(queues.held[queue].allocated, more), queues.deserved(queue))
        and not exceeds(queues.held[queue].allocated, queues.deserved(queue))
        for queue in path
    ):
        return False
    for group in pool.groups.values():
        project = queues.state.projects[group.shape.project]
        if not group.queue.live or project is earlier.job.project:
            continue
        asked = request_of(pool, group.queue.first)
        if not any(
            exceeds(plus(queues.held[queue].allocated, asked), queues.deserved(queue))
            for queue in queues.path(project)
            if queue not in path
        ):
            return True
    return False


def _assert_takes_nothing(state: ClusterState, pool: Pool, earlier: Task, later: Task) -> None:
    """Without the later task, the earlier one would not fit either, or a rule keeps it waiting."""
    group = earlier.group
    assert group is not None
    if earlier.reserved is not None or waits_by_rule(state, pool, group):
        return
    assert not fits(state, pool, earlier, [later]), (
        f"{later.id} starts, but {earlier.id} comes first and fits in its place"
    )


def _assert_may_pass(
    state: ClusterState, pool: Pool, earlier: Task, later: Task, cycle: Cycle
) -> None:
    assert pool.config is not None
    group = earlier.group
    assert group is not None
    code = WaitCode.WAITING_FOR_VICTIMS if earlier.reserved else code_of(pool, group)
    waits = earlier.reserved is not None or blocks(pool, group)
    if code is WaitCode.VICTIMS_PROTECTED and pool.config.policy.name in STRICT:
        # Else it was passed before it got this reason.
        code = code if _others_are_protected(state, pool, cycle) else WaitCode.INSUFFICIENT_FREE
    before = cycle.code_before(earlier)
    assert not waits or _may_pass(pool, code, earlier, later, before), (
        f"{later.id} starts on what {earlier.id} waits for ({code}), and comes after it"
    )


def _others_are_protected(state: ClusterState, pool: Pool, cycle: Cycle) -> bool:
    """Whether preemptible tasks of a pool are within their minimum run times that ran before the
    cycle: under a strict policy a task waits for all of them. It does not wait for one that it let
    pass, although it does from then on.
    """
    return any(
        task.run is not None
        and task.run.pool_name == pool.name
        and task.run.open
        and task.run.stop is None
        and task.job.spec.preemptible
        and task not in cycle.started
        and min_runtime_until_ms(state, task) > state.now_ms
        for task in state.tasks.values()
    )


def _may_pass(
    pool: Pool, code: WaitCode | None, earlier: Task, later: Task, before: WaitCode | None
) -> bool:
    """Whether a policy states that a task that fits starts although an earlier one waits:

    - `priority` with `backfill` and `preemption`: one that can be preempted at once; else none.
    - `lrtp`, `rand`, `fitgpp`: a preemptible task behind one that cannot be preempted; one with a
      minimum run time only while the earlier one does not wait for victims within theirs
      (`_others_are_protected`). So that one waits for such a task at most this time and a grace
      period. In one queue none passes, but
      with `backfill_s`, which `comes_before` knows.
    - `quota`, `starved_first`: the same, from the cycle on after which the earlier one waits for
      such victims: tasks that fit start before any task is preempted. And in one project any task,
      of one owner those within its equal part (`_passes_within_part`): a task that does not fit
      lets those behind it pass. Under `quota` those that cannot be preempted pass too: of this kind
      a queue holds no more than it deserves, so what it holds beyond that can be reclaimed.

    `before`: why the earlier one waited before the cycle.
    """
    assert pool.config is not None
    options = options_of(pool.config.policy)
    name = pool.config.policy.name
    protected = code is WaitCode.VICTIMS_PROTECTED and is_protected(later)
    if name == "priority":
        return bool(options.preemption and options.backfill) and not is_protected(later)
    if name in STRICT:
        if earlier.job.spec.preemptible == later.job.spec.preemptible:
            return False
        return name != "fifo" and name != "sjf" and not protected
    if name == "quota" and (
        earlier.job.project is later.job.project or not later.job.spec.preemptible
    ):
        return True
    return not protected or before is not WaitCode.VICTIMS_PROTECTED
