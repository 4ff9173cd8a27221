"""A log with planned faults, for tests and the simulator: `FaultyLog` around any other log.

Faults that a real log shows rarely and at unpredictable times are scripted here: the second append
to `decisions` is lost, the third is written although its writer gets AppendOutcomeUnknown. The
handles of all writers share one plan, so that a late batch is written whichever handle is used.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogError, LogUnavailable
from yardmaster_eventlog.forwarding import ForwardingLog, T
from yardmaster_eventlog.port import Clock, EventLog, Partition, Record


class FaultKind(StrEnum):
    """The outcome of an append."""

    #: Not written; the writer gets AppendOutcomeUnknown.
    LOST = "lost"
    #: Written; the writer gets AppendOutcomeUnknown.
    LANDED = "landed"
    #: The writer gets AppendOutcomeUnknown; the batch is written later.
    LATE = "late"
    #: Written after a delay.
    STALLED = "stalled"
    #: Not written; the writer gets LogUnavailable.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: the outcome of the `nth` append (from 1) to a topic, counted over the whole plan.

    A LATE batch is written when `after_operations` more operations (of any handle, on any topic)
    have begun, or at the first operation after `after_s` seconds, whichever of those given comes
    first; with neither, by `write_late`. A STALLED append waits `after_s` seconds.
    """

    topic: str
    nth: int
    kind: FaultKind
    after_operations: int | None = None
    after_s: float | None = None

    def __post_init__(self) -> None:
        if self.nth < 1:
            raise ValueError("appends are counted from 1")
        if self.kind is FaultKind.STALLED and self.after_s is None:
            raise ValueError("a stall needs after_s")


class Digits(Protocol):
    """The source of random digits for a drawn plan; see `yardmaster_runtime.chance`."""

    def hex(self, purpose: str, digits: int) -> str:
        """Return `digits` hexadecimal digits; `purpose` names their use."""


@dataclass(slots=True)
class _Late:
    log: EventLog
    partition: Partition
    batch: Sequence[Record]
    at_operation: int | None
    at_s: float | None


@dataclass(slots=True)
class FaultPlan:
    """The script of faults and its progress; one for all handles on a log."""

    clock: Clock
    faults: Sequence[Fault] = ()
    #: The faults that have happened, in order.
    happened: list[Fault] = field(default_factory=list)
    _appends: Counter[str] = field(default_factory=Counter)
    _operations: int = 0
    _late: list[_Late] = field(default_factory=list)

    @classmethod
    def drawn(
        cls, clock: Clock, chance: Digits, *, topics: Sequence[str], appends: int, permille: int
    ) -> "FaultPlan":
        """Return a plan in which each of the first `appends` appends to each topic may fail.

        An append fails with a probability of `permille` / 1000. Each is drawn independently, so
        that removing one fault from the plan does not move another.
        """
        kinds = tuple(FaultKind)
        faults = []
        for topic in topics:
            for nth in range(1, appends + 1):
                drawn = int(chance.hex(f"fault/{topic}/{nth}", 12), 16)
                if drawn % 1000 >= permille:
                    continue
                drawn //= 1000
                kind = kinds[drawn % len(kinds)]
                drawn //= len(kinds)
                by_time = kind is FaultKind.STALLED or drawn % 2 == 0
                faults.append(
                    Fault(
                        topic=topic,
                        nth=nth,
                        kind=kind,
                        after_s=drawn % 997 / 100 if by_time else None,
                        after_operations=None if by_time else drawn % 97,
                    )
                )
        return cls(clock, faults)

    async def write_late(self) -> None:
        """Write every late batch now, the oldest first."""
        due, self._late = self._late, []
        for late in due:
            await _write(late)

    async def step(self) -> None:
        """Count an operation, and first write the batches that are due."""
        now_s = self.clock.monotonic_s()
        due = [
            late
            for late in self._late
            if (late.at_operation is not None and late.at_operation <= self._operations)
            or (late.at_s is not None and late.at_s <= now_s)
        ]
        self._operations += 1
        self._late = [late for late in self._late if late not in due]
        for late in due:
            await _write(late)

    def next_fault(self, topic: str) -> Fault | None:
        """Return the fault of this append to the topic, or None."""
        self._appends[topic] += 1
        nth = self._appends[topic]
        for fault in self.faults:
            if fault.topic == topic and fault.nth == nth:
                self.happened.append(fault)
                return fault
        return None

    def postpone(
        self, log: EventLog, partition: Partition, batch: Sequence[Record], fault: Fault
    ) -> None:
        """Keep a batch to write it later."""
        operations, seconds = fault.after_operations, fault.after_s
        self._late.append(
            _Late(
                log,
                partition,
                tuple(batch),
                None if operations is None else self._operations + operations,
                None if seconds is None else self.clock.monotonic_s() + seconds,
            )
        )


async def _write(late: _Late) -> None:
    try:
        await late.log.append(late.partition, late.batch)
    except LogError:
        return  # the log may have been closed: the batch is lost, which is a valid outcome


class FaultyLog(ForwardingLog):
    """`inner` with the plan's faults; see `EventLog` for the contract."""

    def __init__(self, inner: EventLog, plan: FaultPlan) -> None:
        super().__init__(inner)
        self._plan = plan

    async def _forward(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._plan.step()
        return await call()

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch`, or fail as planned."""
        await self._plan.step()
        fault = self._plan.next_fault(partition.topic)
        if fault is None:
            return await self._log.append(partition, batch)
        # A wrong call is reported before a fault, as a real log does.
        await self._log.end(partition)
        match fault.kind:
            case FaultKind.UNAVAILABLE:
                raise LogUnavailable(found="as planned")
            case FaultKind.STALLED:
                await self._plan.clock.sleep(fault.after_s or 0)
                return await self._log.append(partition, batch)
            case FaultKind.LANDED:
                await self._log.append(partition, batch)
            case FaultKind.LATE:
                self._plan.postpone(self._log, partition, batch, fault)
            case FaultKind.LOST:
                pass
        raise AppendOutcomeUnknown(topic=partition.topic, found=f"planned: {fault.kind}")
