"""Cells for measurements: nodes and admitted jobs applied to a state, as replay does."""

from collections.abc import Iterable
from typing import Any

from yardmaster_core.machine import CycleResult
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.testing import DETAILS, ONE_RUN, START_MS, admitted_spec
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import AdmittedSpec, PoolConfiguredV1, TaskAdmittedV1
from yardmaster_schemas.events.node_events import (
    NodeJoinedV1,
    SlotsReleasedV1,
    TaskExitedV1,
    TaskStartedV1,
)
from yardmaster_schemas.events.requests import PolicyRef, PoolConfig
from yardmaster_schemas.sources import agent_source

MACHINE = SchedulerMachine()

#: Events, each with the identity of its record.
Events = list[tuple[Event, str]]


def job_id(number: int) -> str:
    """The id of the n-th job of a benchmark."""
    return f"{number:012d}"


def cell(nodes: int, gpus: int, *, policy: str = "priority", **options: Any) -> ClusterState:
    """A cell with one pool of empty nodes."""
    state = MACHINE.initial("main")
    config = PoolConfig(policy=PolicyRef(name=policy, options=dict(options)))
    MACHINE.apply(state, PoolConfiguredV1(pool="main", revision=1, config=config), "")
    for number in range(nodes):
        MACHINE.apply(state, joined(number, gpus), "")
    MACHINE.begin_cycle(state, 1, START_MS)
    return state


def joined(number: int, gpus: int, pool: str = "main") -> NodeJoinedV1:
    """The join of the n-th node."""
    return NodeJoinedV1(
        node=f"n{number}",
        incarnation="0" * 12,
        boot_id="0" * 8,
        schema_version=1,
        pool=pool,
        node_type="any",
        gpus=gpus,
        cpu_milli=256_000,
        memory_mib=2 * 1024 * 1024,
        address="127.0.0.1",
        port_first=20_000,
        port_last=20_099,
    )


def admitted(
    number: int, spec: AdmittedSpec, *, project: str = "p", department: str = "d"
) -> TaskAdmittedV1:
    """The admission of the n-th job."""
    return TaskAdmittedV1(
        job_id=job_id(number),
        project=project,
        department=department,
        spec=spec,
        submitted_at_ms=START_MS + number,
        details=DETAILS,
    )


def admit(state: ClusterState, jobs: Iterable[TaskAdmittedV1]) -> None:
    """Add pending jobs."""
    for number, event in enumerate(jobs):
        MACHINE.apply(state, event, f"quota/main.000000000000/1/{number}")


def one_gpu(**changes: object) -> AdmittedSpec:
    """A job of one GPU."""
    return admitted_spec(**changes)


def commit(state: ClusterState, verdict: CycleResult) -> None:
    """Apply the decisions and end the cycle."""
    for decision in verdict.decisions:
        MACHINE.apply(state, decision.event, "")
    MACHINE.end_cycle(state, complete=verdict.complete)


def started(task: Task, seq: int) -> Events:
    """The starts of all replicas of a task; `seq` is the sequence number of the records."""
    return [(TaskStartedV1(**about, run=ONE_RUN), _record(about, seq)) for about in _replicas(task)]


def left(task: Task, seq: int) -> Events:
    """The exits (code 0) and releases of all replicas of a task.

    `seq` is the sequence number of a replica's first record.
    """
    return [
        pair
        for about in _replicas(task)
        for pair in (
            (TaskExitedV1(**about, exit_code=0), _record(about, seq)),
            (SlotsReleasedV1(**about), _record(about, seq + 1)),
        )
    ]


def _replicas(task: Task) -> list[dict[str, Any]]:
    assert task.run is not None
    return [
        {
            "task_id": task.id,
            "attempt": task.attempt,
            "replica": placement.replica,
            "node": placement.node,
            "incarnation": placement.incarnation,
        }
        for placement in task.run.placements
    ]


def _record(about: dict[str, Any], seq: int) -> str:
    return f"{agent_source(about['node'], about['incarnation'])}/1/{seq}"
