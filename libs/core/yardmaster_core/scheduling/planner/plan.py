"""Who starts, who is stopped for whom, and why the rest waits: one pass over the groups that are
awake.

The same for every policy; what differs are the strategies it asks. Groups come in the policy's
order, each with its first task. A group whose task was placed, or promised the slots of tasks that
stop, comes back with its next one; a group that got a reason to wait is done, since its tasks are
equal. So the cost of a pass follows what was woken and what starts, not what waits.

Of those of one rank, all that find room start first; only then are others stopped for the rest, so
that nobody is stopped for room that an equal takes.
"""

from collections.abc import Iterator
from enum import Enum, auto
from itertools import chain
from typing import Final

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.fragmentation import count_on
from yardmaster_core.scheduling.planner.group_queue import GroupQueue, code_of
from yardmaster_core.scheduling.planner.limits import Reservations, limit_reached
from yardmaster_core.scheduling.planner.placement import Place, place
from yardmaster_core.scheduling.planner.policy import PolicyRegistry, PoolView
from yardmaster_core.scheduling.planner.pool_rules import Rules, rules_of
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


class Answer(Enum):
    """What came of considering a task, and so of its group."""

    SERVED = auto()  # it was placed: its equal behind it is worth a look
    PROMISED = auto()  # it was promised slots: so it is, where one may pass
    SECOND_TURN = auto()  # there is no room for it as things are
    WAITS = auto()  # a reason is recorded, which holds for its equals


#: After which answers the next of a group is considered; in a strict line nobody passes one that
#: waits for his victims.
_STRICT: Final = frozenset({Answer.SERVED})
_PASSING: Final = frozenset({Answer.SERVED, Answer.PROMISED})


def plan(draft: Draft, policies: PolicyRegistry) -> None:
    """Consider every group that is awake in every pool, each in its pools' order of preference.

    Pools take turns in the order of their names until nobody is left: a group waits for its turn in
    a pool while one that it prefers has not answered yet, and those behind it wait with it (else
    they would start only to be stopped for it). Where that leaves nobody to consider, it is passed
    over.
    """
    pools = sorted(draft.state.pools.values(), key=lambda pool: pool.name)
    ruled = [(pool, rules_of(pool, policies)) for pool in pools if pool.config is not None]
    for pool, rules in ruled:
        if rules.choose.asks:
            count_on(draft.state.jobs.values(), pool)
    if not any(pool.awake or pool.recheck or pool.reshare for pool in pools):
        return
    reservations = Reservations()
    passes = [PoolPass(draft, pool, rules, reservations) for pool, rules in ruled]
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
                one.look_at_bounds()
            continue
        pass_over = not considered


class PoolPass:
    """One pool's part of a cycle."""

    def __init__(self, draft: Draft, pool: Pool, rules: Rules, reservations: Reservations) -> None:
        self.draft = draft
        self.pool = pool
        self.reservations = reservations
        self.policy = rules.policy
        self.choose = rules.choose
        self.freeing = VictimSearch(draft, pool, self.choose)
        self.fence_s = rules.fence_s
        self.view = PoolView(
            draft.state, pool, rules.options, reservations, find_victims=self.freeing.for_all
        )
        self.lineup = GroupQueue(self.view, self.policy)
        #: Slots were promised to tasks whose victims are still stopping.
        self.promised = False
        #: Groups to whose first tasks they were promised: what holds for those behind is no news.
        self._promised_to: set[Group] = set()
        #: Tasks that this cycle placed, which it does not stop for others.
        self._placed: set[Task] = set()
        self._started = False
        #: By index and what is asked for: after how many changes there was no room for it.
        self._nowhere: dict[tuple[CapacityIndex, Fit], int] = {}
        #: The reasons of those without room, and after how many changes.
        self._no_capacity: dict[Fit, tuple[int, Wait]] = {}
        #: Where the last of the equals being considered was placed, if the next one goes there too.
        self._capacity: NodeCapacity | None = None

    def run(self, passes: "list[PoolPass]", *, pass_over: bool) -> bool:
        """Consider whom no preferred pool still has to answer, up to the first who has to wait for
        one (with `pass_over`: all of them); returns whether anybody was considered.
        """
        if not self._started:
            self._started = True
            pool = self.pool
            if self.policy.surplus is not None and (
                pool.reshare or pool.awake or pool.reconsidered
            ):
                self._share_out()
            self._recheck()
            pool.woken.clear()
            self.lineup.add(chain(pool.awake, pool.reconsidered))
        else:
            self._take_news()
        considered = False
        deferred: list[Group] = []

        def held_up(group: Group) -> bool:
            return not pass_over and self._prefers_another(group, passes)

        while (waiting := self.lineup.pop(held_up)) is not None:
            group, task, rest, turn = waiting
            if pass_over and self._prefers_another(group, passes):
                deferred.append(group)
                self.lineup.leave(group)
                continue
            considered = True
            self._serve(group, task, rest, turn)
            self._take_news()
        self.lineup.add(deferred)
        if not self.lineup and self._recheck():
            self._take_news()
            considered = True
        return considered

    def _recheck(self) -> bool:
        """Ask all who wait for room or for a bound again, if that is due; whether it was."""
        if not self.draft.rechecks(self.pool):
            return False
        for group in self.draft.state.blocked(self.pool):
            self.pool.reconsider(group)
        for pool, group in self.draft.state.limited():
            pool.reconsider(group)
        return True

    def _share_out(self) -> None:
        """Have given back what is over a share, and wake who may have more of his."""
        self.draft.shares_out(self.pool)
        assert self.policy.surplus is not None
        for victim, stop in self.policy.surplus(self.view):
            self._stop(victim, stop)
        for group in self.policy.wakes(self.view):
            self.pool.reconsider(group)

    def look_at_bounds(self) -> None:
        """Who waits for room and may not have it any more, since others of its owner started, holds
        back nobody.
        """
        for queue_class in self.pool.queue_classes:
            for groups in queue_class.blocked.values():
                for group in groups:
                    task = group.queue.first
                    if limit_reached(self.pool, task.job, group, self.reservations) is not None:
                        self.pool.reconsider(group)

    def _serve(self, group: Group, task: Task, rest: Iterator[Task], turn: int) -> None:
        """Consider the group's tasks while they come first in line."""
        self._capacity = None
        pool = self.pool
        goes_on = _STRICT if self.policy.line is not None else _PASSING
        while (answer := self._consider(group, task, turn)) in goes_on:
            self.lineup.serve(group)
            following = next(rest, None)
            if following is None:
                self.lineup.leave(group)
                return
            task = following
            if pool.woken or not self.lineup.comes_first(group, task, turn):
                self.lineup.put(group, task, rest, turn)
                return
        if answer is Answer.SECOND_TURN:
            self.lineup.put(group, task, rest, 1)
        else:
            self.lineup.wait(group)

    def _take_news(self) -> None:
        news = self.pool.woken
        if news:
            self.lineup.add_again(group for group in news if group not in self._promised_to)
            news.clear()

    def _prefers_another(self, group: Group, passes: "list[PoolPass]") -> bool:
        pools = group.shape.pools
        if pools[0] == self.pool.name:
            return False
        before = pools[: pools.index(self.pool.name)]
        return any(
            one.pool.name in before
            and (group in one.pool.awake or group in one.pool.reconsidered)
            and group not in one.lineup.done
            for one in passes
        )

    def _consider(self, group: Group, task: Task, turn: int) -> Answer:
        shape = group.shape
        wait = limit_reached(self.pool, task.job, group, self.reservations)
        held = self.policy.may_start(self.view, group) if wait is None else None
        if held is not None:
            same = self.policy.may_claim is self.policy.may_start
            wait = held if same else self.policy.may_claim(self.view, group)
        if wait is not None:
            self._wait(group, task, wait)
            return Answer.WAITS
        if turn or (held is not None and shape.start_failed):
            return self._claim(group, task, held)
        if held is not None:
            places = self._place(self.pool.future, task)
            if places is None:
                return Answer.SECOND_TURN
            self._hold_back(group, task, places, held)
            return Answer.PROMISED
        also = self.pool.future if self.promised else None
        capacity = self._capacity
        if (
            capacity is not None
            and capacity.holds(shape)
            and also is None
            and not task.failed_nodes
        ):
            self._start(task, [(capacity, capacity.pick(shape))])
            return Answer.SERVED
        places = self._place(self.pool.free, task, also)
        if places is None:
            # What an earlier cycle promised is kept from equals that come now.
            kept = self._promised_before(group) and self._keep_what_is_freed(group, task)
            return Answer.PROMISED if kept else Answer.SECOND_TURN
        self._start(task, places)
        self._capacity = places[0][0] if self.choose.sticky and len(places) == 1 else None
        return Answer.SERVED

    def _claim(self, group: Group, task: Task, held: Wait | None) -> Answer:
        """See whether others stop, or can be stopped, so that the task fits; `held`: why it may not
        start yet even then.

        A task whose last starts failed starts on free capacity only: it preempts no task, and gets
        no slots that others release for a third.
        """
        shape = group.shape
        if shape.start_failed:
            self._wait(group, task, held or self._why_no_capacity(shape))
            return Answer.WAITS
        if self._keep_what_is_freed(group, task):
            return Answer.PROMISED
        candidates = (v for v in self.policy.victims(self.view, task) if v not in self._placed)
        victims = self.freeing.enough(task, candidates, spare=self.policy.spares)
        if victims:
            self._stop_for(task, victims)
            places = place(self.pool.future, shape, self.choose, key=self._key(task))
            assert places is not None, "victims were found whose going does not help"
            self._promise(task, places)
            self._wait_for_victims(group, task, len(victims))
            return Answer.PROMISED
        wait = held or self.policy.protected(self.view, task) or self._why_no_capacity(shape)
        self._wait(group, task, wait)
        return Answer.WAITS

    def _place(
        self, index: CapacityIndex, task: Task, also: CapacityIndex | None = None
    ) -> list[Place] | None:
        """A place for a task; where its equals found none, and nothing has changed, it is not
        looked for again.
        """
        shape = task.job.shape
        if self.choose.unequal:
            # There less room may fit where more does not.
            return self._off_failed(index, task, also)
        key = (index, shape.fit)
        if self._nowhere.get(key) == index.changes:
            return None
        places = self._off_failed(index, task, None)
        if places is None:
            self._nowhere[key] = index.changes
        elif also is not None:
            return self._off_failed(index, task, also)
        return places

    def _off_failed(
        self, index: CapacityIndex, task: Task, also: CapacityIndex | None
    ) -> list[Place] | None:
        """A place off the nodes on which the task's last starts failed, else any place.

        So they decide where it is placed, but never whether: it fits wherever its equals do.
        """
        shape, key = task.job.shape, self._key(task)
        if avoid := index.ordinals(task.failed_nodes):
            places = place(index, shape, self.choose, also, key, avoid)
            if places is not None:
                return places
        return place(index, shape, self.choose, also, key)

    def _key(self, task: Task) -> str:
        return f"{task.id}/{task.attempt + 1}" if self.choose.drawn is not None else ""

    def _why_no_capacity(self, shape: Shape) -> Wait:
        changes = self.pool.free.changes
        known = self._no_capacity.get(shape.fit)
        if known is None or known[0] != changes:
            known = self._no_capacity[shape.fit] = changes, no_capacity(self.pool, shape)
        return known[1]

    def _promised_before(self, group: Group) -> bool:
        return code_of(group, self.pool) is WaitCode.WAITING_FOR_VICTIMS

    def _keep_what_is_freed(self, group: Group, task: Task) -> bool:
        """Whether the task has the promise of slots of tasks that stop."""
        if task in self.reservations:
            return True  # others are stopped for it in a pool that it likes better
        if not self.pool.stopping:
            return False
        places = self._place(self.pool.future, task)
        if places is None:
            return False
        self._promise(task, places)
        self._wait_for_victims(group, task, 0)
        return True

    # Starting

    def _start(self, task: Task, places: list[Place]) -> None:
        job = task.job
        shape = job.shape
        nodes = self.pool.nodes
        placements = []
        for replica, (capacity, slots) in enumerate(places):
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
            first = nodes[places[0][0].ordinal]
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
            start=self.policy.start(self.view, task),
        )
        self.reservations.drop(task)
        self.draft.record(event, task.id, task.cause)
        self._placed.add(task)

    # Stopping others

    def _stop_for(self, task: Task, victims: list[Task]) -> None:
        self.draft.room_for(len(victims))
        for victim in victims:
            self._stop(victim, self.policy.stop_for(self.view, victim, task))

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

    def _promise(self, task: Task, places: list[Place]) -> None:
        """Keep what is being freed for `task`, for the rest of this cycle."""
        self.promised = True
        self.reservations.add(task, self.pool)
        self.freeing.keep(task.job.shape, places)

    # Waiting

    def _hold_back(self, group: Group, task: Task, places: list[Place], held: Wait) -> None:
        """Keep room for a task that others go before, so that its equals know how much is left."""
        self._promise(task, places)
        # Once others were stopped for its equals, that is what the group waits for.
        if not self._promised_before(group):
            self._wait(group, task, held)
        self._promised_to.add(group)

    def _wait_for_victims(self, group: Group, task: Task, victims: int) -> None:
        if victims:
            self._promised_to.discard(group)  # more than to be held back
        numbers = {"victims": victims, "asked_milli": group.shape.total_gpu_milli}
        self._wait(group, task, Wait(code=WaitCode.WAITING_FOR_VICTIMS, numbers=numbers))
        self._promised_to.add(group)

    def _wait(self, group: Group, task: Task, wait: Wait) -> None:
        if group in self._promised_to:
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
            self._fail_all(group)

    def _fail_all(self, group: Group) -> None:
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
