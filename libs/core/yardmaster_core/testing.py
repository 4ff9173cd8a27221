"""`Cell`: drives the scheduler's state machine in tests, without a log.

Events are applied as inputs of the next cycle. `cycle` decides, checks that deciding left the state
unchanged and that applying the decisions gives the promised digest, and returns the decisions.
Claims of agents pass through `refusal` first, as in production.

It is one file, so that a test finds all inputs of a cell in one class.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from pydantic_core import from_json

from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.rules import RULES
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas import plain
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.reasons import RefusalCode, StartFailure, WaitCode
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.sources import agent_source

DETAILS: Final = req.DetailsRef(offset=0, digest="0" * 64)
START_MS: Final = 1_700_000_000_000
#: What each replica of a test runs as.
ONE_RUN: Final = nev.RunIdentity.of_process(1, 1, "00000000")
POOL_SETTINGS: Final = {field.name for field in fields(req.PoolConfig)} - {"policy"}


def admitted_spec(**changes: Any) -> adm.AdmittedSpec:
    """Return the spec of a training job of one whole GPU in pool `main`, with every default
    resolved.

    `changes` replace fields.
    """
    spec = adm.AdmittedSpec(
        kind=req.Kind.TRAINING,
        role=None,
        preemptible=True,
        priority=42,
        weight=1,
        max_slots_milli=None,
        pools=("main",),
        node_types=(),
        topology=None,
        resources=Resources(gpus=1, gpu_milli=1000),
        replicas_min=1,
        replicas_max=1,
        tasks=1,
        max_concurrent=None,
        min_runtime_s=0,
        time_limit_s=None,
        max_restarts=0,
        unschedulable=req.Unschedulable.WAIT,
        grace_s=30,
        exit_zero=req.ExitZero.STOPPED,
        checkpoint_uri=None,
    )
    return replace(spec, **changes)


def job_id(name: str) -> str:
    """Return a job id made from `name`."""
    kept = "".join(c for c in name.lower() if c.isalnum())
    return kept[:12].ljust(12, "0")


@dataclass(frozen=True, slots=True)
class CycleBegun:
    """The start of a cycle."""

    cycle: int
    now_ms: int
    rules: int


@dataclass(frozen=True, slots=True)
class EventApplied:
    """An input or a decision, as it was applied."""

    event: Event
    record_id: str


@dataclass(frozen=True, slots=True)
class CycleEnded:
    """The end of a cycle; `complete`: the cycle decided everything and was not cut at its limit."""

    complete: bool


Step = CycleBegun | EventApplied | CycleEnded


def fold(steps: Iterable[Step], name: str = "main") -> ClusterState:
    """Return the state after `steps`, without deciding, as a standby computes it."""
    machine = SchedulerMachine()
    state = machine.initial(name)
    for step in steps:
        match step:
            case CycleBegun(cycle, now_ms, rules):
                state = machine.begin_cycle(state, cycle, now_ms, rules)
            case EventApplied(event, record_id):
                state = machine.apply(state, event, record_id)
            case CycleEnded(complete):
                state = machine.end_cycle(state, complete=complete)
    return state


class Cell:
    """A cell with one scheduler; its time advances only when a test says so."""

    def __init__(self, name: str = "main", **policy_options: Any) -> None:
        self.machine = SchedulerMachine()
        #: The rules in force; a test may change them between cycles.
        self.rules = RULES
        self.state: ClusterState = self.machine.initial(name)
        self.now_ms = START_MS
        self.cycles = 0
        self.seq = 0
        self.submitted = 0
        #: All inputs and decisions, in the order in which they were applied.
        self.history: list[Event] = []
        #: All inputs and decisions, with the start and the end of each cycle, as `fold` reads them.
        self.steps: list[Step] = []
        #: Claims that the last cycle refused.
        self.refused: list[tuple[Event, RefusalCode]] = []
        #: Whether the last cycle decided everything, or was cut at its limit.
        self.complete = True
        self._inputs: list[tuple[Event, str]] = []
        self._revisions: dict[str, Iterator[int]] = {}
        self.pool("main", **policy_options)

    # Inputs

    def pool(self, name: str, *, policy: str = "priority", **options: Any) -> None:
        """Configure a pool; options that are no setting of a pool are options of its policy."""
        own = {key: options.pop(key) for key in POOL_SETTINGS & options.keys()}
        known = self.state.pools.get(name)
        config = req.PoolConfig(policy=req.PolicyRef(name=policy, options=options), **own)
        revision = known.revision + 1 if known is not None else 1
        self.admission(adm.PoolConfiguredV1(pool=name, revision=revision, config=config))

    def admission(self, event: Event) -> None:
        """Add an event of `admissions` to the next cycle."""
        self.seq += 1
        self._inputs.append((event, f"quota/main.000000000000/1/{self.seq}"))

    def claim(self, event: Any, *, source: str | None = None) -> None:
        """Add an event of `node-events` to the next cycle, which may refuse it."""
        self.seq += 1
        source = source or agent_source(event.node, event.incarnation)
        self._inputs.append((event, f"{source}/1/{self.seq}"))

    def node(self, name: str, gpus: int = 8, **changes: Any) -> None:
        """Let a node join pool `main` (or `pool=`)."""
        fields: dict[str, Any] = {
            "incarnation": "0" * 12,
            "boot_id": "00000000",
            "schema_version": 1,
            "pool": "main",
            "node_type": "any",
            "gpus": gpus,
            "cpu_milli": 64_000,
            "memory_mib": 512 * 1024,
            "address": "127.0.0.1",
            "port_first": 20_000,
            "port_last": 20_099,
        }
        self.claim(nev.NodeJoinedV1(node=name, **{**fields, **changes}))

    def submit(
        self,
        name: str,
        *,
        project: str = "p",
        department: str = "d",
        user: str | None = None,
        **changes: Any,
    ) -> str:
        """Admit a job; return its id. `gpus=` is short for whole GPUs of a replica."""
        self.submitted += 1
        gpus = changes.pop("gpus", None)
        if gpus is not None:
            changes["resources"] = Resources(gpus=gpus, gpu_milli=1000 if gpus else 0)
        replicas = changes.pop("replicas", None)
        if replicas is not None:
            changes["replicas_min"] = changes["replicas_max"] = replicas
        id_ = job_id(name)
        self.admission(
            adm.TaskAdmittedV1(
                job_id=id_,
                project=project,
                department=department,
                spec=admitted_spec(**changes),
                submitted_at_ms=self.now_ms + self.submitted,
                details=DETAILS,
                user=user,
            )
        )
        return id_

    def task(self, name: str, index: int = 0) -> Task:
        """Return a task by its job's name."""
        return self.state.task(f"{job_id(name)}.{index}")

    def _about(self, task: Task, replica: int) -> dict[str, Any]:
        """Return the fields by which a claim names a replica of the task's attempt."""
        run = task.run
        assert run is not None, f"{task.id} has no attempt"
        placement = run.placements[replica]
        return {
            "task_id": task.id,
            "attempt": run.number,
            "replica": replica,
            "node": placement.node,
            "incarnation": placement.incarnation,
        }

    def _replicas(self, name: str, index: int, replica: int | None) -> list[dict[str, Any]]:
        task = self.task(name, index)
        assert task.run is not None, f"{task.id} has no attempt"
        every = range(len(task.run.placements))
        return [self._about(task, r) for r in (every if replica is None else [replica])]

    def starts(
        self,
        name: str,
        index: int = 0,
        *,
        replica: int | None = None,
        image: str | None = None,
    ) -> None:
        """Report that `replica` of the task runs `image`; None: every replica."""
        for about in self._replicas(name, index, replica):
            self.claim(nev.TaskStartedV1(**about, run=ONE_RUN, image=image))

    def checkpoints(self, name: str, step: int, index: int = 0) -> None:
        """Report a checkpoint of the task."""
        about = self._about(self.task(name, index), 0)
        self.claim(nev.CheckpointDoneV1(**about, uri=f"file:///c/{name}-{step}", step=step))

    def exits(
        self,
        name: str,
        index: int = 0,
        *,
        replica: int | None = None,
        exit_code: int | None = 0,
        signal: int | None = None,
        out_of_memory: bool = False,
        engine_restarted: bool = False,
        done: bool = False,
    ) -> None:
        """Report that the process of `replica` ended; None: of every replica. The slots are still
        held.
        """
        code = None if signal is not None else exit_code
        for about in self._replicas(name, index, replica):
            self.claim(
                nev.TaskExitedV1(
                    **about,
                    exit_code=code,
                    signal=signal,
                    out_of_memory=out_of_memory,
                    engine_restarted=engine_restarted,
                    done=done,
                )
            )

    def releases(self, name: str, index: int = 0, *, replica: int | None = None) -> None:
        """Report that `replica` released its slots; None: every replica."""
        for about in self._replicas(name, index, replica):
            self.claim(nev.SlotsReleasedV1(**about))

    def ends(self, name: str, index: int = 0, *, replica: int | None = None, **how: Any) -> None:
        """Report that `replica` exited and released its slots; None: every replica.

        `how` has arguments of `exits`.
        """
        task = self.task(name, index)
        assert task.run is not None, f"{task.id} has no attempt"
        every = range(len(task.run.placements))
        for one in every if replica is None else [replica]:
            self.exits(name, index, replica=one, **how)
            self.releases(name, index, replica=one)

    def prepares(self, name: str, index: int = 0, replica: int = 0) -> None:
        """Report that something has arrived of the image of a replica."""
        about = self._about(self.task(name, index), replica)
        self.claim(
            nev.TaskPreparingV1(**about, layers=2, layers_done=1, bytes_done=10, bytes_total=20)
        )

    def waits_to_start(self, name: str, starts_ahead: int) -> None:
        """Report that another start of the node of a job's task has ended."""
        about = self._about(self.task(name, 0), 0)
        self.claim(nev.TaskPreparingV1(**about, starts_ahead=starts_ahead))

    def never_starts(
        self,
        name: str,
        index: int = 0,
        replica: int = 0,
        *,
        failure: StartFailure | None = None,
    ) -> None:
        """Report that an agent released a replica's slots without having started it."""
        about = self._about(self.task(name, index), replica)
        self.claim(nev.SlotsReleasedV1(**about, never_started=True, failure=failure))

    def cancel(self, name: str, index: int | None = None, *, immediate: bool = False) -> None:
        """Cancel a job, or one of its tasks."""
        self.admission(adm.CancelAcceptedV1(job_id=job_id(name), index=index, immediate=immediate))

    def pause(self, name: str, index: int | None = None) -> None:
        """Pause a job, or one of its tasks."""
        self.admission(adm.TaskPausedV1(job_id=job_id(name), index=index))

    def resume(self, name: str, index: int | None = None) -> None:
        """Resume a job, or one of its tasks."""
        self.admission(adm.TaskResumedV1(job_id=job_id(name), index=index))

    def _revision(self, name: str) -> int:
        """Return the next revision of a job, including changes that no cycle has applied yet."""
        return next(self._revisions.setdefault(job_id(name), itertools.count(2)))

    def set_priority(self, name: str, priority: int) -> None:
        """Change a job's priority."""
        self.admission(
            adm.PriorityChangedV1(
                job_id=job_id(name), priority=priority, revision=self._revision(name)
            )
        )

    def set_weight(self, name: str, weight: int) -> None:
        """Change a job's weight."""
        self.admission(
            adm.WeightChangedV1(job_id=job_id(name), weight=weight, revision=self._revision(name))
        )

    def set_max_slots(self, name: str, gpus: int | None) -> None:
        """Change the limit on a job's GPUs (None: no limit)."""
        milli = None if gpus is None else gpus * 1000
        self.admission(
            adm.MaxSlotsChangedV1(
                job_id=job_id(name), max_slots_milli=milli, revision=self._revision(name)
            )
        )

    def entitle(self, project: str, *, department: str = "d", **config: Any) -> None:
        """Configure a project; limits are in gpu_milli."""
        self.admission(
            adm.EntitlementsChangedV1(
                level=adm.Level.PROJECT,
                name=project,
                revision=1,
                project=req.ProjectConfig(department=department, **config),
            )
        )

    def entitle_department(self, department: str, **limits_milli: int | None) -> None:
        """Limit what a department's projects hold together of each pool (gpu_milli)."""
        quotas = {pool: req.Quota(limit_milli=milli) for pool, milli in limits_milli.items()}
        self.configure_department(department, quotas=quotas)

    def configure_department(self, department: str, **config: Any) -> None:
        """Configure a department."""
        self.admission(
            adm.EntitlementsChangedV1(
                level=adm.Level.DEPARTMENT,
                name=department,
                revision=1,
                department=req.DepartmentConfig(**config),
            )
        )

    def cordon(self, node: str) -> None:
        """Cordon a node: no new task starts on it."""
        self.admission(adm.NodeCordonedV1(node=node))

    def uncordon(self, node: str) -> None:
        """Uncordon a node: new tasks may start on it, and a drain ends."""
        self.admission(adm.NodeUncordonedV1(node=node))

    def drain(self, node: str, *, within_s: int) -> None:
        """Drain a node by a deadline."""
        deadline_ms = self.now_ms + within_s * 1000
        self.admission(adm.NodeDrainingV1(node=node, deadline_at_ms=deadline_ms))

    def disable(self, node: str, *slots: int, stop: bool = False) -> None:
        """Disable these slots of a node and enable all others."""
        self.admission(adm.NodeSlotsChangedV1(node=node, disabled=slots, stop=stop))

    def enroll(self, node: str, gpus: int = 8, *, pool: str = "main", **more: Any) -> None:
        """Enroll a node; after the first enrollment, nodes without one are refused."""
        revisions = self._revisions.setdefault(f"node/{node}", itertools.count(1))
        enrollment = req.Enrollment(pool=pool, gpus=gpus, **more)
        self.admission(
            adm.NodeEnrolledV1(node=node, enrollment=enrollment, revision=next(revisions))
        )

    def revoke(self, node: str) -> None:
        """Revoke a node's enrollment."""
        self.admission(adm.NodeRevokedV1(node=node))

    def erase(self, name: str) -> None:
        """Erase a job's details."""
        self.admission(adm.DetailsErasedV1(job_id=job_id(name)))

    def leaves(self, node: str) -> None:
        """Let a node's agent leave in an orderly way."""
        incarnation = self.state.nodes[node].incarnation
        self.claim(nev.NodeDrainedV1(node=node, incarnation=incarnation))

    # Cycles

    def cycle(
        self,
        *,
        after_s: float = 0,
        limit: int = 1_000_000,
        silent: dict[str, int] | None = None,
        unwritable: Sequence[str] = (),
    ) -> list[Event]:
        """Run one cycle `after_s` seconds later; return its decisions.

        `silent` maps nodes to when (ms) they were last heard. `unwritable` names jobs whose
        allocation was too large for a record.
        """
        self.now_ms += int(after_s * 1000)
        self.cycles += 1
        machine = self.machine
        self.state = machine.begin_cycle(self.state, self.cycles, self.now_ms, self.rules)
        self.steps.append(CycleBegun(self.cycles, self.now_ms, self.rules))
        self.refused = []
        inputs, self._inputs = self._inputs, []
        for event, record_id in inputs:
            self._apply_input(event, record_id)
        observed = [
            Decision(
                dec.NodeSilenceObservedV1(
                    node=name,
                    incarnation=self.state.nodes[name].incarnation,
                    last_heard_at_ms=heard_ms,
                ),
                name,
            )
            for name, heard_ms in sorted((silent or {}).items())
        ]
        observed += [
            Decision(dec.AllocationUnwritableV1(task_id=self.task(name).id), self.task(name).id)
            for name in unwritable
        ]
        verdict = self.decide_and_apply(limit, observed)
        digest = machine.digest(self.state)
        assert digest == verdict.state_digest, "decisions give another digest than promised"
        self.state = machine.end_cycle(self.state, complete=verdict.complete)
        self.steps.append(CycleEnded(verdict.complete))
        self.complete = verdict.complete
        return [decision.event for decision in verdict.decisions]

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        """Decide, and apply the decisions."""
        before = self.machine.dump(self.state)
        verdict = self.machine.decide(self.state, limit=limit, observed=observed)
        assert self.machine.dump(self.state) == before, "deciding changed the state"
        for decision in verdict.decisions:
            assert self.rules >= decision.event.RULES, f"{decision.event.TYPE} is not enabled"
            self._apply(decision.event)
            self.on_decision(decision.event)
        return verdict

    def record_cycle(self, decisions: Iterable[Event]) -> None:
        """Apply the inputs so far and `decisions`, as a cycle that was cut at its limit.

        Puts a cell into a state that an earlier leader left: running tasks, and groups still to
        consider.
        """
        self.cycles += 1
        self.state = self.machine.begin_cycle(self.state, self.cycles, self.now_ms, self.rules)
        self.steps.append(CycleBegun(self.cycles, self.now_ms, self.rules))
        inputs, self._inputs = self._inputs, []
        for event, record_id in inputs:
            self._apply_input(event, record_id)
        for event in decisions:
            self._apply(event)
        self.state = self.machine.end_cycle(self.state, complete=False)
        self.steps.append(CycleEnded(False))

    def _apply(self, decision: Event) -> None:
        self.state = self.machine.apply(self.state, decision, "")
        self.history.append(decision)
        self.steps.append(EventApplied(decision, ""))

    def _apply_input(self, event: Event, record_id: str) -> None:
        """Apply an input to the state, unless it is a claim that the machine refuses."""
        if "node-events" in event.TOPICS:
            source, epoch, seq = record_id.rsplit("/", 2)
            envelope = Envelope(
                type=event.TYPE,
                version=event.VERSION,
                source=source,
                epoch=int(epoch),
                seq=int(seq),
                subject="x",
                time_ms=self.now_ms,
                actor=Actor(kind=ActorKind.NODE, id="n"),
                data=event,
            )
            code = self.machine.refusal(self.state, envelope)
            if code is not None:
                self.refused.append((event, code))
                return
        self.state = self.machine.apply(self.state, event, record_id)
        self.history.append(event)
        self.steps.append(EventApplied(event, record_id))

    def on_decision(self, decision: Event) -> None:
        """Called after each applied decision; tests override it for their own checks."""

    def restart(self) -> None:
        """Continue from a snapshot of the state, as after a restart."""
        dump = from_json(plain.encode(self.machine.dump(self.state)))
        self.state = self.machine.load(self.state.cell, dump)

    def run_until_idle(self, most: int = 100) -> list[Event]:
        """Run cycles until one decides nothing; return all decisions.

        Raises:
            AssertionError: `most` cycles were not enough.
        """
        decided: list[Event] = []
        for _ in range(most):
            new = self.cycle()
            decided += new
            due_ms = self.machine.due_ms(self.state)
            if not new and self.complete and (due_ms is None or due_ms > self.now_ms):
                return decided
        raise AssertionError(f"still deciding after {most} cycles: {decided[-3:]}")

    def phase(self, name: str, index: int = 0) -> str:
        """Return the phase of a task, by name, also after it has ended."""
        task_id = f"{job_id(name)}.{index}"
        if task_id not in self.state.tasks:
            for event in reversed(self.history):
                if isinstance(event, dec.TaskEndedV1) and event.task_id == task_id:
                    return str(event.outcome)
        return self.task(name, index).phase.name.lower()

    def wait_code(self, name: str, pool: str = "main", *, index: int = 0) -> str | None:
        """Return the wait code of a task, or of its group, in a pool, or None."""
        task = self.task(name, index)
        if task.reserved is not None and task.reserved.pool_name == pool:
            return str(WaitCode.WAITING_FOR_VICTIMS)
        group = task.group
        record = group.waits.get(pool) if group is not None else None
        return str(record[0].code) if record is not None else None

    def slots_of(self, name: str, index: int = 0) -> list[tuple[str, tuple[int, ...]]]:
        """Return node and slots of each replica; empty if the task holds none."""
        run = self.task(name, index).run
        return [(p.node, p.slots) for p in run.placements] if run is not None else []
