"""Plays the inputs of a history on a cell, and checks the decisions of every cycle."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic_core import from_json

from tests.histories.inputs import NODES, Input
from yardmaster_core.scheduling.policies import options_of
from yardmaster_core.scheduling.policies.strict_queues import StrictQueues
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState, ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.scheduling.state.wait_codes import BLOCKING
from yardmaster_core.testing import ONE_RUN, Cell
from yardmaster_schemas import plain
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import NUMBERS, PolicyStop, StartFailure

OPEN: Final = (ReplicaState.ALLOCATED, ReplicaState.STARTED, ReplicaState.EXITED)


class HistoryPlayer:
    """Plays a history on a cell.

    Each kind of input is a method. An input about a job, node or replica that does not exist (any
    more) does nothing, so that a history can be cut anywhere.
    """

    #: Cycles in which tasks may stop and start before the cell comes to rest.
    MOST_ROUNDS = 40

    def __init__(self, cell: Cell | None = None) -> None:
        self.cell = Cell() if cell is None else cell
        self.jobs: list[str] = []
        self.incarnations = 0
        self.enrolled: set[str] = set()
        #: Nodes that the next cycle finds silent, and when they were last heard (ms).
        self.silent: dict[str, int] = {}
        #: The departments that `organize` configured.
        self.departments: set[str] = set()
        #: The departments of projects that `organize` configured.
        self.department_of: dict[str, str] = {}
        #: Tasks with reserved slots before the present cycle.
        self.reserved: set[str] = set()

    @property
    def state(self) -> ClusterState:
        return self.cell.state

    def play(self, inputs: Iterable[Input]) -> None:
        """Play the inputs of a history, then let its agents obey until the cell is idle."""
        for each in inputs:
            getattr(self, each.kind)(**each.values)
        self.end()

    def end(self) -> None:
        """End the history: no input comes any more, and agents obey."""
        self.come_to_rest()

    # Jobs and pools

    def submit(
        self, *, name: str, spec: dict[str, Any], project: str = "p", at_once: bool = True
    ) -> None:
        self.jobs.append(name)
        department = self.department_of.get(project, "d")
        self.send("submit", name, project=project, department=department, **spec)
        if at_once:
            self.cycle()

    def urgent(
        self,
        *,
        name: str,
        spec: dict[str, Any],
        low_name: str,
        low: dict[str, Any] | None,
        project: str = "p",
    ) -> None:
        """Tasks run, more tasks wait, and a job arrives that may preempt them."""
        if self.start_replicas():
            self.cycle()
        self.submit(name=name, spec=spec, project=project)
        if low is not None:
            self.submit(name=low_name, project="q", spec=low)

    def stop_or_resume(self, *, job: str, index: int | None, how: str) -> None:
        if job not in self.jobs:
            return
        if how == "erase":
            self.send("erase", job)
        elif how == "kill":
            self.send("cancel", job, index, immediate=True)
        else:
            self.send(how, job, index)

    def change_job(self, *, job: str, what: str, value: int | None) -> None:
        if job in self.jobs:
            self.send(what, job, value)

    def configure_pool(self, *, pool: str, **settings: Any) -> None:
        self.send("pool", pool, **settings)

    def entitle(
        self,
        *,
        name: str,
        department: str,
        limit_milli: int | None,
        main: int | None,
    ) -> None:
        if name == "spare pool":
            pool = self.state.pools.get("spare")
            if pool is not None and pool.config is not None:
                self.send("admission", adm.PoolDeletedV1(pool="spare"))
            else:
                self.send("pool", "spare")
        elif name.startswith("department"):
            self.send("entitle_department", name[-1], main=main, side=limit_milli)
        else:
            config = {"quotas": {"main": Quota(limit_milli=main)}, "limit_milli": limit_milli}
            self.department_of[name] = department
            self.send("entitle", name, department=department, **config)

    def organize(self, *, name: str, config: Mapping[str, Any]) -> None:
        """Configure a department or project, with its quotas."""
        settings = dict(config)
        settings["quotas"] = {pool: Quota(**quota) for pool, quota in config["quotas"].items()}
        if "department" in settings:
            self.department_of[name] = settings["department"]
            self.send("entitle", name, **settings)
            return
        # As in quota, which refuses a parent that does not exist.
        if settings["parent"] not in self.departments:
            settings["parent"] = None
        self.departments.add(name)
        self.send("configure_department", name, **settings)

    # Nodes

    def join(self, *, name: str, **changes: Any) -> None:
        self.incarnations += 1
        offer = {"gpus": 3, "cpu_milli": 8000, "memory_mib": 8000, "port_last": 20_001}
        incarnation = f"{self.incarnations:012x}"
        self.send("node", name, **{**offer, "incarnation": incarnation, **changes})

    def change_node(self, *, name: str, how: str, for_s: int) -> None:
        node = self.state.nodes.get(name)
        if how in ("cordon", "uncordon"):
            self.send(how, name)
        elif how == "drain":
            self.send("drain", name, within_s=for_s)
        elif how in ("disable", "empty", "enable"):
            slots = {1: (0,), 40: (1, 2), 70: (2, 7)}[for_s] if how != "enable" else ()
            self.send("disable", name, *slots, stop=how == "empty")
        elif how == "enroll":
            self._enroll(name, gpus={1: 1, 40: 2, 70: 3}[for_s])
        elif how == "revoke":
            if name in self.enrolled:
                self.enrolled.discard(name)
                self.send("revoke", name)
        elif node is None or node.pool_name is None:
            return
        elif how == "silent":
            self.silent[name] = self.cell.now_ms - for_s * 1000
        elif how == "leave":
            self.claim(nev.NodeDrainedV1(node=name, incarnation=node.incarnation))
        else:
            self.send(
                "node",
                name,
                **{"gpus": node.gpus, "pool": node.pool_name, "node_type": node.node_type},
                **{"cpu_milli": node.cpu_milli, "memory_mib": node.memory_mib},
                gpu_memory_mib=node.gpu_memory_mib,
                incarnation=node.incarnation,
            )

    def _enroll(self, name: str, gpus: int) -> None:
        # All slots of all nodes at first, or no task of the cell could start.
        for one, most in ({name: gpus} if self.enrolled else dict.fromkeys(NODES, 8)).items():
            self.enrolled.add(one)
            self.send("enroll", one, gpus=most)

    def disturb(self, *, number: int, of: str, how: str) -> None:
        """Something happens to a task that stops for another one (`victim`), that has reserved
        slots (`claimant`) or that runs, or to a node of it.
        """
        tasks = [task for _, job in sorted(self.state.jobs.items()) for task in job.tasks]
        found = [task for task in tasks if _is(task, of)]
        if not found:
            return
        task = found[number % len(found)]
        if how in ("cancel", "pause"):
            self.send(how, task.job.id, task.index)
        elif how == "kill":
            self.send("cancel", task.job.id, task.index, immediate=True)
        elif how == "set_priority":
            self.send("set_priority", task.job.id, 1 + number)
        elif how == "succeed":
            self._succeed(task)
        else:
            held = task.reserved or task.run
            assert held is not None
            at = held.placements[number % len(held.placements)]
            self._disturb_node(at.node, at.slots, how)

    def _succeed(self, task: Task) -> None:
        """A task ends by itself on all its nodes, also while it stops."""
        for replica, was in enumerate(task.run.replicas if task.run is not None else ()):
            about = self.cell._about(task, replica)
            if was is ReplicaState.STARTED:
                self.claim(nev.TaskExitedV1(**about, exit_code=0, done=True))
            if was < ReplicaState.RELEASED:
                never = was is ReplicaState.ALLOCATED
                self.claim(nev.SlotsReleasedV1(**about, never_started=never))

    def _disturb_node(self, name: str, slots: tuple[int, ...], how: str) -> None:
        if how in ("disable", "empty"):
            self.send("disable", name, *slots[:1], stop=how == "empty")
        else:
            self.change_node(name=name, how="silent" if how == "lose" else how, for_s=70)

    # Agents

    def start(self, *, number: int | None) -> None:
        self.start_replicas(number)
        self.cycle()

    def exit(self, *, number: int, how: dict[str, Any], done: bool, free: bool) -> None:
        for _, about in self.one_of(number, ReplicaState.STARTED):
            oom = "signal" in how and done
            engine = how.get("exit_code") == 255
            exited = nev.TaskExitedV1(
                **about, **how, done=done, out_of_memory=oom, engine_restarted=engine
            )
            self.claim(exited)
            if free:
                self.claim(nev.SlotsReleasedV1(**about))

    def release(self, *, number: int, failure: StartFailure | None) -> None:
        for task, about in self.one_of(number, ReplicaState.ALLOCATED, ReplicaState.EXITED):
            never = task.run.replicas[about["replica"]] == ReplicaState.ALLOCATED
            why = failure if never else None
            self.claim(nev.SlotsReleasedV1(**about, never_started=never, failure=why))

    def report(self, *, number: int, step: int) -> None:
        for _, about in self.one_of(number, ReplicaState.STARTED):
            self.claim(nev.CheckpointDoneV1(**about, uri=f"s3://c/{step}", step=step))
            self.claim(nev.TaskProgressedV1(**about, permille=step))

    def obey(self) -> None:
        """End every replica that has a stop request."""
        self.stop_replicas()
        self.cycle()

    def finish(self, *, number: int, after_s: int) -> None:
        """Let every task succeed that has run for so long, except a few by number."""
        for at, (task, replica) in enumerate(self.replicas(ReplicaState.STARTED)):
            run = task.run
            assert run is not None
            if not run.running_ms or self.cell.now_ms - run.running_ms < after_s * 1000:
                continue
            if number >> at % 7 & 1:
                about = self.cell._about(task, replica)
                self.claim(nev.TaskExitedV1(**about, exit_code=0))
                self.claim(nev.SlotsReleasedV1(**about))

    def one_of(self, number: int, *states: ReplicaState) -> list[tuple[Any, dict[str, Any]]]:
        """Return the replica of that number in one of those states, and what a claim says about it;
        nothing if there is none.
        """
        found = self.replicas(*states)
        some = found[number % len(found) :][:1] if found else []
        return [(task, self.cell._about(task, replica)) for task, replica in some]

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Send an input to the cell, by a method of `Cell`."""
        getattr(self.cell, method)(*args, **kwargs)

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
        """Send a claim of an agent."""
        self.send("claim", event)

    def start_replicas(self, number: int | None = None) -> bool:
        """Start every allocated replica (or one of them); return whether there was one."""
        found = self.replicas(ReplicaState.ALLOCATED)
        if number is not None and found:
            found = [found[number % len(found)]]
        for task, replica in found:
            about = self.cell._about(task, replica)
            image = _image(task, replica, self.cell.now_ms)
            self.claim(nev.TaskStartedV1(**about, run=ONE_RUN, image=image))
        return bool(found)

    def stop_replicas(self) -> bool:
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

    # Faults, which only some worlds have

    def lie(self, *, number: int, what: str) -> None:
        """An agent sends hostile claims."""

    def repeat(self, *, number: int, what: str) -> None:
        """An input comes twice."""

    def restart(self) -> None:
        """The scheduler restarts from a snapshot."""
        self.cell.restart()

    # Time

    def round(self, *, after_s: int) -> None:
        """All agents obey, and time passes."""
        self.stop_replicas()
        self.start_replicas()
        self.cycle(after_s=after_s)

    def wait_until_due(self) -> None:
        """Wait for the next deadline."""
        due_ms = self.cell.machine.due_ms(self.state)
        if due_ms is not None:
            left_ms = max(0, due_ms - self.cell.now_ms)
            self.cycle(after_s=-(-left_ms // 1000))

    def become_idle(self) -> None:
        """Run cycles until there is no decision; then there is none for any task considered again.

        A cell that missed an event that a task waited for would decide now (L1, L2).
        """
        decided: list[Event] = []
        for _ in range(60):
            decided = self.cycle()
            due_ms = self.cell.machine.due_ms(self.state)
            if (
                not decided
                and self.cell.complete
                and (due_ms is None or due_ms > self.state.now_ms)
            ):
                break
        else:
            raise AssertionError(f"still deciding: {decided[-3:]}")
        moved = self.decided_if_all_are_considered()
        assert not moved, f"an event was missed: {moved[:3]}"

    def decided_if_all_are_considered(self) -> list[Event]:
        """Return what a copy of the cell decides when it considers every task again."""
        again = self.copy_of(self.cell, Cell())
        for pool in again.state.pools.values():
            again.state.wake_index.wake_all(pool)
            pool.index.input_changed(from_next_cycle=False)
        for task in again.state.tasks.values():
            again.state.attention[task.id] = task
        return [e for e in again.cycle() if not isinstance(e, dec.TaskUnschedulableV1)]

    @staticmethod
    def copy_of(cell: Cell, again: Cell) -> Cell:
        """Return `again`: it continues from a snapshot of `cell`, without its next inputs."""
        again._inputs.clear()
        dump = from_json(plain.encode(cell.machine.dump(cell.state)))
        again.state = again.machine.load("main", dump)
        again.cycles, again.now_ms, again.rules = cell.cycles, cell.now_ms, cell.rules
        return again

    def come_to_rest(self) -> None:
        """With obedient agents and no new input, the cell becomes idle: no task is preempted for a
        task that would start after it (L1, S7).
        """
        for _ in range(self.MOST_ROUNDS):
            busy = self.stop_replicas()
            if not busy:
                busy = self.start_replicas()
            if not self.cycle() and not busy and self.cell.complete:
                return self.become_idle()
        raise AssertionError("tasks still stop and start")

    def cycle(self, *, after_s: int = 0, limit: int = 1_000_000) -> list[Event]:
        """Run a cycle, and check its decisions."""
        decided = self.decide(after_s, limit, self.take_silent())
        self.check(decided)
        return decided

    def decide(self, after_s: int, limit: int, silent: dict[str, int]) -> list[Event]:
        """Run a cycle; return its decisions."""
        return self.cell.cycle(after_s=after_s, limit=limit, silent=silent)

    def take_silent(self) -> dict[str, int]:
        """Return the nodes that the next cycle finds silent."""
        silent, self.silent = self.silent, {}
        return {name: ms for name, ms in silent.items() if self.state.nodes[name].incarnation}

    def check(self, decided: Sequence[Event]) -> None:
        """Check the decisions of a cycle."""
        self._within_limits(decided)
        self._starts_are_lawful(decided)
        self._nothing_early(decided)
        self._numbers(decided)
        self.reserved = {task.id for pool in self.state.pools.values() for task in pool.reserved}

    # Invariants of a cycle's decisions

    def _within_limits(self, decided: Sequence[Event]) -> None:
        """S6: no start takes a project, a department or a job past its limit."""
        state = self.cell.state
        for event in decided:
            if not isinstance(event, dec.SlotsAllocatedV1):
                continue
            job = state.task(event.task_id).job
            if not job.shape.gpus:
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
                assert not node.barred, f"{task.id} starts on a node beyond its enrollment"
                assert node.pool_name == event.pool
                types = task.job.spec.node_types
                assert not types or node.node_type in types
                assert node.name not in task.job.spec.avoid_nodes
                assert node.runs_images or not task.job.spec.image, f"{task.id} on {node.name}"
                assert not set(placement.slots) & set(node.disabled), f"{task.id} on a bad slot"
                self._placed_as_requested(event, node, placement)
            pool = state.pools[run.pool_name]
            self._no_earlier_task_passed(task, pool)
            self._no_higher_priority_passed(task, pool)
            self._no_reserved_slot_taken(task, pool)

    def _no_reserved_slot_taken(self, task: Task, pool: Pool) -> None:
        """No task starts on slots that are reserved for another one."""
        run = task.run
        assert run is not None
        for other in pool.reserved:
            assert other.reserved is not None
            for kept in other.reserved.placements:
                for placement in run.placements:
                    same = kept.node == placement.node and kept.gpu_milli == 1000
                    taken = same and set(kept.slots) & set(placement.slots)
                    assert not taken, f"{task.id} starts on slots reserved for {other.id}"

    def _no_earlier_task_passed(self, task: Task, pool: Pool) -> None:
        """In a strict queue no task starts while an earlier one has waited since before the cycle.

        A task with reserved slots starts on them, whatever waits ahead of it by then. A task that
        may use several pools may be passed in a pool that it prefers less.
        """
        index = pool.index
        if not isinstance(index, StrictQueues) or task.id in self.reserved:
            return
        line, place = index.position_of(task)
        for group in pool.groups.values():
            record = group.waits.get(pool.name)
            if record is None or record[0].code not in BLOCKING or len(group.shape.pools) > 1:
                continue
            if not group.queue.live:
                continue
            if group.shape.start_failed and index.traits.preempts and not group.shape.preemptible:
                continue  # it may not preempt, so later tasks do not wait for it
            first = group.queue.first
            if record[2] == self.cell.state.cycle or first.job.spec.max_concurrent is not None:
                continue
            its_line, its_place = index.position_of(first)
            ahead = its_line == line and its_place < place
            assert not ahead, f"{task.id} starts past {first.id}"

    def _no_higher_priority_passed(self, task: Task, pool: Pool) -> None:
        """Under `priority`, no task that cannot be preempted at once starts while one of higher
        priority is pending for capacity or for its reserved slots.
        """
        config = pool.config
        if config is None or config.policy.name != "priority" or task.id in self.reserved:
            return
        options = options_of(config.policy)
        spec = task.job.spec
        at_once = spec.preemptible and not spec.min_runtime_s
        if options.preemption and options.backfill and at_once:
            return
        for group in pool.groups.values():
            if group.shape.queue_class != task.job.shape.queue_class:
                continue
            if group.priority >= task.job.priority:
                continue
            record = group.waits.get(pool.name)
            blocked = group.queue.live and record is not None and record[0].code in BLOCKING
            assert not blocked, f"{task.id} starts past {group.queue.first.id}"
            for other in group.reserved.in_order():
                assert other.reserved is not None
                # Elsewhere it waits for nothing that starts here.
                here = other.reserved.pool_name == pool.name
                assert not here, f"{task.id} starts past {other.id}"

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
                    assert not ahead.set_apart, f"{ahead.id} preempts"
                    if spec.min_runtime_s and run.running_ms:
                        ran_ms = state.now_ms - run.running_ms
                        assert ran_ms >= spec.min_runtime_s * 1000, (
                            "preempted before its minimum runtime"
                        )

    def _numbers(self, decided: Sequence[Event]) -> None:
        for event in decided:
            for why in (getattr(event, "wait", None), getattr(event, "stop", None)):
                if why is not None:
                    # A policy that `NUMBERS` does not have owns its numbers.
                    known = NUMBERS.get(why.code, why.numbers)
                    assert set(why.numbers) <= set(known), why


def _image(task: Task, replica: int, now_ms: int) -> str | None:
    """The digest that a replica runs: that of its attempt, or of a tag that moves once a minute.

    Every third job has no image.
    """
    if task.job.seq % 3 == 0:
        return None
    if task.run is not None and task.run.image is not None:
        return task.run.image
    moved = now_ms // 60_000 + (replica == 3)
    return f"sha256:{task.job.seq:032x}{moved:032x}"


def _is(task: Task, of: str) -> bool:
    if of == "claimant":
        return task.reserved is not None
    run = task.run
    return run is not None and (of == "runs" or isinstance(run.stop, PolicyStop))
