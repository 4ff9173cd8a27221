"""The outcome of a scenario in KAI's terms, and how it differs from the expected one.

After one action of KAI's cycle, a task is `allocated` on idle resources, `nominated` for resources
that other tasks release, `moved` if it was stopped and nominated, or `evicted`. After whole cycles,
a task is `running`, `pending` or `terminating`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import (
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    SlotsReservedV1,
    StopRequestedV1,
)
from yardmaster_simulation.conformance.kai_cluster import KaiCluster
from yardmaster_simulation.conformance.kai_form import (
    ENDED,
    Expected,
    ExpectedNode,
    ExpectedStanding,
    Job,
    Status,
)
from yardmaster_simulation.conformance.kai_terms import WHOLE

#: Statuses in which the GPUs of a task count as allocated.
ALLOCATED: Final = frozenset({Status.RUNNING, Status.ALLOCATED})


@dataclass(frozen=True, slots=True)
class Standing:
    """The status that all replicas of a job have, and the node of each replica, if any."""

    status: Status
    nodes: tuple[str | None, ...]
    gpu_milli: int
    #: Whether the core's state contains the reason why the job is pending.
    has_reason: bool = False

    def __str__(self) -> str:
        nodes = ", ".join(dict.fromkeys(node for node in self.nodes if node is not None))
        return f"{self.status} on {nodes}" if nodes else str(self.status)


# Standings


def after_action(
    cluster: KaiCluster, jobs: Iterable[Job], decided: Iterable[Event]
) -> dict[str, Standing]:
    """Return the standing of each job by the decisions of the cycle that ran one action."""
    decisions = _Decisions(decided)
    return {
        job.name: _standing(cluster, job, *decisions.of(f"{cluster.job_id(job.name)}.0", job))
        for job in jobs
    }


def after_cycles(cluster: KaiCluster, jobs: Iterable[Job]) -> dict[str, Standing]:
    """Return the standing of each job after whole cycles, before the agents act."""
    tasks = cluster.cell.state.tasks
    return {
        job.name: _standing(
            cluster, job, *_after_cycle(tasks.get(f"{cluster.job_id(job.name)}.0"), job)
        )
        for job in jobs
    }


class _Decisions:
    """The decisions of a cycle by task."""

    def __init__(self, decided: Iterable[Event]) -> None:
        self.starts: dict[str, tuple[Placement, ...]] = {}
        self.reserved: dict[str, tuple[Placement, ...]] = {}
        self.stopped: set[str] = set()
        for event in decided:
            if isinstance(event, SlotsAllocatedV1):
                self.starts[event.task_id] = event.placements
            elif isinstance(event, SlotsReservedV1):
                self.reserved[event.task_id] = event.placements
            elif isinstance(event, PreemptionRequestedV1 | StopRequestedV1):
                self.stopped.add(event.task_id)

    def of(self, task_id: str, job: Job) -> tuple[Status, tuple[Placement, ...] | None]:
        """Return the status of a task, and its placements; None: the initial placements."""
        if task_id in self.starts:
            return Status.ALLOCATED, self.starts[task_id]
        reserved = self.reserved.get(task_id)
        if task_id in self.stopped:
            return (Status.EVICTED, None) if reserved is None else (Status.MOVED, reserved)
        if reserved is not None:
            return Status.NOMINATED, reserved
        return Status.NOMINATED if job.status is Status.PIPELINED else job.status, None


def _after_cycle(task: Task | None, job: Job) -> tuple[Status, tuple[Placement, ...] | None]:
    """The status and placements of a task in the state after a cycle; None: it has ended."""
    if task is None:
        return job.status if job.status in ENDED else Status.SUCCEEDED, ()
    run = task.run
    if run is None:
        return Status.PENDING, ()
    if run.stop is None:
        return Status.RUNNING, run.placements
    if job.status is Status.STUCK_TERMINATING:
        return Status.STUCK_TERMINATING, run.placements
    return (Status.TERMINATING, run.placements) if job.keeps_terminating else (Status.PENDING, ())


def _standing(
    cluster: KaiCluster, job: Job, status: Status, placements: tuple[Placement, ...] | None
) -> Standing:
    """Return the standing of a job.

    `placements` is None if the job's tasks are still on the nodes of the initial state.
    """
    if placements is None and status is not Status.PENDING:
        nodes = tuple(task.node for task in job.tasks)
    else:
        named = cluster.node_names
        nodes = tuple(named[placement.node] for placement in placements or ())
        nodes = nodes or (None,) * len(job.tasks)
    known = cluster.cell.state.jobs.get(cluster.job_id(job.name))
    if known is None:
        return Standing(status, nodes, 0)
    group = known.tasks[0].group
    return Standing(
        status,
        nodes,
        _gpu_milli(known.tasks[0]) if status in ALLOCATED else 0,
        has_reason=group is not None and bool(group.waits),
    )


def _gpu_milli(task: Task) -> int:
    """The GPUs that a task requests; if it requests GPU memory, the GPUs of its placement."""
    if not task.job.shape.gpu_memory_mib:
        return task.job.shape.total_gpu_milli
    placed = task.run or task.reserved
    return sum(p.gpu_milli * len(p.slots) for p in placed.placements) if placed is not None else 0


# Comparison


def differences(
    cluster: KaiCluster, jobs: Iterable[Job], expected: Expected, found: Mapping[str, Standing]
) -> list[str]:
    """Return how the outcome differs from the expected one, one text per job or node."""
    differing = [_of_job(name, each, found) for name, each in expected.jobs.items()]
    for job in jobs:
        named = {
            task.name: expected.tasks[task.name]
            for task in job.tasks
            if task.name in expected.tasks
        }
        differing.append(_of_tasks(job, named, found[job.name]))
    state = cluster.cell.state
    for name, node in expected.nodes.items():
        differing.append(_of_node(name, node, state.nodes[cluster.node_id(name)]))
    return [each for each in differing if each]


def _of_job(name: str, expected: ExpectedStanding, found: Mapping[str, Standing]) -> str:
    standing = found.get(name)
    if standing is None:
        return f"{name} is no job of the scenario"
    # KAI's tests also name nodes of pending tasks: the nodes of the initial state, which are not
    # compared.
    anywhere = expected.node is None or expected.status is Status.PENDING
    if standing.status is not expected.status or not (
        anywhere or set(standing.nodes) == {expected.node}
    ):
        return f"{name}: {standing} instead of {_shown(expected)}"
    if expected.must_report_reason and not standing.has_reason:
        return f"{name}: no reason why it is pending"
    gpus = expected.gpus_allocated
    if gpus is None or round(gpus * WHOLE) == standing.gpu_milli:
        return ""
    return f"{name}: {Decimal(standing.gpu_milli) / WHOLE} GPUs allocated instead of {gpus}"


def _of_tasks(job: Job, expected: Mapping[str, ExpectedStanding], standing: Standing) -> str:
    """Compare the tasks of a job without their names, because the tasks of a job are equal."""
    left = Counter(standing.nodes)
    # Expectations with a node come first, because the others match a task on any node.
    for each in sorted(expected.values(), key=lambda each: each.node is None):
        anywhere = each.node is None or each.status is Status.PENDING
        node = next(iter(+left), None) if anywhere else each.node
        if each.status is not standing.status or not left[node]:
            wanted = ", ".join(f"{name} {_shown(one)}" for name, one in expected.items())
            return f"{job.name}: {standing} instead of {wanted}"
        left[node] -= 1
    return ""


def _shown(expected: ExpectedStanding) -> str:
    return str(expected.status) + (f" on {expected.node}" if expected.node is not None else "")


def _of_node(name: str, expected: ExpectedNode, node: Node) -> str:
    idle, releasing = gpus_of(node)
    wanted = (expected.idle_gpus, expected.releasing_gpus)
    if all(
        want is None or want == found for want, found in zip(wanted, (idle, releasing), strict=True)
    ):
        return ""
    return (
        f"{name}: {idle} GPUs idle and {releasing} releasing instead of {wanted[0]} and {wanted[1]}"
    )


def gpus_of(node: Node) -> tuple[int, int]:
    """Return how many GPUs of a node are unused, and how many are released by all their tasks."""
    releasing: dict[int, bool] = {}
    for replica, task in _holders(node):
        assert task.run is not None
        for slot in task.run.placements[replica].slots:
            releasing[slot] = releasing.get(slot, True) and task.releasing
    return node.gpus - len(releasing), sum(releasing.values())


def _holders(node: Node) -> Iterator[tuple[int, Task]]:
    for (_, replica), task in node.open.items():
        yield replica, task
