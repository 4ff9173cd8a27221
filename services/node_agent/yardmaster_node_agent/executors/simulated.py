"""Simulated replicas: they take time by the clock, without processes and files.

Variables in the job's environment set what a replica does:

- `SIM_SECONDS`: how long it runs (default 1; fractions allowed);
- `SIM_EXIT`: its exit code (default 0);
- `SIM_STOP_SECONDS`: how long it takes to save and end after the stop signal (default 0; negative:
  it ignores the signal);
- `SIM_CHECKPOINT`: the URI that it reports as its checkpoint after the stop signal, at the step
  `YARD_CHECKPOINT_STEP` + 1.

The executor represents the host: several agents, one after another, may use the same executor.
Nothing fences its replicas, because all of them end with the process that simulates them.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Final, Self

from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors.port import (
    Capabilities,
    Launch,
    OnProgress,
    Paths,
    Phase,
    ReplicaFound,
    StreamName,
)
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.waiting import happens_within
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import ExecutorKind, Isolation, RunIdentity

#: The boot id of every simulated host; it never reboots.
BOOT_ID: Final = "00000000-0000-0000-0000-000000000000"


class SimulatedFiles:
    """The files of one replica: only the checkpoint file ever has content."""

    def __init__(self) -> None:
        self.note: bytes | None = None

    def announce_stop(self, notice: str) -> bool:
        """Do nothing: no program reads it."""
        return True

    def checkpoint_note(self) -> bytes | None:
        """Return the checkpoint that the replica reported after the stop signal, once."""
        note, self.note = self.note, None
        return note

    def read_output(self, stream: StreamName, start: int, size: int) -> bytes:
        """Return nothing: it has no output."""
        return b""

    def output_size(self, stream: StreamName) -> int:
        """Return 0: it has no output."""
        return 0

    def bound_output(self, head: int, tail: int) -> bool:
        """Do nothing: it has no output."""
        return True


class SimulatedExecution:
    """The simulated process of one replica: it ends at a known time, with a known exit."""

    def __init__(self, identity: RunIdentity, env: Mapping[str, str], clock: Clock) -> None:
        self.identity = identity
        self.files = SimulatedFiles()
        self._env = env
        self._clock = clock
        self._ends_s = clock.monotonic_s() + float(env.get("SIM_SECONDS", "1"))
        self._exit = Exit(exit_code=int(env.get("SIM_EXIT", "0")))
        self._ended = False
        self._changed = asyncio.Event()

    @classmethod
    def lost(cls, identity: RunIdentity, clock: Clock) -> Self:
        """Return an execution that ended with its machine, so that its exit is not known."""
        execution = cls(identity, {}, clock)
        execution._ended, execution._exit = True, Exit(signal=9, lost=True)
        return execution

    async def exited(self) -> Exit:
        """Wait until the process has ended, and return its exit."""
        while not self._over():
            self._changed.clear()
            left_s = max(self._ends_s - self._clock.monotonic_s(), 0.001)
            await happens_within(self._clock, left_s, self._changed)
        return self._exit

    async def gone(self) -> None:
        """Wait until the process has ended; the replica has no other processes."""
        await self.exited()

    def found(self) -> ReplicaFound:
        """Return whether it runs."""
        phase = Phase.ENDED if self._over() else Phase.RUNNING
        return ReplicaFound(phase, self, exit_lost=self._exit.lost)

    async def signal(self, number: int) -> None:
        """End after `SIM_STOP_SECONDS` with a checkpoint, or ignore the signal; see the module."""
        takes_s = float(self._env.get("SIM_STOP_SECONDS", "0"))
        if self._over() or takes_s < 0:
            return
        self._ends_s = min(self._ends_s, self._clock.monotonic_s() + takes_s)
        if (uri := self._env.get("SIM_CHECKPOINT")) is not None:
            step = int(self._env.get("YARD_CHECKPOINT_STEP") or 0) + 1
            self.files.note = json.dumps({"uri": uri, "step": step}).encode()
        else:
            self._exit = Exit(signal=number)
        self._changed.set()

    async def kill(self) -> None:
        """End the process now, as by SIGKILL."""
        if not self._over():
            self._ended, self._exit = True, Exit(signal=9)
            self._changed.set()

    def _over(self) -> bool:
        self._ended = self._ended or self._clock.monotonic_s() >= self._ends_s
        return self._ended


class SimulatedExecutor:
    """The executor of a simulated host, whose processes only take time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 1000
        self._prepared: set[ReplicaKey] = set()
        #: The execution of each replica; None if the replica was withdrawn.
        self._executions: dict[ReplicaKey, SimulatedExecution | None] = {}

    async def capabilities(self) -> Capabilities:
        """Return that it runs all kinds."""
        return Capabilities(
            kinds=(ExecutorKind.PROCESS, ExecutorKind.CONTAINER), isolation=Isolation.NONE
        )

    def paths(self, key: ReplicaKey, run: Run) -> Paths:
        """Return paths of files that never exist."""
        return Paths(f"/simulated/{key}/stop.json", f"/simulated/{key}/checkpoint.json")

    async def fetch(self, launch: Launch, on_progress: OnProgress) -> Launch:
        """Return the launch: nothing is needed."""
        return launch

    async def prepare(self, launch: Launch) -> None:
        """Note that the replica can be started."""
        self._prepared.add(launch.key)

    async def start(self, launch: Launch) -> SimulatedExecution:
        """Start a simulated process for the replica; it ends after `SIM_SECONDS` of its
        environment.

        Raises: ExecutorFailed: it is not prepared or was withdrawn, or a variable is no number.
        """
        key = launch.key
        if (execution := self._executions.get(key)) is not None:
            return execution
        if key in self._executions or key not in self._prepared:
            raise ExecutorFailed(replica=key, found="it was withdrawn, or never prepared")
        self._count += 1
        try:
            identity = RunIdentity.of_process(self._count, self._clock.now_ms(), BOOT_ID)
            execution = SimulatedExecution(identity, launch.env, self._clock)
        except ValueError as error:
            self._executions[key] = None
            raise ExecutorFailed(replica=key, found=error) from None
        self._executions[key] = execution
        return execution

    async def find(self, key: ReplicaKey, known: RunIdentity | None = None) -> ReplicaFound:
        """Find a replica by its key."""
        execution = self._executions.get(key)
        if execution is None and known is not None:
            # The simulated machine was restarted.
            execution = SimulatedExecution.lost(known, self._clock)
        if execution is not None:
            return execution.found()
        startable = key in self._prepared and key not in self._executions
        return ReplicaFound(Phase.PREPARED if startable else Phase.ABSENT)

    async def withdraw(self, key: ReplicaKey) -> SimulatedExecution | None:
        """Prevent a later start."""
        return self._executions.setdefault(key, None) if key in self._prepared else None

    async def sweep(self) -> int:
        """Kill and remove all replicas; return the number of killed processes."""
        found = [each for each in self._executions.values() if each is not None]
        alive = [each for each in found if each.found().phase is Phase.RUNNING]
        for execution in alive:
            await execution.kill()
        self._executions.clear()
        self._prepared.clear()
        return len(alive)

    async def forget(self, key: ReplicaKey) -> bool:
        """Forget a replica."""
        self._prepared.discard(key)
        self._executions.pop(key, None)
        return True
