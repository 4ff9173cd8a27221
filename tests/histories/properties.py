"""The properties of every history.

1. No attempt is preempted after its start without an input or a deadline in between; under `quota`
   only if its project goes beyond its share, or gets slots that another project left meanwhile.
2. A reservation starts its task on its slots, or is dropped with a reason; nothing else starts on
   slots that are reserved.
3. No victim could have been left out: with any one of them, the task that it was preempted for
   does not fit where limits let it start, or waits for a limit or behind another task.
4. Without inputs, three cycles decide everything; then considering every task again decides
   nothing.
5. A cell that is restored from a snapshot decides what the cell itself decides.
6. Under a policy that preempts, a task is not passed for ever by preemptible tasks of lower
   priority: it starts within their longest minimum run time and grace period.
7. Under `quota`, with shares and bounds computed from the facts (`quota_properties.py`):
   a. a queue loses a task by `reclaim` only while it holds more than it deserves of a resource (or,
      a project, more in all its pools than it deserves in all), at the first level at which it
      differs from the claimant's;
   b. while it holds no more than its share, only to a queue that stays within what it deserves; and
      the claimant's project stays within its share;
   c. a victim that fits on other slots is moved, not stopped, and never to the slots that it holds;
      one that requests GPU memory only if it fits on GPUs as large as those that it holds;
   d. a task that is moved has its slots reserved in the batch in which it is stopped; consolidation
      stops no task that is not moved, and moves at most `max_moves`, to slots that are free;
   e. no start or reservation takes a queue of any level above its limit, nor the tasks of a queue
      that cannot be preempted above what it deserves;
   f. no task is preempted within the minimum run time of its queue.
8. Under `starved_first`, no owner keeps more than its equal part and one task while another one
   below its part has a task that would start without them; and it loses no other
   (`equal_parts.py`).
9. The auditor, which shares no code with the scheduler, finds no broken guarantee; no two tasks
   preempt each other while agents only answer (S7).
10. Order (`order.py`): nothing that may not be preempted at once starts on capacity that an earlier
    task of the order waits for and could use.
11. Work conservation (`work_conservation.py`): a task that fits on idle capacity that is not
    reserved, and that no stated rule keeps waiting, starts.
12. The tasks on a GPU hold at most 1,000 gpu_milli of it, and request at most its memory; those on
    a node request at most its CPUs and memory. The same with what is reserved, once tasks that stop
    are gone.

`HistoryPlayer` checks more in every cycle: limits, strict queues, minimum run times, and reasons.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tests.histories.capacity import shape_within_limits
from tests.histories.equal_parts import assert_equal_parts, assert_may_lose
from tests.histories.order import Cycle, assert_in_order, waits_of
from tests.histories.player import HistoryPlayer
from tests.histories.quota_properties import (
    AT_LIMIT,
    Batch,
    batch_at,
    check_batch,
    check_taken,
    grows_beyond_share,
    needed_at_limit,
)
from tests.histories.stated_rules import waits_behind_protected_with
from tests.histories.work_conservation import assert_idle_capacity_is_used
from tests.support.audit import audit_steps
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.scheduling.planner.placement import any_placement
from yardmaster_core.scheduling.policies import options_of, policy_of
from yardmaster_core.scheduling.policies.fair_share.index import FairShareIndex
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project
from yardmaster_core.scheduling.state.shapes import on_larger_gpus
from yardmaster_core.scheduling.state.tasks import Reservation, Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.reasons import DropCode, PolicyStop

#: Cycles without an input after which nothing is left to decide.
IDLE_AFTER: Final = 3
#: Policies whose tasks that cannot be preempted may preempt others.
PREEMPTING: Final = ("priority", "fitgpp", "lrtp", "rand")
#: Of the tasks that might pass another one (s).
MIN_RUNTIME_S, STEP_S = 60, 10
#: Rules of `quota` and `starved_first` by which others take slots.
RECLAIMED: Final = ("over_fair_share", "over_deserved", "above_equal_part", "moved")
#: gpu_milli of a slot.
SLOT_MILLI: Final = 1000

#: A node, its incarnation, and a slot.
Slot = tuple[str, str, int]


class CheckedCell(Cell):
    """A cell that checks each decision when it is applied."""

    def __init__(self) -> None:
        super().__init__()
        #: Number of cycles with an input, or in which time passed.
        self.changes = 0
        #: Task and attempt -> `changes` at the start, and the length of `left` then.
        self.started: dict[tuple[str, int], tuple[int, int]] = {}
        #: The slots of tasks that were preempted, and of reservations that were dropped, each with
        #: the project that they were preempted or dropped for.
        self.left: list[tuple[Project, frozenset[Slot]]] = []
        self.reserved: dict[str, dec.SlotsReservedV1] = {}
        #: Tasks that start in the present cycle on other slots than those reserved for them.
        self.elsewhere: set[str] = set()
        #: The decisions that `quota` makes for one task, while they are applied.
        self.batch: Batch | None = None
        #: Whether these take a project above its share.
        self.beyond_share = False
        #: Each task with those that were preempted for it, in order.
        self.preempted: list[tuple[str, str]] = []
        #: Victims of the present cycle by the task that they were preempted for.
        self.victims: dict[str, list[str]] = {}
        #: By task the reservations that others lost to it in the present cycle.
        self.passed: dict[str, list[dec.SlotsReservedV1]] = {}
        #: Tasks of the present cycle that get other slots.
        self.moving: list[Task] = []

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        """Decide, and apply the decisions; without the slow checks of `Cell`."""
        verdict = self.machine.decide(self.state, limit=limit, observed=observed)
        self.victims.clear()
        self.passed.clear()
        self.elsewhere.clear()
        self.moving.clear()
        events = [decision.event for decision in verdict.decisions]
        for at, event in enumerate(events):
            begun = batch_at(self.state, events, at)
            if begun is not None:
                self.batch = begun
                check_batch(self.state, begun)
                self.beyond_share = grows_beyond_share(self.state, begun)
            self._apply(event)
            self.on_decision(event)
            batch = self.batch
            if batch is not None and event is [*batch.reserved.values()][-1]:
                self._moves_all_that_fit(batch)
                self.batch, self.beyond_share = None, False
        return verdict

    def on_decision(self, decision: Event) -> None:
        match decision:
            case dec.SlotsAllocatedV1():
                self._takes_what_it_may(decision)
                self._starts_on_its_slots(decision)
                now = self.changes, len(self.left)
                self.started[decision.task_id, decision.attempt] = now
            case dec.PreemptionRequestedV1():
                self._is_not_preempted_at_once(decision)
                self._loses_only_above_its_part(decision)
                assert decision.stop.for_task is not None
                run = self.state.task(decision.task_id).run
                assert run is not None
                self._note_left(decision.stop.for_task, run.placements)
                self.victims.setdefault(decision.stop.for_task, []).append(decision.task_id)
                self.preempted.append((decision.stop.for_task, decision.task_id))
            case dec.SlotsReservedV1():
                known = self.reserved.get(decision.task_id)
                assert known is None, f"{decision.task_id} has reserved slots already"
                self._takes_what_it_may(decision)
                self.reserved[decision.task_id] = decision
                if decision.victims:
                    self._needs_each_victim(decision)
            case dec.ReservationDroppedV1():
                dropped = self.reserved.pop(decision.task_id, None)
                assert dropped is not None, f"{decision.task_id} has no reserved slots to drop"
                self._note_left(decision.for_task or decision.task_id, dropped.placements)
                # A task that takes these slots over needs the victims; the owner may need others.
                self.victims.pop(decision.task_id, None)
                if decision.code is DropCode.STARTED_ELSEWHERE:
                    self.elsewhere.add(decision.task_id)
                if decision.code is DropCode.PASSED:
                    assert decision.for_task is not None
                    self.passed.setdefault(decision.for_task, []).append(dropped)
            case dec.TaskEndedV1():
                task_id = decision.task_id
                assert task_id not in self.reserved, f"{task_id} ends with reserved slots"

    # 1

    def _is_not_preempted_at_once(self, decision: dec.PreemptionRequestedV1) -> None:
        if decision.stop.rule in RECLAIMED or self.beyond_share:
            return  # what a queue starts beyond its share makes it one that loses tasks
        changes, noted = self.started.get((decision.task_id, decision.attempt), (-1, 0))
        assert changes != self.changes or self._gets_what_others_left(noted), (
            f"{decision.task_id} is preempted after its start without an input in between"
        )

    def _note_left(self, for_task: str, placements: Iterable[dec.Placement]) -> None:
        project = self.state.task(for_task).job.project
        self.left.append((project, frozenset(_by_slot(placements))))

    def _gets_what_others_left(self, noted: int) -> bool:
        """Whether a task of `quota` gets slots that another project left, after the first `noted`
        notes: a part of those of its victims, or of those reserved for a task that started on
        others.
        """
        batch = self.batch
        if batch is None:
            return False
        project = self.state.task(batch.for_task).job.project
        slots = _by_slot(batch.reserved[batch.for_task].placements)
        return any(
            other is not project and not left.isdisjoint(slots) for other, left in self.left[noted:]
        )

    # 7e

    def _takes_what_it_may(self, decision: dec.SlotsAllocatedV1 | dec.SlotsReservedV1) -> None:
        """Reserved slots counted before, and so did a task that is moved."""
        task = self.state.task(decision.task_id)
        config = self.state.pools[decision.pool].config
        assert config is not None
        counted = task.id in self.reserved or task.id in self.elsewhere
        moves = isinstance(decision, dec.SlotsReservedV1) and task.run is not None
        if config.policy.name == "quota" and not counted and not moves:
            check_taken(self.state, decision, task)

    # 7c

    def _moves_all_that_fit(self, batch: Batch) -> None:
        """No victim stops that would fit on other slots, with all that is reserved by now."""
        pool = self.state.pools[batch.pool]
        assert pool.config is not None
        for victim in map(self.state.task, batch.stopped):
            run = victim.run
            assert run is not None
            if _at_limit(victim):
                continue  # on other slots it would count as well
            # More capacity may fit less of these.
            if not victim.job.shape.whole_nodes:
                shape = victim.job.shape
                if shape.gpu_memory_mib:
                    # On smaller GPUs it would hold more.
                    nodes = [self.state.nodes[each.node] for each in run.placements]
                    shape = on_larger_gpus(shape, max(node.gpu_memory_mib for node in nodes))
                placement = any_placement(pool.future, shape, pool.config)
                assert placement is None, f"{victim.id} is preempted, but need only be moved"

    # 8

    def _loses_only_above_its_part(self, decision: dec.PreemptionRequestedV1) -> None:
        assert decision.stop.for_task is not None
        victim = self.state.task(decision.task_id)
        if decision.stop.rule == "moved":
            self.moving.append(victim)
        elif decision.stop.rule == "above_equal_part":
            moving = [task for task in self.moving if task.reserved is None]
            assert_may_lose(self.state, victim, self.state.task(decision.stop.for_task), moving)

    # 2

    def _starts_on_its_slots(self, decision: dec.SlotsAllocatedV1) -> None:
        own = self.reserved.pop(decision.task_id, None)
        if own is not None:
            kept = [(p.node, p.incarnation, p.slots) for p in own.placements]
            given = [(p.node, p.incarnation, p.slots) for p in decision.placements]
            assert kept == given, f"{decision.task_id} starts on other slots than its reserved ones"
        taken = _by_slot(decision.placements)
        others = _by_slot(p for body in self.reserved.values() for p in body.placements)
        for slot in taken.keys() & others.keys():
            used = taken[slot] + others[slot] + self._kept(slot, decision.task_id)
            assert used <= SLOT_MILLI, f"{decision.task_id} starts on {slot}, which is reserved"

    def _kept(self, slot: Slot, task_id: str) -> int:
        """Return the gpu_milli of a slot that tasks without a stop request hold."""
        name, incarnation, index = slot
        held = 0
        for (_, replica), task in self.state.nodes[name].open.items():
            run = task.run
            assert run is not None
            placement = run.placements[replica]
            if run.stop is None and task.id != task_id and placement.incarnation == incarnation:
                held += placement.gpu_milli * (index in placement.slots)
        return held

    # 3

    def _needs_each_victim(self, decision: dec.SlotsReservedV1) -> None:
        task = self.state.task(decision.task_id)
        pool = self.state.pools[decision.pool]
        assert pool.config is not None
        reservation = task.reserved
        assert reservation is not None
        names = self.victims.get(task.id, [])
        assert len(names) == decision.victims, f"{task.id}: {decision.victims} victims, not {names}"
        policy = pool.config.policy
        actions = policy_of(policy).preemption.actions(options_of(policy))
        if not all(action.drop_unneeded for action in actions):
            return
        shape = shape_within_limits(self.state, pool, task)
        future = pool.future
        changes = future.changes
        self._shift_reserved(reservation, sign=1)
        for name in names:
            victim = self.state.task(name)
            self._shift_held(victim, sign=-1)
            placement = any_placement(future, shape, pool.config)
            self._shift_held(victim, sign=1)
            if needed_at_limit(self.state, pool, task, victim):
                continue
            if _at_limit(victim) and waits_behind_protected_with(self.state, pool, task, victim):
                continue
            assert placement is None, f"{task.id} fits also if {name} is not preempted"
        self._shift_reserved(reservation, sign=-1)
        future.changes = changes

    def _shift_reserved(self, reservation: Reservation, sign: int) -> None:
        future = self.state.pools[reservation.pool_name].future
        for p in reservation.placements:
            amounts = (sign * p.gpu_milli, sign * p.cpu_milli, sign * p.memory_mib, sign)
            future.shift(self.state.nodes[p.node].future, p.slots, *amounts)

    def _shift_held(self, victim: Task, sign: int) -> None:
        run = victim.run
        assert run is not None
        future = self.state.pools[run.pool_name].future
        for state, p in zip(run.replicas, run.placements, strict=True):
            if state < ReplicaState.RELEASED:
                amounts = (sign * p.gpu_milli, sign * p.cpu_milli, sign * p.memory_mib, sign)
                future.shift(self.state.nodes[p.node].future, p.slots, *amounts)


class CheckedPlayer(HistoryPlayer):
    """A player that checks all properties."""

    cell: CheckedCell

    def __init__(self) -> None:
        super().__init__(CheckedCell())
        #: A cell restored from the last snapshot.
        self.restored: Cell | None = None

    def decide(self, after_s: int, limit: int, silent: dict[str, int]) -> list[Event]:
        inputs = list(self.cell._inputs)
        if inputs or after_s or silent:
            self.cell.changes += 1
        waits = waits_of(self.state)
        decided = super().decide(after_s, limit, silent)
        if self.restored is not None:
            self.restored._inputs = inputs
            expected = self.restored.cycle(after_s=after_s, limit=limit, silent=silent)
            ours, theirs = _without_equals(decided, expected)
            assert decided == expected, f"the cell decides {ours}; restored, it decides {theirs}"
            assert self.state.digest() == self.restored.state.digest(), "digests differ"
        for node in self.state.nodes.values():
            _holds_no_more_than_it_has(node)
        if self.cell.complete:
            cycle = Cycle(
                started=self._tasks_of(decided, dec.SlotsAllocatedV1),
                preempted=self._tasks_of(decided, dec.PreemptionRequestedV1),
                reserved_before=self.reserved,
                waits_before=waits,
                kept_waiting={
                    event.task_id: event.wait
                    for event in decided
                    if isinstance(event, dec.TaskUnschedulableV1)
                    and event.wait.code not in BLOCKING
                },
                taken_from=self.cell.passed,
            )
            assert_in_order(self.state, cycle)
        return decided

    def _tasks_of(
        self,
        decided: Sequence[Event],
        kind: type[dec.SlotsAllocatedV1 | dec.PreemptionRequestedV1],
    ) -> list[Task]:
        return [self.state.task(event.task_id) for event in decided if isinstance(event, kind)]

    def restart(self) -> None:
        """Continue the cell and, with it, a copy that is restored from a snapshot."""
        self.restored = self.copy_of(self.cell, RestoredCell())

    def become_idle(self) -> None:
        last: list[Event] = []
        for _ in range(IDLE_AFTER + 1):
            last = self.cycle()
        assert not last, f"the cycle after {IDLE_AFTER} without inputs decides {last[:3]}"
        moved = self.decided_if_all_are_considered()
        assert not moved, f"considering all tasks again decides {moved[:3]}"
        assert_equal_parts(self.state)
        assert_idle_capacity_is_used(self.state)

    def end(self) -> None:
        self.cell.preempted.clear()
        super().end()
        waiting = sorted(self.cell.reserved)
        assert not waiting, f"reserved slots never start their tasks: {waiting}"
        self.let_tasks_arrive_behind_a_first_one()
        findings = audit_steps(self.cell.steps)
        assert not findings, f"{len(findings)} findings, the first: {findings[0]}"

    def let_tasks_arrive_behind_a_first_one(self) -> None:
        """A gang of the highest priority must start although others come and go below it."""
        # Tasks that cannot be preempted for it may keep it waiting without end.
        jobs = self.state.jobs.values()
        protected = [job for job in jobs if not job.spec.preemptible or job.priority == 1]
        for job in protected:
            self.cell.cancel(job.id, immediate=True)
        self.cell.entitle("later", department="later")
        for number in range(MIN_RUNTIME_S // STEP_S + 2):
            self._tasks_come_and_go(number)
        gpus = _gpus_of_preemptible_tasks(self.state.pools["main"])
        if not gpus or any(job.live for job in protected):
            return
        self.cell.submit(
            "gang", project="later", gpus=1, replicas=gpus, priority=1, preemptible=False
        )
        tasks_before = self.state.tasks.values()
        specs = [t.job.spec for t in tasks_before if t.run is not None or t.reserved is not None]
        limit_s = MIN_RUNTIME_S + max((s.min_runtime_s + s.grace_s for s in specs), default=0)
        for number in range(100, 102 + limit_s // STEP_S):
            self._tasks_come_and_go(number)
            if self.cell.task("gang").run is not None:
                return
        gang = self.cell.task("gang")
        waits = gang.group.waits if gang.group is not None else gang.reserved
        raise AssertionError(f"a gang of the highest priority waits for {limit_s} s: {waits}")

    def _tasks_come_and_go(self, number: int) -> None:
        """Some tasks arrive, those that have run for a while end, and agents obey."""
        name = f"later{chr(97 + number % 26)}{chr(97 + number // 26)}"
        below: dict[str, Any] = {"priority": 99, "min_runtime_s": MIN_RUNTIME_S, "gpus": 1}
        gpus = _gpus_of_preemptible_tasks(self.state.pools["main"])
        tasks = 1 + gpus * STEP_S // MIN_RUNTIME_S
        self.cell.submit(name, project="later", tasks=tasks, **below)
        for task, replica in self.replicas(ReplicaState.EXITED):
            self.claim(nev.SlotsReleasedV1(**self.cell._about(task, replica)))
        self.finish(number=127, after_s=MIN_RUNTIME_S + STEP_S)
        self.round(after_s=STEP_S)


class RestoredCell(Cell):
    """A cell restored from a snapshot, which remembers no search for victims."""

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        """Decide in place, as a leader does."""
        for pool in self.state.pools.values():
            if isinstance(pool.index, FairShareIndex):
                pool.index.searched.clear()
        self.state, decisions, complete = self.machine.decide_in_place(
            self.state, limit=limit, observed=observed
        )
        return CycleResult(tuple(decisions), self.machine.digest(self.state), complete)


def _holds_no_more_than_it_has(node: Node) -> None:
    """The amounts that tasks hold, also once those that stop are gone, are within the node:
    of each GPU 1,000 milli and its memory, and its CPUs and memory.
    """
    held, kept = ([0] * (2 * node.gpus + 2) for _ in range(2))

    def count(totals: list[int], placement: dec.Placement) -> None:
        if placement.node == node.name and placement.incarnation == node.incarnation:
            for slot in placement.slots:
                totals[slot] += placement.gpu_milli
                totals[node.gpus + slot] += placement.gpu_memory_mib
            totals[-2] += placement.cpu_milli
            totals[-1] += placement.memory_mib

    for (_, replica), task in node.open.items():
        run = task.run
        assert run is not None
        count(held, run.placements[replica])
        if run.stop is None:
            count(kept, run.placements[replica])
    for task in node.reserved:
        assert task.reserved is not None
        for placement in task.reserved.placements:
            count(kept, placement)
    gpus = [SLOT_MILLI] * node.gpus + [node.gpu_memory_mib] * node.gpus
    most = [*gpus, node.cpu_milli, node.memory_mib]
    for totals in (held, kept):
        assert all(n <= m for n, m in zip(totals, most, strict=True)), f"{node.name}: {totals}"


def _at_limit(victim: Task) -> bool:
    """Whether a task is preempted for one of its project at a limit."""
    run = victim.run
    assert run is not None
    return isinstance(run.stop, PolicyStop) and run.stop.rule == AT_LIMIT


def _gpus_of_preemptible_tasks(pool: Pool) -> int:
    """The whole GPUs that are free or held by preemptible tasks; 0 if the pool's policy preempts
    none for others.
    """
    if pool.config is None or pool.config.policy.name not in PREEMPTING:
        return 0
    if pool.config.policy.options.get("preemption") is False:
        return 0
    index = pool.max_free
    index.flush()
    return sum(n * (nodes & index.available).bit_count() for n, nodes in enumerate(index.whole))


def _by_slot(placements: Iterable[dec.Placement]) -> dict[Slot, int]:
    held: dict[Slot, int] = {}
    for placement in placements:
        for slot in placement.slots:
            key = (placement.node, placement.incarnation, slot)
            held[key] = held.get(key, 0) + placement.gpu_milli
    return held


def _without_equals(
    ours: Sequence[Event], theirs: Sequence[Event]
) -> tuple[list[Event], list[Event]]:
    return [e for e in ours if e not in theirs], [e for e in theirs if e not in ours]
