"""Workloads of simulated clusters: nodes, jobs, the durations of tasks and how tasks stop."""

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
from yardmaster_simulation.errors import BadOrganization

#: Amounts of resources: CPU (milli), memory (MiB), GPU (milli).
Amounts = tuple[int, int, int]
DEFAULT = "default"


def plus(one: Amounts, other: Amounts) -> Amounts:
    """The sum of two amounts."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def times(one: Amounts, count: int) -> Amounts:
    """A multiple of an amount."""
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
        """The node's capacity."""
        return self.cpu_milli, self.memory_mib, self.gpus * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """A job with its submission time (ms after the start of the run), project, spec and durations.

    `runs_ms`: how long each task runs if nothing stops it; None: it never ends by itself. `user`:
    the id of the user who submits it; None: the user of all jobs without one.
    """

    submit_ms: int
    spec: SubmittedSpec
    runs_ms: tuple[int | None, ...]
    project: str = DEFAULT
    user: str | None = None

    def at(self, submit_ms: int) -> "SimJob":
        """The same job with another submission time."""
        return replace(self, submit_ms=submit_ms)

    @property
    def amounts(self) -> Amounts:
        """The resources of all tasks of the job together."""
        return times(self.task_amounts, self.spec.tasks)

    @property
    def task_amounts(self) -> Amounts:
        """The resources of one task of the job."""
        resources = self.spec.resources
        one = (resources.cpu_milli, resources.memory_mib, resources.gpu_total_milli)
        return times(one, self.spec.replicas_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """How tasks behave.

    After a stop request, a task uses its whole grace period, saves its state and ends. A task also
    saves its state after every `checkpoint_every_ms` of work (None: never); each save takes
    `checkpoint_cost_ms`. Every attempt after the first begins with `restart_cost_ms` without
    progress. `works_in_grace`: whether work during the grace period counts as progress.
    `patience_ms`: the user cancels a job if none of its tasks has started after this time.
    """

    works_in_grace: bool = False
    checkpoint_every_ms: int | None = None
    checkpoint_cost_ms: int = 0
    restart_cost_ms: int = 0
    patience_ms: int | None = None

    def takes_ms(self, work_ms: int, *, again: bool) -> int:
        """Duration of an attempt with `work_ms` of work; `again`: it is not the first attempt."""
        saves = max(0, work_ms - 1) // self.checkpoint_every_ms if self.checkpoint_every_ms else 0
        return self._overhead_ms(again) + work_ms + saves * self.checkpoint_cost_ms

    def worked_ms(self, after_ms: int, *, again: bool) -> int:
        """Work that an attempt has done after `after_ms`."""
        left_ms = max(0, after_ms - self._overhead_ms(again))
        if not self.checkpoint_every_ms:
            return left_ms
        saves, rest_ms = divmod(left_ms, self.checkpoint_every_ms + self.checkpoint_cost_ms)
        return saves * self.checkpoint_every_ms + min(rest_ms, self.checkpoint_every_ms)

    def saved_ms(self, after_ms: int, *, again: bool) -> int:
        """Work that is saved if a node fails after `after_ms` of an attempt."""
        if not self.checkpoint_every_ms:
            return 0
        left_ms = max(0, after_ms - self._overhead_ms(again))
        saves = left_ms // (self.checkpoint_every_ms + self.checkpoint_cost_ms)
        return saves * self.checkpoint_every_ms

    def _overhead_ms(self, again: bool) -> int:
        return self.restart_cost_ms if again else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFaults:
    """The mean times until a node fails and until it rejoins without tasks.

    The times are distributed exponentially.
    """

    mean_up_ms: int
    mean_down_ms: int


def pool(policy: str = "fifo", placement: str = "best_fit") -> PoolConfig:
    """A pool configuration for simulations, where agents answer at once or never."""
    return PoolConfig(
        policy=PolicyRef(name=policy),
        placement=placement,
        start_timeout_s=86_400,
        max_grace_s=86_400,
    )


class Arrivals(Protocol):
    """The submissions of a run over time."""

    @property
    def next_ms(self) -> int | None:
        """Next time to call `due` (ms after the start); None: all jobs were submitted."""

    @property
    def left(self) -> int:
        """Number of tasks that are not submitted yet."""

    def due(self, now_ms: int, outstanding: Amounts) -> Sequence[SimJob]:
        """The jobs to submit now; `outstanding`: the resources of all open tasks."""


class Listed:
    """Jobs with their submission times, in order."""

    def __init__(self, jobs: Sequence[SimJob]) -> None:
        self._jobs = jobs
        self._next = 0
        self._left = sum(len(job.runs_ms) for job in jobs)

    @property
    def left(self) -> int:
        """Number of tasks that are not submitted yet."""
        return self._left

    @property
    def next_ms(self) -> int | None:
        """The submission time of the next job."""
        return self._jobs[self._next].submit_ms if self._next < len(self._jobs) else None

    def due(self, now_ms: int, outstanding: Amounts) -> Sequence[SimJob]:
        """All jobs with a submission time up to now."""
        first = self._next
        while self._next < len(self._jobs) and self._jobs[self._next].submit_ms <= now_ms:
            self._left -= len(self._jobs[self._next].runs_ms)
            self._next += 1
        return self._jobs[first : self._next]


@dataclass(frozen=True, slots=True, kw_only=True)
class Organization:
    """Configurations of pools, departments and projects that replace those of a workload."""

    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    departments: Mapping[str, DepartmentConfig] = field(default_factory=dict)
    projects: Mapping[str, ProjectConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Nodes, jobs in order of submission, and the behavior of both; `source` describes its origin.

    `pools`: configurations of the pools, unless a run overrides them.
    """

    name: str
    nodes: tuple[SimNode, ...]
    jobs: Sequence[SimJob]
    behavior: Behavior = Behavior()
    faults: NodeFaults | None = None
    projects: Mapping[str, ProjectConfig] = field(default_factory=dict)
    departments: Mapping[str, DepartmentConfig] = field(default_factory=dict)
    #: Milliseconds between decisions; 0: decide after every event.
    cadence_ms: int = 0
    pools: Mapping[str, PoolConfig] = field(default_factory=lambda: {DEFAULT: pool()})
    source: str = ""

    def organized(self, by: Organization) -> "Workload":
        """The same workload with the configurations of `by`; objects that it does not name stay.

        Raises: BadOrganization: `by` names a pool that the workload does not have.
        """
        for name in sorted(by.pools.keys() - self.pools.keys()):
            raise BadOrganization(request="PoolChangeRequested", code="pool_unknown", about=name)
        return replace(
            self,
            pools={**self.pools, **by.pools},
            departments={**self.departments, **by.departments},
            projects={**self.projects, **by.projects},
        )

    @property
    def capacity(self) -> Amounts:
        """The capacity of all nodes together."""
        cpu, memory, gpu = zip(*(node.amounts for node in self.nodes), strict=True)
        return sum(cpu), sum(memory), sum(gpu)
