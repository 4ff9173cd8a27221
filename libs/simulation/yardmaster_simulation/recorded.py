"""Read a recorded log of Yardmaster as a workload: the same jobs on the same nodes.

A job is submitted at its recorded submission time with its admitted spec. The duration of a task is
the time that its attempts worked, without lost work. If the task had not ended, it is this time or
the task's estimate, whichever is longer. Cancelled tasks that never worked are left out. The
workload has all nodes that ever joined, in their last configuration, and likewise all pools,
projects and departments.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from yardmaster_core.commit import CountedCycle
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.replay.rebuild import state_at
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import YardmasterError
from yardmaster_schemas.events.admissions import (
    EntitlementsChangedV1,
    PoolConfiguredV1,
    TaskAdmittedV1,
)
from yardmaster_schemas.events.decisions import Outcome
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import (
    DepartmentConfig,
    PoolConfig,
    ProjectConfig,
    SubmittedSpec,
)
from yardmaster_simulation.errors import BadWorkload
from yardmaster_simulation.history import History
from yardmaster_simulation.metrics import exec_ms_of
from yardmaster_simulation.records import Task
from yardmaster_simulation.workload import SimJob, SimNode, Workload


def read_log(path: Path, cell: str) -> Workload:
    """Read the workload of a cell from a log file.

    Raises:
        BadWorkload: the file is not a log, or has no jobs or no nodes.
    """
    recording = Recording()
    try:
        asyncio.run(recording.read(path, cell))
    except YardmasterError as error:
        raise BadWorkload(path=path, found=str(error)) from error
    workload = recording.workload(path)
    if not workload.jobs or not workload.nodes:
        raise BadWorkload(path=path, found="the log contains no job or no node")
    return workload


class Recording:
    """The nodes, pools, projects and jobs of a log."""

    def __init__(self) -> None:
        self._history = History()
        self._nodes: dict[str, SimNode] = {}
        self._pools: dict[str, PoolConfig] = {}
        self._projects: dict[str, ProjectConfig] = {}
        self._departments: dict[str, DepartmentConfig] = {}
        self._jobs: list[TaskAdmittedV1] = []
        #: The time of the last cycle.
        self._now_ms = 0

    async def read(self, path: Path, cell: str) -> None:
        """Read a log to its end."""
        log = await SqliteLog.open(path, SystemClock(), create=False)
        try:
            await state_at(log, SchedulerMachine(), cell, listeners=[self.see])
        finally:
            await log.close()
        self._history.flush()

    def see(self, accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        """Apply the accepted inputs and the decisions of one cycle of the log."""
        self._now_ms = counted.commit.now_ms
        for envelope in (*accepted, *(envelope for _, envelope in counted.decisions)):
            self._history.see(self._now_ms, envelope.data, envelope.time_ms)
            self._note(envelope.data)

    def _note(self, event: Event) -> None:
        match event:
            case TaskAdmittedV1():
                self._jobs.append(event)
            case NodeJoinedV1():
                self._nodes[event.node] = SimNode(
                    name=event.node,
                    pool=event.pool,
                    node_type=event.node_type,
                    gpus=event.gpus,
                    cpu_milli=event.cpu_milli,
                    memory_mib=event.memory_mib,
                )
            case PoolConfiguredV1():
                self._pools[event.pool] = event.config
            case EntitlementsChangedV1(project=ProjectConfig() as project):
                self._projects[event.name] = project
            case EntitlementsChangedV1(department=DepartmentConfig() as department):
                self._departments[event.name] = department

    def workload(self, path: Path) -> Workload:
        """Return jobs (the first is submitted at 0 ms) and nodes; `path` names the workload."""
        jobs = [job for event in self._jobs if (job := self._job(event)) is not None]
        jobs.sort(key=lambda job: job.submit_ms)
        first_ms = jobs[0].submit_ms if jobs else 0
        return Workload(
            name=path.stem,
            nodes=tuple(self._nodes[name] for name in sorted(self._nodes)),
            jobs=[job.at(job.submit_ms - first_ms) for job in jobs],
            pools=self._pools,
            projects=self._projects,
            departments=self._departments,
            source=f"{path.name}: {len(jobs)} recorded jobs",
        )

    def _job(self, event: TaskAdmittedV1) -> SimJob | None:
        tasks = [self._history.tasks[f"{event.job_id}.{n}"] for n in range(event.spec.tasks)]
        estimate_s = event.spec.runtime_estimate_s
        runs_ms = tuple(
            run_ms
            for task in tasks
            if (run_ms := _run_ms(task, estimate_s, self._now_ms)) is not None
        )
        if not runs_ms:
            return None
        # Simulated nodes run no programs, so these are left out.
        left_out = {"image", "mounts", "run_as", "git_host"}
        names = {each.name for each in fields(SubmittedSpec)} - left_out
        spec_fields = {name: getattr(event.spec, name) for name in names}
        return SimJob(
            submit_ms=event.submitted_at_ms,
            project=event.project,
            spec=SubmittedSpec(**spec_fields | {"tasks": len(runs_ms)}),
            runs_ms=runs_ms,
            user=event.user,
        )


def _run_ms(task: Task, estimate_s: int | None, now_ms: int) -> int | None:
    """How long a task of a log that ends at `now_ms` runs in the workload; None: leave it out."""
    worked = exec_ms_of(task, None)
    if task.outcome is not None:
        return None if task.outcome is Outcome.CANCELLED and not worked else worked
    run = task.run
    if run is not None and run.started_ms is not None:
        worked += max(0, run.works_until_ms(now_ms) - run.started_ms)
    return max(worked, (estimate_s or 0) * 1000)
