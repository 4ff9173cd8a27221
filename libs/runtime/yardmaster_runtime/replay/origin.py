"""Where a replay begins: at the first record of the log, else at the oldest usable snapshot.

A snapshot is used only for a machine whose topics have lost their first records. The oldest one
leaves the most cycles to replay.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from yardmaster_core.errors import SnapshotUnreadable
from yardmaster_core.machine import Machine
from yardmaster_eventlog.errors import (
    LogTruncated,
    OffsetGone,
    SnapshotCorrupt,
    SnapshotsUnavailable,
)
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.machine.beginning import (
    cause_of,
    later_beginnings,
    needs_snapshot,
    topics_of,
)
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.restore import check_origin, content_of

F = TypeVar("F", bound=Fold[Any])
_UNUSABLE: Final = (
    SnapshotCorrupt,
    SnapshotUnreadable,
    SnapshotsUnavailable,
    LogTruncated,
    OffsetGone,
)


async def begin(
    log: EventLog,
    machine: Machine[Any],
    cell: str,
    number: int,
    snapshots: SnapshotStore | None,
    make: Callable[[Any], F],
) -> F:
    """Return the fold that replays the most of the log; `make` makes it of a dump or of None.

    Raises:
        LogBeginsLater: the log has lost its first records, and no snapshot covers them.
        LogError: the log cannot be read.
    """
    firsts = await later_beginnings(log, topics_of(machine, number))
    if not firsts:
        return make(None)
    if snapshots is None:
        raise await needs_snapshot(log, machine, cell, number, None, ())
    unusable = []
    try:
        cycles = await snapshots.cycles(machine.name, cell)
    except SnapshotsUnavailable as error:
        cycles = ()
        unusable.append(cause_of(error))
    for cycle in reversed(cycles):
        try:
            fold = make(content_of(await snapshots.load(machine.name, cell, cycle)))
            _check_tail(fold, firsts)
            await check_origin(fold)
        except _UNUSABLE as error:
            unusable.append(f"cycle {cycle}: {cause_of(error)}")
        else:
            return fold
    raise await needs_snapshot(log, machine, cell, number, snapshots, unusable)


def _check_tail(fold: Fold[Any], firsts: Mapping[Partition, int]) -> None:
    """Check that the log has the records after a snapshot, and its commit.

    Raises: SnapshotUnreadable.
    """
    for at, first in firsts.items():
        own = at == fold.own
        wanted = fold.reader.next - 1 if own else fold.reader.inputs.get((at.topic, at.number), 0)
        if wanted < first:
            raise SnapshotUnreadable(
                found=f"records {wanted} to {first - 1} of {at}, which a start from it reads, "
                "have expired"
            )
