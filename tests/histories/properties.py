"""The properties of every history.

1. No attempt is preempted after its start without an input or a deadline in between.
2. A reservation starts its task on its slots, or is dropped with a reason; nothing else starts on
   slots that are reserved.
3. No victim could have been left out: with any one of them, the task that it was preempted for
   does not fit.
4. Without inputs, three cycles decide everything; then considering every task again decides
   nothing.
5. A cell that is restored from a snapshot decides what the cell itself decides.
6. Under a policy that preempts, a task is not passed for ever by preemptible tasks of lower
   priority: it starts within their longest minimum run time and grace period.
7. Under `quota`, no queue loses what it deserves to another one, at the first level at which they
   differ; but a project may that has more in all its pools than it deserves in all.

`World` checks more in every cycle: limits, strict queues, minimum run times, and reasons.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tests.histories.world import World
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.scheduling.planner.placement import any_placement
from yardmaster_core.scheduling.policies import options_of, policy_of
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_core.scheduling.state.tasks import Reservation, Task
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import node_events as nev

#: Cycles without an input after which nothing is left to decide.
IDLE_AFTER: Final = 3
#: Policies whose tasks that cannot be preempted may preempt others.
PREEMPTING: Final = ("priority", "fitgpp", "lrtp", "rand")
#: Of the tasks that might pass another one (s).
MIN_RUNTIME_S, STEP_S = 60, 10
#: Rules of `quota` by which other queues take slots.
RECLAIMED: Final = ("over_fair_share", "over_deserved", "moved")
#: gpu_milli of a slot.
SLOT_MILLI: Final = 1000
#: More than any amount.
ANY: Final = 1 << 40

#: Amounts of GPUs, CPUs and memory; None: unlimited.
Bounds = tuple[int | None, int | None, int | None]
#: A node, its incarnation, and a slot.
Slot = tuple[str, str, int]


class CheckedCell(Cell):
    """A cell that checks each decision when it is applied."""

    def __init__(self) -> None:
        super().__init__()
        #: Number of cycles with an input, or in which time passed.
        self.changes = 0
        #: Task and attempt -> `changes` at the start.
        self.started: dict[tuple[str, int], int] = {}
        self.reserved: dict[str, dec.SlotsReservedV1] = {}
        #: Victims of the present cycle by the task that they were preempted for.
        self.victims: dict[str, list[str]] = {}

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        """Decide, and apply the decisions; without the slow checks of `Cell`."""
        verdict = self.machine.decide(self.state, limit=limit, observed=observed)
        self.victims.clear()
        for decision in verdict.decisions:
            self._apply(decision.event)
            self.on_decision(decision.event)
        return verdict

    def on_decision(self, decision: Event) -> None:
        match decision:
            case dec.SlotsAllocatedV1():
                self._starts_on_its_slots(decision)
                self.started[decision.task_id, decision.attempt] = self.changes
            case dec.PreemptionRequestedV1():
                self._is_not_preempted_at_once(decision)
                self._loses_only_what_is_not_deserved(decision)
                assert decision.stop.for_task is not None
                self.victims.setdefault(decision.stop.for_task, []).append(decision.task_id)
            case dec.SlotsReservedV1():
                known = self.reserved.get(decision.task_id)
                assert known is None, f"{decision.task_id} has reserved slots already"
                self.reserved[decision.task_id] = decision
                if decision.victims:
                    self._needs_each_victim(decision)
            case dec.ReservationDroppedV1():
                dropped = self.reserved.pop(decision.task_id, None)
                assert dropped is not None, f"{decision.task_id} has no reserved slots to drop"
            case dec.TaskEndedV1():
                task_id = decision.task_id
                assert task_id not in self.reserved, f"{task_id} ends with reserved slots"

    # 1

    def _is_not_preempted_at_once(self, decision: dec.PreemptionRequestedV1) -> None:
        if decision.stop.rule in RECLAIMED:
            return  # what a queue starts beyond its share makes it one that loses tasks
        since = self.started.get((decision.task_id, decision.attempt))
        assert since != self.changes, (
            f"{decision.task_id} is preempted after its start without an input in between"
        )

    # 7

    def _loses_only_what_is_not_deserved(self, decision: dec.PreemptionRequestedV1) -> None:
        """The victim's queue still holds more than it deserves of a resource, at the first level at
        which it differs from the claimant's.
        """
        assert decision.stop.for_task is not None
        if decision.stop.rule not in ("over_fair_share", "over_deserved"):
            return
        victim = self.state.task(decision.task_id)
        claimant = self.state.task(decision.stop.for_task)
        assert victim.run is not None
        pool = victim.run.pool_name
        config = self.state.pools[pool].config
        if config is None or config.policy.name != "quota":
            return
        for owner, other in zip(_path(victim), _path(claimant), strict=False):
            if owner is other:
                continue
            held = self._held(owner, (pool,), plus=victim)
            bounds = _deserved(self.state, owner, pool)
            if _is_over(held, bounds):
                return
            pools = tuple(
                name
                for name, each in self.state.pools.items()
                if each.config is not None and each.config.policy.name == "quota"
            )
            in_all = self._held(owner, pools, plus=victim)
            sums = _added(_deserved(self.state, owner, name) for name in pools)
            assert isinstance(owner, Project), f"{owner.name} loses {victim.id}"
            assert _is_over(in_all, sums), (
                f"{owner.name} loses {victim.id}, but holds {held} of {bounds}, "
                f"and {in_all} of {sums} in all pools"
            )
            return

    def _held(
        self, owner: Department | Project, pools: Sequence[str], *, plus: Task
    ) -> tuple[int, int, int]:
        gpu = cpu = memory = 0
        for task in self.state.tasks.values():
            if owner not in _path(task):
                continue
            for pool in pools:
                for placement in _standing(task, pool, plus=plus):
                    gpu += placement.gpu_milli * len(placement.slots)
                    cpu += placement.cpu_milli
                    memory += placement.memory_mib
        return gpu, cpu, memory

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
        claims = policy_of(policy).claims(options_of(policy))
        if not all(claim.drop_unneeded for claim in claims):
            return
        future = pool.future
        changes = future.changes
        self._shift_reserved(reservation, sign=1)
        for name in names:
            victim = self.state.task(name)
            self._shift_held(victim, sign=-1)
            placement = any_placement(future, task.job.shape, pool.config)
            self._shift_held(victim, sign=1)
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


class CheckedWorld(World):
    """A world that checks all properties."""

    cell: CheckedCell

    def __init__(self) -> None:
        super().__init__(CheckedCell())
        #: A cell restored from the last snapshot.
        self.restored: Cell | None = None

    def decide(self, after_s: int, limit: int, silent: dict[str, int]) -> list[Event]:
        inputs = list(self.cell._inputs)
        if inputs or after_s or silent:
            self.cell.changes += 1
        decided = super().decide(after_s, limit, silent)
        if self.restored is not None:
            self.restored._inputs = inputs
            expected = self.restored.cycle(after_s=after_s, limit=limit, silent=silent)
            ours, theirs = _without_equals(decided, expected)
            assert decided == expected, f"the cell decides {ours}; restored, it decides {theirs}"
            assert self.state.digest() == self.restored.state.digest(), "digests differ"
        return decided

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

    def end(self) -> None:
        super().end()
        waiting = sorted(self.cell.reserved)
        assert not waiting, f"reserved slots never start their tasks: {waiting}"
        self.let_tasks_arrive_behind_a_first_one()

    def let_tasks_arrive_behind_a_first_one(self) -> None:
        """A gang of the highest priority must start although others come and go below it."""
        # Tasks that cannot be preempted for it may keep it waiting without end.
        jobs = self.state.jobs.values()
        firm = [job for job in jobs if not job.spec.preemptible or job.priority == 1]
        for job in firm:
            self.cell.cancel(job.id, immediate=True)
        self.cell.entitle("later", department="later")
        for number in range(MIN_RUNTIME_S // STEP_S + 2):
            self._tasks_come_and_go(number)
        gpus = _gpus_of_preemptible_tasks(self.state.pools["main"])
        if not gpus or any(job.live for job in firm):
            return
        self.cell.submit(
            "gang", project="later", gpus=1, replicas=gpus, priority=1, preemptible=False
        )
        specs = [task.job.spec for task in self.state.tasks.values() if task.run is not None]
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
    """A cell restored from a snapshot."""

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        """Decide in place, as a leader does."""
        self.state, decisions, complete = self.machine.decide_in_place(
            self.state, limit=limit, observed=observed
        )
        return CycleResult(tuple(decisions), self.machine.digest(self.state), complete)


def _path(task: Task) -> tuple[Department | Project, ...]:
    return task.job.project.department, task.job.project


def _standing(task: Task, pool: str, *, plus: Task) -> list[dec.Placement]:
    """The slots that a task holds and will not release, and those reserved for it; of `plus` also
    those that it will release.
    """
    run = task.run
    found: list[dec.Placement] = []
    if task.reserved is not None and task.reserved.pool_name == pool:
        found += task.reserved.placements
    if run is not None and run.pool_name == pool and (not task.releasing or task is plus):
        states = zip(run.replicas, run.placements, strict=True)
        found += [placement for state, placement in states if state < ReplicaState.RELEASED]
    return found


def _or_any(amount: int | None) -> int:
    return ANY if amount is None else amount


def _deserved(state: ClusterState, owner: Department | Project, pool: str) -> Bounds:
    """The amounts that a queue deserves: a department without a quota those of its projects."""
    quota = owner.config.quotas.get(pool) if owner.config is not None else None
    if quota is not None:
        # No queue deserves more than its limit.
        gpus = min(quota.deserved_milli or 0, _or_any(quota.limit_milli))
        cpus = min(_or_any(quota.deserved_cpu_milli), _or_any(quota.limit_cpu_milli))
        return gpus, cpus if cpus < ANY else None, quota.deserved_memory_mib
    if isinstance(owner, Project):
        return 0, None, None
    projects = [one for one in state.projects.values() if one.department is owner]
    return _added(_deserved(state, one, pool) for one in projects)


def _added(rows: Iterable[Bounds]) -> Bounds:
    gpu, cpu, memory = (
        None if None in amounts else sum(amount or 0 for amount in amounts)
        for amounts in zip(*rows, strict=True)
    )
    return gpu, cpu, memory


def _is_over(amounts: tuple[int, int, int], bounds: Bounds) -> bool:
    return any(
        bound is not None and amount > bound for amount, bound in zip(amounts, bounds, strict=True)
    )


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
