"""A cell under faults and two reference cells without faults: all must decide the same.

`World` sends every honest input to all three. The cell under test is restarted from snapshots,
receives inputs again, applies each of its own decisions twice and receives hostile claims. The twin
has none of these faults, nor has the third cell, which decides in place and applies nothing. After
every cycle `World` compares their decisions and digests, the dumps of the twin and the third cell,
and the indexes of the cell under test with values derived from its facts.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState, ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import SEPARATE_AFTER
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_core.testing import Cell, CycleEnded, EventApplied
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.reasons import NUMBERS

#: The first record id of hostile claims; honest ids stay below.
HOSTILE_SEQ = 10**9


class FaultyCell(Cell):
    """The cell under faults."""

    def on_decision(self, decision: Event) -> None:
        """Apply the decision again: a repeat changes nothing."""
        before = self.machine.digest(self.state)
        self.state = self.machine.apply(self.state, decision, "")
        after = self.machine.digest(self.state)
        assert after == before, f"a repeat changed the state: {decision}"


class InPlaceCell(Cell):
    """The cell that decides in place instead of on a draft."""

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        self.state, decisions, complete = self.machine.decide_in_place(
            self.state, limit=limit, observed=observed
        )
        return CycleResult(tuple(decisions), self.machine.digest(self.state), complete)


class World:
    """Cells with the same honest history."""

    def __init__(self) -> None:
        self.cell = FaultyCell()
        self.twin = Cell()
        self.in_place = InPlaceCell()
        self.jobs: list[str] = []
        self.hostile: Counter[str] = Counter()
        self.silent: dict[str, int] = {}
        self.sent_claims: list[tuple[Any, str]] = []
        #: A cycle failed; checks after it would add nothing.
        self.broken = False

    # Inputs

    def both(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Send the same honest input to all cells."""
        for cell in (self.in_place, self.twin, self.cell):
            getattr(cell, method)(*args, **kwargs)

    def repeat_last(self) -> None:
        """Send the last input, a verdict or a claim, to the cell once more."""
        inputs = self.cell._inputs
        if inputs:
            inputs.append(inputs[-1])

    def replicas(self, *states: ReplicaState) -> list[tuple[Task, int]]:
        """Open replicas in one of those states, in a fixed order."""
        return [
            (task, replica)
            for _, job in sorted(self.cell.state.jobs.items())
            for task in job.tasks
            if task.run is not None
            for replica, was in enumerate(task.run.replicas)
            if was in states
        ]

    def claim(self, event: Any) -> None:
        """Send an honest claim to all cells, and store it so that it can be repeated."""
        self.both("claim", event)
        self.sent_claims.append(self.cell._inputs[-1])

    def start(self, number: int | None = None) -> bool:
        """Start every allocated replica (or one of them); return whether there was one."""
        found = self.replicas(ReplicaState.ALLOCATED)
        if number is not None and found:
            found = [found[number % len(found)]]
        for task, replica in found:
            about = self.cell._about(task, replica)
            self.claim(nev.TaskStartedV1(**about, boot_id="00000000", pid=1, process_started=1))
        return bool(found)

    def obey(self) -> bool:
        """End every replica that has a stop request; return whether there was one."""
        stopping = [
            (task, replica, was)
            for was in (ReplicaState.ALLOCATED, ReplicaState.STARTED, ReplicaState.EXITED)
            for task, replica in self.replicas(was)
            if task.run is not None and task.run.stop is not None
        ]
        for task, replica, was in stopping:
            about = self.cell._about(task, replica)
            if was is ReplicaState.STARTED:
                self.claim(nev.TaskExitedV1(**about, exit_code=0))
            never = was is ReplicaState.ALLOCATED
            self.claim(nev.SlotsReleasedV1(**about, never_started=never))
        return bool(stopping)

    def lie(self, event: Any, source: str) -> None:
        """Send a hostile claim to the cell under test only."""
        self.hostile[source] += 1
        seq = HOSTILE_SEQ + sum(self.hostile.values())
        self.cell._inputs.append((event, f"{source}/1/{seq}"))

    def join_with_tasks(self, name: str, task: Task) -> None:
        """An unknown node claims that it runs a task."""
        ref = nev.ReplicaRef(task_id=task.id, attempt=task.attempt, replica=0)
        self.cell.node(name, running=(ref,))
        event, _ = self.cell._inputs.pop()
        self.cell.seq -= 1
        self.lie(event, f"node/{name}")

    def repeat_claim(self, number: int) -> None:
        """Send an old claim to the cell once more, with the same identity."""
        if self.sent_claims:
            self.cell._inputs.append(self.sent_claims[number % len(self.sent_claims)])

    # Cycles

    def cycle(self, *, after_s: int = 0, limit: int = 1_000_000) -> list[Event]:
        """Run a cycle of each cell; compare and check the results."""
        self.broken = True
        silent, self.silent = self.silent, {}
        silent = {n: ms for n, ms in silent.items() if self.cell.state.nodes[n].incarnation}
        start = len(self.cell.steps)
        decided = self.cell.cycle(after_s=after_s, limit=limit, silent=silent)
        expected = self.twin.cycle(after_s=after_s, limit=limit, silent=silent)
        ours, theirs = (
            [e for e in decided if e not in expected],
            [e for e in expected if e not in decided],
        )
        assert decided == expected, f"with faults: {ours}; without: {theirs}"
        assert self.cell.state.digest() == self.twin.state.digest()
        kept = self.in_place.cycle(after_s=after_s, limit=limit, silent=silent)
        assert kept == expected, "the cell that decides in place decides differently"
        ours, theirs = (cell.machine.dump(cell.state) for cell in (self.in_place, self.twin))
        assert ours == theirs, "the state decided in place differs from the applied state"
        for step in self.cell.steps[start:]:
            if isinstance(step, EventApplied) and step.record_id:
                seq = int(step.record_id.rpartition("/")[2])
                assert seq < HOSTILE_SEQ, f"a hostile claim was believed: {step.event}"
        self._within_limits(decided)
        self._starts_are_lawful(decided)
        self._nothing_early(decided)
        self._numbers(decided)
        for cell in (self.cell, self.in_place):
            assert_sound(cell.state)
        self.broken = False
        return decided

    def run_until_idle(self) -> None:
        """Run cycles until there is no decision; then there is none for any task considered again.

        A cell that missed an event that a task waited for would decide now (L1, L2).
        """
        decided: list[Event] = []
        for _ in range(60):
            decided = self.cycle()
            state = self.cell.state
            due_ms = self.cell.machine.due_ms(state)
            if not decided and self.cell.complete and (due_ms is None or due_ms > state.now_ms):
                break
        else:
            raise AssertionError(f"still deciding: {decided[-3:]}")
        again = Cell()
        again.state = again.machine.load("main", again.machine.dump(state))
        again.cycles, again.now_ms = self.cell.cycles, self.cell.now_ms
        for pool in again.state.pools.values():
            again.state.wake_all(pool)
            pool.reshare = pool.shares
        for task in again.state.tasks.values():
            again.state.attention[task.id] = task
        again._inputs.clear()
        moved = [e for e in again.cycle() if not isinstance(e, dec.TaskUnschedulableV1)]
        assert not moved, f"an event was missed: {moved[:3]}"

    def come_to_rest(self) -> None:
        """With obedient agents and no new input, the cell becomes idle: no task is preempted for a
        task that would start after it (L1, S7).
        """
        for _ in range(40):
            busy = self.obey()
            if not busy:
                busy = self.start()
            if not self.cycle() and not busy and self.cell.complete:
                return self.run_until_idle()
        raise AssertionError("tasks still stop and start")

    # Invariants of a cycle's decisions

    def _within_limits(self, decided: Sequence[Event]) -> None:
        """S6: no start takes a project, a department or a job past its limit."""
        state = self.cell.state
        for event in decided:
            if not isinstance(event, dec.SlotsAllocatedV1):
                continue
            job = state.task(event.task_id).job
            if not job.shape.total_gpu_milli:
                continue
            if job.max_slots_milli is not None:
                assert job.used_milli <= job.max_slots_milli
            for level in (job.project, job.project.department):
                quota = level.config.quotas.get(event.pool) if level.config else None
                if quota is not None and quota.limit_milli is not None:
                    assert level.used_milli[event.pool] <= quota.limit_milli
            config = job.project.config
            if config is not None and config.limit_milli is not None:
                assert sum(job.project.used_milli.values()) <= config.limit_milli

    def _starts_are_lawful(self, decided: Sequence[Event]) -> None:
        state = self.cell.state
        for event in decided:
            if not isinstance(event, dec.SlotsAllocatedV1):
                continue
            task = state.task(event.task_id)
            run = task.run
            assert run is not None
            assert not task.cancelled, f"{task.id} starts after its cancel (S9)"
            assert not task.paused, f"{task.id} starts though it is paused"
            assert not task.job.erased, f"{task.id} starts though its command is erased"
            for placement in event.placements:
                node = state.nodes[placement.node]
                assert node.state is NodeState.UP, f"{task.id} starts on a node that is not up"
                assert not node.cordoned, f"{task.id} starts on a cordoned node"
                assert not node.barred, f"{task.id} starts on a node beyond its enrolment"
                assert node.pool_name == event.pool
                types = task.job.spec.node_types
                assert not types or node.node_type in types
                assert node.name not in task.job.spec.avoid_nodes
                assert node.runs_images or not task.job.spec.image, f"{task.id} on {node.name}"
                assert not set(placement.slots) & set(node.disabled), f"{task.id} on a bad slot"
                self._placed_as_requested(event, node, placement)
            pool = state.pools[run.pool_name]
            self._no_earlier_task_passed(task, pool)
            config = pool.config
            if config is None or config.policy.name != "priority":
                continue
            passed = [p for p in pool.stopping_for[run.queue_class] if p < task.job.priority]
            assert not passed, f"{task.id} starts past tasks for which slots are being freed"

    def _no_earlier_task_passed(self, task: Task, pool: Pool) -> None:
        """In a strict queue no task starts while an earlier one has waited since before the cycle.

        A task that may use several pools may be passed in a pool that it prefers less.
        """
        if pool.strict_queues is None:
            return
        line, place = pool.strict_queues.position_of(task)
        for group in pool.groups.values():
            record = group.waits.get(pool.name)
            if record is None or record[0].code not in BLOCKING or len(group.shape.pools) > 1:
                continue
            if group.shape.start_failed and pool.preempts and not group.shape.preemptible:
                continue  # it may not preempt, so later tasks do not wait for it
            first = group.queue.first
            if record[2] == self.cell.state.cycle or first.job.spec.max_concurrent is not None:
                continue
            its_line, its_place = pool.strict_queues.position_of(first)
            ahead = its_line == line and its_place < place
            assert not ahead, f"{task.id} starts past {first.id}"

    def _placed_as_requested(
        self, event: dec.SlotsAllocatedV1, node: Node, placement: dec.Placement
    ) -> None:
        """A replica has the GPUs that it requested; each replica of a whole-node gang has its node
        alone.
        """
        task = self.cell.state.task(event.task_id)
        gpus = len(set(placement.slots))
        config = self.cell.state.config_of(node)
        assert config is not None
        most = config.gpuless_per_node
        if not gpus and most is not None:
            held = [t.run.placements[r] for (_, r), t in node.open.items() if t.run is not None]
            assert sum(not p.slots for p in held) <= most, f"{node.name} has too many"
        if not task.job.shape.whole_nodes or len(event.placements) == 1:
            assert gpus == task.job.spec.resources.gpus
            return
        users = {t for (_, r), t in node.open.items() if t.run and t.run.placements[r].slots}
        assert gpus == node.free.size, f"{task.id} has a part of {node.name}"
        assert users == {task}, f"{task.id} is not alone on {node.name}"
        if not config.unequal_gangs:
            assert {len(p.slots) for p in event.placements} == {gpus}

    def _nothing_early(self, decided: Sequence[Event]) -> None:
        """S10: no node is lost and no task is preempted before its time."""
        state = self.cell.state
        for event in decided:
            match event:
                case dec.NodeLostV1(cause=dec.LossCause.SILENT):
                    pool = state.pool_of(state.nodes[event.node])
                    assert pool is not None
                    timeout_s = pool.config.node_timeout_s if pool.config is not None else 60
                    assert state.now_ms - event.last_heard_at_ms >= timeout_s * 1000
                case dec.PreemptionRequestedV1():
                    victim = state.task(event.task_id)
                    spec, run = victim.job.spec, victim.run
                    assert spec.preemptible
                    assert run is not None
                    assert event.stop.for_task is not None
                    ahead = state.task(event.stop.for_task)
                    assert ahead.failed_starts < SEPARATE_AFTER, f"{ahead.id} preempts"
                    if spec.min_runtime_s and run.running_ms:
                        ran_ms = state.now_ms - run.running_ms
                        assert ran_ms >= spec.min_runtime_s * 1000, (
                            "preempted before its minimum runtime"
                        )

    def _numbers(self, decided: Sequence[Event]) -> None:
        for event in decided:
            for why in (getattr(event, "wait", None), getattr(event, "stop", None)):
                if why is not None:
                    assert set(why.numbers) <= set(NUMBERS[why.code]), why


def counts(steps: Sequence[Any]) -> Counter[str]:
    """How often each event type was applied, and how many cycles were cut short."""
    kinds = Counter(s.event.TYPE for s in steps if isinstance(s, EventApplied))
    kinds["cut"] = sum(1 for s in steps if isinstance(s, CycleEnded) and not s.complete)
    return kinds
