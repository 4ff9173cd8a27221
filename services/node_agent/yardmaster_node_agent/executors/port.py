"""The executor: the one seam through which an agent touches what it runs.

An executor starts a replica at most once, finds it again after the agent was killed, and knows it
by an identity that no other process ever has. Each replica has a directory of its own, where its
output, its stop notice and its checkpoint note lie.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from yardmaster_node_agent.agent_state import Exit, ProcessIdentity, ReplicaKey
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import ExecutorKind

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a replica finds its notices, as the replica sees it."""

    stop_file: str
    checkpoint_file: str


@dataclass(frozen=True, slots=True)
class Renewal:
    """That a node's incarnation was heard by the log: see `lease`, whose note this is.

    `acknowledged_s` is in the clock's monotonic seconds, which hold for one boot of a machine.
    """

    boot_id: str
    incarnation: str
    acknowledged_s: float
    longest_gap_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run: the run as the job has it, and the whole environment (secrets resolved).

    `fence_s` and `incarnation`: killed when that incarnation was not renewed for so long; None:
    never.
    """

    key: ReplicaKey
    run: Run
    env: Mapping[str, str]
    fence_s: int | None = None
    incarnation: str = ""


class Process(Protocol):
    """A replica that was started, by this life of the agent or one before."""

    identity: ProcessIdentity

    async def exited(self) -> Exit:
        """Wait until the main process has ended; how it did."""

    async def gone(self) -> None:
        """Wait until nothing of the replica is left, in any group or session; kills nothing."""

    def vanished(self) -> bool:
        """Nobody saw how its main process ended, if it did, and nobody will."""

    def is_alive(self) -> bool:
        """The main process is there: the same boot, pid and start, so never another of its pid."""

    def signal(self, number: int) -> None:
        """Send a signal to the main process's group; nothing happens when there is none."""

    def kill(self) -> None:
        """SIGKILL all of the replica that is there now; what comes later needs another call."""

    def announce_stop(self, notice: str) -> bool:
        """Let the stop file appear with this text, whole; a later call replaces it.

        False when it cannot: the task removed its own directory.
        """

    def checkpoint_note(self) -> bytes | None:
        """The checkpoint file (at most 4 KiB) when it is new since the last call, else None."""

    def read_output(self, stream: StreamName, start: int, size: int) -> bytes:
        """At most `size` bytes of a stream from byte `start` on; none at its end."""

    def bound_output(self, limit: int) -> None:
        """Free what a stream holds past its byte `limit`; what is written next lies there again."""

    def drop_output(self) -> None:
        """Free what the streams hold; for output past its limit, which nobody will read."""


class Executor(Protocol):
    """Starts replicas and finds them again."""

    @property
    def kinds(self) -> tuple[ExecutorKind, ...]:
        """What it runs, as the node says when it joins."""

    def paths(self, key: ReplicaKey) -> Paths:
        """Where the replica's notices will lie."""

    def renew(self, renewal: Renewal) -> None:
        """Note for all that runs, and for later lives of the agent, that the node was heard.

        Raises: ExecutorFailed: what runs under a fence will end by itself.
        """

    def renewal(self) -> Renewal | None:
        """The last note; None when there is none that can be read."""

    async def start(self, launch: Launch) -> Process:
        """Start a replica; call it once a key, after the ledger holds it.

        Raises:
            ExecutorFailed: nothing was started, and nothing will be; its field `failure` says why
                where that holds on every node.
        """

    async def adopt(self, key: ReplicaKey, known: ProcessIdentity | None = None) -> Process | None:
        """A replica that an earlier life of the agent may have started, ended or not.

        `known` is its process when the ledger has it. None: nothing of it ever ran, and from now on
        never will.
        """

    async def sweep(self) -> int:
        """End and remove everything of earlier ledgers; return how many processes were killed.

        Raises:
            ExecutorFailed: something cannot be ended; the node is not free.
        """

    def forget(self, key: ReplicaKey) -> None:
        """Remove the directory of a replica that is gone."""
