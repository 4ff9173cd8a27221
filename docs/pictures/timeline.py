"""The use of GPUs in a log: which task held which GPU when, and how many tasks were pending.

All times are those of the recorded events, in milliseconds.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from yardmaster_eventlog.order import PAGE, LogOrder
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.reader import decoded
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events.admissions import AdmittedSpec, TaskAdmittedV1
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    NodeLostV1,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.details import JobDetailedV1
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    NodeJoinedV1,
    SlotsReleasedV1,
    TaskStartedV1,
)
from yardmaster_schemas.events.requests import CancelRequestedV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import DETAILS

#: Cancellations of one job within this time are one note, in milliseconds.
TOGETHER_MS: Final = 2000


@dataclass(slots=True)
class Job:
    """An admitted job."""

    name: str
    spec: AdmittedSpec
    submitted_ms: int


@dataclass(slots=True)
class Bar:
    """An attempt of a task on one GPU; all times in milliseconds, None while unknown."""

    job_id: str
    task_id: str
    attempt: int
    replica: int
    node: str
    slot: int
    allocated_ms: int
    resumed: bool
    started_ms: int | None = None
    stop_ms: int | None = None
    preempted: bool = False
    released_ms: int | None = None


@dataclass(slots=True)
class Checkpoint:
    """A saved checkpoint, on the first GPU of the replica that reported it."""

    bar: Bar
    at_ms: int
    step: int


@dataclass(slots=True)
class Cancellation:
    """Requests to cancel tasks of a job; `tasks` is 0 for the whole job."""

    job_id: str
    at_ms: int
    tasks: int


@dataclass(slots=True)
class Timeline:
    """The use of GPUs and the number of pending tasks in a log."""

    nodes: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    cancellations: list[Cancellation] = field(default_factory=list)
    #: The number of pending tasks of each job, from a time on.
    pending: list[tuple[int, Counter[str]]] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    _attempts: dict[tuple[str, int], list[Bar]] = field(default_factory=dict)

    @property
    def start_ms(self) -> int:
        """The first submission."""
        return min(job.submitted_ms for job in self.jobs.values())

    @property
    def end_ms(self) -> int:
        """The last event that the picture shows."""
        times = [bar.allocated_ms for bar in self.bars]
        times += [bar.released_ms for bar in self.bars if bar.released_ms is not None]
        times += [each.at_ms for each in self.checkpoints]
        times += [each.at_ms for each in self.cancellations]
        times += [at_ms for at_ms, _ in self.pending]
        return max(times)

    def rows(self) -> list[tuple[str, int]]:
        """The GPUs, as node and slot."""
        return [(node, slot) for node in sorted(self.nodes) for slot in range(self.nodes[node])]

    def add(self, envelope: Envelope[Any]) -> None:
        """Take the next event; events come in causal order, details first."""
        at_ms = envelope.time_ms
        match envelope.data:
            case JobDetailedV1() as event:
                self._names[event.job_id] = event.name
            case NodeJoinedV1() as event:
                self.nodes[event.node] = max(event.gpus, self.nodes.get(event.node, 0))
            case TaskAdmittedV1() as event:
                name = self._names.get(event.job_id, event.job_id)
                self.jobs[event.job_id] = Job(name, event.spec, event.submitted_at_ms)
                self._waiting |= {f"{event.job_id}.{index}" for index in range(event.spec.tasks)}
                self._count(at_ms)
            case CancelRequestedV1() as event:
                self._cancel(event, at_ms)
            case SlotsAllocatedV1() as event:
                self._allocate(event, at_ms)
                self._waiting.discard(event.task_id)
                self._count(at_ms)
            case TaskStartedV1() as event:
                for bar in self._of(event.task_id, event.attempt, event.replica):
                    bar.started_ms = bar.started_ms or at_ms
            case CheckpointDoneV1() as event:
                if bars := self._of(event.task_id, event.attempt, event.replica):
                    self.checkpoints.append(Checkpoint(bars[0], at_ms, event.step))
            case PreemptionRequestedV1() | StopRequestedV1() | AllocationRevokedV1() as event:
                for bar in self._of(event.task_id, event.attempt):
                    bar.preempted = bar.preempted or isinstance(event, PreemptionRequestedV1)
                    bar.stop_ms = bar.stop_ms or at_ms
            case SlotsReleasedV1() as event:
                self._release(event.task_id, event.attempt, event.replica, at_ms)
            case NodeLostV1() as event:
                for ref in event.closed:
                    self._release(ref.task_id, ref.attempt, ref.replica, at_ms)
            case TaskRequeuedV1() as event:
                self._waiting.add(event.task_id)
                self._count(at_ms)
            case TaskEndedV1() as event:
                self._waiting.discard(event.task_id)
                self._count(at_ms)

    def _allocate(self, event: SlotsAllocatedV1, at_ms: int) -> None:
        job_id = event.task_id.partition(".")[0]
        self._attempts[event.task_id, event.attempt] = bars = [
            Bar(
                job_id=job_id,
                task_id=event.task_id,
                attempt=event.attempt,
                replica=placement.replica,
                node=placement.node,
                slot=slot,
                allocated_ms=at_ms,
                resumed=event.attempt > 1 and event.checkpoint is not None,
            )
            for placement in event.placements
            for slot in placement.slots
        ]
        self.bars += bars

    def _of(self, task_id: str, attempt: int, replica: int | None = None) -> list[Bar]:
        bars = self._attempts.get((task_id, attempt), [])
        return [bar for bar in bars if replica is None or bar.replica == replica]

    def _release(self, task_id: str, attempt: int, replica: int, at_ms: int) -> None:
        for bar in self._of(task_id, attempt, replica):
            bar.released_ms = bar.released_ms or at_ms

    def _cancel(self, event: CancelRequestedV1, at_ms: int) -> None:
        number = 0 if event.index is None else 1
        if self.cancellations:
            last = self.cancellations[-1]
            if last.job_id == event.job_id and at_ms - last.at_ms <= TOGETHER_MS and last.tasks:
                last.tasks += number
                return
        self.cancellations.append(Cancellation(event.job_id, at_ms, number))

    def _count(self, at_ms: int) -> None:
        counts = Counter(task_id.partition(".")[0] for task_id in self._waiting)
        if self.pending:
            # Two machines write these events; their clocks may differ by a little.
            at_ms = max(at_ms, self.pending[-1][0])
            if self.pending[-1][0] == at_ms:
                self.pending.pop()
        self.pending.append((at_ms, counts))


async def timeline_of(log: EventLog) -> Timeline:
    """The timeline of the cell `main` of a log."""
    timeline = Timeline()
    details, offset = Partition(DETAILS.name, 0), 0
    while page := await log.read(details, offset, max_records=PAGE):
        offset = page[-1].offset + 1
        for stored in page:
            if stored.record.value is not None and (envelope := decoded(stored)) is not None:
                timeline.add(envelope)
    async for entry in LogOrder(log, Position.start("main")).entries():
        if entry.envelope is not None:
            timeline.add(entry.envelope)
    return timeline
