"""A node's agent under test: real or simulated tasks, and a test that writes its assignments.

`AgentCell` plays gateway, scheduler and relay for one node: it writes `details` and the node's
assignments, and reads what the agent reported. Waits are for records, with a deadline.
"""

import asyncio
import hashlib
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tests.support.memory_cell import MemoryCell
from yardmaster_eventlog import codec
from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_node_agent.agent import Ports, Settings, host_ports, run
from yardmaster_node_agent.executors import procfs
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import Clock, SystemClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    Checkpoint,
    LossCause,
    NodeLostV1,
    Placement,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
)
from yardmaster_schemas.events.details import JobDetailedV1, Run, StopSignal
from yardmaster_schemas.events.expiring import TaskOutputV1
from yardmaster_schemas.events.node_events import (
    NodeJoinedV1,
    RunIdentity,
    SlotsReleasedV1,
    TaskExitedV1,
    TaskStartedV1,
)
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.reasons import PolicyStop, Start, Stop, StopCode
from yardmaster_schemas.relayed import RelayedFrom
from yardmaster_schemas.run_as import RunAs
from yardmaster_schemas.topics import (
    DETAILS,
    HEARTBEATS,
    NODE_EVENTS,
    TASK_LOGS,
    TOPICS,
    assignments,
)

E = TypeVar("E", bound=Event)

#: Seconds that a test waits at most; on a loaded machine a process starts slowly.
DEADLINE_S = 30.0
OTHER_INCARNATION = "0123456789ab"


class AgentCell(MemoryCell):
    """One node, its log, and the scheduler that the test plays."""

    def __init__(
        self, data_dir: Path, *, log: EventLog | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(log, clock or SystemClock())
        self.data_dir = data_dir
        self.node = "n1"
        self.seq = 0
        self.jobs = 0
        self.decisions = 0
        self.settings = Settings(
            node=self.node,
            data_dir=data_dir,
            gpus=4,
            gpu_memory_mib=1000,
            cpu_milli=8000,
            memory_mib=4096,
            # What a node offers must not depend on whether this machine has an engine.
            executor="process",
            heartbeat_s=0.1,
            tick_s=0.05,
        )

    def configure(self, **changes: Any) -> None:
        """Change settings for the agents that start later."""
        self.settings = self.settings.model_copy(update=changes)

    # --- the agent -----------------------------------------------------------------------------

    async def open(self) -> "AgentCell":
        """Create the topics, as the setup of a log does."""
        await self.log.create_topics([*TOPICS.values(), assignments(self.node)])
        return self

    def ports(self) -> Ports:
        """The real ports of this machine."""
        telemetry = Telemetry("node_agent", now_ms=self.clock.now_ms, level="warning")
        return host_ports(
            self.settings,
            log=self.log,
            clock=self.clock,
            chance=SystemChance(),
            telemetry=telemetry,
        )

    @asynccontextmanager
    async def agent(self, ports: Ports | None = None) -> AsyncIterator[NodeJoinedV1]:
        """Run an agent in the block, which begins after the join; then cancel it."""
        before = len(await self.of_type(NodeJoinedV1))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(run(ports or self.ports(), self.settings))
            joined = await self.until(NodeJoinedV1, count=before + 1)
            yield joined[-1]
            running.cancel()

    async def incarnation(self) -> str:
        """Return the current incarnation of the node."""
        return (await self.of_type(NodeJoinedV1))[-1].incarnation

    # --- the scheduler -------------------------------------------------------------------------

    async def details(
        self,
        job_id: str,
        run_: Run,
        *,
        stop_signal: StopSignal = StopSignal.TERM,
        params: tuple[dict[str, Any], ...] = (),
    ) -> DetailsRef:
        """Write a job's details."""
        event = JobDetailedV1(
            job_id=job_id,
            salt="0" * 32,
            name="a job",
            user="ada",
            run=run_,
            stop_signal=stop_signal,
            params=params,
        )
        record = codec.encode(self._envelope(event, job_id, "gateway/gw"), job_id)
        offset = await self.log.append(Partition(DETAILS.name), [record])
        assert record.value is not None
        return DetailsRef(offset=offset, digest=hashlib.sha256(record.value).hexdigest())

    def job(self) -> str:
        """The id of a new job."""
        self.jobs += 1
        return f"{self.jobs:012d}"

    async def allocate(
        self,
        run_: Run | DetailsRef,
        *,
        task_id: str | None = None,
        attempt: int = 1,
        replicas: int = 1,
        slots: Sequence[tuple[int, ...]] | None = None,
        gpu_milli: int = 1000,
        incarnation: str | None = None,
        checkpoint: Checkpoint | None = None,
        master_port: int | None = None,
        grace_s: int | None = None,
        fence_s: int | None = None,
        tasks: int = 1,
        project: str = "nlp",
        memory_mib: int = 256,
        image: str | None = None,
        run_as: RunAs | None = None,
        **details: Any,
    ) -> str:
        """Give the node an attempt, by default of a new job without GPUs; the task's id."""
        task_id = task_id or f"{self.job()}.0"
        incarnation = incarnation or await self.incarnation()
        if isinstance(run_, Run):
            run_ = await self.details(task_id.partition(".")[0], run_, **details)
        slots = slots or [()] * replicas
        event = SlotsAllocatedV1(
            task_id=task_id,
            attempt=attempt,
            pool="default",
            project=project,
            tasks=tasks,
            placements=tuple(
                Placement(
                    replica=index,
                    node=self.node,
                    incarnation=incarnation,
                    address="127.0.0.1",
                    slots=held,
                    gpu_milli=gpu_milli if held else 0,
                    cpu_milli=100,
                    memory_mib=memory_mib,
                )
                for index, held in enumerate(slots)
            ),
            master_port=master_port,
            details=run_,
            checkpoint=checkpoint,
            start=Start(rule="fits"),
            grace_s=grace_s,
            fence_s=fence_s,
            image=image,
            run_as=run_as,
        )
        await self.assign(event)
        return task_id

    async def stop(
        self,
        task_id: str,
        *,
        attempt: int = 1,
        grace_s: int = 20,
        code: StopCode | None = None,
        unstarted: tuple[str, tuple[int, ...]] = ("", ()),
        scheduler_ahead_ms: int = 0,
    ) -> None:
        """Preempt an attempt (without a `code`), or stop it for another reason."""
        fields: dict[str, Any] = {
            "task_id": task_id,
            "attempt": attempt,
            "nodes": (self.node,),
            "grace_s": grace_s,
            "deadline_at_ms": self.clock.now_ms() + scheduler_ahead_ms + grace_s * 1000,
        }
        event = (
            PreemptionRequestedV1(
                stop=PolicyStop(policy="priority", rule="better_priority"), **fields
            )
            if code is None
            else StopRequestedV1(stop=Stop(code=code), **fields)
        )
        await self.assign(event, unstarted=unstarted)

    async def preempt(self, task_id: str, policy: str, *, grace_s: int = 20) -> None:
        """Preempt an attempt for another task, by a policy."""
        await self.assign(
            PreemptionRequestedV1(
                task_id=task_id,
                attempt=1,
                nodes=(self.node,),
                stop=PolicyStop(policy=policy, rule="better_priority"),
                grace_s=grace_s,
                deadline_at_ms=self.clock.now_ms() + grace_s * 1000,
            )
        )

    async def revoke(
        self,
        task_id: str,
        attempt: int = 1,
        *,
        unstarted: tuple[str, tuple[int, ...]] = ("", ()),
    ) -> None:
        """Revoke an allocation."""
        stop = Stop(code=StopCode.START_TIMEOUT)
        await self.assign(
            AllocationRevokedV1(task_id=task_id, attempt=attempt, nodes=(self.node,), stop=stop),
            unstarted=unstarted,
        )

    async def lose(self, incarnation: str, cause: LossCause = LossCause.SILENT) -> None:
        """Count the node as lost."""
        lost = NodeLostV1(node=self.node, incarnation=incarnation, cause=cause, last_heard_at_ms=0)
        await self.assign(lost)

    async def assign(
        self,
        event: Event,
        *,
        source: str = "scheduler/main.abcdefabcdef",
        unstarted: tuple[str, tuple[int, ...]] = ("", ()),
    ) -> Record:
        """Relay a decision to the node; a stop with the replicas that have not started there."""
        record = codec.encode(self._envelope(event, self.node, source), "main")
        header = RelayedFrom(self.decisions, *unstarted).header()
        self.decisions += 1
        record = replace(record, headers=(*record.headers, header))
        await self.repeat(record)
        return record

    async def repeat(self, record: Record) -> None:
        """Relay a record as it is."""
        await self.log.append(Partition(assignments(self.node).name), [record])

    def _envelope(self, event: Event, subject: str, source: str) -> Envelope[Any]:
        self.seq += 1
        return Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=source,
            epoch=1,
            seq=self.seq,
            subject=subject,
            time_ms=self.clock.now_ms(),
            actor=Actor(kind=ActorKind.SERVICE, id=source.partition("/")[0]),
            data=event,
        )

    # --- what the agent reported ---------------------------------------------------------------

    async def envelopes(self, topic: str = NODE_EVENTS.name) -> list[Envelope[Any]]:
        """All records of one of its topics."""
        stored = await self.log.read(Partition(topic), 0, max_records=100_000)
        return [codec.decode(each.record) for each in stored]

    async def of_type(self, cls: type[E], task_id: str | None = None) -> list[E]:
        """All events of a type, of one task or of all."""
        topic = cls.TOPICS[0]
        found = [e.data for e in await self.envelopes(topic) if isinstance(e.data, cls)]
        return [e for e in found if task_id is None or getattr(e, "task_id", None) == task_id]

    async def until(
        self,
        cls: type[E],
        task_id: str | None = None,
        *,
        count: int = 1,
        where: Callable[[E], bool] = lambda _: True,
    ) -> list[E]:
        """Wait for `count` events of a type; fails with what there was instead."""
        partition = Partition(cls.TOPICS[0])
        ends_s = self.clock.monotonic_s() + DEADLINE_S
        while True:
            end = await self.log.end(partition)
            found = [event for event in await self.of_type(cls, task_id) if where(event)]
            if len(found) >= count:
                return found
            left_s = ends_s - self.clock.monotonic_s()
            if left_s <= 0 or not await self.log.wait({partition: end}, left_s):
                seen = [(e.type, e.data) for e in await self.envelopes()]
                raise AssertionError(
                    f"no {count} {cls.TYPE} of {task_id}; reported: {seen}; said: "
                    f"{await self.of_type(TaskOutputV1)}"
                )

    async def ended(self, task_id: str, *, count: int = 1) -> list[SlotsReleasedV1]:
        """Wait until `count` replicas are released."""
        return await self.until(SlotsReleasedV1, task_id, count=count)

    async def exit_of(self, task_id: str) -> TaskExitedV1:
        """Wait for the task's first exit."""
        return (await self.until(TaskExitedV1, task_id))[0]

    async def output(
        self, task_id: str, *, stream: str | None = "stdout", replica: int = 0, attempt: int = 1
    ) -> str:
        """Return a replica's output in the log, with pieces in order and each once.

        `stream`: None takes all, as `yard logs` prints them.
        """
        pieces: dict[int, str] = {}
        for piece in await self.of_type(TaskOutputV1, task_id):
            if stream not in (None, piece.stream):
                continue
            if (piece.replica, piece.attempt) == (replica, attempt):
                assert pieces.get(piece.seq, piece.text) == piece.text, "one seq, two texts"
                pieces[piece.seq] = piece.text
        return "".join(pieces[seq] for seq in sorted(pieces))

    async def until_output(self, task_id: str, text: str, **which: Any) -> str:
        """Wait until the output holds `text`."""
        partition = Partition(TASK_LOGS.name)
        ends_s = self.clock.monotonic_s() + DEADLINE_S
        while True:
            end = await self.log.end(partition)
            said = await self.output(task_id, **which)
            if text in said:
                return said
            left_s = ends_s - self.clock.monotonic_s()
            if left_s <= 0 or not await self.log.wait({partition: end}, left_s):
                others = [(e.type, e.data) for e in await self.envelopes()]
                raise AssertionError(f"{text!r} is not in {said!r}; reported: {others}")

    async def assert_honest(self) -> None:
        """Check all reports against the guarantees that schedulers rely on."""
        numbers: dict[str, list[tuple[int, int]]] = defaultdict(list)
        identities: dict[tuple[str, int, int], set[RunIdentity]] = defaultdict(set)
        order: dict[tuple[str, int, int], list[str]] = defaultdict(list)
        for envelope in await self.envelopes():
            event = envelope.data
            numbers[envelope.source].append((envelope.epoch, envelope.seq))
            if isinstance(event, NodeJoinedV1):
                continue
            key = (event.task_id, event.attempt, event.replica)
            if envelope.type not in order[key]:
                order[key].append(envelope.type)
            if isinstance(event, TaskStartedV1):
                identities[key].add(event.run)
        for source, seen in numbers.items():
            assert seen == sorted(set(seen)), f"numbers of {source} do not only rise"
        for key, found in identities.items():
            assert len(found) == 1, f"{key} has {len(found)} runs"
        for key, types in order.items():
            steps = [
                t for t in types if t not in ("CheckpointDone", "TaskPreparing", "TaskProgressed")
            ]
            whole = ["TaskStarted", "TaskExited", "SlotsReleased"]
            assert steps in (whole[: len(steps)], ["SlotsReleased"]), f"{key}: {types}"


class Deaf:
    """A log that refuses appends to some topics."""

    def __init__(self, log: EventLog) -> None:
        self._inner = log
        self.deaf_to: set[str] = set()
        self.refused_one = asyncio.Event()

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        if partition.topic in self.deaf_to:
            self.refused_one.set()
            raise LogUnavailable(found="deaf")
        return await self._inner.append(partition, batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def alive(pid: int) -> bool:
    """Whether a process of that id runs or is stopped; a zombie has ended."""
    seen = procfs.look(pid)
    return seen is not None and not seen.ended


def sh(script: str, **run_: Any) -> Run:
    """A run of a shell script."""
    return Run(script=script, **run_)


def python(code: str, **run_: Any) -> Run:
    """A run of Python code, in this interpreter."""
    return Run(command=(sys.executable, "-c", code), **run_)


HEARTBEAT_TOPIC = HEARTBEATS.name
