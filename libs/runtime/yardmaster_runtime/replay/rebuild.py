"""Rebuilds the state at any moment of the log with the fold of production."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from yardmaster_core.commit import CountedCycle
from yardmaster_core.machine import Machine
from yardmaster_eventlog.port import EventLog
from yardmaster_runtime.errors import BeforeFirstCycle
from yardmaster_runtime.machine.fold import Fold, Listener
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.position import Position

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Replayed(Generic[S]):
    """A machine's state after a cycle (0: the log has none), and its position in the log."""

    state: S
    cycle: int
    now_ms: int
    position: Position


async def state_at(
    log: EventLog,
    machine: Machine[S],
    cell: str,
    *,
    position: Position | None = None,
    time_ms: int | None = None,
    cycle: int | None = None,
    partition: int = 0,
    listeners: Sequence[Listener] = (),
) -> Replayed[S]:
    """Return the state after the last cycle within all bounds; without bounds, the last state.

    `position`: the cycle and all its inputs are before it. `time_ms`: the cycle's `now_ms` is not
    later. `listeners` are called for each cycle. The log is folded from its start, without
    snapshots.

    Raises:
        BeforeFirstCycle: the bounds are before the log's first cycle.
        ForeignRecord, ChainBroken, ReplayDiverged, ImpossibleEvent: the log contradicts itself.
    """
    fold = Fold(log, machine, cell, partition=partition)
    reached = [0, 0]
    where = [fold.position]

    def note(accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        reached[:] = counted.commit.cycle, counted.commit.now_ms
        where[0] = fold.position

    beyond = after(fold.own.topic, position, time_ms, cycle)

    def until(counted: CountedCycle) -> bool:
        ends = beyond(counted)
        if ends and not reached[0]:
            first = counted.commit
            raise BeforeFirstCycle(cycle=first.cycle, at=rfc3339(first.now_ms))
        return ends

    fold.listeners += [note, *listeners]
    await fold.catch_up(until)
    return Replayed(fold.state, reached[0], reached[1], where[0])


def after(
    topic: str, position: Position | None, time_ms: int | None, cycle: int | None
) -> Callable[[CountedCycle], bool]:
    """Return a predicate: whether a cycle is beyond one of the bounds."""
    bounds = dict(position.parts()) if position is not None else {}

    def beyond(counted: CountedCycle) -> bool:
        commit = counted.commit
        if cycle is not None and commit.cycle > cycle:
            return True
        if time_ms is not None and commit.now_ms > time_ms:
            return True
        if topic in bounds and counted.offset >= bounds[topic]:
            return True
        return any(
            taken.next > bounds[taken.topic] for taken in commit.inputs if taken.topic in bounds
        )

    return beyond
