"""Snapshots: the state is dumped between two cycles and stored while cycles continue."""

import asyncio
from typing import Any, Final, Generic, NoReturn, TypeVar

from yardmaster_core.machine import Decision
from yardmaster_eventlog.errors import SnapshotsUnavailable
from yardmaster_eventlog.snapshots import Snapshot, SnapshotStore
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.settings import SnapshotLimits
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_schemas import plain
from yardmaster_schemas.events.machine import SnapshotTakenV1

S = TypeVar("S")
#: Rows of a state that are encoded at once: a few milliseconds.
SLICE: Final = 500
#: The longest pause after failures, in seconds.
MAX_PAUSE_S: Final = 3_600


class Snapshotter(Generic[S]):
    """One leader's snapshots: call `consider` after each cycle; `run` stores them concurrently.

    A SnapshotTaken is recorded in the next cycle that another event starts: a snapshot starts no
    cycle, so an idle log does not grow.
    """

    def __init__(
        self,
        fold: Fold[S],
        store: SnapshotStore,
        *,
        clock: Clock,
        limits: SnapshotLimits,
        metrics: RuntimeMetrics,
        observations: Observations,
    ) -> None:
        self._fold = fold
        self._store = store
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._observations = observations
        # Cycles folded since the snapshot of the restore count too: otherwise a process that
        # restarts often would never take a snapshot.
        self._last_cycle = 0 if fold.origin is None else int(fold.origin["cycle"])
        self._last_s = clock.monotonic_s()
        #: Failures since the last snapshot that was stored.
        self._failures = 0
        #: What `run` stores: the cycle, its digest and the dump.
        self._taken: tuple[int, str, dict[str, Any]] | None = None
        self._wake = asyncio.Event()

    def consider(self) -> None:
        """Dump the state if a snapshot is due and the last one is stored."""
        now_s, cycle = self._clock.monotonic_s(), self._fold.reader.cycle
        if self._taken is not None or cycle == self._last_cycle:
            return
        if now_s - self._last_s < self._pause_s:
            return
        if (
            cycle - self._last_cycle < self._limits.every_cycles
            and now_s - self._last_s < self._limits.every_s
        ):
            return
        fold = self._fold
        if fold.machine.committed_digest(fold.state) != fold.reader.state_digest:
            return  # the log could not prove a snapshot of this cycle; the next cycle is tried
        self._last_cycle, self._last_s = cycle, now_s
        self._taken = (cycle, self._fold.reader.state_digest, self._fold.dump())
        self._metrics.snapshot_seconds.observe(self._clock.monotonic_s() - now_s)
        self._wake.set()

    async def run(self) -> NoReturn:
        """Store the dumps of `consider`; after a failure, a later dump is stored instead."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._taken is None:
                continue
            cycle, digest, dump = self._taken
            taken = _snapshot(self._fold, cycle, digest, await encoded(dump))
            try:
                await self._store.save(taken)
                await self._store.prune(taken.machine, taken.cell, keep=self._limits.keep)
            except SnapshotsUnavailable as error:
                self._failures += 1
                self._metrics.snapshots_failed.inc()
                self._metrics.telemetry.warn(
                    "snapshot_failed",
                    cycle=taken.cycle,
                    code=error.code,
                    found=str(error),
                    again_after_s=self._pause_s,
                )
            else:
                self._failures = 0
                self._metrics.snapshots.inc()
                self._note(taken)
            self._taken = None

    @property
    def _pause_s(self) -> float:
        """Seconds without a snapshot after a failure: `every_s`, doubled with each further one."""
        if not self._failures:
            return 0.0
        return float(min(self._limits.every_s * 2 ** min(self._failures - 1, 16), MAX_PAUSE_S))

    def _note(self, taken: Snapshot) -> None:
        """Let a later cycle record the snapshot, if the machine records snapshots."""
        if SnapshotTakenV1 not in self._fold.machine.observations:
            return
        event = SnapshotTakenV1(cycle=taken.cycle, state_digest=taken.state_digest)
        self._observations.put(Decision(event, taken.cell), urgent=False)


def take(fold: Fold[Any]) -> Snapshot:
    """Return a snapshot of the state after the last counted cycle."""
    reader = fold.reader
    return _snapshot(fold, reader.cycle, reader.state_digest, plain.encode(fold.dump()))


def _snapshot(fold: Fold[Any], cycle: int, state_digest: str, payload: bytes) -> Snapshot:
    return Snapshot(
        machine=fold.machine.name,
        cell=fold.cell,
        cycle=cycle,
        state_digest=state_digest,
        payload=payload,
    )


async def encoded(dump: dict[str, Any]) -> bytes:
    """Return the dump as JSON; other tasks run after each SLICE of rows.

    `dump["state"]` must be the last value of the dump.
    """
    state = dump["state"]
    if not isinstance(state, dict):
        return plain.encode(dump)
    head = plain.encode({name: value for name, value in dump.items() if name != "state"})
    # The parts are joined only once, because each copy of a large payload blocks the other tasks.
    parts = [head[:-1], b',"state":{']
    for number, (name, value) in enumerate(state.items()):
        parts += (b"," if number else b"", plain.encode(name), b":")
        await _encode_value(value, parts)
    parts.append(b"}}")
    return b"".join(parts)


async def _encode_value(value: Any, parts: list[bytes]) -> None:
    """Append the JSON of a value to `parts`."""
    if not isinstance(value, dict | list) or len(value) <= SLICE:
        parts.append(plain.encode(value))
        return
    rows: list[Any] = list(value.items()) if isinstance(value, dict) else value
    parts.append(b"{" if isinstance(value, dict) else b"[")
    for first in range(0, len(rows), SLICE):
        part = rows[first : first + SLICE]
        parts += (
            b"," if first else b"",
            plain.encode(dict(part) if isinstance(value, dict) else part)[1:-1],
        )
        # Let other tasks run; this takes no time of the service's clock.
        await asyncio.sleep(0)  # noqa: TID251
    parts.append(b"}" if isinstance(value, dict) else b"]")
