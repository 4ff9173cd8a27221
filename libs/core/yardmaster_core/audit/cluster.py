"""The cluster folded from the log: jobs, nodes, attempts and the slots they hold, in plain dicts.

Inputs that a counted cycle consumed and did not refuse are applied here; `decisions.py` checks the
decisions. An agent's claim about a replica that is not open changes nothing here: if the scheduler
accepted such a claim, one of its later decisions breaks a guarantee, and `decisions.py` reports
that decision.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from yardmaster_core.audit.findings import FedRecord, Report
from yardmaster_core.audit.quotas import Amounts, Quotas, amounts_of, negative
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events.admissions import (
    AdmittedSpec,
    CancelAcceptedV1,
    DetailsErasedV1,
    EntitlementsChangedV1,
    Level,
    MaxSlotsChangedV1,
    NodeDrainingV1,
    NodeEnrolledV1,
    NodeRevokedV1,
    NodeSlotsChangedV1,
    NodeUncordonedV1,
    PoolConfiguredV1,
    PoolDeletedV1,
    TaskAdmittedV1,
    TaskPausedV1,
    TaskResumedV1,
)
from yardmaster_schemas.events.decisions import Placement, SlotsReservedV1
from yardmaster_schemas.events.node_events import (
    ExecutorKind,
    NodeDrainedV1,
    NodeJoinedV1,
    RunIdentity,
    SlotsReleasedV1,
    TaskExitedV1,
    TaskStartedV1,
)
from yardmaster_schemas.events.requests import (
    DepartmentConfig,
    Enrollment,
    PoolConfig,
    ProjectConfig,
)
from yardmaster_schemas.sources import written_by_agent
from yardmaster_schemas.topics import NODE_EVENTS


@dataclass(slots=True)
class Job:
    """An admitted job; `cancelled` and `paused` hold indexes of its tasks."""

    project: str
    spec: AdmittedSpec
    max_slots_milli: int | None
    cancelled: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    erased: bool = False


@dataclass(slots=True)
class Node:
    """The current incarnation of a node."""

    incarnation: str
    pool: str
    gpus: int
    cpu_milli: int
    memory_mib: int
    node_type: str
    labels: dict[str, str]
    address: str
    executors: tuple[ExecutorKind, ...]
    #: The memory of one GPU: every value that an agent of this incarnation reported. The agent of
    #: an older version may have reported none (0).
    gpu_memories_mib: set[int]
    up: bool = True


@dataclass(slots=True)
class Attempt:
    """An attempt with open replicas; `running_ms` is the time at which its last replica started."""

    task_id: str
    number: int
    pool: str
    job: Job
    preemptible: bool
    allocated_ms: int
    replicas: int
    open: dict[int, Placement]
    fence_s: int | None = None
    runs: dict[int, RunIdentity] = field(default_factory=dict)
    running_ms: int | None = None
    stopped: bool = False
    #: The deadline of its stop (ms), and whether a decision says that the stop is overdue.
    deadline_ms: int = 0
    overdue: bool = False
    #: Whether the task moves: its reserved slots count as held, and the slots of this attempt not.
    moved: bool = False
    #: The cycle in which the gang lost a replica, and how.
    broken: tuple[int, str] | None = None
    #: The cycle in which a replica started with another image than that of its task.
    differs: int | None = None


@dataclass(slots=True)
class Task:
    """The facts about a task that outlive its attempts."""

    last: int = 0
    attempt: Attempt | None = None
    #: The digest of the first image that a replica ran; None: no image, or from no registry.
    image: str | None = None
    ran_ms: int = 0
    not_before_ms: int = 0
    #: The consecutive failed starts that the last TaskRequeued names; 0 after a successful start.
    failed_starts: int = 0
    #: Of these, those that FailedStartsExpired names, and from when on it may be recorded (ms).
    expired_starts: int = 0
    expiry_ms: int = 0
    #: The record that ended the task (`decisions/<offset>`), or None.
    ended: str | None = None


class Cluster:
    """The fold of the scheduler's inputs."""

    def __init__(self, report: Report, *, honest_agents: bool) -> None:
        self.report = report
        self.honest_agents = honest_agents
        self.now_ms = 0
        self.cycle = 0
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[str, Task] = {}
        self.nodes: dict[str, Node] = {}
        self.drains: dict[str, int] = {}
        #: By node: its disabled slots, and the disabled slots whose tasks must stop.
        self.disabled: dict[str, tuple[int, ...]] = {}
        self.stopping_slots: dict[str, tuple[int, ...]] = {}
        #: By node: its enrollment, or None if it was revoked. As long as no node was ever enrolled,
        #: any node may join.
        self.enrolled: dict[str, Enrollment | None] = {}
        self.pools: dict[str, PoolConfig] = {}
        self.projects: dict[str, ProjectConfig] = {}
        self.departments: dict[str, DepartmentConfig] = {}
        #: By (node, slot): the gpu_milli that tasks hold, and the GPU memory (MiB) that tasks
        #: requested. By node: the cpu_milli and memory_mib that tasks hold.
        self.slots: dict[tuple[str, int], int] = {}
        self.gpu_memory: dict[tuple[str, int], int] = {}
        self.cpu: dict[str, int] = {}
        self.memory: dict[str, int] = {}
        #: By node: its open replicas, (task id, replica) -> incarnation of the node.
        self.on_node: dict[str, dict[tuple[str, int], str]] = {}
        self.quotas = Quotas(self.projects, self.departments)
        #: Reserved slots, by task.
        self.reserved: dict[str, SlotsReservedV1] = {}
        #: By job: the gpu_milli that its tasks hold or that are reserved for its tasks, and the
        #: number of its open attempts.
        self.job_used: dict[str, int] = {}
        self.job_running: dict[str, int] = {}
        #: (node, incarnation) -> the time (ms) of its last heartbeat, when its silence was
        #: observed.
        self.silences: dict[tuple[str, str], int] = {}
        self.lost: set[tuple[str, str]] = set()
        #: Attempts that may still be starting, by task, in the order of their allocations.
        self.starting: dict[str, Attempt] = {}
        #: Attempts with a replica of another image that are not stopped yet, by task.
        self.differing: dict[str, Attempt] = {}
        #: Attempts that lost a replica and are not stopped yet, by task.
        self.broken: dict[str, Attempt] = {}
        #: The number of changes after which other tasks may have to run: admissions, joins and
        #: losses of nodes, ends of tasks, overdue stops, and releases after them.
        self.changes = 0

    def task(self, task_id: str) -> Task:
        """The facts about a task, created on first use."""
        return self.tasks.setdefault(task_id, Task())

    def attempt(self, task_id: str, number: int) -> Attempt | None:
        """The attempt if it is open, else None."""
        found = self.task(task_id).attempt
        return found if found is not None and found.number == number else None

    # Inputs

    def consume(self, fed: FedRecord, envelope: Envelope[Any]) -> None:
        """Apply an input that a counted cycle consumed and did not refuse."""
        body = envelope.data
        if fed.topic == NODE_EVENTS.name:
            if not written_by_agent(envelope.source, body.node, body.incarnation):
                self.report.add(
                    "S2",
                    fed,
                    f"{envelope.type} about node {body.node}: expected it refused, "
                    f"{envelope.source} is not its author",
                )
                return
            self._claim(fed, body)
        else:
            self._admission(body)

    # size: one case for each type of event, of one to three lines.
    def _admission(self, body: Any) -> None:
        """Apply a verdict of quota to the jobs, owners, pools and nodes."""
        self.changes += 1
        match body:
            case TaskAdmittedV1():
                self.jobs.setdefault(
                    body.job_id,
                    Job(body.project, body.spec, body.spec.max_slots_milli),
                )
                self.quotas.admitted(body.project, body.department)
            case CancelAcceptedV1():
                if job := self.jobs.get(body.job_id):
                    job.cancelled.update(_indexes(job, body.index))
            case TaskPausedV1():
                if job := self.jobs.get(body.job_id):
                    job.paused.update(_indexes(job, body.index))
            case TaskResumedV1():
                if job := self.jobs.get(body.job_id):
                    job.paused.difference_update(_indexes(job, body.index))
            case MaxSlotsChangedV1():
                if job := self.jobs.get(body.job_id):
                    job.max_slots_milli = body.max_slots_milli
            case PoolConfiguredV1():
                self.pools[body.pool] = body.config
            case PoolDeletedV1():
                self.pools.pop(body.pool, None)
            case EntitlementsChangedV1(level=Level.DEPARTMENT):
                _set_config(self.departments, body.name, body.department)
                self.quotas.configured(None)
            case EntitlementsChangedV1():
                _set_config(self.projects, body.name, body.project)
                self.quotas.configured(body.name)
            case NodeDrainingV1():
                self.drains[body.node] = body.deadline_at_ms
            case NodeUncordonedV1():
                # The tasks of a revoked node stop all the same.
                if self.enrolled.get(body.node, body) is not None:
                    self.drains.pop(body.node, None)
            case NodeSlotsChangedV1():
                self.disabled[body.node] = body.disabled
                self.stopping_slots[body.node] = body.disabled if body.stop else ()
            case NodeEnrolledV1():
                self.enrolled[body.node] = body.enrollment
            case NodeRevokedV1():
                self.enrolled[body.node] = None
                self.drains[body.node] = self.now_ms
            case DetailsErasedV1():
                if job := self.jobs.get(body.job_id):
                    job.erased = True
            case _:
                pass

    def _claim(self, fed: FedRecord, body: Any) -> None:
        """Apply a claim of an agent; add a finding (S3) for a join that had to be refused."""
        match body:
            case NodeJoinedV1():
                self.changes += 1
                if (body.node, body.incarnation) in self.lost:
                    self.report.add(
                        "S3",
                        fed,
                        f"node {body.node}: incarnation {body.incarnation} was lost, "
                        "expected its return refused",
                    )
                known = self.nodes.get(body.node)
                if known is not None and known.up and known.incarnation == body.incarnation:
                    # The node's agent restarted, perhaps in a newer version. Only the executors,
                    # the limits of fractions and the memory of the GPUs may differ.
                    known.executors = body.executors
                    known.gpu_memories_mib.add(body.gpu_memory_mib)
                    return
                self.nodes[body.node] = Node(
                    *(body.incarnation, body.pool, body.gpus, body.cpu_milli, body.memory_mib),
                    *(body.node_type, dict(body.labels), body.address, body.executors),
                    {body.gpu_memory_mib},
                )
                beyond = self.beyond_enrollment(body.node)
                if beyond is not None:
                    self.report.add("S3", fed, f"{beyond}: expected its join refused")
            case NodeDrainedV1():
                self.changes += 1
                node = self.nodes.get(body.node)
                if node is not None and node.incarnation == body.incarnation:
                    node.up = False
            case TaskStartedV1():
                self.started(fed, body)
            case TaskExitedV1():
                attempt = self._placed(body)
                own_success = body.exit_code == 0 and not body.engine_restarted
                if attempt is not None and not own_success:
                    self.break_gang(attempt, f"replica {body.replica} failed")
            case SlotsReleasedV1():
                attempt = self._placed(body)
                if attempt is not None:
                    if body.never_started:
                        self.break_gang(attempt, f"replica {body.replica} never started")
                    self.changes += attempt.overdue
                    self.close(attempt, body.replica)
            case _:
                pass

    def beyond_enrollment(self, name: str) -> str | None:
        """How the current incarnation of a node exceeds its enrollment, or None."""
        if not self.enrolled:
            return None
        node, enrollment = self.nodes[name], self.enrolled.get(name)
        if enrollment is None:
            return f"node {name} is {'revoked' if name in self.enrolled else 'not enrolled'}"
        for what, offered, most in (
            ("pool", node.pool, enrollment.pool),
            ("node_type", node.node_type, enrollment.node_type or node.node_type),
            ("address", node.address, enrollment.address or node.address),
        ):
            if offered != most:
                return f"node {name}: {what} {offered}, enrolled with {most}"
        if node.gpus > enrollment.gpus:
            return f"node {name}: {node.gpus} GPUs, enrolled with {enrollment.gpus}"
        labels = sorted(node.labels.items() - enrollment.labels.items())
        return f"node {name}: labels {labels[:8]} are not enrolled" if labels else None

    def _placed(self, body: Any) -> Attempt | None:
        """The attempt of the claim's replica, if the replica is open on the claim's node."""
        attempt = self.attempt(body.task_id, body.attempt)
        if attempt is None:
            return None
        placement = attempt.open.get(body.replica)
        if placement is None:
            return None
        here = (placement.node, placement.incarnation) == (body.node, body.incarnation)
        return attempt if here else None

    def started(self, fed: FedRecord, body: TaskStartedV1, *, refused: bool = False) -> None:
        """Note what runs of a replica; add a finding (S4) if the replica has another run already.

        With honest agents, a record that the scheduler refused also proves that something runs.
        """
        attempt = self._placed(body)
        if attempt is None or (refused and not self.honest_agents):
            return
        known = attempt.runs.get(body.replica, body.run)
        if known != body.run:
            self.report.add(
                "S4",
                fed,
                f"{body.task_id} attempt {body.attempt} replica {body.replica}: expected one "
                f"run, found {known} and {body.run}",
            )
        if refused:
            return
        if body.replica not in attempt.runs:
            self._note_image(attempt, body.image)
        attempt.runs.setdefault(body.replica, body.run)
        if attempt.running_ms is None and len(attempt.runs) == attempt.replicas:
            attempt.running_ms = self.now_ms
            self.starting.pop(attempt.task_id, None)
            if not attempt.stopped:
                self.task(body.task_id).failed_starts = 0
                self.task(body.task_id).expired_starts = 0

    def _note_image(self, attempt: Attempt, image: str | None) -> None:
        """Note the image of a replica that starts: the first one is that of the task."""
        task = self.task(attempt.task_id)
        first = task.image is None and image is not None
        if first:
            task.image = image
        if task.image != image or (first and attempt.runs):
            attempt.differs = self.cycle
            self.differing[attempt.task_id] = attempt

    # Slots

    def open(self, attempt: Attempt) -> None:
        """Count the slots of an attempt as held."""
        self.starting.pop(attempt.task_id, None)
        self.starting[attempt.task_id] = attempt
        for replica, placement in attempt.open.items():
            self._hold(placement, 1)
            self.on_node.setdefault(placement.node, {})[attempt.task_id, replica] = (
                placement.incarnation
            )
        self._charge(attempt, amounts_of(attempt.open.values()))
        job_id = attempt.task_id.partition(".")[0]
        self.job_running[job_id] = self.job_running.get(job_id, 0) + 1

    def close(self, attempt: Attempt, replica: int) -> None:
        """Free the slots of one replica; the attempt ends when its last replica is closed."""
        placement = attempt.open.pop(replica)
        self._hold(placement, -1)
        self.on_node[placement.node].pop((attempt.task_id, replica), None)
        if not attempt.moved:
            self._charge(attempt, negative(amounts_of((placement,))))
        if attempt.open:
            return
        task = self.task(attempt.task_id)
        task.attempt = None
        self.starting.pop(attempt.task_id, None)
        if attempt.running_ms is not None:
            task.ran_ms += self.now_ms - attempt.running_ms
        self.broken.pop(attempt.task_id, None)
        self.differing.pop(attempt.task_id, None)
        self.job_running[attempt.task_id.partition(".")[0]] -= 1

    def _hold(self, placement: Placement, sign: int) -> None:
        """Add (`sign` 1) or subtract (`sign` -1) the amounts of a placement on its node."""
        node = placement.node
        for slot in placement.slots:
            self.slots[node, slot] = self.slots.get((node, slot), 0) + sign * placement.gpu_milli
            held_mib = self.gpu_memory.get((node, slot), 0)
            self.gpu_memory[node, slot] = held_mib + sign * placement.gpu_memory_mib
        self.cpu[node] = self.cpu.get(node, 0) + sign * placement.cpu_milli
        self.memory[node] = self.memory.get(node, 0) + sign * placement.memory_mib

    def count_open(self, attempt: Attempt, *, sign: int) -> None:
        """Count the slots that an attempt holds (`sign` 1), or no longer (-1)."""
        amounts = amounts_of(attempt.open.values())
        self._charge(attempt, amounts if sign > 0 else negative(amounts))

    def _charge(self, attempt: Attempt, amounts: Amounts) -> None:
        """Add `amounts` to the amounts that the job, its project and its departments hold."""
        self._count(attempt.task_id, attempt.job, attempt.pool, amounts)

    def _count(self, task_id: str, job: Job, pool: str, amounts: Amounts) -> None:
        self.quotas.charge(job.project, pool, amounts, preemptible=job.spec.preemptible)
        job_id = task_id.partition(".")[0]
        self.job_used[job_id] = self.job_used.get(job_id, 0) + amounts[0]

    def reserve(self, body: SlotsReservedV1) -> None:
        """Count the reserved slots of a task as held.

        If an attempt of the task is open, the task moves: the slots of the attempt no longer count.
        """
        self.reserved[body.task_id] = body
        amounts = amounts_of(body.placements)
        self._count_reserved(body, amounts)
        attempt = self.task(body.task_id).attempt
        if attempt is not None and not attempt.moved:
            self._charge(attempt, negative(amounts_of(attempt.open.values())))
            attempt.moved = True

    def release_reserved(self, task_id: str) -> SlotsReservedV1 | None:
        """Stop counting the reserved slots of a task; return its reservation, or None.

        If the task was to move, the slots of its open attempt count again.
        """
        body = self.reserved.pop(task_id, None)
        if body is not None:
            self._count_reserved(body, negative(amounts_of(body.placements)))
        attempt = self.task(task_id).attempt
        if attempt is not None and attempt.moved:
            attempt.moved = False
            self._charge(attempt, amounts_of(attempt.open.values()))
        return body

    def _count_reserved(self, body: SlotsReservedV1, amounts: Amounts) -> None:
        job = self.jobs.get(body.task_id.partition(".")[0])
        if job is not None:
            self._count(body.task_id, job, body.pool, amounts)

    def break_gang(self, attempt: Attempt, how: str) -> None:
        """Note that a gang lost a replica while its other replicas may still run."""
        if attempt.broken is None and attempt.replicas > 1 and not attempt.stopped:
            attempt.broken = (self.cycle, how)
            self.broken[attempt.task_id] = attempt


def _indexes(job: Job, index: int | None) -> Iterator[int]:
    return iter(range(job.spec.tasks)) if index is None else iter((index,))


def _set_config(configs: dict[str, Any], name: str, config: object) -> None:
    if config is None:
        configs.pop(name, None)
    else:
        configs[name] = config
