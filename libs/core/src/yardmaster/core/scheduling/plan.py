"""Who starts, who is stopped for whom, and why the rest waits: one pass over the groups that are
awake.

The same for every policy; what differs are the strategies it asks. Groups come in the policy's
order, each with its first task. A group whose task was placed, or promised the slots of tasks that
stop, comes back with its next one; a group that got a reason to wait is done, since its tasks are
equal. So the cost of a pass follows what was woken and what starts, not what waits.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from yardmaster.core.fencing import fence_of
from yardmaster.core.scheduling.draft import Draft
from yardmaster.core.scheduling.entities import Group, Pool, ReplicaState, Task, class_of
from yardmaster.core.scheduling.indexes import FreeIndex, Room
from yardmaster.core.scheduling.limits import Promises, limit_reached
from yardmaster.core.scheduling.placement import Place, place, strategy
from yardmaster.core.scheduling.policies import options_of, policy_of
from yardmaster.core.scheduling.policy import OrderKey, PoolView
from yardmaster.core.scheduling.waits import no_room
from yardmaster.schemas.events.decisions import (
    Outcome,
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    TaskEndedV1,
    TaskUnschedulableV1,
)
from yardmaster.schemas.reasons import EndCode, Wait, WaitClass, WaitCode

Waiting = tuple[OrderKey, Group, Task, Iterator[Task]]


def plan(draft: Draft) -> None:
    """Consider every group that is awake in every pool, each in its pools' order of preference.

    Pools take turns in the order of their names until nobody is left: a group waits for its turn in
    a pool while one that it prefers has not answered yet, and those behind it wait with it (else
    they would start only to be stopped for it). Where that leaves nobody to consider, it is passed
    over.
    """
    pools = sorted(draft.state.pools.values(), key=lambda pool: pool.name)
    promises = Promises()
    passes = [PoolPass(draft, pool, promises) for pool in pools if pool.config is not None]
    pass_over = False
    while True:
        considered = False
        for one in passes:
            considered |= one.run(passes, pass_over=pass_over)
        if not considered and pass_over:
            if not promises.spent:
                return
            promises.spent = False
            for one in passes:
                one.look_at_bounds()
            continue
        pass_over = not considered


class PoolPass:
    """One pool's part of a cycle."""

    def __init__(self, draft: Draft, pool: Pool, promises: Promises) -> None:
        assert pool.config is not None
        self.draft = draft
        self.pool = pool
        self.promises = promises
        self.policy = policy_of(pool.config.policy)
        self.choose = strategy(pool.config.placement)
        self.fence_s = fence_of(pool.config)
        self.view = PoolView(draft.state, pool, options_of(pool.config.policy))
        self.done: set[Group] = set()
        #: Slots were promised to tasks whose victims are still stopping.
        self.promised = False
        #: Groups to whose first tasks they were promised: what holds for those behind is no news.
        self._promised_to: set[Group] = set()
        self._line: list[tuple[OrderKey, int, Waiting]] = []
        self._queued: set[Group] = set()
        self._started = False
        #: Where the last of the equals being considered was placed, if the next one goes there too.
        self._room: Room | None = None

    def run(self, passes: "list[PoolPass]", *, pass_over: bool) -> bool:
        """Consider whom no preferred pool still has to answer, up to the first who has to wait for
        one (with `pass_over`: all of them); returns whether anybody was considered.
        """
        if not self._started:
            self._started = True
            if self.pool.recheck:
                self.pool.recheck = False
                self.draft.state.wake_pool(self.pool)
                self.draft.state.wake_limited()
            self.pool.news.clear()
            for group in self.pool.awake:
                self._line_up(group)
        else:
            self._take_news()
        considered = False
        deferred: list[Group] = []
        while self._line:
            entry = heappop(self._line)
            _, _, (_, group, task, rest) = entry
            if task.group is not group:
                self._next(group, rest)
                continue
            if self._prefers_another(group, passes):
                if not pass_over:
                    heappush(self._line, entry)
                    break
                deferred.append(group)
                self._queued.discard(group)
                continue
            considered = True
            self._serve(group, task, rest)
            self._take_news()
        for group in deferred:
            self._line_up(group)
        if self.pool.recheck and not self._line:
            self.pool.recheck = False
            self.draft.state.wake_pool(self.pool)
            self.draft.state.wake_limited()
            self._take_news()
            considered = True
        return considered

    def look_at_bounds(self) -> None:
        """Who waits for room and may not have it any more, since others of its owner started, holds
        back nobody.
        """
        for lane in self.pool.lanes:
            for groups in lane.blocked.values():
                for group in groups:
                    task = next(group.queue.in_order())
                    if limit_reached(self.pool, task.job, group, self.promises) is not None:
                        self.draft.state.wake(self.pool, group)

    def _serve(self, group: Group, task: Task, rest: Iterator[Task]) -> None:
        """Consider the group's tasks while they come first in line."""
        self._room = None
        pool, line = self.pool, self._line
        while self._consider(group, task):
            following = next(rest, None)
            if following is None:
                self._queued.discard(group)
                return
            task = following
            key = self.policy.order(self.view, group, task)
            if pool.news or (line and line[0][0] < key):
                heappush(line, (key, id_order(task), (key, group, task, rest)))
                return
        self._queued.discard(group)
        self.done.add(group)

    def _line_up(self, group: Group) -> None:
        if group not in self._queued and group not in self.done:
            self._queued.add(group)
            self._next(group, group.queue.in_order())

    def _next(self, group: Group, rest: Iterator[Task]) -> None:
        task = next(rest, None)
        if task is None:
            self._queued.discard(group)
            return
        key = self.policy.order(self.view, group, task)
        heappush(self._line, (key, id_order(task), (key, group, task, rest)))

    def _take_news(self) -> None:
        news = self.pool.news
        if news:
            for group in news:
                if group not in self._promised_to:
                    self.done.discard(group)
                    self._line_up(group)
            news.clear()

    def _prefers_another(self, group: Group, passes: "list[PoolPass]") -> bool:
        pools = group.shape.pools
        if pools[0] == self.pool.name:
            return False
        before = pools[: pools.index(self.pool.name)]
        return any(
            one.pool.name in before and group in one.pool.awake and group not in one.done
            for one in passes
        )

    def _consider(self, group: Group, task: Task) -> bool:
        """Whether the next task of the group is worth a look too."""
        shape = group.shape
        job = task.job
        wait = limit_reached(self.pool, job, group, self.promises)
        if wait is None:
            wait = self.policy.may_start(self.view, group)
        if wait is not None:
            self._wait(group, task, wait)
            return False
        also = self.pool.future if self.promised else None
        room = self._room
        if room is not None and room.holds(shape) and also is None:
            self._start(task, [(room, room.pick(shape))])
            return True
        places = place(self.pool.idle, shape, self.choose, also)
        if places is not None:
            self._start(task, places)
            self._room = places[0][0] if self.choose.sticky and shape.replicas == 1 else None
            return True
        if task in self.promises:
            return True  # others are stopped for it in a pool that it likes better
        if self.pool.stopping:
            places = place(self.pool.future, shape, self.choose)
            if places is not None:
                self._promise(task, places)
                self._wait_for_victims(group, task, 0)
                return True
        victims = self._find_victims(task)
        if victims:
            self._stop_for(task, victims)
            places = place(self.pool.future, shape, self.choose)
            assert places is not None, "victims were found whose going does not help"
            self._promise(task, places)
            self._wait_for_victims(group, task, len(victims))
            return True
        wait = self.policy.protected(self.view, task) or no_room(self.pool, shape)
        self._wait(group, task, wait)
        return False

    # Starting

    def _start(self, task: Task, places: list[Place]) -> None:
        job = task.job
        shape = job.shape
        nodes = self.pool.nodes
        placements = []
        for replica, (room, slots) in enumerate(places):
            node = nodes[room.ordinal]
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
        self.promises.drop(task)
        self.draft.record(event, task.id, task.cause)

    # Stopping others

    def _find_victims(self, task: Task) -> list[Task]:
        """The fewest of the policy's victims, tried in its order, with whom gone the task fits."""
        shape = task.job.shape
        future = self.pool.future
        tried: list[Task] = []
        with self.draft.trial():
            for victim in self.policy.victims(self.view, task):
                self._lend(victim)
                tried.append(victim)
                if self._room_on(victim, task) and place(future, shape, self.choose) is not None:
                    return self._hand_back(task, tried)
        return []

    def _room_on(self, victim: Task, task: Task) -> bool:
        rooms = self.pool.future.rooms
        return any(rooms[o].holds(task.job.shape) for o in self._ordinals(victim))

    def _hand_back(self, task: Task, tried: list[Task]) -> list[Task]:
        """Spare whom it helps nothing to stop, the most valuable first."""
        shape = task.job.shape
        future = self.pool.future
        needed = [tried[-1]]
        for victim in reversed(tried[:-1]):
            places = place(future, shape, self.choose)
            assert places is not None
            used = {room.ordinal for room, _ in places}
            self._lend(victim, back=True)
            if used.isdisjoint(self._ordinals(victim)):
                continue
            if place(future, shape, self.choose) is None:
                self._lend(victim)
                needed.append(victim)
        return needed[::-1]

    def _ordinals(self, victim: Task) -> list[int]:
        run = victim.run
        assert run is not None
        nodes = self.draft.state.nodes
        rooms = self.pool.future.rooms
        found = (nodes[p.node].ordinal for p in run.placements)
        return [ordinal for ordinal in found if ordinal in rooms]

    def _lend(self, victim: Task, *, back: bool = False) -> None:
        run = victim.run
        assert run is not None
        for replica, placement in enumerate(run.placements):
            if run.replicas[replica] >= ReplicaState.RELEASED:
                continue
            node = self.draft.state.nodes[placement.node]
            what = (
                *(node.future, placement.slots, placement.gpu_milli),
                *(placement.cpu_milli, placement.memory_mib),
            )
            self._shift(self.pool.future, what, give=not back)

    def _shift(self, index: FreeIndex, what: tuple[object, ...], *, give: bool) -> None:
        do, undo = (index.give, index.take) if give else (index.take, index.give)
        do(*what)  # type: ignore[arg-type]
        journal = self.draft.state.journal
        assert journal is not None
        journal.append((undo, what))

    def _stop_for(self, task: Task, victims: list[Task]) -> None:
        self.draft.room_for(len(victims))
        now_ms = self.draft.state.now_ms
        for victim in victims:
            run = victim.run
            assert run is not None
            grace_s = victim.job.spec.grace_s
            event = PreemptionRequestedV1(
                task_id=victim.id,
                attempt=run.number,
                nodes=run.nodes,
                stop=self.policy.stop_for(self.view, victim, task),
                grace_s=grace_s,
                deadline_at_ms=now_ms + grace_s * 1000,
            )
            self.draft.record(event, victim.id, task.cause)

    def _promise(self, task: Task, places: list[Place]) -> None:
        """Keep what is being freed for `task`, for the rest of this cycle."""
        shape = task.job.shape
        self.promised = True
        self.promises.add(task, self.pool)
        for room, slots in places:
            what = (room, slots, shape.gpu_milli, shape.cpu_milli, shape.memory_mib)
            self._shift(self.pool.future, what, give=False)

    # Waiting

    def _wait_for_victims(self, group: Group, task: Task, victims: int) -> None:
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


def id_order(task: Task) -> int:
    """Breaks ties between order keys that a policy made equal: the order of admission, then the
    index.
    """
    return task.job.seq * 10_000 + task.index
