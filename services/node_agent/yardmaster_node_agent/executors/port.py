"""The executor: the only port through which an agent prepares, starts and controls replicas.

A replica starts in two phases. `prepare` makes all that the replica needs, so that it can be
started, but cannot run yet. Then the agent writes to its ledger that it starts the replica, and
calls `start`. Both calls may be repeated, also by a later agent process: a replica runs at most
once. `find` tells a later agent process how far an earlier one came.

Each replica has its own directory, with its output, its stop file and its checkpoint file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, Protocol

from yardmaster_node_agent.agent_state import Exit, ReplicaKey, TaskUser
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import ExecutorKind, Isolation, RunIdentity

StreamName = Literal["stdout", "stderr"]

#: The most processes of a replica, where its executor can limit them.
MAX_PIDS: Final = 4096


class CheckpointFileUnusable(ValueError):
    """The checkpoint file is not the task's own regular file; the message says why."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of a replica's stop file and checkpoint file, as the replica sees them."""

    stop_file: str
    checkpoint_file: str


@dataclass(frozen=True, slots=True)
class ImageFound:
    """An image that the node has, under the engine's own id of it.

    `digest` is that of the registry; None if the image came from none.
    """

    id: str
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How much has arrived of an image.

    Attributes:
        layers: the layers of the image; `layers_done` are ready for use.
        bytes_total: the bytes of those layers whose size is known yet.
    """

    layers: int = 0
    layers_done: int = 0
    bytes_done: int = 0
    bytes_total: int = 0


OnProgress = Callable[[FetchProgress], None]


@dataclass(frozen=True, slots=True)
class Launch:
    """The run of a job to start, and its whole environment with resolved secrets.

    The executor kills the replica if the lease of `incarnation` (see `lease`) was not renewed for
    `fence_s`, also if the agent has ended; None: never. Each executor says in its docstring how.
    """

    key: ReplicaKey
    run: Run
    env: Mapping[str, str]
    #: The user that runs it; None: a process runs as the agent's user, and a container as the user
    #: of its image.
    user: TaskUser | None = None
    fence_s: int | None = None
    incarnation: str = ""
    #: The number of replicas of the task.
    replicas: int = 1
    #: CPUs in thousandths and memory that the replica holds; 0: it requested none.
    cpu_milli: int = 0
    memory_mib: int = 0
    #: The CUDA names (indices or UUIDs) of its GPUs.
    devices: tuple[str, ...] = ()
    #: The replica's own copy of the job's context; `run.working_dir` is below it.
    code: Path | None = None
    #: The digest of `run.image` that the replica must run; None: the one that it names now.
    pinned: str | None = None
    #: The image of `run.image`, which `Executor.fetch` found; None: as the node has it.
    image: ImageFound | None = None


class Phase(StrEnum):
    """The phase of a replica in its executor."""

    #: It does not run, and never will, unless it is prepared again.
    ABSENT = "absent"
    #: It can be started.
    PREPARED = "prepared"
    RUNNING = "running"
    #: It cannot be found out at present: the engine does not answer, or the replica is of a kind
    #: that this executor does not run. Ask again.
    UNKNOWN = "unknown"
    #: Its main program has ended, or was killed with the machine.
    ENDED = "ended"


class ReplicaFiles(Protocol):
    """The files through which a replica and its agent exchange stop, checkpoint and output."""

    def announce_stop(self, notice: str) -> bool:
        """Create or replace the stop file atomically.

        Return False if this failed because the task removed its own directory.
        """

    def checkpoint_note(self) -> bytes | None:
        """Return the checkpoint file, at most 4 KiB; None if unchanged since the last call.

        Raises:
            CheckpointFileUnusable: once for each file that is not the task's own regular file.
        """

    def read_output(self, stream: StreamName, start: int, size: int) -> bytes:
        """Return at most `size` bytes of a stream from byte `start` on; none at its end."""

    def output_size(self, stream: StreamName) -> int:
        """Return the number of bytes that were written to a stream, including freed bytes."""

    def bound_output(self, head: int, tail: int) -> bool:
        """Free the disk space of each stream, except its first `head` and newest `tail` bytes.

        Positions in the streams stay the same; freed bytes are read as zeros. Return False if the
        file system cannot free a part of a file: each stream was truncated to `head + tail` bytes.
        """


class Execution(Protocol):
    """A started replica: a process, container or pod, which may have ended.

    This agent process or an earlier one started it.
    """

    identity: RunIdentity

    @property
    def files(self) -> ReplicaFiles:
        """The files of the replica."""

    async def exited(self) -> Exit:
        """Wait until the main program has ended, and return its exit."""

    async def gone(self) -> None:
        """Wait until nothing of the replica runs, in any group or session; kill nothing."""

    async def signal(self, number: int) -> None:
        """Send a signal to the main program and its group, if it runs."""

    async def kill(self) -> None:
        """SIGKILL all that runs of the replica; call it again for what starts later."""


@dataclass(frozen=True, slots=True)
class ReplicaFound:
    """The result of `Executor.find`.

    Attributes:
        execution: set if the replica was started, so the phase is RUNNING or ENDED.
        exit_lost: the replica has ended, and its exit can never be known.
    """

    phase: Phase
    execution: Execution | None = None
    exit_lost: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The present abilities of an executor, which the node reports when it joins.

    Attributes:
        kinds: the kinds of tasks that it runs.
        isolation: how it isolates its tasks.
        no_containers: why it runs no containers at present, although it may; else None.
    """

    kinds: tuple[ExecutorKind, ...]
    isolation: Isolation
    no_containers: str | None = None


class Executor(Protocol):
    """Prepares and starts replicas, and finds them again."""

    async def capabilities(self) -> Capabilities:
        """Return the abilities that the executor has now, within `engine.PROBE_S`."""

    def paths(self, key: ReplicaKey, run: Run) -> Paths:
        """Return the paths of a replica's stop file and checkpoint file."""

    async def fetch(self, launch: Launch, on_progress: OnProgress) -> Launch:
        """Fetch what the replica runs in, such as its image; return the launch with it.

        This may take hours. It makes nothing of the replica itself, so it may be cancelled at any
        time. `on_progress` is called whenever something has arrived.

        Raises:
            ExecutorFailed: it cannot be had, as for `prepare`.
        """

    async def prepare(self, launch: Launch) -> None:
        """Make all that a replica needs, of a fetched launch; it cannot run yet.

        A repeated call continues where the one before was interrupted. For a replica that was
        started, it changes nothing.

        Raises:
            ExecutorFailed: the replica cannot be prepared, or was withdrawn. The field `failure` is
                the cause, if it is the same on every node.
        """

    async def start(self, launch: Launch) -> Execution:
        """Start a prepared replica whose start is in the ledger.

        A repeated call returns the execution that the first one started.

        Raises:
            ExecutorFailed: the replica does not run, and never will.
        """

    async def find(self, key: ReplicaKey, known: RunIdentity | None = None) -> ReplicaFound:
        """Find out how far an executor came with a replica.

        `known` is the identity of its execution, if the ledger has it.
        """

    async def withdraw(self, key: ReplicaKey) -> Execution | None:
        """Make sure that a replica never starts, unless it is prepared again.

        Return its execution if it was started before.
        """

    async def sweep(self) -> int:
        """Kill and remove all replicas of earlier ledgers; return the number of killed processes.

        Raises:
            ExecutorFailed: a process cannot be killed, so the slots are not free.
        """

    async def forget(self, key: ReplicaKey) -> bool:
        """Remove all that is left of a released replica; return whether nothing is left."""
