"""Hand-made logs: valid, chained records of real envelopes, in memory.

A `LogBuilder` writes for the gateway, the agents and both machines and decides nothing: a test
supplies their events; the builder adds sequence numbers, batches, digests and the chain. A test
creates faults by keyword (`commit=`, `take=`, `refused=`, `term=`).
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yardmaster_core.audit import record_digest
from yardmaster_core.commit import GENESIS, marks, range_digest, source_of
from yardmaster_core.rules import RULES
from yardmaster_eventlog import codec
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.admissions import (
    AdmittedSpec,
    EntitlementsChangedV1,
    Level,
    PoolConfiguredV1,
    TaskAdmittedV1,
)
from yardmaster_schemas.events.decisions import Placement, SlotsAllocatedV1
from yardmaster_schemas.events.machine import (
    CycleCommittedV1,
    InputRange,
    PolicyInUse,
    RefusedRange,
    TermStartedV1,
)
from yardmaster_schemas.events.node_events import (
    NodeJoinedV1,
    RunIdentity,
    SlotsReleasedV1,
    TaskExitedV1,
    TaskStartedV1,
)
from yardmaster_schemas.events.requests import (
    DepartmentConfig,
    DetailsRef,
    ExitZero,
    Kind,
    LogCreatedV1,
    LogMode,
    PolicyRef,
    PoolConfig,
    ProjectConfig,
    SubmittedSpec,
    TaskSubmittedV1,
    Unschedulable,
)
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.reasons import RefusalCode, Start
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.sources import agent_source

START_MS = 1_767_225_600_000  # 2026-01-01T00:00Z
BOOT = "3f0c6a52-8d11-4b0e-9a6c-5f2d1e0b7c44"
DETAILS = DetailsRef(offset=0, digest="d" * 64)
Inputs = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as stored in the log; `envelope` is None when it cannot be decoded."""

    topic: str
    offset: int
    envelope: Envelope[Any] | None
    record: Record

    @property
    def digest(self) -> bytes:
        return record_digest(self.record.key, self.record.headers, self.record.value)


class Writer:
    """One source of records, with its epoch and sequence."""

    def __init__(self, log: "LogBuilder", source: str, kind: ActorKind, epoch: int = 1) -> None:
        self.log = log
        self.source = source
        self.kind = kind
        self.epoch = epoch
        self.seq = 0

    def envelope(
        self, event: Event, subject: str, *, cause: str | None = None, seq: int | None = None
    ) -> Envelope[Any]:
        number = self.seq if seq is None else seq
        self.seq = number + 1
        name = self.source.partition("/")
        return Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=self.source,
            epoch=self.epoch,
            seq=number,
            subject=subject,
            time_ms=self.log.now_ms,
            actor=Actor(
                kind=self.kind, id=name[2] if self.kind is not ActorKind.SERVICE else name[0]
            ),
            cause=cause,
            data=event,
        )


class MachineWriter:
    """Writes a machine's topic: terms, and cycles with the decisions that the test passes."""

    def __init__(
        self, log: "LogBuilder", machine: str, topic: str, inputs: tuple[str, ...]
    ) -> None:
        self.log = log
        self.machine = machine
        self.topic = topic
        self.inputs = inputs
        self.term = 0
        self.head = GENESIS
        self.cycles = 0
        #: The rules that its commits name.
        self.rules = RULES
        self.taken = dict.fromkeys(inputs, 0)
        self.writer = Writer(log, f"{machine}/none", ActorKind.SERVICE)

    def start_term(self, incarnation: str = "aaaaaaaaaaaa", *, term: int | None = None) -> Entry:
        """Write the start of a term, by default the next one."""
        number = self.term + 1 if term is None else term
        source = source_of(self.machine, self.log.cell, incarnation)
        writer = Writer(self.log, source, ActorKind.SERVICE, number)
        event = TermStartedV1(
            cell=self.log.cell, machine=self.machine, term=number, incarnation=incarnation
        )
        entry = self.log.append(self.topic, writer.envelope(event, self.log.cell))
        if number > self.term:
            self.term = number
            self.writer = writer
            self.head = range_digest([bytes.fromhex(self.head), entry.digest])
        return entry

    def cycle(
        self,
        *decisions: Event | tuple[Event, str | None],
        after_ms: int = 1000,
        take: Inputs | None = None,
        refused: Sequence[tuple[str, int, RefusalCode]] = (),
        complete: bool = True,
        state: str = "",
        commit: Mapping[str, Any] | None = None,
        keep: Sequence[int] | None = None,
    ) -> list[Entry]:
        """One batch: `decisions` (with their causes), then the commit that takes all new inputs.

        `take` gives the next offsets to take up to instead; `commit` replaces fields of the
        CycleCommitted; `keep` appends only these of the batch's records.
        """
        log = self.log
        if not self.term:
            self.start_term()
        log.now_ms += after_ms
        self.cycles += 1
        envelopes = []
        for each in decisions:
            event, cause = each if isinstance(each, tuple) else (each, None)
            envelopes.append(self.writer.envelope(event, subject_of(event), cause=cause))
        records = [codec.encode(e, log.cell) for e in envelopes]
        digests = [record_digest(r.key, r.headers, r.value) for r in records]
        body = CycleCommittedV1(
            cell=log.cell,
            machine=self.machine,
            term=self.term,
            cycle=self.cycles,
            now_ms=log.now_ms,
            inputs=tuple(self._ranges(take)),
            refused=tuple(
                RefusedRange(topic=t, partition=0, first=o, last=o, code=code)
                for t, o, code in refused
            ),
            policies=(PolicyInUse(pool="default", name="priority", version=1),),
            decisions=len(records),
            decisions_digest=range_digest(digests),
            decision_marks=marks(digests),
            state_digest=state or f"{self.cycles:064x}",
            prev=self.head,
            complete=complete,
            rules=self.rules,
        )
        body = dataclasses.replace(body, **(commit or {}))
        envelopes.append(self.writer.envelope(body, log.cell))
        batch = [e for i, e in enumerate(envelopes) if keep is None or i in keep]
        entries = [log.append(self.topic, e) for e in batch]
        if entries and entries[-1].envelope is envelopes[-1]:
            self.head = entries[-1].digest.hex()
        return entries

    def _ranges(self, take: Inputs | None) -> Iterator[InputRange]:
        for topic in self.inputs:
            first = self.taken[topic]
            end = self.log.end(topic) if take is None else take.get(topic, first)
            if end <= first:
                continue
            digests = [e.digest for e in self.log.of(topic)[first:end]]
            self.taken[topic] = end
            yield InputRange(
                topic=topic,
                partition=0,
                first=first,
                next=end,
                digest=range_digest(digests),
                marks=marks(digests),
            )


class LogBuilder:
    """A log in memory, written by hand."""

    def __init__(self, cell: str = "main", now_ms: int = START_MS) -> None:
        self.cell = cell
        self.now_ms = now_ms
        self.entries: list[Entry] = []
        self._topics: dict[str, list[Entry]] = {}
        self._agents: dict[str, Writer] = {}
        self.gateway = Writer(self, "gateway/gw-1", ActorKind.USER)
        self.quota = MachineWriter(self, "quota", "admissions", ("requests",))
        self.scheduler = MachineWriter(
            self, "scheduler", "decisions", ("admissions", "node-events")
        )

    def of(self, topic: str) -> list[Entry]:
        """The records of a topic."""
        return self._topics.get(topic, [])

    def end(self, topic: str) -> int:
        """The offset that the topic's next record will get."""
        return len(self.of(topic))

    def append(self, topic: str, what: Envelope[Any] | Record) -> Entry:
        """Append a record: an event, or bytes that are no event."""
        if isinstance(what, Record):
            entry = Entry(topic, self.end(topic), None, what)
        else:
            entry = Entry(topic, self.end(topic), what, codec.encode(what, self.cell))
        self._topics.setdefault(topic, []).append(entry)
        self.entries.append(entry)
        return entry

    def request(self, event: Event) -> str:
        """Write a user's request; return the record's id."""
        entry = self.append("requests", self.gateway.envelope(event, subject_of(event)))
        assert entry.envelope is not None
        return entry.envelope.id

    def claim(self, event: Any, *, node: str | None = None) -> Entry:
        """Write an agent's report; `node` is the writer when it differs from the event's node."""
        name = agent_source(node or event.node, event.incarnation)
        if name not in self._agents:
            self._agents[name] = Writer(self, name, ActorKind.NODE)
        return self.append("node-events", self._agents[name].envelope(event, subject_of(event)))

    def raw(self, topic: str, value: bytes = b"\x00nonsense") -> Entry:
        """A record that is no event."""
        return self.append(topic, Record(key=self.cell.encode(), value=value))

    def judged(self, request: Event, verdict: Event) -> None:
        """Write a request and quota's cycle with its verdict."""
        self.quota.cycle((verdict, self.request(request)))

    def fed(self) -> Iterator[tuple[str, int, int, Envelope[Any] | None, bytes]]:
        """Yield the input of an audit, in the order of writing."""
        for entry in self.entries:
            yield entry.topic, 0, entry.offset, entry.envelope, entry.digest

    async def write_to(self, log: EventLog) -> None:
        """Append all of it to a real log whose topics are there, in runs of one topic."""
        run: list[Entry] = []
        for entry in [*self.entries, None]:
            if run and (entry is None or entry.topic != run[0].topic):
                await log.append(Partition(run[0].topic), [e.record for e in run])
                run = []
            if entry is not None:
                run.append(entry)


def subject_of(event: Any) -> str:
    """The subject of an event: its task, job, node, pool, project or name; else the cell."""
    for name in ("task_id", "job_id", "node", "pool", "project", "department", "name"):
        value = getattr(event, name, None)
        if isinstance(value, str):
            return value
    return "main"


# Events with all fields; a test sets the fields that matter to it


def log_created(cell: str = "main", log_format: int = LOG_FORMAT) -> LogCreatedV1:
    return LogCreatedV1(log_id="0" * 32, mode=LogMode.EMBEDDED, cell=cell, format=log_format)


def first_record(log_format: int | None = LOG_FORMAT) -> Record:
    """The first record of a log; None: of a version whose LogCreated named no format."""
    created = log_created(log_format=log_format or LOG_FORMAT)
    envelope = Envelope(
        type=created.TYPE,
        version=created.VERSION,
        source="setup/test",
        epoch=0,
        seq=0,
        subject=created.cell,
        time_ms=START_MS,
        actor=Actor(kind=ActorKind.SERVICE, id="test"),
        data=created,
    )
    record = codec.encode(envelope, created.cell)
    if log_format is not None:
        return record
    value = json.loads(record.value or b"")
    del value["data"]["format"]
    return Record(record.key, json.dumps(value).encode(), record.headers)


def submitted(job_id: str, project: str = "nlp", **spec: Any) -> TaskSubmittedV1:
    return TaskSubmittedV1(
        job_id=job_id,
        project=project,
        spec=SubmittedSpec(**spec),
        body_digest="b" * 64,
        details=DETAILS,
    )


def admitted(
    job_id: str, project: str = "nlp", department: str = "research", **spec: Any
) -> TaskAdmittedV1:
    """A job of one task of one whole GPU in pool `default`, preemptible, priority 42."""
    full: dict[str, Any] = {
        "kind": Kind.TRAINING,
        "role": None,
        "preemptible": True,
        "priority": 42,
        "weight": 1,
        "max_slots_milli": None,
        "pools": ("default",),
        "node_types": (),
        "topology": None,
        "resources": Resources(gpus=1, gpu_milli=1000, cpu_milli=1000, memory_mib=1024),
        "replicas_min": 1,
        "replicas_max": 1,
        "tasks": 1,
        "max_concurrent": None,
        "min_runtime_s": 0,
        "time_limit_s": None,
        "max_restarts": 0,
        "unschedulable": Unschedulable.WAIT,
        "grace_s": 60,
        "exit_zero": ExitZero.STOPPED,
        "checkpoint_uri": None,
    } | spec
    return TaskAdmittedV1(
        job_id=job_id,
        project=project,
        department=department,
        spec=AdmittedSpec(**full),
        submitted_at_ms=START_MS,
        details=DETAILS,
    )


def pool_configured(
    pool: str = "default", policy: str = "priority", revision: int = 1, **config: Any
) -> PoolConfiguredV1:
    return PoolConfiguredV1(
        pool=pool, revision=revision, config=PoolConfig(policy=PolicyRef(name=policy), **config)
    )


def department(name: str = "research", **config: Any) -> EntitlementsChangedV1:
    return EntitlementsChangedV1(
        level=Level.DEPARTMENT, name=name, revision=1, department=DepartmentConfig(**config)
    )


def project(name: str = "nlp", of: str = "research", **config: Any) -> EntitlementsChangedV1:
    return EntitlementsChangedV1(
        level=Level.PROJECT,
        name=name,
        revision=1,
        project=ProjectConfig(department=of, **config),
    )


def incarnation(number: int = 1) -> str:
    return f"{number:012x}"


def joined(
    node: str, gpus: int = 4, *, life: int = 1, pool: str = "default", gpu_memory_mib: int = 0
) -> NodeJoinedV1:
    return NodeJoinedV1(
        node=node,
        incarnation=incarnation(life),
        boot_id=BOOT,
        schema_version=1,
        pool=pool,
        node_type="sxm",
        gpus=gpus,
        gpu_memory_mib=gpu_memory_mib,
        cpu_milli=64_000,
        memory_mib=262_144,
        address=f"{node}.example",
        port_first=20_000,
        port_last=20_999,
    )


def placed(
    node: str,
    *slots: int,
    replica: int = 0,
    life: int = 1,
    gpu_milli: int = 1000,
    gpu_memory_mib: int = 0,
) -> Placement:
    return Placement(
        replica=replica,
        node=node,
        incarnation=incarnation(life),
        address=f"{node}.example",
        slots=slots,
        gpu_milli=gpu_milli if slots else 0,
        cpu_milli=1000,
        memory_mib=1024,
        gpu_memory_mib=gpu_memory_mib,
    )


def allocated(
    task_id: str,
    *placements: Placement,
    attempt: int = 1,
    pool: str = "default",
    tasks: int = 1,
    fence_s: int | None = None,
) -> SlotsAllocatedV1:
    return SlotsAllocatedV1(
        task_id=task_id,
        attempt=attempt,
        pool=pool,
        project="nlp",
        tasks=tasks,
        placements=placements,
        master_port=20_000 if len(placements) > 1 else None,
        details=DETAILS,
        checkpoint=None,
        start=Start(rule="capacity"),
        fence_s=fence_s,
    )


def started(
    task_id: str, node: str, *, attempt: int = 1, replica: int = 0, life: int = 1, pid: int = 100
) -> TaskStartedV1:
    return TaskStartedV1(
        task_id=task_id,
        attempt=attempt,
        replica=replica,
        node=node,
        incarnation=incarnation(life),
        run=RunIdentity.of_process(pid, pid * 1000, BOOT),
    )


def exited(
    task_id: str,
    node: str,
    *,
    attempt: int = 1,
    replica: int = 0,
    life: int = 1,
    exit_code: int = 0,
) -> TaskExitedV1:
    return TaskExitedV1(
        task_id=task_id,
        attempt=attempt,
        replica=replica,
        node=node,
        incarnation=incarnation(life),
        exit_code=exit_code,
    )


def released(
    task_id: str,
    node: str,
    *,
    attempt: int = 1,
    replica: int = 0,
    life: int = 1,
    never_started: bool = False,
) -> SlotsReleasedV1:
    return SlotsReleasedV1(
        task_id=task_id,
        attempt=attempt,
        replica=replica,
        node=node,
        incarnation=incarnation(life),
        never_started=never_started,
    )
