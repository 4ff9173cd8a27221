"""`node-events`: reports of agents; accepted only from the node that they concern."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import ConfigDict, Field

from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.fields import (
    CLOSED,
    MAX_SLOTS,
    Address,
    CheckpointUri,
    Count,
    Incarnation,
    Labels,
    MountGrants,
    Name,
    Port,
    Positive,
    ReplicaIndex,
    TaskId,
)
from yardmaster_schemas.reasons import StartFailure
from yardmaster_schemas.topics import NODE_EVENTS

BootId = Annotated[str, Field(pattern=r"^[0-9a-f-]{8,36}$")]
RunId = Annotated[str, Field(pattern=r"^[0-9a-f-]{1,64}$")]
#: The id of a Docker engine is a UUID, or before Docker 24 groups of capital letters and digits.
RunHost = Annotated[str, Field(pattern=r"^[0-9A-Za-z:-]{1,64}$")]
#: The digest under which a registry has an image.
ImageDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
MAX_RUNNING = 4096


class Isolation(StrEnum):
    """How tasks are isolated: not at all, as another user than the agent, in a unit of systemd
    each, or in a container each.
    """

    NONE = "none"
    USER = "user"
    UNIT = "unit"
    CONTAINER = "container"


class ExecutorKind(StrEnum):
    """How an agent can run a command: as a process, or in a container (`run.image`)."""

    PROCESS = "process"
    CONTAINER = "container"


class FractionLimits(StrEnum):
    """How tasks are limited to their fractions of GPUs: not at all, or by NVIDIA MPS."""

    NONE = "none"
    MPS = "mps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRef:
    """One replica of one attempt."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    task_id: TaskId
    attempt: Positive
    replica: ReplicaIndex


@event(NODE_EVENTS, name="NodeJoined")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoinedV1(Event):
    """A node offers its resources.

    `incarnation` identifies the agent's ledger: it is unchanged after a restart of the agent
    (`running` names the replicas that still run), and it is new with a new ledger or after the node
    was declared lost, when nothing runs. The ports `port_first` to `port_last` are for the
    rendezvous of gangs. `executors`: what the agent can run. `fraction_limits`: how it limits tasks
    to their fractions of GPUs. `mounts`: the folders that containers may mount.
    """

    node: Name
    incarnation: Incarnation
    boot_id: BootId
    schema_version: Positive
    pool: Name
    node_type: Name
    gpus: Annotated[int, Field(ge=0, le=MAX_SLOTS)]
    gpu_memory_mib: Count = 0
    cpu_milli: Count
    memory_mib: Count
    labels: Labels = field(default_factory=dict)
    address: Address
    port_first: Port
    port_last: Port
    isolation: Isolation = Isolation.NONE
    running: Annotated[tuple[ReplicaRef, ...], Field(max_length=MAX_RUNNING)] = ()
    executors: Annotated[tuple[ExecutorKind, ...], Field(max_length=2)] = (ExecutorKind.PROCESS,)
    fraction_limits: FractionLimits = FractionLimits.NONE
    mounts: MountGrants = ()


@event(NODE_EVENTS, name="NodeDrained")
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainedV1(Event):
    """The agent has left: nothing runs on the node, and nothing will start."""

    node: Name
    incarnation: Incarnation


class RunKind(StrEnum):
    """The kinds of runs of a replica."""

    PROCESS = "process"
    CONTAINER = "container"
    POD = "pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """The identity of what runs of a replica, which nothing else ever has.

    - A process: `id` is `PID-STARTED`, with its start in clock ticks since the boot; `host` is the
      boot id of the machine.
    - A container: `id` is the engine's id of it; `host` is the id of the engine.
    - A pod: `id` is its UID; `host` is the boot id of its node.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: RunKind
    id: RunId
    host: RunHost

    @classmethod
    def of_process(cls, pid: int, started: int, boot_id: str) -> Self:
        """Return the identity of a process; `started` is in clock ticks since the boot."""
        return cls(kind=RunKind.PROCESS, id=f"{pid}-{started}", host=boot_id)

    def __str__(self) -> str:
        """Return the text of findings: `process 4711-7 of 3f0c6a52`."""
        return f"{self.kind} {self.id} of {self.host}"


@event(NODE_EVENTS, name="TaskStarted")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStartedV1(Event):
    """A replica runs as the process, container or pod that `run` identifies.

    `image`: the digest of its image; None without an image, or if the image came from no registry.
    """

    task_id: TaskId
    attempt: Positive
    replica: ReplicaIndex
    node: Name
    incarnation: Incarnation
    run: RunIdentity
    image: ImageDigest | None = None


@event(NODE_EVENTS, name="TaskPreparing")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPreparingV1(Event):
    """The image of a replica is being pulled, and something has arrived since the last report; or
    the replica waits for its turn to start, and the node has finished another start since then.

    `bytes_total`: the bytes of those layers whose size is known yet. `starts_ahead`: the replicas
    of the node that start before this one, 0 during a pull. An agent writes at most one in 5 s and
    at most 1,000 of a pull, and as many of a wait. Each delays the start timeout of the attempt,
    until 12 hours after the allocation; later ones are refused.
    """

    task_id: TaskId
    attempt: Positive
    replica: ReplicaIndex
    node: Name
    incarnation: Incarnation
    layers: Count = 0
    layers_done: Count = 0
    bytes_done: Count = 0
    bytes_total: Count = 0
    starts_ahead: Count = 0


@event(NODE_EVENTS, name="CheckpointDone")
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDoneV1(Event):
    """A task saved its state; the next attempt gets the location."""

    task_id: TaskId
    attempt: Positive
    replica: ReplicaIndex
    node: Name
    incarnation: Incarnation
    uri: CheckpointUri
    step: Count


@event(NODE_EVENTS, name="TaskProgressed")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgressedV1(Event):
    """The progress that a task reports, in thousandths."""

    task_id: TaskId
    attempt: Positive
    replica: ReplicaIndex
    node: Name
    incarnation: Incarnation
    permille: Annotated[int, Field(ge=0, le=1000)]


@event(NODE_EVENTS, name="TaskExited")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExitedV1(Event):
    """A replica's process ended: by itself, by a signal or out of memory.

    Exactly one of `exit_code` and `signal` is set. `done`: the task reported through the SDK that
    its work is finished, which exit code 0 after a stop does not mean. `engine_restarted`: the
    container engine ended it when it was restarted, whatever the exit.
    """

    task_id: TaskId
    attempt: Positive
    replica: ReplicaIndex
    node: Name
    incarnation: Incarnation
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    signal: Annotated[int, Field(ge=1, le=64)] | None = None
    out_of_memory: bool = False
    engine_restarted: bool = False
    done: bool = False

    def __post_init__(self) -> None:
        if (self.exit_code is None) == (self.signal is None):
            raise ValueError("exactly one of exit_code and signal must be given")


@event(NODE_EVENTS, name="SlotsReleased")
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsReleasedV1(Event):
    """No process of a replica is left; its slots are free. `never_started`: no process ever ran.

    `failure`: the agent tried to start the replica and failed. None without a try (the attempt was
    stopped first).
    """

    task_id: TaskId
    attempt: Positive
    replica: ReplicaIndex
    node: Name
    incarnation: Incarnation
    never_started: bool = False
    failure: StartFailure | None = None
