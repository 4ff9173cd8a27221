"""The cluster of a KAI scenario, built in a `Cell` from events.

KAI resolves ties among nodes by name, among queues by creation and among jobs by age. The core
resolves ties by the order in which it learned of nodes, queues and jobs. So that both resolve ties
alike, names become numbers in KAI's order, and the core gets its inputs in this order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from yardmaster_core.testing import DETAILS, Cell, admitted_spec
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import (
    CancelAcceptedV1,
    EntitlementsChangedV1,
    Level,
    TaskAdmittedV1,
)
from yardmaster_schemas.events.requests import DepartmentConfig, ProjectConfig
from yardmaster_simulation.conformance.kai_form import POOL, Job, Node, Queue
from yardmaster_simulation.conformance.kai_terms import Units, kind_of, quota_of, resources_of
from yardmaster_simulation.conformance.scenarios import Skip


class KaiCluster:
    """Builds one cluster, and knows the scenario's names of its nodes, queues and jobs."""

    def __init__(self, units: Units, priorities: Mapping[int, int], **pool: Any) -> None:
        self.cell = Cell(**pool)
        self.units = units
        self._priorities = priorities
        self._nodes: dict[str, str] = {}
        self._node_types: dict[str, str] = {}
        self._queues: dict[str, tuple[Queue, str]] = {}
        #: The rank of each priority of a queue.
        self._ranks: dict[int, int] = {}
        #: The admitted jobs by name, with their ids.
        self.jobs: dict[str, tuple[Job, str]] = {}

    # Inputs

    def join(self, nodes: Iterable[Node]) -> None:
        """Let the nodes join, in the order of their names."""
        for number, node in enumerate(sorted(nodes, key=lambda node: node.name)):
            name = self._nodes[node.name] = f"node-{number}"
            self.cell.node(
                name,
                pool=node.pool,
                gpus=node.gpus,
                node_type=self._node_type(node.node_type),
                gpu_memory_mib=node.gpu_memory_mib,
                cpu_milli=node.cpu_millis,
                memory_mib=self.units.memory_mib(node.mem_bytes),
            )

    def configure(self, queues: Iterable[Queue]) -> None:
        """Configure departments, then projects, each in the order of their creation."""
        ordered = sorted(_in_departments(queues), key=lambda each: (each.created_seq, each.name))
        self._ranks = {
            priority: rank for rank, priority in enumerate(sorted({q.priority for q in ordered}))
        }
        for number, queue in enumerate(ordered):
            level = Level.PROJECT if queue.kind == "project" else Level.DEPARTMENT
            self._queues[queue.name] = (queue, f"{level}-{number}")
        for queue in ordered:
            if queue.kind != "project":
                self._configure_department(queue)
        for queue in ordered:
            if queue.kind == "project":
                self._configure_project(queue)

    def submit(self, job: Job, *, submitted_ms: int) -> str:
        """Admit a job as one task with a replica for each pod of the job; return the job's id."""
        if job.name in self.jobs:
            raise Skip(f"two jobs have the name {job.name}")
        job_id = f"{len(self.jobs) + 1:012d}"
        self.jobs[job.name] = (job, job_id)
        queue, project = self._queue(job.project)
        first = job.tasks[0]
        spec = admitted_spec(
            kind=kind_of(job),
            preemptible=job.preemptible,
            pools=job.pools,
            min_runtime_s=job.min_runtime_s,
            priority=self._priorities[job.priority],
            resources=resources_of(first, self.units),
            node_types=tuple(sorted(map(self._node_type, first.allowed_node_types))),
            replicas_min=len(job.tasks),
            replicas_max=len(job.tasks),
        )
        self.cell.admission(
            TaskAdmittedV1(
                job_id=job_id,
                project=project,
                department=self._queue(queue.parent)[1],
                spec=spec,
                submitted_at_ms=submitted_ms,
                details=DETAILS,
            )
        )
        return job_id

    def cancel(self, name: str) -> None:
        """Cancel a job."""
        self.cell.admission(CancelAcceptedV1(job_id=self.job_id(name)))

    def _configure_department(self, queue: Queue) -> None:
        parent = None if queue.parent is None else self._queue(queue.parent)[1]
        config = DepartmentConfig(parent=parent, **self._settings(queue))
        self._entitle(queue, Level.DEPARTMENT, department=config)

    def _configure_project(self, queue: Queue) -> None:
        config = ProjectConfig(department=self._queue(queue.parent)[1], **self._settings(queue))
        self._entitle(queue, Level.PROJECT, project=config)

    def _entitle(self, queue: Queue, level: Level, **config: Any) -> None:
        name = self._queue(queue.name)[1]
        self.cell.admission(EntitlementsChangedV1(level=level, name=name, revision=1, **config))

    def _settings(self, queue: Queue) -> dict[str, Any]:
        by_pool = {POOL: queue} if queue.quotas is None else queue.quotas
        quotas = {pool: quota_of(quota, self.units) for pool, quota in by_pool.items()}
        settings: dict[str, Any] = {"quotas": quotas, "rank": self._ranks[queue.priority]}
        for name in ("reclaim_min_runtime_s", "preempt_min_runtime_s"):
            seconds = getattr(queue, name)
            if seconds is not None:
                settings[name] = round(seconds)
        return settings

    def _queue(self, name: str | None) -> tuple[Queue, str]:
        found = None if name is None else self._queues.get(name)
        if found is None:
            raise Skip(f"{name or 'the parent of a project'} is no queue of the scenario")
        return found

    def _node_type(self, name: str) -> str:
        return self._node_types.setdefault(name, f"type-{len(self._node_types)}")

    # Agents

    def play_agents(self, *, keep: Iterable[str] = ()) -> None:
        """Report, as the agents do after a cycle, that started tasks run and stopped tasks ended.

        Stopped tasks of the jobs in `keep` do not end, so they keep their slots.
        """
        kept = {self.job_id(name) for name in keep}
        cell = self.cell
        for task in list(cell.state.tasks.values()):
            run = task.run
            if run is None:
                continue
            if run.stop is not None:
                if task.job.id not in kept:
                    cell.ends(task.job.id)
            elif not run.started:
                cell.starts(task.job.id)

    def cycle(self, *, after_s: float = 0) -> list[Event]:
        """Run a cycle; return its decisions.

        Raises:
            AssertionError: the core refused an input of this class, which is a fault of the tests.
        """
        decided = self.cell.cycle(after_s=after_s)
        assert not self.cell.refused, f"refused: {self.cell.refused[:3]}"
        return decided

    # Names

    def job_id(self, name: str) -> str:
        """Return the id of a job."""
        return self.jobs[name][1]

    def node_id(self, name: str) -> str:
        """Return the core's name of a node."""
        found = self._nodes.get(name)
        if found is None:
            raise Skip(f"{name} is no node of the scenario")
        return found

    @property
    def node_names(self) -> dict[str, str]:
        """The scenario's names of nodes, by the core's names."""
        return {known: name for name, known in self._nodes.items()}

    def queue_id(self, name: str) -> str:
        """Return the core's name of a queue."""
        return self._queue(name)[1]

    def names_of(self, job_ids: Sequence[str]) -> list[str]:
        """Return the names of jobs."""
        known = {job_id: name for name, (_, job_id) in self.jobs.items()}
        return [known[job_id] for job_id in job_ids]


def _in_departments(queues: Iterable[Queue]) -> Iterator[Queue]:
    """Yield the queues so that each project has a department.

    A project at the top gets a department of its own with the same settings.
    """
    for queue in queues:
        if queue.kind == "project" and queue.parent is None:
            above = replace(queue, name=f"{queue.name}, above", kind="department")
            yield above
            yield replace(queue, parent=above.name)
        else:
            yield queue
