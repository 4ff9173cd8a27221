"""Small simulated runs for tests: their events with times, and the verification of the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.sqlite.writer import SqliteWriter
from yardmaster_runtime.replay.report import Report
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import PolicyRef, PoolConfig, SubmittedSpec
from yardmaster_schemas.resources import Resources
from yardmaster_simulation.driver import CELL
from yardmaster_simulation.log_sink import TOPICS, MemorySink
from yardmaster_simulation.workload import DEFAULT, Listed, SimJob, SimNode, Workload, pool
from yardmaster_simulation.world import START_MS, World

E = TypeVar("E", bound=Event)


def node(name: str, gpus: int = 8) -> SimNode:
    """A node with plenty of CPU and memory."""
    return SimNode(name=name, gpus=gpus, cpu_milli=64_000, memory_mib=512 * 1024)


def job(
    submit_s: float,
    *runs_s: float | None,
    gpus: int = 1,
    project: str = DEFAULT,
    **spec: Any,
) -> SimJob:
    """A job submitted at a second of the run, with a task for each time in `runs_s`."""
    return SimJob(
        submit_ms=int(submit_s * 1000),
        project=project,
        spec=SubmittedSpec(
            pools=(DEFAULT,),
            tasks=len(runs_s),
            resources=Resources(gpus=gpus, gpu_milli=1000 if gpus else 0, cpu_milli=1000),
            **{"grace_s": 30} | spec,
        ),
        runs_ms=tuple(None if each is None else int(each * 1000) for each in runs_s),
    )


@dataclass
class Ran:
    """A run: its log, and the inputs and decisions of the scheduler, each with its second."""

    world: World
    sink: MemorySink
    events: list[tuple[float, Event]] = field(default_factory=list)

    def of(self, kind: type[E], task: str = "") -> list[tuple[float, E]]:
        """Events of a kind, of all tasks or of one (`3.0`: job 3, task 0)."""
        return [
            (at, event)
            for at, event in self.events
            if isinstance(event, kind) and (not task or _short(event) == task)
        ]

    def records(self) -> dict[str, list[Record]]:
        """All records by topic."""
        sequences = self.sink.log._shared.sequences
        return {
            topic.name: [stored.record for stored in sequences[Partition(topic.name)].records]
            for topic in TOPICS
        }

    async def proved(self) -> Report:
        """The report of `yard replay verify` on the log."""
        return await verify(self.sink.log, [QuotaMachine(check), SchedulerMachine()], CELL)


def _short(event: Any) -> str:
    job_id, _, index = event.task_id.partition(".")
    return f"{int(job_id)}.{index}"


def ran(
    jobs: Sequence[SimJob],
    nodes: Sequence[SimNode] = (node("node-0"),),
    *,
    policy: str = "priority",
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    seed: int = 0,
    path: Path | None = None,
    logged: bool = True,
    **workload: Any,
) -> Ran:
    """Run jobs to their end; with `path`, the log is written there instead of in memory."""
    configured: PoolConfig = replace(
        pool(), policy=PolicyRef(name=policy, options=dict(options or {})), **dict(config or {})
    )
    whole = Workload(
        name="test",
        nodes=tuple(nodes),
        jobs=jobs,
        **{"pools": {DEFAULT: configured}} | workload,
    )
    sink = MemorySink()
    writer = SqliteWriter(path, TOPICS) if path is not None else None
    events: list[tuple[float, Event]] = []

    def watch(now_ms: int, event: Event, _: int) -> None:
        events.append(((now_ms - START_MS) / 1000, event))

    written = (writer or sink) if logged else None
    world = World(whole, whole.pools, written, Listed(jobs), seed=seed, watch=watch)
    world.run()
    if writer is not None:
        writer.close()
    return Ran(world, sink, events)
