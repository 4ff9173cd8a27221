"""The cluster of a scenario, built in a `Cell` from events, and the decisions of its next cycle.

Nodes join, jobs are admitted, and recorded decisions allocate the slots of running tasks. The cell
thus reaches its state as a standby does before a takeover, and then decides one cycle.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from yardmaster_core.testing import DETAILS, ONE_RUN, START_MS, Cell, admitted_spec
from yardmaster_schemas.events.admissions import TaskAdmittedV1
from yardmaster_schemas.events.decisions import (
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
)
from yardmaster_schemas.events.node_events import TaskStartedV1
from yardmaster_schemas.reasons import Start
from yardmaster_schemas.resources import Resources

#: The CPU of each node, in multiples of the CPU that a task without GPUs requests; it never runs
#: out.
PLENTY: Final = 100_000
CPU_MILLI: Final = 1
INCARNATION: Final = "0" * 12


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions of a cycle: tasks that start, with their nodes, and preempted tasks."""

    starts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stops: frozenset[str] = frozenset()


class ScenarioCluster:
    """Builds one cluster; callers use the scenario's names of nodes, projects and tasks."""

    def __init__(self, **pool: Any) -> None:
        self.cell = Cell(**pool)
        self._nodes: dict[str, str] = {}
        self._projects: dict[str, str] = {}
        #: Task id -> the scenario's name, and name -> task id.
        self._tasks: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._jobs = 0
        #: Number of allocated slots by node.
        self._taken: dict[str, int] = {}
        self._allocated: list[SlotsAllocatedV1] = []
        self._cordoned: list[str] = []

    def nodes(self, names: Iterable[str]) -> None:
        """Give the core's names to all nodes before the first join.

        The order of joins then does not change the names.
        """
        self._nodes = {name: f"node-{number}" for number, name in enumerate(names)}

    def joins(self, name: str, gpus: int) -> None:
        """Join a node."""
        self.cell.node(self._nodes[name], gpus=gpus, cpu_milli=PLENTY * CPU_MILLI)

    def cordon(self, name: str) -> None:
        """Cordon a node: its tasks keep running, and no task starts there."""
        self._cordoned.append(self._nodes[name])

    def project(self, name: str, *, weight: int = 1, most_gpus: int | None = None) -> None:
        """Configure a project's weight and its limit on GPUs."""
        known = self._projects.setdefault(name, f"project-{len(self._projects)}")
        limit_milli = None if most_gpus is None else most_gpus * 1000
        self.cell.entitle(known, weight=weight, limit_milli=limit_milli)

    def job(
        self,
        tasks: Sequence[str],
        *,
        gpus: int,
        submitted: int,
        project: str | None = None,
        avoid: Iterable[str] = (),
        **spec: Any,
    ) -> None:
        """Admit a job of equal tasks; `submitted` only orders the jobs."""
        self._jobs += 1
        job_id = f"{self._jobs:012d}"
        for index, name in enumerate(tasks):
            self._tasks[f"{job_id}.{index}"] = name
            self._ids[name] = f"{job_id}.{index}"
        resources = Resources(
            gpus=gpus, gpu_milli=1000 if gpus else 0, cpu_milli=0 if gpus else CPU_MILLI
        )
        avoided = sorted(self._nodes[name] for name in avoid if name in self._nodes)
        self.cell.admission(
            TaskAdmittedV1(
                job_id=job_id,
                project="p" if project is None else self._projects[project],
                department="d",
                spec=admitted_spec(
                    resources=resources,
                    tasks=len(tasks),
                    avoid_nodes=tuple(avoided),
                    **spec,
                ),
                submitted_at_ms=START_MS + submitted,
                details=DETAILS,
            )
        )

    def stays(self, name: str, held: Sequence[tuple[str, int]]) -> None:
        """Run a gang that cannot be preempted; `held` has node and slots of each replica."""
        self.job(
            [name],
            gpus=held[0][1],
            submitted=0,
            preemptible=False,
            priority=1,
            replicas_min=len(held),
            replicas_max=len(held),
        )
        self.runs(name, held)

    def runs(self, task: str, held: Iterable[tuple[str, int]]) -> None:
        """Run a task; `held` has node and slots of each replica."""
        placements = []
        for replica, (name, gpus) in enumerate(held):
            first = self._taken.get(name, 0)
            self._taken[name] = first + gpus
            placements.append(
                Placement(
                    replica=replica,
                    node=self._nodes[name],
                    incarnation=INCARNATION,
                    address="127.0.0.1",
                    slots=tuple(range(first, first + gpus)),
                    gpu_milli=1000 if gpus else 0,
                    cpu_milli=0 if gpus else CPU_MILLI,
                    memory_mib=0,
                )
            )
        self._allocated.append(
            SlotsAllocatedV1(
                task_id=self._ids[task],
                attempt=1,
                pool="main",
                project="p",
                tasks=1,
                placements=tuple(placements),
                master_port=None,
                details=DETAILS,
                checkpoint=None,
                start=Start(rule="recorded"),
                grace_s=30,
            )
        )

    def decide(self) -> Decided:
        """Run the next cycle and return its decisions."""
        cell = self.cell
        cell.record_cycle(self._allocated)
        for allocated in self._allocated:
            for placement in allocated.placements:
                cell.claim(
                    TaskStartedV1(
                        task_id=allocated.task_id,
                        attempt=1,
                        replica=placement.replica,
                        node=placement.node,
                        incarnation=INCARNATION,
                        run=ONE_RUN,
                    )
                )
        for node in self._cordoned:
            cell.cordon(node)
        named = {known: name for name, known in self._nodes.items()}
        starts: dict[str, tuple[str, ...]] = {}
        stops: set[str] = set()
        for event in cell.cycle():
            if isinstance(event, SlotsAllocatedV1):
                on = dict.fromkeys(named[placement.node] for placement in event.placements)
                starts[self._tasks[event.task_id]] = tuple(on)
            elif isinstance(event, PreemptionRequestedV1 | StopRequestedV1):
                stops.add(self._tasks[event.task_id])
        return Decided(starts, frozenset(stops))
