"""Both real machines in a random, honest world: the audit finds nothing in the log they write.

It shares no code with them, so each checks the other: the test fails when the machines
break a promise, and when the audit is stricter than a promise.
"""

import random
from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    MachineWriter,
    department,
    exited,
    incarnation,
    joined,
    log_created,
    project,
    released,
    started,
    submitted,
)
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.audit import Audit
from yardmaster_core.machine import Decision, Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    NodeLostV1,
    NodeSilenceObservedV1,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
)
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    DepartmentChangeRequestedV1,
    Enrollment,
    EraseRequestedV1,
    Kind,
    MaxSlotsChangeRequestedV1,
    NodeCordonRequestedV1,
    NodeDrainRequestedV1,
    NodeEnrolRequestedV1,
    NodeRevokeRequestedV1,
    NodeUncordonRequestedV1,
    PauseRequestedV1,
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    PriorityChangeRequestedV1,
    ProjectChangeRequestedV1,
    Quota,
    ResumeRequestedV1,
)
from yardmaster_schemas.resources import Resources

NODES = [f"n{i}" for i in range(4)]
Key = tuple[str, int, int]


class Part:
    """One machine with its state; its cycles go into the log."""

    def __init__(self, machine: Machine[Any], writer: MachineWriter, log: LogBuilder) -> None:
        self.machine = machine
        self.writer = writer
        self.log = log
        writer.rules = machine.rules
        self.state = machine.initial(log.cell)
        self.cycles = 0

    def cycle(self, *observed: Decision, limit: int = 1000, after_ms: int = 1000) -> list[Any]:
        """Run a cycle; return its decisions."""
        machine, log = self.machine, self.log
        self.cycles += 1
        self.state = machine.begin_cycle(self.state, self.cycles, log.now_ms + after_ms)
        refused = []
        for topic in self.writer.inputs:
            for entry in log.of(topic)[self.writer.taken[topic] :]:
                assert entry.envelope is not None
                claim = topic in ("requests", "node-events")
                code = machine.refusal(self.state, entry.envelope) if claim else None
                if code is not None:
                    refused.append((topic, entry.offset, code))
                elif entry.envelope.type not in ("TermStarted", "CycleCommitted"):
                    self.state = machine.apply(self.state, entry.envelope.data, entry.envelope.id)
        verdict = machine.decide(self.state, limit=limit, observed=observed)
        entries = self.writer.cycle(
            *((d.event, d.cause) for d in verdict.decisions),
            after_ms=after_ms,
            refused=refused,
            complete=verdict.complete,
            state=verdict.state_digest,
        )
        for entry in entries[:-1]:
            assert entry.envelope is not None
            self.state = machine.apply(self.state, entry.envelope.data, entry.envelope.id)
        self.state = machine.end_cycle(self.state, complete=verdict.complete)
        return [d.event for d in verdict.decisions]


class World:
    """Users, operators and agents with random, but honest, actions."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        #: Every second world enrolls its nodes.
        self.closing = seed % 2
        self.log = LogBuilder()
        self.quota = Part(QuotaMachine(), self.log.quota, self.log)
        self.scheduler = Part(SchedulerMachine(), self.log.scheduler, self.log)
        self.jobs: list[str] = []
        self.lives = dict.fromkeys(NODES, 1)
        self.pid = 100
        #: Replicas on agents: node, whether it runs, whether it has a stop request.
        self.running: dict[Key, dict[str, Any]] = {}
        log = self.log
        log.request(log_created())
        # The policies take turns, twice for each policy: with nodes enrolled and without.
        name, version = list(POLICIES)[seed // 2 % len(POLICIES)]
        ref = PolicyRef(name=name, version=version)
        config = PoolConfig(policy=ref, node_timeout_s=30, start_timeout_s=60)
        log.request(PoolChangeRequestedV1(pool="default", config=config))
        limited = department(quotas={"default": Quota(limit_milli=14_000)}).department
        assert limited is not None
        log.request(DepartmentChangeRequestedV1(department="research", config=limited))
        for name, limit in (("nlp", 9000), ("vision", None)):
            of = project(pools=("default",), limit_milli=limit).project
            assert of is not None
            log.request(ProjectChangeRequestedV1(project=name, config=of))
        for node in NODES:
            if self.closing and self.chance.random() < 0.8:
                self.enroll(node, 4)
            log.claim(joined(node))

    def step(self) -> None:
        """Take a random action, then run a cycle of both machines."""
        for _ in range(self.chance.randrange(8)):
            self.chance.choice(
                [self.submit] * 4
                + [self.agent] * 12
                + [self.change, self.pause, self.cancel, self.operate, self.replace]
                + [self.trust] * self.closing
            )()
        self.quota.cycle(limit=self.chance.choice([3, 1000]))
        observed = []
        if self.chance.random() < 0.03:
            node = self.chance.choice(NODES)
            silence = NodeSilenceObservedV1(
                node=node,
                incarnation=incarnation(self.lives[node]),
                last_heard_at_ms=self.log.now_ms - self.chance.choice([10_000, 40_000]),
            )
            observed = [Decision(silence, node)]
        after_ms = self.chance.choice([0, 100, 1000, 1000, 5000, 30_000])
        limit = self.chance.choice([4, 1000])
        for event in self.scheduler.cycle(*observed, limit=limit, after_ms=after_ms):
            self.hear(event)

    def hear(self, event: Any) -> None:
        """Let the agents obey a decision."""
        match event:
            case SlotsAllocatedV1():
                for p in event.placements:
                    self.running[event.task_id, event.attempt, p.replica] = {
                        "node": p.node,
                        "life": self.lives[p.node],
                        "runs": False,
                        "stop": False,
                    }
            case PreemptionRequestedV1() | StopRequestedV1() | AllocationRevokedV1():
                for (task, attempt, _), replica in self.running.items():
                    if (task, attempt) == (event.task_id, event.attempt):
                        replica["stop"] = True
            case NodeLostV1():
                if event.incarnation == incarnation(self.lives[event.node]):
                    self.replace(event.node)
            case _:
                pass

    # Agents

    def agent(self) -> None:
        """A replica starts, ends, or is found never to have started."""
        if not self.running:
            return
        key = self.chance.choice(sorted(self.running))
        replica = self.running[key]
        task, attempt, index = key
        at = {"attempt": attempt, "replica": index, "life": replica["life"]}
        if not replica["runs"]:
            if replica["stop"] or self.chance.random() < 0.05:
                self.log.claim(released(task, replica["node"], never_started=True, **at))
                del self.running[key]
                return
            self.pid += 1
            self.log.claim(started(task, replica["node"], pid=self.pid, **at))
            replica["runs"] = True
        elif replica["stop"] or self.chance.random() < 0.3:
            code = self.chance.choice([0, 0, 0, 1])
            self.log.claim(exited(task, replica["node"], exit_code=code, **at))
            self.log.claim(released(task, replica["node"], **at))
            del self.running[key]

    def replace(self, name: str | None = None) -> None:
        """A node comes back with a new ledger and nothing running."""
        if name is None and self.chance.random() < 0.7:
            return
        node = name or self.chance.choice(NODES)
        self.lives[node] += 1
        self.running = {k: r for k, r in self.running.items() if r["node"] != node}
        self.log.claim(joined(node, life=self.lives[node]))

    # Users and operators

    def submit(self) -> None:
        job = f"{len(self.jobs):012d}"
        self.jobs.append(job)
        replicas = self.chance.choice([1, 1, 1, 2, 3])
        gpus, milli = self.chance.choice([(1, 1000), (1, 500), (2, 1000), (4, 1000), (0, 0)])
        tasks = self.chance.choice([1, 1, 3])
        spec: dict[str, Any] = {
            "kind": self.chance.choice([Kind.TRAINING, Kind.TRAINING, Kind.INTERACTIVE]),
            "priority": self.chance.choice([1, 42, 42, 99]),
            "resources": Resources(gpus=gpus, gpu_milli=milli, cpu_milli=4000, memory_mib=4096),
            "replicas_min": replicas,
            "replicas_max": replicas,
            "tasks": tasks,
            "max_concurrent": self.chance.choice([None, 1]) if tasks > 1 else None,
            "min_runtime_s": self.chance.choice([None, 60]),
            "time_limit_s": self.chance.choice([None, None, 120]),
            "max_restarts": self.chance.choice([0, 2]),
            "max_slots_milli": self.chance.choice([None, None, 4000]),
        }
        if tasks > 1 and spec["kind"] is Kind.INTERACTIVE:
            spec["kind"] = Kind.TRAINING
        self.log.request(submitted(job, self.chance.choice(["nlp", "vision"]), **spec))

    def job(self) -> str:
        return self.chance.choice(self.jobs) if self.jobs else "zzzzzzzzzzzz"

    def change(self) -> None:
        self.log.request(
            self.chance.choice(
                [
                    PriorityChangeRequestedV1(
                        job_id=self.job(), priority=self.chance.choice([1, 42, 99])
                    ),
                    MaxSlotsChangeRequestedV1(
                        job_id=self.job(), max_slots_milli=self.chance.choice([None, 2000])
                    ),
                ]
            )
        )

    def pause(self) -> None:
        kind = self.chance.choice([PauseRequestedV1, ResumeRequestedV1, ResumeRequestedV1])
        self.log.request(kind(job_id=self.job(), index=self.chance.choice([None, 0])))

    def cancel(self) -> None:
        if self.chance.random() < 0.5:
            self.log.request(
                CancelRequestedV1(job_id=self.job(), immediate=self.chance.random() < 0.5)
            )

    def operate(self) -> None:
        node = self.chance.choice(NODES)
        self.log.request(
            self.chance.choice(
                [
                    NodeCordonRequestedV1(node=node),
                    NodeUncordonRequestedV1(node=node),
                    NodeUncordonRequestedV1(node=node),
                    NodeDrainRequestedV1(node=node, deadline_at_ms=self.log.now_ms + 90_000),
                ]
            )
        )

    def enroll(self, node: str, gpus: int) -> None:
        enrollment = Enrollment(pool="default", gpus=gpus)
        self.log.request(NodeEnrolRequestedV1(node=node, enrollment=enrollment))

    def trust(self) -> None:
        """A node is enrolled, for as much as it has or less, or revoked; a job is erased."""
        node = self.chance.choice(NODES)
        what = self.chance.random()
        if what < 0.6:
            self.enroll(node, self.chance.choice([4, 4, 2]))
        elif what < 0.8:
            self.log.request(NodeRevokeRequestedV1(node=node))
        else:
            self.log.request(EraseRequestedV1(job_id=self.job(), tombstone=1))


@pytest.mark.parametrize("seed", range(40))
def test_an_honest_random_world_keeps_every_promise(seed: int) -> None:
    world = World(seed)
    auditor = Audit()
    for _ in range(150):
        world.step()
    for record in world.log.fed():
        auditor.feed(*record)
    findings = auditor.finish()
    assert findings == (), "\n".join(str(f) for f in findings[:5])
    kinds = {e.envelope.type for e in world.log.entries if e.envelope is not None}
    assert {"SlotsAllocated", "TaskEnded", "TaskRequeued"} <= kinds, "no task ran"
