"""Who starts, who is stopped for whom, and why the rest waits: one pass over the groups that are
awake.

The same for every policy; what differs are the strategies it uses_workload. Groups come in the
policy's order, each with its first task. A group whose task was placed, or promised the slots of
tasks that stop, comes back with its next one; a group that got a reason to wait is done, since its
tasks are equal. So the cost of a pass follows what was woken and what starts, not what waits.

Of those of one rank, all that find room start first; only then are others stopped for the rest, so
that nobody is stopped for room that an equal takes.
"""

from collections.abc import Iterator
from enum import Enum, auto
from itertools import chain
from typing import Final

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.fragmentation import track_workload
from yardmaster_core.scheduling.planner.group_queue import GroupQueue, code_of
from yardmaster_core.scheduling.planner.limits import Reservations, limit_reached
from yardmaster_core.scheduling.planner.placement import ReplicaSlots, place
from yardmaster_core.scheduling.planner.policy import PolicyRegistry, PoolView
from yardmaster_core.scheduling.planner.resolved_config import ResolvedConfig, resolved_config
from yardmaster_core.scheduling.planner.victim_search import VictimSearch
from yardmaster_core.scheduling.planner.wait_reasons import no_capacity
from yardmaster_core.scheduling.state.entities import Group, Pool, Task, class_of
from yardmaster_core.scheduling.state.indexes import CapacityIndex, NodeCapacity
from yardmaster_core.scheduling.state.shapes import Fit, Shape
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
    """What came of considering a task, and so of its group."""

    STARTED = auto()  # it was placed: its equal behind it is worth a look
    RESERVED = auto()  # it was promised slots: so it is, where one may pass
    NO_CAPACITY = auto()  # there is no room for it as things are
    WAITS = auto()  # a reason is recorded, which holds for its equals


#: After which answers the next of a group is considered; in a strict line nobody passes one that
#: waits for his victims.
_STRICT: Final = frozenset({GroupResult.STARTED})
_NOT_STRICT: Final = frozenset({GroupResult.STARTED, GroupResult.RESERVED})


def plan(draft: Draft, policies: PolicyRegistry) -> None:
    """Consider every group that is awake in every pool, each in its pools' order of preference.

    Pools take turns in the order of their names until nobody is left: a group waits for its turn in
    a pool while one that it prefers has not answered yet, and those behind it wait with it (else
    they would start only to be stopped for it). Where that leaves nobody to consider, it is passed
    over.
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
    pass_over = False
    while True:
        considered = False
        for one in passes:
            considered |= one.run(passes, pass_over=pass_over)
        if not considered and pass_over:
            if not reservations.spent:
                return
            reservations.spent = False
            for one in passes:
                one.recheck_limits()
            continue
        pass_over = not considered


class PoolPass:
    """One pool's part of a cycle."""

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
        #: Slots were promised to tasks whose victims are still stopping.
        self.has_reservations = False
        #: Groups to whose first tasks they were promised: what holds for those behind is no woken.
        self._reserved_for: set[Group] = set()
        #: Tasks that this cycle placed, which it does not stop for others.
        self._placed: set[Task] = set()
        self._begun = False
        #: By index and what is asked for: after how many changes there was no room for it.
        self._no_placement_at: dict[tuple[CapacityIndex, Fit], int] = {}
        #: The reasons of those without room, and after how many changes.
        self._capacity_waits: dict[Fit, tuple[int, Wait]] = {}
        #: Where the last of the equals being considered was placed, if the next one goes there too.
        self._capacity: NodeCapacity | None = None

    def run(self, passes: "list[PoolPass]", *, pass_over: bool) -> bool:
        """Consider whom no preferred pool still has to answer, up to the first who has to wait for
        one (with `pass_over`: all of them); returns whether anybody was considered.
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
            return not pass_over and self._prefers_another(group, passes)

        while (candidate := self.queue.pop(must_wait)) is not None:
            group, task, rest, turn = candidate
            if pass_over and self._prefers_another(group, passes):
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
        """Ask all who wait for room or for a bound again, if that is due; whether it was."""
        if not self.draft.take_recheck(self.pool):
            return False
        for group in self.draft.state.blocked(self.pool):
            self.pool.reconsider(group)
        for pool, group in self.draft.state.limited():
            pool.reconsider(group)
        return True

    def _reclaim(self) -> None:
        """Have given back what is over a share, and wake who may have more of his."""
        self.draft.clear_reshare(self.pool)
        assert self.policy.reclaim is not None
        for victim, stop in self.policy.reclaim(self.view):
            self._stop(victim, stop)
        for group in self.policy.wake(self.view):
            self.pool.reconsider(group)

    def recheck_limits(self) -> None:
        """Who waits for room and may not have it any more, since others of its owner started, holds
        back nobody.
        """
        for queue_class in self.pool.queue_classes:
            for groups in queue_class.blocked.values():
                for group in groups:
                    task = group.queue.first
                    if limit_reached(self.pool, task.job, group, self.reservations) is not None:
                        self.pool.reconsider(group)

    def _consider_group(self, group: Group, task: Task, rest: Iterator[Task], turn: int) -> None:
        """Consider the group's tasks while they come first in line."""
        self._capacity = None
        pool = self.pool
        continue_after = _STRICT if self.policy.strict_queue is not None else _NOT_STRICT
        while (answer := self._consider(group, task, turn)) in continue_after:
            self.queue.requeue_followers(group)
            following = next(rest, None)
            if following is None:
                self.queue.remove(group)
                return
            task = following
            if pool.woken or not self.queue.comes_first(group, task, turn):
                self.queue.push(group, task, rest, turn)
                return
        if answer is GroupResult.NO_CAPACITY:
            self.queue.push(group, task, rest, 1)
        else:
            self.queue.finish(group)

    def _queue_woken(self) -> None:
        woken = self.pool.woken
        if woken:
            self.queue.requeue(group for group in woken if group not in self._reserved_for)
            woken.clear()

    def _prefers_another(self, group: Group, passes: "list[PoolPass]") -> bool:
        pools = group.shape.pools
        if pools[0] == self.pool.name:
            return False
        before = pools[: pools.index(self.pool.name)]
        return any(
            one.pool.name in before
            and (group in one.pool.awake or group in one.pool.reconsidered)
            and group not in one.queue.done
            for one in passes
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
            # What an earlier cycle promised is kept from equals that come now.
            kept = self._waits_for_victims(group) and self._reserve_released(group, task)
            return GroupResult.RESERVED if kept else GroupResult.NO_CAPACITY
        self._start(task, placement)
        self._capacity = placement[0][0] if self.strategy.sticky and len(placement) == 1 else None
        return GroupResult.STARTED

    def _preempt_or_wait(self, group: Group, task: Task, start_wait: Wait | None) -> GroupResult:
        """See whether others stop, or can be stopped, so that the task fits; `start_wait`: why it
        may not start yet even then.

        A task whose last starts failed starts on free capacity only: it preempts no task, and gets
        no slots that others release for a third.
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
            placement = place(self.pool.future, shape, self.strategy, key=self._key(task))
            assert placement is not None, "victims were found whose going does not help"
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
        """A place for a task; where its equals found none, and nothing has changed, it is not
        looked for again.
        """
        shape = task.job.shape
        if self.strategy.unequal:
            # There less room may fit where more does not.
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
        """A place off the nodes on which the task's last starts failed, else any place.

        So they decide where it is placed, but never whether: it fits wherever its equals do.
        """
        shape, key = task.job.shape, self._key(task)
        if avoid := index.ordinals(task.failed_nodes):
            placement = place(index, shape, self.strategy, also, key, avoid)
            if placement is not None:
                return placement
        return place(index, shape, self.strategy, also, key)

    def _key(self, task: Task) -> str:
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
        """Whether the task has the promise of slots of tasks that stop."""
        if task in self.reservations:
            return True  # others are stopped for it in a pool that it likes better
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
            # A range that is used up is shared rather than holding a gang back: the port is a hint.
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

    # Stopping others

    def _preempt_for(self, task: Task, victims: list[Task]) -> None:
        self.draft.require(len(victims))
        for victim in victims:
            self._stop(victim, self.policy.stop_reason(self.view, victim, task))

    def _stop(self, victim: Task, stop: Stop) -> None:
        run = victim.run
        assert run is not None
        grace_s = victim.job.spec.grace_s
        # What is stopped for nobody is over a limit of its own.
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
        """Keep what is being freed for `task`, for the rest of this cycle."""
        self.has_reservations = True
        self.reservations.add(task, self.pool)
        self.victim_search.reserve(task.job.shape, placement)

    # Waiting

    def _reserve_free(
        self, group: Group, task: Task, placement: list[ReplicaSlots], start_wait: Wait
    ) -> None:
        """Keep room for a task that others go before, so that its equals know how much is left."""
        self._reserve(task, placement)
        # Once others were stopped for its equals, that is what the group waits for.
        if not self._waits_for_victims(group):
            self._wait(group, task, start_wait)
        self._reserved_for.add(group)

    def _wait_for_victims(self, group: Group, task: Task, victims: int) -> None:
        if victims:
            self._reserved_for.discard(group)  # more than to be start_wait back
        numbers = {"victims": victims, "asked_milli": group.shape.total_gpu_milli}
        self._wait(group, task, Wait(code=WaitCode.WAITING_FOR_VICTIMS, numbers=numbers))
        self._reserved_for.add(group)

    def _wait(self, group: Group, task: Task, wait: Wait) -> None:
        if group in self._reserved_for:
            return
        known = group.waits.get(self.pool.name)
        until_ms = known[0].numbers.get("until_at_ms") if known is not None else None
        # A moment that has passed, or comes sooner than the one that is recorded (and waited for).
        now_ms = self.draft.state.now_ms
        other = until_ms is not None and (
            until_ms <= now_ms or wait.numbers.get("until_at_ms", until_ms) < until_ms
        )
        if known is None or known[0].code is not wait.code or other:
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
        # Not a loop over the queue: what ends lets others of its job come in behind it.
        while (task := next(group.queue.in_order(), None)) is not None:
            event = TaskEndedV1(
                task_id=task.id,
                attempt=task.attempt,
                outcome=Outcome.FAILED,
                code=EndCode.UNSCHEDULABLE,
            )
            self.draft.record(event, task.id, task.cause)
