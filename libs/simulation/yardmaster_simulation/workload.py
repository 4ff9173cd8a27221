"""What a simulated cluster is asked to do: nodes, jobs, how long they run and how they stop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from yardmaster_schemas.events.requests import (
    DepartmentConfig,
    PolicyRef,
    PoolConfig,
    ProjectConfig,
    SubmittedSpec,
)

#: CPU (milli), memory (MiB) and GPU (milli).
Amounts = tuple[int, int, int]
DEFAULT = "default"


def plus(one: Amounts, other: Amounts) -> Amounts:
    """Both together."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def times(one: Amounts, count: int) -> Amounts:
    """So many of one."""
    return one[0] * count, one[1] * count, one[2] * count


@dataclass(frozen=True, slots=True, kw_only=True)
class SimNode:
    """A node that joins at the start."""

    name: str
    gpus: int
    cpu_milli: int
    memory_mib: int
    pool: str = DEFAULT
    node_type: str = "any"

    @property
    def amounts(self) -> Amounts:
        """What it has."""
        return self.cpu_milli, self.memory_mib, self.gpus * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """A job: when it is submitted (ms after the start), by whom, and what its tasks do.

    `runs_ms` has how long each task runs when nothing stops it; None: it never ends by itself.
    """

    submit_ms: int
    spec: SubmittedSpec
    runs_ms: tuple[int | None, ...]
    project: str = DEFAULT

    def at(self, submit_ms: int) -> "SimJob":
        """The same job, submitted then."""
        return replace(self, submit_ms=submit_ms)

    @property
    def amounts(self) -> Amounts:
        """What all its tasks hold together when they run."""
        return times(self.task_amounts, self.spec.tasks)

    @property
    def task_amounts(self) -> Amounts:
        """What one of its tasks holds."""
        resources = self.spec.resources
        one = (resources.cpu_milli, resources.memory_mib, resources.gpu_total_milli)
        return times(one, self.spec.replicas_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How tasks behave.

    A task that is asked to stop uses all of its grace period, saves its state and ends. Between
    stops it saves its state every `checkpoint_every_ms` of its run (None: never), which costs
    `checkpoint_cost_ms` each time; an attempt after the first begins with `restart_cost_ms` of
    work that counts for nothing. `works_in_grace`: what it does while it stops counts.
    `patience_ms`: a job none of whose tasks has started by then is cancelled by its user.
    """

    works_in_grace: bool = False
    checkpoint_every_ms: int | None = None
    checkpoint_cost_ms: int = 0
    restart_cost_ms: int = 0
    patience_ms: int | None = None

    def takes_ms(self, work_ms: int, *, again: bool) -> int:
        """How long an attempt takes for so much work; `again`: it is not the task's first."""
        saves = max(0, work_ms - 1) // self.checkpoint_every_ms if self.checkpoint_every_ms else 0
        return self._overhead_ms(again) + work_ms + saves * self.checkpoint_cost_ms

    def worked_ms(self, after_ms: int, *, again: bool) -> int:
        """How much work an attempt has done after so long."""
        left_ms = max(0, after_ms - self._overhead_ms(again))
        if not self.checkpoint_every_ms:
            return left_ms
        saves, rest_ms = divmod(left_ms, self.checkpoint_every_ms + self.checkpoint_cost_ms)
        return saves * self.checkpoint_every_ms + min(rest_ms, self.checkpoint_every_ms)

    def saved_ms(self, after_ms: int, *, again: bool) -> int:
        """How much of that work is saved when a node fails then."""
        if not self.checkpoint_every_ms:
            return 0
        left_ms = max(0, after_ms - self._overhead_ms(again))
        saves = left_ms // (self.checkpoint_every_ms + self.checkpoint_cost_ms)
        return saves * self.checkpoint_every_ms

    def _overhead_ms(self, again: bool) -> int:
        return self.restart_cost_ms if again else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFaults:
    """Nodes fail after exponentially distributed times and come back, empty, after others."""

    mean_up_ms: int
    mean_down_ms: int


def pool(policy: str = "fifo", placement: str = "best_fit") -> PoolConfig:
    """A pool as simulated ones are: agents there answer at once, or never."""
    return PoolConfig(
        policy=PolicyRef(name=policy),
        placement=placement,
        start_timeout_s=86_400,
        max_grace_s=86_400,
    )


class Arrivals(Protocol):
    """Who submits what, when."""

    @property
    def next_ms(self) -> int | None:
        """When to look again (ms after the start); None: all has been submitted."""

    @property
    def left(self) -> int:
        """Tasks that are not submitted yet."""

    def due(self, now_ms: int, outstanding: Amounts) -> Sequence[SimJob]:
        """What is submitted by now; `outstanding` is what all that has not ended asks for."""


class Listed:
    """Jobs with their submission times, in order."""

    def __init__(self, jobs: Sequence[SimJob]) -> None:
        self._jobs = jobs
        self._next = 0
        self._left = sum(len(job.runs_ms) for job in jobs)

    @property
    def left(self) -> int:
        """Tasks that are not submitted yet."""
        return self._left

    @property
    def next_ms(self) -> int | None:
        """The submission time of the next job."""
        return self._jobs[self._next].submit_ms if self._next < len(self._jobs) else None

    def due(self, now_ms: int, outstanding: Amounts) -> Sequence[SimJob]:
        """All jobs whose time has come."""
        first = self._next
        while self._next < len(self._jobs) and self._jobs[self._next].submit_ms <= now_ms:
            self._left -= len(self._jobs[self._next].runs_ms)
            self._next += 1
        return self._jobs[first : self._next]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Nodes, jobs in order of submission, and how both behave; `source` says where it is from.

    `pools` is how its pools are configured where a run says nothing else.
    """

    name: str
    nodes: tuple[SimNode, ...]
    jobs: Sequence[SimJob]
    behaviour: Behaviour = Behaviour()
    faults: NodeFaults | None = None
    projects: Mapping[str, ProjectConfig] = field(default_factory=dict)
    departments: Mapping[str, DepartmentConfig] = field(default_factory=dict)
    #: Between decisions (ms); 0: after every event.
    cadence_ms: int = 0
    pools: Mapping[str, PoolConfig] = field(default_factory=lambda: {DEFAULT: pool()})
    source: str = ""

    @property
    def capacity(self) -> Amounts:
        """What all nodes have together."""
        cpu, memory, gpu = zip(*(node.amounts for node in self.nodes), strict=True)
        return sum(cpu), sum(memory), sum(gpu)
