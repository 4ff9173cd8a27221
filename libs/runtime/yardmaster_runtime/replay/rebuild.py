"""Rebuilds the state at any moment of the log with the fold of production."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from yardmaster_core.commit import CountedCycle
from yardmaster_core.machine import Machine
from yardmaster_eventlog.port import EventLog
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.errors import BeforeFirstCycle
from yardmaster_runtime.machine.fold import Fold, Listener
from yardmaster_runtime.replay.origin import begin
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
    #: The cycle of the snapshot from which the log was folded; 0: from its start.
    from_cycle: int = 0


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
    snapshots: SnapshotStore | None = None,
) -> Replayed[S]:
    """Return the state after the last cycle within all bounds; without bounds, the last state.

    `position`: the cycle and all its inputs are before it. `time_ms`: the cycle's `now_ms` is not
    later. `listeners` are called for each cycle. The log is folded from its start; only if that
    has expired, from the oldest usable one of `snapshots`.

    Raises:
        BeforeFirstCycle: the bounds are before the log's first cycle.
        LogBeginsLater: the start of the log has expired, and there is no usable snapshot.
        ForeignRecord, ChainBroken, ReplayDiverged, ImpossibleEvent: the log contradicts itself.
    """
    fold: Fold[S] = await begin(
        *(log, machine, cell, partition, snapshots),
        lambda dump: Fold(log, machine, cell, partition=partition, dump=dump),
    )
    first, first_ms = fold.reader.cycle, fold.reader.now_ms
    reached = [first, first_ms]
    where = [fold.position]

    def note(accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        reached[:] = counted.commit.cycle, counted.commit.now_ms
        where[0] = fold.position

    beyond = _after(position, time_ms, cycle)
    ends = after(fold.own.topic, position, time_ms, cycle)
    if first and beyond(first, first_ms, dict(fold.position.parts())):
        raise BeforeFirstCycle(cycle=first, at=rfc3339(first_ms))

    def until(counted: CountedCycle) -> bool:
        ended = ends(counted)
        if ended and not reached[0]:
            commit = counted.commit
            raise BeforeFirstCycle(cycle=commit.cycle, at=rfc3339(commit.now_ms))
        return ended

    fold.listeners += [note, *listeners]
    await fold.catch_up(until)
    return Replayed(fold.state, reached[0], reached[1], where[0], first)


def after(
    topic: str, position: Position | None, time_ms: int | None, cycle: int | None
) -> Callable[[CountedCycle], bool]:
    """Return a predicate: whether a cycle of `topic` is beyond one of the bounds."""
    beyond = _after(position, time_ms, cycle)

    def ends(counted: CountedCycle) -> bool:
        commit = counted.commit
        read = {taken.topic: taken.next for taken in commit.inputs}
        return beyond(commit.cycle, commit.now_ms, read | {topic: counted.offset + 1})

    return ends


def _after(
    position: Position | None, time_ms: int | None, cycle: int | None
) -> Callable[[int, int, Mapping[str, int]], bool]:
    """Return a predicate: whether a cycle, its `now_ms`, or a topic's end is beyond the bounds."""
    bounds = dict(position.parts()) if position is not None else {}

    def beyond(reached: int, now_ms: int, ends: Mapping[str, int]) -> bool:
        if cycle is not None and reached > cycle:
            return True
        if time_ms is not None and now_ms > time_ms:
            return True
        return any(end > bounds[topic] for topic, end in ends.items() if topic in bounds)

    return beyond
