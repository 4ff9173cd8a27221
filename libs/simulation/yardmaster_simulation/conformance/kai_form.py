"""The form of scenarios from KAI-Scheduler and from the documentation of Run:ai.

Both kinds of scenarios list nodes, queues and jobs in the same way. A KAI scenario has one initial
state and one outcome. A scenario from the documentation is a series of steps, each with an outcome.
The file `README.md` of the scenarios names the sources. Keys that are not listed here are ignored.

This project's own scenarios are series of steps too. They use keys that other scenarios do not have
(pools, the options of the policy, time, stops and wait reasons), and omit keys that they do not
need.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from yardmaster_schemas.events.requests import PoolOrder
from yardmaster_schemas.fields import MAX_SLOTS

Count = Annotated[int, Field(ge=0)]
#: KAI's number for "no limit".
UNLIMITED: Final = -1
#: The pool of a node or job that names no pool.
POOL: Final = "main"
#: A quota or limit; -1: unlimited.
Bound = Annotated[Decimal, Field(ge=UNLIMITED)]
WholeBound = Annotated[int, Field(ge=UNLIMITED)]


class Status(StrEnum):
    """The status of a task in the initial state or in the outcome."""

    PENDING = "pending"
    #: KAI reserved resources for the task in an earlier cycle, but it has not started.
    PIPELINED = "pipelined"
    RUNNING = "running"
    ALLOCATED = "allocated"
    NOMINATED = "nominated"
    MOVED = "moved"
    EVICTED = "evicted"
    TERMINATING = "terminating"
    STUCK_TERMINATING = "stuck_terminating"
    FAILED = "failed"
    SUCCEEDED = "succeeded"


#: Statuses of tasks that hold resources.
HOLDING: Final = frozenset({Status.RUNNING, Status.TERMINATING, Status.STUCK_TERMINATING})
#: Statuses of tasks that have ended.
ENDED: Final = frozenset({Status.FAILED, Status.SUCCEEDED})
#: Statuses of tasks that have a node from the start.
PLACED: Final = HOLDING | ENDED | {Status.PIPELINED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node; `gpu_memory_mib` is that of each GPU."""

    name: str
    gpus: Annotated[int, Field(ge=0, le=MAX_SLOTS)]
    node_type: str = ""
    gpu_memory_mib: Count = 0
    cpu_millis: Count = 64_000
    mem_bytes: Count = 256_000_000_000
    max_pods: Count | None = None
    pool: str = POOL


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQuota:
    """The quota of a queue in one pool; memory is in 10^6 bytes.

    An omitted amount means no bound, except that an omitted number of deserved GPUs means zero.
    """

    over_quota: bool = True
    over_quota_weight: WholeBound = 1
    deserved_gpus: Bound = Decimal(0)
    deserved_cpu_millis: WholeBound = UNLIMITED
    deserved_mem_mb: WholeBound = UNLIMITED
    max_allowed_gpus: Bound = Decimal(UNLIMITED)
    max_allowed_cpu_millis: WholeBound = UNLIMITED
    max_allowed_mem_mb: WholeBound = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue(PoolQuota):
    """A queue: a department, a group below a department, or a project.

    `parent`: None for a queue at the top. `quotas`: the quotas by pool, in place of the quota in
    the pool `main`.
    """

    name: str
    kind: Literal["department", "group", "project"]
    parent: str | None = None
    priority: int = 100
    created_seq: int = 0
    quotas: dict[str, PoolQuota] | None = None
    reclaim_min_runtime_s: Annotated[Decimal, Field(ge=0)] | None = None
    preempt_min_runtime_s: Annotated[Decimal, Field(ge=0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A pod: a replica of its job's gang.

    A pod requests whole GPUs, a part of a GPU, or an amount of a GPU's memory. `gpu_groups` names
    the shared GPU.
    """

    name: str
    state: Status = Status.PENDING
    node: str | None = None
    gpus: Annotated[int, Field(ge=0, le=MAX_SLOTS)] | None = None
    gpu_fraction: Annotated[Decimal, Field(gt=0, lt=1)] | None = None
    gpu_memory_mib: Annotated[int, Field(gt=0)] | None = None
    gpu_devices: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None
    gpu_groups: tuple[str, ...] = ()
    cpu_millis: Count = 0
    mem_bytes: Count = 0
    subgroup: str | None = None
    allowed_node_types: tuple[str, ...] = ()

    @property
    def shares_gpus(self) -> bool:
        """Whether the pod requests parts of GPUs."""
        return self.gpu_fraction is not None or self.gpu_memory_mib is not None

    @property
    def request(self) -> tuple[object, ...]:
        """The properties that must be equal for all tasks of a gang."""
        return (
            *(self.gpus, self.gpu_fraction, self.gpu_memory_mib, self.gpu_devices),
            *(self.cpu_millis, self.mem_bytes, self.allowed_node_types),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pod group, whose tasks start together.

    `min_available`: the number of tasks that must start together; None: all tasks.
    `keeps_terminating`: tasks that terminate in the initial state do so until the end. `copies`:
    the number of equal jobs to create, whose names end with the numbers from 1.
    """

    name: str
    project: str
    priority: int = 50
    priority_class: str | None = None
    preemptible: bool = True
    age_minutes: Count = 0
    min_available: Count | None = None
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)]
    subgroups: dict[str, Any] | None = None
    stale_for_s: Decimal | None = None
    preemption_delay_s: Annotated[Decimal, Field(ge=0)] | None = None
    keeps_terminating: bool = False
    pools: Annotated[tuple[str, ...], Field(min_length=1)] = (POOL,)
    min_runtime_s: Count = 0
    copies: Annotated[int, Field(ge=1, le=1000)] = 1

    @property
    def status(self) -> Status:
        """The initial status of the job's tasks, which is the same for all."""
        return self.tasks[0].state


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStanding:
    """The expected outcome of a job or task; None: the scenario does not state the value.

    `must_report_reason`: the core must record why the job or task is pending.
    """

    status: Status
    node: str | None = None
    gpus_allocated: Decimal | None = None
    must_report_reason: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedNode:
    """The expected number of a node's unused GPUs, and of the GPUs that all their tasks release."""

    idle_gpus: int | None = None
    releasing_gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected outcome; jobs, tasks and nodes that it does not name are not compared."""

    jobs: dict[str, ExpectedStanding] = field(default_factory=dict)
    tasks: dict[str, ExpectedStanding] = field(default_factory=dict)
    nodes: dict[str, ExpectedNode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The number of cycles until the outcome must be reached, and for which it must then last."""

    until_match: Annotated[int, Field(ge=1, le=1000)] = 1
    after_match: Annotated[int, Field(ge=0, le=1000)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlacement:
    """How KAI selects nodes: it fills them up (`binpack`), spreads, or has no preference."""

    gpu: Literal["binpack", "spread"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of KAI; `gpu_placement`: how KAI selects the GPU for a part of a GPU."""

    gpu_placement: Literal["pack", "spread"] | None = None
    node_placement: NodePlacement = field(default_factory=NodePlacement)


@dataclass(frozen=True, slots=True, kw_only=True)
class KaiScenario:
    """A cluster in its initial state, and the outcome of one action or of whole cycles of KAI."""

    id: str
    mode: Literal["single_action", "full_cycle"]
    actions: tuple[str, ...]
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    jobs: tuple[Job, ...]
    expected: Expected
    topologies: tuple[dict[str, Any], ...] = ()
    rounds: Rounds = field(default_factory=Rounds)
    config: Config = field(default_factory=Config)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExpected:
    """The expected outcome of a step: jobs by status, and GPUs by project and department.

    `pools` and `nodes`: where a job runs, by job. `waits`: the code why a job is pending, by job
    ("": no code). `stops`: the rules of all stops in this step, by job. A value of None is not
    compared.
    """

    running: tuple[str, ...] | None = None
    pending: tuple[str, ...] | None = None
    gpus: dict[str, Decimal] = field(default_factory=dict)
    department_gpus: dict[str, Decimal] = field(default_factory=dict)
    free_gpus: Decimal | None = None
    running_count: Count | None = None
    pending_count: Count | None = None
    pools: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    stops: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a scenario: jobs are deleted and submitted, then cycles run.

    `delete_running_of`: deletes all running jobs of this project.
    `delete_one_of_two_on_the_full_node`: deletes the first of the two jobs on the only full node.
    `after_s`: the time that passes before the first cycle. `cycles`: the number of cycles; None:
    the scenario's number.
    """

    submit: tuple[Job, ...] = ()
    delete: tuple[str, ...] = ()
    delete_running_of: str | None = None
    delete_one_of_two_on_the_full_node: bool = False
    after_s: Count = 0
    cycles: Annotated[int, Field(ge=1, le=1000)] | None = None
    expect: StepExpected


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The settings of a pool with the policy `quota`, and the options of the policy."""

    pool_order: PoolOrder = PoolOrder.IDLE_FIRST
    options: dict[str, Any] = field(default_factory=lambda: {"over_quota": "weight"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentScenario:
    """A series of steps; the outcome of each step is compared after `cycles` cycles."""

    id: str
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    steps: tuple[Step, ...]
    cycles: Annotated[int, Field(ge=1, le=1000, validation_alias="settle_cycles")]
    pools: dict[str, PoolSettings] = field(default_factory=lambda: {POOL: PoolSettings()})
