"""The initial state of a KAI scenario's jobs, recorded as decisions and reports.

Some of these states cannot result from a decision of the core, for example a task whose reserved
slots are all unused. Such states are recorded like facts that an earlier leader left in the log.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from yardmaster_core.testing import DETAILS
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import (
    Outcome,
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    SlotsReservedV1,
    StopRequestedV1,
    TaskEndedV1,
)
from yardmaster_schemas.reasons import EndCode, PolicyStop, Start, Stop, StopCode
from yardmaster_schemas.resources import Resources, fraction_of
from yardmaster_simulation.conformance.kai_cluster import KaiCluster
from yardmaster_simulation.conformance.kai_form import (
    ENDED,
    HOLDING,
    PLACED,
    POOL,
    Job,
    Status,
    Task,
)
from yardmaster_simulation.conformance.kai_terms import Units, resources_of
from yardmaster_simulation.conformance.scenarios import Skip

INCARNATION: Final = "0" * 12
#: The grace period of stopped tasks, in seconds; it is longer than a scenario.
GRACE_S: Final = 3600
RULE: Final = "recorded"


class Slots:
    """The unused slots of each node; `share` and `whole` take slots for the initial tasks."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._unused = {node: list(range(size)) for node, size in sizes.items()}
        self._groups: dict[tuple[str, str], int] = {}

    def share(self, node: str, group: str) -> int:
        """Return the slot of a group of tasks that share a GPU, and mark it as used.

        The slot is the one with the group's number if it is unused, else the first unused one.
        """
        slot = self._groups.get((node, group))
        if slot is None:
            unused = self._unused[node]
            number = int(group) if group.isdecimal() else -1
            if number in unused:
                unused.remove(number)
                slot = number
            else:
                slot = self.whole(node)
            self._groups[node, group] = slot
        return slot

    def whole(self, node: str) -> int:
        """Return the first unused slot, and mark it as used."""
        if not self._unused[node]:
            raise Skip(f"more GPUs are in use than {node} has")
        return self._unused[node].pop(0)

    def release(self, node: str, slots: Iterable[int]) -> None:
        """Mark these slots as unused; they are used before the other unused slots."""
        self._unused[node] = sorted(slots) + self._unused[node]


def place(jobs: Iterable[Job], sizes: Mapping[str, int], units: Units) -> dict[str, list[int]]:
    """Return the slots of each task that is on a node from the start, by the task's name.

    `sizes`: the number of GPUs of each node. A task with reserved slots gets the slots that
    terminating tasks release, then unused slots.
    """
    slots = Slots(sizes)
    placed = [task for job in jobs for task in job.tasks if task.state in PLACED - ENDED]
    # Tasks with parts of GPUs come first, because the names of their groups choose their slots.
    placed.sort(key=lambda task: not task.shares_gpus)
    holding = [task for task in placed if task.state in HOLDING]
    found = {task.name: _slots_of(task, slots, sizes, units) for task in holding}
    for task in holding:
        if task.state is Status.TERMINATING and task.node and not task.shares_gpus:
            slots.release(task.node, found[task.name])
    reserved = (task for task in placed if task.state is Status.PIPELINED)
    return found | {task.name: _slots_of(task, slots, sizes, units) for task in reserved}


def _slots_of(task: Task, slots: Slots, sizes: Mapping[str, int], units: Units) -> list[int]:
    node = task.node
    if node is None or node not in sizes:
        raise Skip(f"{task.name} is {task.state}, but on no node of the scenario")
    gpus = resources_of(task, units).gpus
    if not task.shares_gpus:
        return sorted(slots.whole(node) for _ in range(gpus))
    groups = (*task.gpu_groups, *(f"{task.name}.{number}" for number in range(gpus)))
    return sorted(slots.share(node, group) for group in groups[:gpus])


def record(
    cluster: KaiCluster, jobs: Sequence[Job], sizes: Mapping[str, int], *, requeued: Iterable[str]
) -> None:
    """Record the initial state of submitted jobs: first the allocations, then all other facts.

    Of the terminating jobs, those in `requeued` become pending again, and the others end.
    """
    preempted = frozenset(requeued)
    slots = place(jobs, sizes, cluster.units)
    cell = cluster.cell
    cell.record_cycle(
        _allocated(cluster, job, slots) for job in jobs if job.status in HOLDING | ENDED
    )
    later: list[Event] = []
    for job in jobs:
        job_id = cluster.job_id(job.name)
        if job.status in HOLDING | ENDED:
            cell.starts(job_id)
        if job.status in ENDED:
            failed = job.status is Status.FAILED
            cell.ends(job_id, exit_code=int(failed))
            later.append(_ended(job_id, Outcome.FAILED if failed else Outcome.SUCCEEDED))
        elif job.status is Status.PIPELINED:
            later.append(_reserved(cluster, job, slots))
        elif job.status is not Status.RUNNING and job.status in HOLDING:
            later.append(_stopped(cluster, job, requeued=job.name in preempted))
    cell.record_cycle(later)


def _allocated(
    cluster: KaiCluster, job: Job, slots: Mapping[str, Sequence[int]]
) -> SlotsAllocatedV1:
    return SlotsAllocatedV1(
        task_id=f"{cluster.job_id(job.name)}.0",
        attempt=1,
        pool=POOL,
        project=cluster.queue_id(job.project),
        tasks=1,
        placements=_placements(cluster, job, slots),
        master_port=None,
        details=DETAILS,
        checkpoint=None,
        start=Start(rule=RULE),
        grace_s=GRACE_S,
    )


def _reserved(cluster: KaiCluster, job: Job, slots: Mapping[str, Sequence[int]]) -> SlotsReservedV1:
    return SlotsReservedV1(
        task_id=f"{cluster.job_id(job.name)}.0",
        attempt=1,
        pool=POOL,
        placements=_placements(cluster, job, slots),
    )


def _placements(
    cluster: KaiCluster, job: Job, slots: Mapping[str, Sequence[int]]
) -> tuple[Placement, ...]:
    resources = resources_of(job.tasks[0], cluster.units)
    return tuple(
        _placement(cluster, replica, task.node, slots.get(task.name, ()), resources)
        for replica, task in enumerate(job.tasks)
    )


def _placement(
    cluster: KaiCluster,
    replica: int,
    node: str | None,
    slots: Sequence[int],
    resources: Resources,
) -> Placement:
    if node is None:
        raise Skip("a task has run, but on no node of the scenario")
    known = cluster.cell.state.nodes[cluster.node_id(node)]
    gpu_milli = resources.gpu_milli
    if resources.gpu_memory_mib:
        gpu_milli = fraction_of(resources.gpu_memory_mib, known.gpu_memory_mib)
    return Placement(
        replica=replica,
        node=known.name,
        incarnation=INCARNATION,
        address="127.0.0.1",
        slots=tuple(slots),
        gpu_milli=gpu_milli if slots else 0,
        cpu_milli=resources.cpu_milli,
        memory_mib=resources.memory_mib,
        gpu_memory_mib=resources.gpu_memory_mib,
    )


def _stopped(cluster: KaiCluster, job: Job, *, requeued: bool) -> Event:
    """Return the stop of a job: a preemption if `requeued`, else a cancellation by its user.

    If the job is stuck while terminating, the deadline of the stop has passed.
    """
    stuck = job.status is Status.STUCK_TERMINATING
    nodes = dict.fromkeys(cluster.node_id(task.node) for task in job.tasks if task.node)
    attempt: dict[str, Any] = {
        "task_id": f"{cluster.job_id(job.name)}.0",
        "attempt": 1,
        "nodes": tuple(nodes),
        "grace_s": 0 if stuck else GRACE_S,
        "deadline_at_ms": cluster.cell.now_ms + (0 if stuck else GRACE_S * 1000),
    }
    if requeued:
        stop = PolicyStop(policy="quota", rule=RULE)
        return PreemptionRequestedV1(stop=stop, **attempt)
    cluster.cancel(job.name)
    return StopRequestedV1(stop=Stop(code=StopCode.CANCELLED), **attempt)


def _ended(job_id: str, outcome: Outcome) -> TaskEndedV1:
    exit_code = int(outcome is Outcome.FAILED)
    return TaskEndedV1(
        task_id=f"{job_id}.0", attempt=1, outcome=outcome, code=EndCode.EXIT, exit_code=exit_code
    )
