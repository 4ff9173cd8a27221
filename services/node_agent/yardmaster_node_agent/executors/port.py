"""The executor: the only port through which an agent starts and controls replicas.

An executor starts a replica at most once, and finds it again after the agent was killed, by an
identity that no other process ever has. Each replica has its own directory, with its output, its
stop file and its checkpoint file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from yardmaster_node_agent.agent_state import Exit, ProcessIdentity, ReplicaKey
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import ExecutorKind, Isolation

StreamName = Literal["stdout", "stderr"]


class CheckpointFileUnusable(ValueError):
    """The checkpoint file is not the task's own regular file; the message says why."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of a replica's stop file and checkpoint file, as the replica sees them."""

    stop_file: str
    checkpoint_file: str


@dataclass(frozen=True, slots=True)
class Renewal:
    """The last heartbeat of an incarnation that the log acknowledged (see `lease`).

    `acknowledged_s` is in the clock's monotonic seconds, which are valid for one boot.
    """

    boot_id: str
    incarnation: str
    acknowledged_s: float
    longest_gap_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """The run of a job to start, and its whole environment with resolved secrets.

    The replica is killed if the lease of `incarnation` was not renewed for `fence_s`; None: never.
    """

    key: ReplicaKey
    run: Run
    env: Mapping[str, str]
    fence_s: int | None = None
    incarnation: str = ""


class Process(Protocol):
    """A replica that this agent process or an earlier one started."""

    identity: ProcessIdentity

    async def exited(self) -> Exit:
        """Wait until the main process has ended, and return its exit."""

    async def gone(self) -> None:
        """Wait until the replica has no process, in any group or session; kill nothing."""

    def vanished(self) -> bool:
        """Whether the exit of the main process can never be known."""

    def is_alive(self) -> bool:
        """Whether the main process is alive; a process that reuses its pid does not count."""

    def signal(self, number: int) -> None:
        """Send a signal to the group of the main process, if it is alive."""

    def kill(self) -> None:
        """SIGKILL all present processes of the replica; call it again for later ones."""

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


class Executor(Protocol):
    """Starts replicas and finds them again."""

    @property
    def kinds(self) -> tuple[ExecutorKind, ...]:
        """The kinds of tasks that the executor runs, which the node reports when it joins."""

    @property
    def isolation(self) -> Isolation:
        """How the executor isolates its tasks, which the node reports when it joins."""

    def paths(self, key: ReplicaKey) -> Paths:
        """Return the paths of the replica's stop file and checkpoint file."""

    def renew(self, renewal: Renewal) -> None:
        """Store a renewal for the runners of fenced replicas and for later agent processes.

        Raises: ExecutorFailed: it cannot be stored. The runners will then kill the fenced replicas
            when the lease expires.
        """

    def renewal(self) -> Renewal | None:
        """Return the last renewal; None if there is none that can be read."""

    async def start(self, launch: Launch) -> Process:
        """Start a replica; call it once per key, after the replica is in the ledger.

        Raises:
            ExecutorFailed: no process was started, and none will be. The field `failure` is the
                cause, if it is the same on every node.
        """

    async def adopt(self, key: ReplicaKey, known: ProcessIdentity | None = None) -> Process | None:
        """Find a replica that an earlier agent process may have started; it may have ended.

        `known` is the identity of its process, if the ledger has it. Return None if no process of
        the replica ever ran; then a later start is prevented too.
        """

    async def sweep(self) -> int:
        """Kill and remove all replicas of earlier ledgers; return the number of killed processes.

        Raises:
            ExecutorFailed: a process cannot be killed, so the slots are not free.
        """

    def forget(self, key: ReplicaKey) -> None:
        """Remove the directory of a released replica."""
