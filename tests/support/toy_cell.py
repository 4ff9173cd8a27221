"""A cell of toy machines on a log in memory, for tests of the runtime."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

from tests.support.memory_cell import CELL, MemoryCell
from tests.support.toy_machine import ToyMachine, ToyState, request
from yardmaster_core.machine import Machine
from yardmaster_eventlog.port import EventLog
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.machine.candidate import Candidate
from yardmaster_runtime.machine.election import Election, SoleCandidate
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.settings import CycleLimits, RuntimeSettings
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_schemas.envelope import Event

#: Deadline of every wait in a test, in real seconds.
DEADLINE_S = 30.0


class ToyCell(MemoryCell):
    """A log, a clock, and the services that run on them."""

    clock: ManualClock

    def __init__(self, log: EventLog | None = None, clock: ManualClock | None = None) -> None:
        super().__init__(log, clock)
        self.chance = SeededChance(7)
        self._submitted = 0

    def metrics(self, name: str = "toy") -> RuntimeMetrics:
        return RuntimeMetrics(self.telemetry(name))

    def leader(
        self,
        machine: Machine[Any] | None = None,
        log: EventLog | None = None,
        *,
        dump: Any = None,
        **limits: Any,
    ) -> Leader[Any]:
        """A leader without a term, at the start of the log or where `dump` was made."""
        metrics = self.metrics()
        return Leader(
            Fold(log or self.log, machine or ToyMachine.quota(), CELL, dump=dump),
            clock=self.clock,
            chance=self.chance,
            limits=CycleLimits(**limits),
            metrics=metrics,
            observations=Observations(100, metrics),
        )

    def candidate(
        self,
        machine: Machine[Any] | None = None,
        *,
        log: EventLog | None = None,
        election: Election | None = None,
        snapshots: SnapshotStore | None = None,
        metrics: RuntimeMetrics | None = None,
        **settings: Any,
    ) -> Candidate[Any]:
        return Candidate(
            machine or ToyMachine.quota(),
            RuntimeSettings(cell=CELL, **settings),
            log=log or self.log,
            clock=self.clock,
            chance=self.chance,
            metrics=metrics or self.metrics(),
            election=election or SoleCandidate(),
            snapshots=snapshots,
        )

    async def ask(self, count: int = 1, event: Event | None = None) -> None:
        """Append requests with consecutive numbers."""
        numbers = range(self._submitted, self._submitted + count)
        self._submitted += count
        await self.put("requests", [request(number, event) for number in numbers])

    async def fold(self, machine: Machine[Any] | None = None, **kwargs: Any) -> Fold[Any]:
        """A reader that follows the log from its start."""
        fold: Fold[Any] = Fold(self.log, machine or ToyMachine.quota(), CELL, **kwargs)
        await fold.catch_up()
        return fold


async def until(true: Callable[[], bool], clock: ManualClock | None = None) -> None:
    """Let other tasks run until `true` holds; advance the clock, if given, in the meantime."""
    deadline = time.monotonic() + DEADLINE_S
    for count in itertools.count():
        if true():
            return
        assert time.monotonic() < deadline, "the condition did not become true"
        if clock is not None and count % 20 == 19:
            clock.advance(0.02)
        # Snapshots are stored in a thread: real time must pass too, now and then.
        await asyncio.sleep(0.001 if count % 50 == 49 else 0)


def answers(fold: Fold[Any]) -> dict[str, int]:
    """How often each job was answered."""
    state = fold.state
    assert isinstance(state, ToyState)
    return state.answered
