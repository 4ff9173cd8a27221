"""Plan a cycle: which tasks start, which tasks are preempted for them, and why the others stay
pending.

The planner is the same for every policy; a policy supplies functions that the planner calls
(`policy.py`). Groups are considered in the policy's order, each by its first task. After a task was
placed, or got reserved slots, its group is queued again with its next task. After a group got a
wait reason, it is done for this cycle, because its tasks are equal. So the cost of a cycle depends
on the groups that were woken and the tasks that start, not on the number of pending tasks.

Among groups of the same rank, every task that fits starts before any task is preempted for the
others. So no task is preempted for capacity that a task of equal rank then takes.

It is one file because `PoolPass` is one algorithm over one set of caches.
"""

from collections.abc import Iterator
from enum import Enum, auto
from itertools import chain
from typing import Final

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.fragmentation import track_workload
from yardmaster_core.scheduling.planner.group_queue import GroupQueue, code_of
from yardmaster_core.scheduling.planner.limits import limit_reached
from yardmaster_core.scheduling.planner.placement import ReplicaSlots, place
from yardmaster_core.scheduling.planner.policy import PolicyRegistry, PoolView
from yardmaster_core.scheduling.planner.reservations import Reservations
from yardmaster_core.scheduling.planner.resolved_config import ResolvedConfig, resolved_config
from yardmaster_core.scheduling.planner.victim_search import VictimSearch
from yardmaster_core.scheduling.planner.wait_reasons import no_capacity
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import Fit, Shape
from yardmaster_core.scheduling.state.tasks import Group, Task
from yardmaster_core.scheduling.state.wait_codes import class_of
from yardmaster_schemas.events.decisions import (
    Outcome,
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskUnschedulableV1,
)
from yardmaster_schemas.reasons import EndCode, Stop, Wait, WaitClass, WaitCode


class GroupResult(Enum):
    """The result for a task, and so for its group."""

    #: It was placed: consider the group's next task.
    STARTED = auto()
    #: Slots are reserved for it: consider the group's next task, unless the policy is strict.
    RESERVED = auto()
    #: It does not fit now: consider it again, with preemption.
    NO_CAPACITY = auto()
    #: Its wait reason is recorded, and holds for all tasks of the group.
    WAITS = auto()


#: Results after which the next task of the group is considered. In a strict queue no task passes
#: one that waits for its victims.
_CONTINUE_STRICT: Final = frozenset({GroupResult.STARTED})
_CONTINUE: Final = frozenset({GroupResult.STARTED, GroupResult.RESERVED})


def plan(draft: Draft, policies: PolicyRegistry) -> None:
    """Consider every awake group in every pool, in the group's order of preferred pools.

    Pools take turns by name until no group is left to consider. A group waits for its turn in a
    pool until every pool that it prefers has a result for it, and the groups behind it wait too
    (otherwise they would start and then be preempted for it). If all remaining groups wait like
    this, they are deferred and the groups behind them are considered.
    """
    pools = sorted(draft.state.pools.values(), key=lambda pool: pool.name)
    configured = [
        (pool, resolved_config(pool, policies)) for pool in pools if pool.config is not None
    ]
    for pool, resolved in configured:
        if resolved.strategy.uses_workload:
            track_workload(draft.state.jobs.values(), pool)
    if not any(pool.awake or pool.recheck or pool.reshare for pool in pools):
        return
    reservations = Reservations()
    passes = [PoolPass(draft, pool, resolved, reservations) for pool, resolved in configured]
    defer = False
    while True:
        considered = False
        for pool_pass in passes:
            considered |= pool_pass.run(passes, defer=defer)
        if not considered and defer:
            if not reservations.limits_changed:
                return
            reservations.limits_changed = False
            for pool_pass in passes:
                pool_pass.recheck_limits()
            continue
        defer = not considered


class PoolPass:
    """The part of a cycle that plans one pool."""

    def __init__(
        self, draft: Draft, pool: Pool, resolved: ResolvedConfig, reservations: Reservations
    ) -> None:
        self.draft = draft
        self.pool = pool
        self.reservations = reservations
        self.policy = resolved.policy
        self.strategy = resolved.strategy
        self.victim_search = VictimSearch(draft, pool, self.strategy)
        self.fence_s = resolved.fence_s
        self.view = PoolView(
            draft.state,
            pool,
            resolved.options,
            reservations,
            find_victims=self.victim_search.for_tasks,
        )
        self.queue = GroupQueue(self.view, self.policy)
        #: Whether slots are reserved for tasks whose victims are still stopping.
        self.has_reservations = False
        #: Groups with reserved slots; their recorded wait reason is not replaced in this cycle.
        self._reserved_for: set[Group] = set()
        #: Tasks that this cycle placed; the cycle does not preempt them.
        self._placed: set[Task] = set()
        self._begun = False
        #: Index and fit -> the index's change count at which no placement existed for that fit.
        self._no_placement_at: dict[tuple[CapacityIndex, Fit], int] = {}
        #: Fit -> the change count, and the wait reason found at that count.
        self._capacity_waits: dict[Fit, tuple[int, Wait]] = {}
        #: The node of the last placement in the current group, if the next task may go there too.
        self._capacity: NodeCapacity | None = None

    def run(self, passes: "list[PoolPass]", *, defer: bool) -> bool:
        """Consider queued groups in order until one must wait for a pool that it prefers.

        With `defer`, defer such groups and consider the groups behind them. Returns whether any
        group was considered.
        """
        if not self._begun:
            self._begun = True
            pool = self.pool
            if self.policy.reclaim is not None and (
                pool.reshare or pool.awake or pool.reconsidered
            ):
                self._reclaim()
            self._recheck()
            pool.woken.clear()
            self.queue.add(chain(pool.awake, pool.reconsidered))
        else:
            self._queue_woken()
        considered = False
        deferred: list[Group] = []

        def must_wait(group: Group) -> bool:
            return not defer and self._waits_for_preferred_pool(group, passes)

        while (candidate := self.queue.pop(must_wait)) is not None:
            group, task, rest, turn = candidate
            if defer and self._waits_for_preferred_pool(group, passes):
                deferred.append(group)
                self.queue.remove(group)
                continue
            considered = True
            self._consider_group(group, task, rest, turn)
            self._queue_woken()
        self.queue.add(deferred)
        if not self.queue and self._recheck():
            self._queue_woken()
            considered = True
        return considered

    def _recheck(self) -> bool:
        """Reconsider all groups that wait for capacity or for a limit, if that is due.

        Returns whether it was due.
        """
        if not self.draft.take_recheck(self.pool):
            return False
        for group in self.draft.state.blocked(self.pool):
            self.pool.reconsider(group)
        for pool, group in self.draft.state.limited_groups():
            pool.reconsider(group)
        return True

    def _reclaim(self) -> None:
        """Preempt tasks of claimants above their share; reconsider groups whose claimant may get
        more.
        """
        self.draft.clear_reshare(self.pool)
        assert self.policy.reclaim is not None
        for victim, stop in self.policy.reclaim(self.view):
            self._stop(victim, stop)
        for group in self.policy.wake(self.view):
            self.pool.reconsider(group)

    def recheck_limits(self) -> None:
        """Reconsider groups that wait for capacity but have reached a limit since other tasks of
        their owner started; such a group must not block others.
        """
        for queue_class in self.pool.queue_classes:
            for groups in queue_class.blocked.values():
                for group in groups:
                    task = group.queue.first
                    if limit_reached(self.pool, task.job, group, self.reservations) is not None:
                        self.pool.reconsider(group)

    def _consider_group(self, group: Group, task: Task, rest: Iterator[Task], turn: int) -> None:
        """Consider the group's tasks while the group is first in the queue."""
        self._capacity = None
        pool = self.pool
        continue_on = _CONTINUE_STRICT if self.policy.strict_queue is not None else _CONTINUE
        while (result := self._consider(group, task, turn)) in continue_on:
            self.queue.requeue_followers(group)
            following = next(rest, None)
            if following is None:
                self.queue.remove(group)
                return
            task = following
            if pool.woken or not self.queue.comes_first(group, task, turn):
                self.queue.push(group, task, rest, turn)
                return
        if result is GroupResult.NO_CAPACITY:
            self.queue.push(group, task, rest, 1)
        else:
            self.queue.finish(group)

    def _queue_woken(self) -> None:
        woken = self.pool.woken
        if woken:
            self.queue.requeue(group for group in woken if group not in self._reserved_for)
            woken.clear()

    def _waits_for_preferred_pool(self, group: Group, passes: "list[PoolPass]") -> bool:
        pools = group.shape.pools
        if pools[0] == self.pool.name:
            return False
        before = pools[: pools.index(self.pool.name)]
        return any(
            other.pool.name in before
            and (group in other.pool.awake or group in other.pool.reconsidered)
            and group not in other.queue.done
            for other in passes
        )

    def _consider(self, group: Group, task: Task, turn: int) -> GroupResult:
        shape = group.shape
        wait = limit_reached(self.pool, task.job, group, self.reservations)
        start_wait = self.policy.may_start(self.view, group) if wait is None else None
        if start_wait is not None:
            same = self.policy.may_reserve is self.policy.may_start
            wait = start_wait if same else self.policy.may_reserve(self.view, group)
        if wait is not None:
            self._wait(group, task, wait)
            return GroupResult.WAITS
        if turn or (start_wait is not None and shape.start_failed):
            return self._preempt_or_wait(group, task, start_wait)
        if start_wait is not None:
            placement = self._find_placement(self.pool.future, task)
            if placement is None:
                return GroupResult.NO_CAPACITY
            self._reserve_free(group, task, placement, start_wait)
            return GroupResult.RESERVED
        also = self.pool.future if self.has_reservations else None
        capacity = self._capacity
        if (
            capacity is not None
            and capacity.holds(shape)
            and also is None
            and not task.failed_nodes
        ):
            self._start(task, [(capacity, capacity.pick(shape))])
            return GroupResult.STARTED
        placement = self._find_placement(self.pool.free, task, also)
        if placement is None:
            # Slots that an earlier cycle reserved are not given to equal tasks that arrive now.
            reserved = self._waits_for_victims(group) and self._reserve_released(group, task)
            return GroupResult.RESERVED if reserved else GroupResult.NO_CAPACITY
        self._start(task, placement)
        self._capacity = placement[0][0] if self.strategy.sticky and len(placement) == 1 else None
        return GroupResult.STARTED

    def _preempt_or_wait(self, group: Group, task: Task, start_wait: Wait | None) -> GroupResult:
        """Reserve slots that other tasks release, else preempt tasks, else record why the task
        waits.

        `start_wait` is the reason why the task must not start yet even if it fits. A task whose
        last starts failed starts on free capacity only: it preempts no task, and gets no slots of a
        task that was preempted for another one.
        """
        shape = group.shape
        if shape.start_failed:
            self._wait(group, task, start_wait or self._capacity_wait(shape))
            return GroupResult.WAITS
        if self._reserve_released(group, task):
            return GroupResult.RESERVED
        candidates = (v for v in self.policy.victims(self.view, task) if v not in self._placed)
        victims = self.victim_search.for_task(
            task, candidates, drop_unneeded=self.policy.drop_unneeded
        )
        if victims:
            self._preempt_for(task, victims)
            placement = place(self.pool.future, shape, self.strategy, key=self._seed_key(task))
            assert placement is not None, "the task does not fit without its victims"
            self._reserve(task, placement)
            self._wait_for_victims(group, task, len(victims))
            return GroupResult.RESERVED
        wait = (
            start_wait
            or self.policy.min_runtime_wait(self.view, task)
            or self._capacity_wait(shape)
        )
        self._wait(group, task, wait)
        return GroupResult.WAITS

    def _find_placement(
        self, index: CapacityIndex, task: Task, also: CapacityIndex | None = None
    ) -> list[ReplicaSlots] | None:
        """Return a placement for `task`, or None.

        If its equals found none and the index has not changed since, the search is not repeated.
        """
        shape = task.job.shape
        if self.strategy.unequal:
            # With unequal gangs, a task may fit on less capacity and not on more.
            return self._placement_off_failed_nodes(index, task, also)
        key = (index, shape.fit)
        if self._no_placement_at.get(key) == index.changes:
            return None
        placement = self._placement_off_failed_nodes(index, task, None)
        if placement is None:
            self._no_placement_at[key] = index.changes
        elif also is not None:
            return self._placement_off_failed_nodes(index, task, also)
        return placement

    def _placement_off_failed_nodes(
        self, index: CapacityIndex, task: Task, also: CapacityIndex | None
    ) -> list[ReplicaSlots] | None:
        """Return a placement that avoids the nodes on which the task's last starts failed, else
        any.

        So those nodes decide where a task is placed, but never whether: it fits wherever its equals
        fit.
        """
        shape, key = task.job.shape, self._seed_key(task)
        if avoid := index.ordinals(task.failed_nodes):
            placement = place(index, shape, self.strategy, also, key, avoid)
            if placement is not None:
                return placement
        return place(index, shape, self.strategy, also, key)

    def _seed_key(self, task: Task) -> str:
        return f"{task.id}/{task.attempt + 1}" if self.strategy.seeded is not None else ""

    def _capacity_wait(self, shape: Shape) -> Wait:
        changes = self.pool.free.changes
        known = self._capacity_waits.get(shape.fit)
        if known is None or known[0] != changes:
            known = self._capacity_waits[shape.fit] = changes, no_capacity(self.pool, shape)
        return known[1]

    def _waits_for_victims(self, group: Group) -> bool:
        return code_of(group, self.pool) is WaitCode.WAITING_FOR_VICTIMS

    def _reserve_released(self, group: Group, task: Task) -> bool:
        """Reserve slots that stopping tasks will release, if the task fits on them; return whether
        it does.
        """
        if task in self.reservations:
            return True  # tasks are preempted for it in a pool that it prefers
        if not self.pool.stopping:
            return False
        placement = self._find_placement(self.pool.future, task)
        if placement is None:
            return False
        self._reserve(task, placement)
        self._wait_for_victims(group, task, 0)
        return True

    # Starting

    def _start(self, task: Task, placement: list[ReplicaSlots]) -> None:
        job = task.job
        shape = job.shape
        nodes = self.pool.nodes
        placements = []
        for replica, (capacity, slots) in enumerate(placement):
            node = nodes[capacity.ordinal]
            placements.append(
                Placement(
                    replica=replica,
                    node=node.name,
                    incarnation=node.incarnation,
                    address=node.address,
                    slots=slots,
                    gpu_milli=shape.gpu_milli,
                    cpu_milli=shape.cpu_milli,
                    memory_mib=shape.memory_mib,
                )
            )
        port = None
        if len(placements) > 1:
            first = nodes[placement[0][0].ordinal]
            ports = range(first.port_first, first.port_last + 1)
            # If all ports are taken, share the first one: the port is a hint, and no gang waits for
            # it.
            port = next((p for p in ports if p not in first.ports), first.port_first)
        event = SlotsAllocatedV1(
            task_id=task.id,
            attempt=task.attempt + 1,
            pool=self.pool.name,
            project=job.project.name,
            tasks=len(job.tasks),
            placements=tuple(placements),
            master_port=port,
            details=job.details,
            checkpoint=task.checkpoint,
            grace_s=job.spec.grace_s,
            fence_s=self.fence_s,
            start=self.policy.start_reason(self.view, task),
        )
        self.reservations.drop(task)
        self.draft.record(event, task.id, task.cause)
        self._placed.add(task)

    # Preempting

    def _preempt_for(self, task: Task, victims: list[Task]) -> None:
        self.draft.require(len(victims))
        for victim in victims:
            self._stop(victim, self.policy.stop_reason(self.view, victim, task))

    def _stop(self, victim: Task, stop: Stop) -> None:
        run = victim.run
        assert run is not None
        grace_s = victim.job.spec.grace_s
        # Without a receiving task, the victim is above a limit or a share of its own claimant.
        kind = StopRequestedV1 if stop.for_task is None else PreemptionRequestedV1
        event = kind(
            task_id=victim.id,
            attempt=run.number,
            nodes=run.nodes,
            stop=stop,
            grace_s=grace_s,
            deadline_at_ms=self.draft.state.now_ms + grace_s * 1000,
        )
        about = victim if stop.for_task is None else self.draft.state.tasks[stop.for_task]
        self.draft.record(event, victim.id, about.cause)

    def _reserve(self, task: Task, placement: list[ReplicaSlots]) -> None:
        """Reserve the slots of `placement` for `task` until the end of the cycle."""
        self.has_reservations = True
        self.reservations.add(task, self.pool)
        self.victim_search.reserve(task.job.shape, placement)

    # Waiting

    def _reserve_free(
        self, group: Group, task: Task, placement: list[ReplicaSlots], start_wait: Wait
    ) -> None:
        """Reserve slots for a task that must not start yet, so that its equals see what is left."""
        self._reserve(task, placement)
        # If tasks were preempted for its equals, the group waits for those victims.
        if not self._waits_for_victims(group):
            self._wait(group, task, start_wait)
        self._reserved_for.add(group)

    def _wait_for_victims(self, group: Group, task: Task, victims: int) -> None:
        if victims:
            # Waiting for victims replaces the earlier wait reason.
            self._reserved_for.discard(group)
        numbers = {"victims": victims, "asked_milli": group.shape.total_gpu_milli}
        self._wait(group, task, Wait(code=WaitCode.WAITING_FOR_VICTIMS, numbers=numbers))
        self._reserved_for.add(group)

    def _wait(self, group: Group, task: Task, wait: Wait) -> None:
        if group in self._reserved_for:
            return
        known = group.waits.get(self.pool.name)
        until_ms = known[0].numbers.get("until_at_ms") if known is not None else None
        now_ms = self.draft.state.now_ms
        # The recorded moment has passed, or the new one is earlier.
        changed = until_ms is not None and (
            until_ms <= now_ms or wait.numbers.get("until_at_ms", until_ms) < until_ms
        )
        if known is None or known[0].code is not wait.code or changed:
            event = TaskUnschedulableV1(
                task_id=task.id,
                shape=group.shape.id,
                priority=group.priority,
                pool=self.pool.name,
                wait=wait,
            )
            self.draft.record(event, task.id, task.cause)
        if wait.code.wait_class is WaitClass.NEVER and group.shape.fail_when_never:
            self._fail_group(group)

    def _fail_group(self, group: Group) -> None:
        if class_of(group.waits, group.shape.pools) is not WaitClass.NEVER:
            return
        # Not a loop over the queue: when a task ends, the next task of its job may join the queue.
        while (task := next(group.queue.in_order(), None)) is not None:
            event = TaskEndedV1(
                task_id=task.id,
                attempt=task.attempt,
                outcome=Outcome.FAILED,
                code=EndCode.UNSCHEDULABLE,
            )
            self.draft.record(event, task.id, task.cause)
