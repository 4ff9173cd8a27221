"""The agent's state as values: the entries of its ledger, and the state that they fold into.

The ledger is a sequence of entries. Each replaces the earlier entry on its subject: the node's
head, one replica, a position. `AgentState.take` folds them. This module holds all that an agent
needs after a kill -9, and nothing else.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from yardmaster_schemas.events.decisions import Checkpoint
from yardmaster_schemas.events.details import StopSignal
from yardmaster_schemas.events.expiring import Stream
from yardmaster_schemas.events.node_events import BootId
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.fields import (
    CLOSED,
    Address,
    Code,
    Count,
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

FORMAT: Final = 1


class ReplicaState(StrEnum):
    """How far a replica came on this node; only ever goes down this list."""

    #: In the ledger; nothing was tried.
    ASSIGNED = "assigned"
    #: From here on a process may exist.
    STARTING = "starting"
    #: A process exists, or existed; its identity is known.
    STARTED = "started"
    #: Its main process ended; something of it may still be there.
    EXITED = "exited"
    #: Nothing of it is left, and nothing will be.
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
class Assignment:
    """What the scheduler gave this node: one replica of SlotsAllocated with what all share.

    `cause` is the record's id; `decision` its offset in `decisions` (-1 when the relay did not
    say).
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

    @property
    def task_index(self) -> int:
        """The task's number in its job."""
        return int(self.key.task_id.partition(".")[2])


def lost_assignment(key: ReplicaKey, cause: str, decision: int) -> Assignment:
    """Stands in the ledger for an assignment that never came; nothing is started from it.

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
class ProcessIdentity:
    """A process, for ever: on which boot, its pid, its start in clock ticks since that boot."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    boot_id: BootId
    pid: Count
    started: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """That a replica is to end, why, and when it is killed (ms since the epoch).

    `signalled`: its signal was sent, which is done once. `revoked`: it is killed without being
    asked. `cause` is the record that said so; None when the agent itself did.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    code: Code
    deadline_ms: Millis
    cause: RecordId | None
    signalled: bool = False
    revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a main process ended: exactly one of exit code and signal.

    `lost`: nobody saw it. `fenced`: it was killed because the agent was not heard of.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    signal: Annotated[int, Field(ge=1, le=64)] | None = None
    lost: bool = False
    fenced: bool = False


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
    """How far a replica's output is shipped; `last` may or may not have reached the log."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    stdout: Count = 0
    stderr: Count = 0
    seq: Count = 0
    cut: bool = False
    last: tuple[Piece, ...] = ()


@dataclass(slots=True, kw_only=True)
class Replica:
    """All that is known of one replica. The `*_told` say what the log is known to hold."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Literal["replica"] = "replica"
    assignment: Assignment
    state: ReplicaState = ReplicaState.ASSIGNED
    #: The secret by which the task speaks to this agent.
    token: str = ""
    identity: ProcessIdentity | None = None
    stop: StopOrder | None = None
    stop_signal: StopSignal = StopSignal.TERM
    checkpoint: Checkpoint | None = None
    done: bool = False
    exit: Exit | None = None
    #: Why it was not started, where that was tried.
    failure: StartFailure | None = None
    ended_ms: Count = 0
    started_told: bool = False
    checkpoint_told: bool = True
    ended_told: bool = False
    directory_removed: bool = False
    output: Output = field(default_factory=Output)

    @property
    def key(self) -> ReplicaKey:
        """Which replica this is."""
        return self.assignment.key

    @property
    def held(self) -> bool:
        """Its slots are not free yet."""
        return self.state is not ReplicaState.RELEASED

    @property
    def known_told(self) -> bool:
        """The log has what is known of it, its end aside."""
        return self.started_told and self.checkpoint_told

    @property
    def alive(self) -> bool:
        """A process of it is known, and may still be there."""
        return self.state in (ReplicaState.STARTED, ReplicaState.EXITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the node offers the scheduler; the same for the whole life of an incarnation."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    pool: Name
    node_type: Name
    gpus: Count
    cpu_milli: Count
    memory_mib: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The node's own entry: the first line of a ledger, and again at every start.

    `epoch` rises with every start of an incarnation, whatever the clock says, and is at least the
    start's time in ms. `api_port` is kept, because running tasks were told it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Literal["head"] = "head"
    format: Literal[1] = FORMAT
    node: Name
    incarnation: Incarnation
    epoch: Count
    offer: Offer
    api_port: Annotated[int, Field(ge=0, le=65_535)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Records of the node's assignments before `offset` were handled."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Literal["reached"] = "reached"
    offset: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A replica that ended long ago is not kept; decisions up to `through` are known repeats."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: Literal["forgotten"] = "forgotten"
    key: ReplicaKey
    through: int


Entry = Head | Reached | Forgotten | Replica
ENTRY: Final[TypeAdapter[Entry]] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])


@dataclass(slots=True)
class AgentState:
    """What the entries add up to."""

    head: Head
    reached: int = 0
    forgotten_through: int = -1
    replicas: dict[ReplicaKey, Replica] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        """Fold one entry; the newest word counts."""
        match entry:
            case Head():
                self.head = entry
            case Reached():
                self.reached = entry.offset
            case Forgotten():
                self.replicas.pop(entry.key, None)
                self.forgotten_through = max(self.forgotten_through, entry.through)
            case Replica():
                self.replicas[entry.key] = entry

    def entries(self) -> list[Entry]:
        """The fewest entries that add up to this state."""
        kept: list[Entry] = [self.head, Reached(offset=self.reached)]
        if self.forgotten_through >= 0:
            nobody = ReplicaKey("0" * 12 + ".0", 1, 0)
            kept.append(Forgotten(key=nobody, through=self.forgotten_through))
        return [*kept, *self.replicas.values()]

    def repeated(self, assignment: Assignment) -> bool:
        """This node was given that replica before."""
        return assignment.key in self.replicas or -1 < assignment.decision <= self.forgotten_through
