"""Generates histories: users, operators and agents with random, but honest, actions.

`HonestActors` writes their records; it receives decisions, and its agents obey them. It has no
event log and no clock of its own, so one history can be replayed on several logs.
"""

import random
from collections import defaultdict
from typing import Any

from tests.support.logs import (
    LogBuilder,
    department,
    exited,
    incarnation,
    joined,
    log_created,
    project,
    released,
    started,
    subject_of,
    submitted,
)
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    NodeLostV1,
    NodeSilenceObservedV1,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
    TaskEndedV1,
)
from yardmaster_schemas.events.node_events import CheckpointDoneV1, NodeDrainedV1, TaskProgressedV1
from yardmaster_schemas.resources import Resources

PRIORITY = req.PolicyRef(name="priority")
POOLS = ("default", "spare")
NODES = ("n0", "n1", "n2", "n3")
Key = tuple[str, int, int]


class HonestActors:
    """The actions of users, operators and agents; `enrolls`: nodes are enrolled and revoked too."""

    def __init__(
        self, seed: int, now_ms: int, policy: req.PolicyRef = PRIORITY, *, enrolls: bool = False
    ) -> None:
        self.chance = random.Random(seed)
        self.pool_config = req.PoolConfig(
            policy=policy, node_timeout_s=30, start_timeout_s=60, max_grace_s=120
        )
        self.log = LogBuilder(now_ms=now_ms)
        #: Whether operators also enroll and revoke nodes, and erase jobs.
        self.enrolls = enrolls
        self.requests: list[Envelope[Any]] = []
        self.claims: list[Envelope[Any]] = []
        self.silent: list[NodeSilenceObservedV1] = []
        self.jobs: list[str] = []
        self.tasks: dict[str, int] = {}
        self.ended: set[str] = set()
        self.lives = dict.fromkeys(NODES, 1)
        self.pid = 100
        self.saved: dict[str, int] = defaultdict(int)
        #: Replicas on agents: node, incarnation, and whether each runs or has a stop request.
        self.running: dict[Key, dict[str, Any]] = {}

    # Records

    def ask(self, event: Event) -> None:
        """Write a request."""
        entry = self.log.append("requests", self.log.gateway.envelope(event, subject_of(event)))
        assert entry.envelope is not None
        self.requests.append(entry.envelope)

    def claim(self, event: Any) -> None:
        """Write a claim of the node that the event names."""
        entry = self.log.claim(event)
        assert entry.envelope is not None
        self.claims.append(entry.envelope)

    def taken(self) -> tuple[list[Envelope[Any]], list[Envelope[Any]]]:
        """Return the requests and the claims written since the last call."""
        found = self.requests, self.claims
        self.requests, self.claims = [], []
        return found

    def observed(self) -> list[NodeSilenceObservedV1]:
        """Return the nodes found silent since the last call."""
        found, self.silent = self.silent, []
        return found

    # Steps of the history

    def begin(self) -> None:
        """Write the first records of the log: pools, a department, two projects, nodes."""
        self.ask(log_created())
        for pool in POOLS:
            self.ask(req.PoolChangeRequestedV1(pool=pool, config=self.pool_config))
        quotas = {"default": req.Quota(limit_milli=14_000)}
        config = department(quotas=quotas).department
        assert config is not None
        self.ask(req.DepartmentChangeRequestedV1(department="research", config=config))
        for name, limit in (("nlp", 9000), ("vision", None)):
            of = project(pools=POOLS, limit_milli=limit).project
            assert of is not None
            self.ask(req.ProjectChangeRequestedV1(project=name, config=of))
        for node in NODES:
            if self.enrolls and self.chance.random() < 0.8:
                self.enroll(node, 4)
            self.claim(joined(node))

    def act(self, most: int = 8) -> None:
        """Take up to `most` random actions."""
        for _ in range(self.chance.randrange(most)):
            self.chance.choice(
                [self.submit] * 4
                + [self.agent] * 14
                + [self.change, self.pause, self.cancel, self.operate, self.replace, self.organize]
                + [self.trust] * self.enrolls
            )()
        if self.chance.random() < 0.03:
            node = self.chance.choice(NODES)
            heard_ms = self.log.now_ms - self.chance.choice([10_000, 40_000])
            self.silent.append(
                NodeSilenceObservedV1(
                    node=node,
                    incarnation=incarnation(self.lives[node]),
                    last_heard_at_ms=heard_ms,
                )
            )

    def calm(self) -> None:
        """Start no new task: every agent continues with the tasks that it has."""
        for key in sorted(self.running):
            self.agent(key)

    def obey(self, event: Event) -> None:
        """Let the agents obey a decision."""
        match event:
            case SlotsAllocatedV1():
                self.tasks[event.task_id] = event.attempt
                for placement in event.placements:
                    if placement.node not in self.lives:
                        continue
                    self.running[event.task_id, event.attempt, placement.replica] = {
                        "node": placement.node,
                        "life": self.lives[placement.node],
                        "runs": False,
                        "stop": False,
                    }
            case PreemptionRequestedV1() | StopRequestedV1() | AllocationRevokedV1():
                for (task, attempt, _), replica in self.running.items():
                    if (task, attempt) == (event.task_id, event.attempt):
                        replica["stop"] = True
            case NodeLostV1() if event.node in self.lives:
                if event.incarnation == incarnation(self.lives[event.node]):
                    self.replace(event.node)
            case TaskEndedV1():
                self.ended.add(event.task_id)
            case _:
                pass

    # Agents

    def agent(self, which: Key | None = None) -> None:
        """A replica starts, saves, reports progress, ends, or is found never to have started."""
        if not self.running:
            return
        key = which or self.chance.choice(sorted(self.running))
        replica = self.running[key]
        task, attempt, index = key
        at = {"attempt": attempt, "replica": index, "life": replica["life"]}
        if not replica["runs"]:
            if replica["stop"] or self.chance.random() < 0.05:
                self.claim(released(task, replica["node"], never_started=True, **at))
                del self.running[key]
                return
            self.pid += 1
            self.claim(started(task, replica["node"], pid=self.pid, **at))
            replica["runs"] = True
            return
        about = {
            "task_id": task,
            "attempt": attempt,
            "replica": index,
            "node": replica["node"],
            "incarnation": incarnation(replica["life"]),
        }
        if self.chance.random() < 0.3:
            self.saved[task] += 1
            step = self.saved[task]
            self.claim(CheckpointDoneV1(**about, uri=f"file:///c/{task}/{step}", step=step))
        if self.chance.random() < 0.1:
            self.claim(TaskProgressedV1(**about, permille=self.chance.randrange(1001)))
        if replica["stop"] or self.chance.random() < 0.3:
            code = self.chance.choice([0, 0, 0, 1])
            self.claim(exited(task, replica["node"], exit_code=code, **at))
            self.claim(released(task, replica["node"], **at))
            del self.running[key]

    def replace(self, name: str | None = None) -> None:
        """A node comes back with a new ledger and nothing running."""
        if name is None and self.chance.random() < 0.7:
            return
        node = name or self.chance.choice(NODES)
        idle = all(replica["node"] != node for replica in self.running.values())
        if name is None and idle and self.chance.random() < 0.5:
            self.claim(NodeDrainedV1(node=node, incarnation=incarnation(self.lives[node])))
        self.lives[node] += 1
        self.running = {k: r for k, r in self.running.items() if r["node"] != node}
        self.claim(joined(node, life=self.lives[node]))

    # Users and operators

    def submit(self) -> None:
        job = f"{len(self.jobs):012d}"
        self.jobs.append(job)
        replicas = self.chance.choice([1, 1, 1, 2, 3])
        gpus, milli = self.chance.choice([(1, 1000), (1, 500), (2, 1000), (4, 1000), (0, 0)])
        tasks = self.chance.choice([1, 1, 3])
        kinds = [req.Kind.TRAINING, req.Kind.TRAINING, req.Kind.INTERACTIVE]
        spec: dict[str, Any] = {
            "kind": self.chance.choice(kinds) if tasks == 1 else req.Kind.TRAINING,
            "priority": self.chance.choice([None, 1, 42, 42, 99]),
            "resources": Resources(gpus=gpus, gpu_milli=milli, cpu_milli=4000, memory_mib=4096),
            "replicas_min": replicas,
            "replicas_max": replicas,
            "tasks": tasks,
            "max_concurrent": self.chance.choice([None, 1]) if tasks > 1 else None,
            "min_runtime_s": self.chance.choice([None, 60]),
            "time_limit_s": self.chance.choice([None, None, 120]),
            "max_restarts": self.chance.choice([0, 2]),
            "max_slots_milli": self.chance.choice([None, None, 4000]),
            "unschedulable": self.chance.choice([None, req.Unschedulable.FAIL]),
        }
        self.ask(submitted(job, self.chance.choice(["nlp", "vision"]), **spec))

    def job(self) -> str:
        return self.chance.choice(self.jobs) if self.jobs else "zzzzzzzzzzzz"

    def change(self) -> None:
        job = self.job()
        changes: list[Event] = [
            req.PriorityChangeRequestedV1(job_id=job, priority=self.chance.choice([1, 42, 99])),
            req.WeightChangeRequestedV1(job_id=job, weight=self.chance.choice([1, 7])),
            req.MaxSlotsChangeRequestedV1(
                job_id=job, max_slots_milli=self.chance.choice([None, 2000])
            ),
        ]
        self.ask(self.chance.choice(changes))

    def pause(self) -> None:
        kind = self.chance.choice(
            [req.PauseRequestedV1, req.ResumeRequestedV1, req.ResumeRequestedV1]
        )
        self.ask(kind(job_id=self.job(), index=self.chance.choice([None, 0])))

    def cancel(self) -> None:
        if self.chance.random() < 0.5:
            immediate = self.chance.random() < 0.5
            self.ask(req.CancelRequestedV1(job_id=self.job(), immediate=immediate))

    def operate(self) -> None:
        node = self.chance.choice(NODES)
        deadline_ms = self.log.now_ms + 90_000
        events: list[Event] = [
            req.NodeCordonRequestedV1(node=node),
            req.NodeUncordonRequestedV1(node=node),
            req.NodeUncordonRequestedV1(node=node),
            req.NodeDrainRequestedV1(node=node, deadline_at_ms=deadline_ms),
        ]
        self.ask(self.chance.choice(events))

    def organize(self) -> None:
        """Create, change or delete a pool, a department or a project."""
        limit = self.chance.choice([None, 4000, 9000])
        config = project(pools=POOLS, limit_milli=limit).project
        assert config is not None
        events: list[Event] = [
            req.PoolChangeRequestedV1(pool="extra", config=self.pool_config),
            req.PoolDeletionRequestedV1(pool="extra"),
            req.DepartmentChangeRequestedV1(department="other", config=req.DepartmentConfig()),
            req.DepartmentDeletionRequestedV1(department="other"),
            req.ProjectChangeRequestedV1(project="nlp", config=config),
            req.ProjectChangeRequestedV1(project="guest", config=config, if_revision=0),
            req.ProjectDeletionRequestedV1(project="guest"),
        ]
        self.ask(self.chance.choice(events))

    def enroll(self, node: str, gpus: int) -> None:
        enrollment = req.Enrollment(pool="default", gpus=gpus)
        self.ask(req.NodeEnrolRequestedV1(node=node, enrollment=enrollment))

    def trust(self) -> None:
        """A node is enrolled, for as much as it has or less, or revoked; a job is erased."""
        node = self.chance.choice(NODES)
        what = self.chance.random()
        if what < 0.6:
            self.enroll(node, self.chance.choice([4, 4, 2]))
        elif what < 0.8:
            self.ask(req.NodeRevokeRequestedV1(node=node))
        else:
            self.ask(req.EraseRequestedV1(job_id=self.job(), tombstone=1))
