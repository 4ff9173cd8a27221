"""The agent's state as values: the entries of its ledger, and the state that they fold into.

The ledger is a sequence of entries. Each replaces the earlier entry on its subject: the node's
head, one replica, a position. `AgentState.apply` folds them. The state is exactly what an agent
needs after a kill -9.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from yardmaster_schemas.events.decisions import Checkpoint
from yardmaster_schemas.events.details import StopSignal
from yardmaster_schemas.events.expiring import Stream
from yardmaster_schemas.events.node_events import ImageDigest, RunIdentity
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.fields import (
    CLOSED,
    Address,
    Code,
    Count,
    Digest,
    GpuMilli,
    Incarnation,
    Millis,
    Name,
    Port,
    Positive,
    RecordId,
    ReplicaIndex,
    SlotIndex,
    TaskId,
)
from yardmaster_schemas.reasons import StartFailure
from yardmaster_schemas.run_as import RunAs

FORMAT: Final = 2


class ReplicaState(StrEnum):
    """The phase of a replica on this node; it changes only to a later phase of this list."""

    #: The replica is in the ledger, and may be prepared.
    ASSIGNED = "assigned"
    #: It is prepared, and a start was tried: from now on it may run.
    STARTING = "starting"
    #: It runs, or ran; its identity is known.
    STARTED = "started"
    #: The main program ended; other processes of the replica may still be alive.
    EXITED = "exited"
    #: Nothing of the replica runs, or ever will.
    RELEASED = "released"


@dataclass(frozen=True, slots=True, order=True)
class ReplicaKey:
    """One replica of one attempt."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    task_id: TaskId
    attempt: Positive
    replica: ReplicaIndex

    def __str__(self) -> str:
        return f"{self.task_id}.{self.attempt}.{self.replica}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUser:
    """A user that runs replicas: its number, its own group, and further groups.

    `shared`: several replicas may have it at the same time. `named`: the job named it, so programs
    and files that are not the node's may belong to it, and must stay.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    uid: Positive
    gid: Positive
    groups: tuple[Positive, ...] = ()
    shared: bool = False
    named: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One replica of SlotsAllocated, with the fields that all replicas of the attempt share.

    `cause` is the id of the record; `decision` is its offset in `decisions` (-1 if the relay did
    not say).
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    key: ReplicaKey
    cause: RecordId
    decision: int
    project: Name
    pool: Name
    tasks: Positive
    replicas: Positive
    slots: tuple[SlotIndex, ...]
    gpu_milli: GpuMilli
    cpu_milli: Count
    memory_mib: Count
    master_addr: Address
    master_port: Port | None
    details: DetailsRef
    checkpoint: Checkpoint | None
    grace_s: Count | None
    fence_s: Positive | None = None
    #: The memory of each GPU in MiB, if the task requested memory; 0: it requested `gpu_milli`.
    gpu_memory_mib: Count = 0
    #: The digest of the image that all replicas must run; None: that of the job's image now.
    image: ImageDigest | None = None
    #: The user that the job names; None: it names none.
    run_as: RunAs | None = None

    @property
    def task_index(self) -> int:
        """The task's number in its job."""
        return int(self.key.task_id.partition(".")[2])


def lost_assignment(key: ReplicaKey, cause: str, decision: int) -> Assignment:
    """Return a placeholder for an assignment that was lost; it is never started.

    `cause` is the record that stopped the attempt; `decision` its offset in `decisions`.
    """
    return Assignment(
        key=key,
        cause=cause,
        decision=decision,
        project="unknown",
        pool="unknown",
        tasks=1,
        replicas=1,
        slots=(),
        gpu_milli=0,
        cpu_milli=0,
        memory_mib=0,
        master_addr="unknown",
        master_port=None,
        details=DetailsRef(offset=0, digest="0" * 64),
        checkpoint=None,
        grace_s=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """An order to stop a replica: the reason, and when to kill it.

    `kill_at_ms` is the time of the kill by the host's monotonic clock. This clock cannot be set; a
    restart of the host resets it, but then the process is gone too. `deadline_ms` is the same time
    by the host's wall clock (ms since the epoch), for the stop notice of the task.

    `signalled`: the stop signal was sent; it is sent once. `revoked`: the replica is killed without
    a stop signal. `cause` is the id of the record that ordered the stop; None if the agent itself
    ordered it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    code: Code
    deadline_ms: Millis
    cause: RecordId | None
    kill_at_ms: Count
    signalled: bool = False
    revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a main process ended: exactly one of exit code and signal.

    `lost`: the exit is not known. `fenced`: the runner killed it because the fence had expired.
    `out_of_memory`: it, or a process that it started, exceeded its memory and was killed.
    `engine_restarted`: the container engine ended it, because it was restarted.
    `output_doubtful`: its last output may be missing, because it could not be read.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    signal: Annotated[int, Field(ge=1, le=64)] | None = None
    lost: bool = False
    fenced: bool = False
    out_of_memory: bool = False
    engine_restarted: bool = False
    output_doubtful: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes `start` to `end` of a stream, shipped as piece `seq` of the replica."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    stream: Stream
    start: Count
    end: Count
    seq: Count


@dataclass(slots=True, kw_only=True)
class Output:
    """How far a replica's output is shipped to the log.

    `last` are the pieces of the newest batch, which may be missing in the log. `cut`: the first
    part of the output is shipped, and the rest waits for the end of the replica. `tail`: the
    replica has ended, and the positions are in the newest part of the output.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    stdout: Count = 0
    stderr: Count = 0
    seq: Count = 0
    cut: bool = False
    tail: bool = False
    last: tuple[Piece, ...] = ()


@dataclass(slots=True, kw_only=True)
class Replica:
    """All that is known of one replica. The `*_logged` fields say which facts are in the log."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Literal["replica"] = "replica"
    assignment: Assignment
    state: ReplicaState = ReplicaState.ASSIGNED
    #: The secret that authenticates the task at this agent's API.
    token: str = ""
    #: The user that runs it, until its files are removed; None: the agent's own user, or nothing
    #: ever runs of it.
    user: TaskUser | None = None
    #: What runs, or ran, of it; None: nothing ever ran.
    identity: RunIdentity | None = None
    #: The digest of the image that it runs in; None: no image, or one that came from no registry.
    image: ImageDigest | None = None
    stop: StopOrder | None = None
    stop_signal: StopSignal = StopSignal.TERM
    checkpoint: Checkpoint | None = None
    done: bool = False
    exit: Exit | None = None
    #: Why its start failed, if a start was tried.
    failure: StartFailure | None = None
    ended_ms: Count = 0
    started_logged: bool = False
    checkpoint_logged: bool = True
    ended_logged: bool = False
    directory_removed: bool = False
    #: The patterns of the files that are kept after its end.
    artifacts: tuple[str, ...] = ()
    #: Whether the agent is finished with its artifacts; it may have failed to keep them.
    artifacts_done: bool = False
    output: Output = field(default_factory=Output)

    @property
    def key(self) -> ReplicaKey:
        """Which replica this is."""
        return self.assignment.key

    @property
    def held(self) -> bool:
        """Whether the replica still holds its slots."""
        return self.state is not ReplicaState.RELEASED

    @property
    def keeps_artifacts(self) -> bool:
        """Whether its working folder is still needed for artifacts."""
        return self.identity is not None and bool(self.artifacts) and not self.artifacts_done

    @property
    def unfinished(self) -> bool:
        """Whether it holds slots, or its release or its artifacts are not recorded yet."""
        return self.held or not self.ended_logged or self.keeps_artifacts

    @property
    def facts_logged(self) -> bool:
        """Whether the replica's start and its last checkpoint are in the log."""
        return self.started_logged and self.checkpoint_logged

    @property
    def alive(self) -> bool:
        """Whether the replica was started and is not released, so a process of it may be alive."""
        return self.state in (ReplicaState.STARTED, ReplicaState.EXITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The resources that the node offers; they do not change during an incarnation."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    pool: Name
    node_type: Name
    gpus: Count
    cpu_milli: Count
    memory_mib: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The node's own entry: the first line of a ledger, and again at every start.

    `epoch` counts the starts of an agent process in this incarnation. `api_port` is kept, because
    running tasks use it. `host` is a digest of the host and the place of the ledger, which shows
    whether the ledger is a copy. `generation` is the log's when the incarnation began
    (`yardmaster_runtime.fence`).
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Literal["head"] = "head"
    format: Literal[2] = FORMAT
    node: Name
    incarnation: Incarnation
    epoch: Count
    offer: Offer
    api_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    generation: Count = 0
    host: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Records of the node's assignments before `offset` were handled.

    `digest` is the digest of the last of these records; None if that record had expired when the
    incarnation began.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Literal["reached"] = "reached"
    offset: Count
    digest: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Removes a replica that ended long ago from the state.

    `through` is the offset in `decisions` of its assignment. From then on, every assignment up to
    this offset counts as a repeat.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Literal["forgotten"] = "forgotten"
    key: ReplicaKey
    through: int


Entry = Head | Reached | Forgotten | Replica
ENTRY: Final[TypeAdapter[Entry]] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])


def dump(entry: Entry) -> bytes:
    """Return the JSON of an entry."""
    return ENTRY.dump_json(entry)


@dataclass(slots=True)
class AgentState:
    """The state after all entries."""

    head: Head
    reached: int = 0
    reached_digest: str | None = None
    forgotten_through: int = -1
    replicas: dict[ReplicaKey, Replica] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Fold one entry, which replaces the earlier entry on its subject."""
        match entry:
            case Head():
                self.head = entry
            case Reached():
                self.reached, self.reached_digest = entry.offset, entry.digest
            case Forgotten():
                self.replicas.pop(entry.key, None)
                self.forgotten_through = max(self.forgotten_through, entry.through)
            case Replica():
                self.replicas[entry.key] = entry

    def entries(self) -> list[Entry]:
        """Return the fewest entries that fold into this state."""
        kept: list[Entry] = [
            self.head,
            Reached(offset=self.reached, digest=self.reached_digest),
        ]
        if self.forgotten_through >= 0:
            placeholder = ReplicaKey("0" * 12 + ".0", 1, 0)
            kept.append(Forgotten(key=placeholder, through=self.forgotten_through))
        return [*kept, *self.replicas.values()]

    def repeated(self, assignment: Assignment) -> bool:
        """Whether this node got the replica of an assignment before."""
        return assignment.key in self.replicas or -1 < assignment.decision <= self.forgotten_through
