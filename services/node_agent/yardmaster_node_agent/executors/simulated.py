"""Simulated replicas: they take time by the clock, without processes and files.

Variables in the job's environment set what a replica does:

- `SIM_SECONDS`: how long it runs (default 1; fractions allowed);
- `SIM_EXIT`: its exit code (default 0);
- `SIM_STOP_SECONDS`: how long it takes to save and end after the stop signal (default 0; negative:
  it ignores the signal);
- `SIM_CHECKPOINT`: the URI that it reports as its checkpoint after the stop signal, at the step
  `YARD_CHECKPOINT_STEP` + 1.

The executor represents the host: several agents, one after another, may use the same executor.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from yardmaster_node_agent.agent_state import Exit, ProcessIdentity, ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors.port import Launch, Paths, Renewal, StreamName
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.waiting import happens_within
from yardmaster_schemas.events.node_events import ExecutorKind, Isolation

#: The boot id of every simulated host; it never reboots.
BOOT_ID: Final = "00000000-0000-0000-0000-000000000000"


class SimulatedProcess:
    """The simulated process of one replica: it ends at a known time, with a known exit."""

    def __init__(self, pid: int, env: Mapping[str, str], clock: Clock) -> None:
        self.identity = ProcessIdentity(boot_id=BOOT_ID, pid=pid, started=clock.now_ms())
        self.stop_notice: str | None = None
        self._env = env
        self._clock = clock
        self._ends_s = clock.monotonic_s() + float(env.get("SIM_SECONDS", "1"))
        self._exit = Exit(exit_code=int(env.get("SIM_EXIT", "0")))
        self._ended = False
        self._note: bytes | None = None
        self._changed = asyncio.Event()

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

    def vanished(self) -> bool:
        """False: every exit is known."""
        return False

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return not self._over()

    def signal(self, number: int) -> None:
        """End after `SIM_STOP_SECONDS` with a checkpoint, or ignore the signal; see the module."""
        takes_s = float(self._env.get("SIM_STOP_SECONDS", "0"))
        if self._over() or takes_s < 0:
            return
        self._ends_s = min(self._ends_s, self._clock.monotonic_s() + takes_s)
        if (uri := self._env.get("SIM_CHECKPOINT")) is not None:
            step = int(self._env.get("YARD_CHECKPOINT_STEP") or 0) + 1
            self._note = json.dumps({"uri": uri, "step": step}).encode()
        else:
            self._exit = Exit(signal=number)
        self._changed.set()

    def kill(self) -> None:
        """End the process now, as by SIGKILL."""
        if not self._over():
            self._ended, self._exit = True, Exit(signal=9)
            self._changed.set()

    def announce_stop(self, notice: str) -> bool:
        """Store the notice in `stop_notice`, where tests read it."""
        self.stop_notice = notice
        return True

    def checkpoint_note(self) -> bytes | None:
        """Return the checkpoint that the replica reported after the stop signal, once."""
        note, self._note = self._note, None
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

    def _over(self) -> bool:
        self._ended = self._ended or self._clock.monotonic_s() >= self._ends_s
        return self._ended


class SimulatedExecutor:
    """The executor of a simulated host, whose processes only take time."""

    isolation = Isolation.NONE
    kinds = (ExecutorKind.PROCESS, ExecutorKind.CONTAINER)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 1000
        #: The process of each replica; None if the start of the replica was prevented.
        self._processes: dict[ReplicaKey, SimulatedProcess | None] = {}
        self._renewal: Renewal | None = None

    def paths(self, key: ReplicaKey) -> Paths:
        """Return paths of files that never exist."""
        return Paths(f"/simulated/{key}/stop.json", f"/simulated/{key}/checkpoint.json")

    def renew(self, renewal: Renewal) -> None:
        """Store the renewal; simulated processes do not check it."""
        self._renewal = renewal

    def renewal(self) -> Renewal | None:
        """Return the last renewal."""
        return self._renewal

    async def start(self, launch: Launch) -> SimulatedProcess:
        """Start a simulated process for the replica; it ends after `SIM_SECONDS` of its
        environment.

        Raises: ExecutorFailed: the key was used before, or a variable is not a number.
        """
        if launch.key in self._processes:
            raise ExecutorFailed(
                replica=launch.key, found="it was started before, or its start was prevented"
            )
        self._count += 1
        try:
            process = SimulatedProcess(self._count, launch.env, self._clock)
        except ValueError as error:
            raise ExecutorFailed(replica=launch.key, found=error) from None
        self._processes[launch.key] = process
        return process

    async def adopt(
        self, key: ReplicaKey, known: ProcessIdentity | None = None
    ) -> SimulatedProcess | None:
        """Return the process of the key; if there is none, prevent a later start."""
        return self._processes.setdefault(key, None)

    async def sweep(self) -> int:
        """Kill and remove all replicas; return the number of killed processes."""
        alive = [p for p in self._processes.values() if p is not None and p.is_alive()]
        for process in alive:
            process.kill()
        self._processes.clear()
        return len(alive)

    def forget(self, key: ReplicaKey) -> None:
        """Forget a replica."""
        self._processes.pop(key, None)
