"""Restore: load the newest snapshot that matches the log, then fold the tail, or the whole log.

Snapshots are a cache; the log is the truth. A snapshot's state must have the digest that the log's
commit names, and the cycles after it must lead to the states that their commits name. A snapshot
that is damaged, forged, of another version or of another log is skipped with a warning, and the one
before it is tried. A snapshot that is ahead of the log means that the log lost its end. That stops
the machine, because it could decide differently what it decided before.

A log that has lost its first records is folded from a snapshot only; without a usable one the
machine stops.
"""

from typing import Any, Final, TypeVar

from pydantic_core import from_json

from yardmaster_core.errors import ChainBroken, ForeignRecord, ImpossibleEvent, SnapshotUnreadable
from yardmaster_core.machine import Machine
from yardmaster_eventlog.errors import LogTruncated, OffsetGone, SnapshotsUnavailable
from yardmaster_eventlog.port import EventLog, StoredRecord
from yardmaster_eventlog.snapshots import Snapshot, SnapshotStore
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.cycle_reader import decode_own, digest_of
from yardmaster_runtime.errors import ReplayDiverged
from yardmaster_runtime.machine.beginning import (
    cause_of,
    needs_snapshot,
)
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import CycleCommittedV1

S = TypeVar("S")
#: Errors that a bad snapshot may cause.
SKIPPED: Final = (
    SnapshotUnreadable,
    ChainBroken,
    ForeignRecord,
    ImpossibleEvent,
    ReplayDiverged,
    OffsetGone,
)


async def restore(
    log: EventLog,
    machine: Machine[S],
    cell: str,
    *,
    snapshots: SnapshotStore | None,
    clock: Clock,
    metrics: RuntimeMetrics,
    partition: int = 0,
    read_ahead: int = 1000,
) -> Fold[S]:
    """Return a fold at the end of the log.

    Raises:
        LogTruncated: a snapshot is ahead of the log.
        LogBeginsLater: the log has lost its first records, and no snapshot is usable.
        and the errors of `Fold.catch_up` from the start of the log (errors after a snapshot may be
        caused by the snapshot).
    """
    started_s = clock.monotonic_s()
    before: int | None = None
    unusable: list[str] = []
    while snapshots is not None:
        try:
            newest = await snapshots.newest(machine.name, cell, before=before)
        except SnapshotsUnavailable as error:
            metrics.snapshots_unavailable.inc()
            metrics.telemetry.warn("snapshots_unavailable", code=error.code, found=str(error))
            unusable.append(cause_of(error))
            break
        for bad in newest.bad:
            metrics.snapshots_skipped.inc()
            metrics.telemetry.warn("snapshot_skipped", code=bad.code, found=str(bad))
            unusable.append(f"{bad.fields['name']}: {cause_of(bad)}")
        if newest.snapshot is None:
            break
        before = newest.snapshot.cycle
        try:
            fold = await from_snapshot(
                log, machine, cell, newest.snapshot, partition=partition, read_ahead=read_ahead
            )
            return await _caught_up(fold, clock, metrics, started_s)
        except SKIPPED as bad:
            metrics.snapshots_skipped.inc()
            metrics.telemetry.warn("snapshot_skipped", cycle=before, code=bad.code, found=str(bad))
            unusable.append(f"cycle {before}: {cause_of(bad)}")
    fold = Fold(log, machine, cell, partition=partition, read_ahead=read_ahead)
    try:
        return await _caught_up(fold, clock, metrics, started_s)
    except OffsetGone:
        raise await needs_snapshot(log, machine, cell, partition, snapshots, unusable) from None


async def _caught_up(
    fold: Fold[S], clock: Clock, metrics: RuntimeMetrics, started_s: float
) -> Fold[S]:
    """Fold the tail; record the metrics of a restore that began at `started_s`."""
    cycle = fold.reader.cycle
    folded = await fold.catch_up()
    took_s = clock.monotonic_s() - started_s
    metrics.restore_seconds.observe(took_s)
    metrics.telemetry.info(
        "restored", snapshot_cycle=cycle, tail_cycles=folded, seconds=round(took_s, 3)
    )
    return fold


async def from_snapshot(
    log: EventLog,
    machine: Machine[S],
    cell: str,
    snapshot: Snapshot,
    *,
    partition: int = 0,
    read_ahead: int = 1000,
) -> Fold[S]:
    """Return the fold at the snapshot's cycle, checked against the log.

    Raises: as `content_of` and `check_origin`.
    """
    dump = content_of(snapshot)
    fold = Fold(log, machine, cell, partition=partition, read_ahead=read_ahead, dump=dump)
    await check_origin(fold)
    return fold


def content_of(snapshot: Snapshot) -> Any:
    """Return the dump of a fold in a snapshot.

    Raises: SnapshotUnreadable: it is not JSON.
    """
    try:
        return from_json(snapshot.payload)
    except ValueError as error:
        raise SnapshotUnreadable(found=str(error)) from None


async def check_origin(fold: Fold[Any]) -> None:
    """Check the content of a snapshot, from which `fold` was made, against the log.

    Raises:
        SnapshotUnreadable: the snapshot is of another version or log.
        LogTruncated: the snapshot is ahead of the log.
        OffsetGone: the log no longer has the commit of its cycle.
    """
    log = fold.log
    ends = {fold.own: fold.reader.next}
    for source in fold.inputs:
        ends[source] = fold.reader.inputs.get((source.topic, source.number), 0)
    for source, known in ends.items():
        end = await log.end(source)
        if end < known:
            raise LogTruncated(
                found=f"{source} ends at {end}, but the snapshot of cycle {fold.reader.cycle} "
                f"covers it to {known} (if this is a new log, remove the old log's snapshots)"
            )
    last = await log.read(fold.own, fold.reader.next - 1, max_records=1)
    if not last or digest_of(last[0].record).hex() != fold.reader.head:
        raise SnapshotUnreadable(found="it belongs to another log")
    _check_against(fold, last[0])


def _check_against(fold: Fold[Any], stored: StoredRecord) -> None:
    """Compare a snapshot's state and reader with the log's commit of its cycle.

    Raises:
        SnapshotUnreadable: they differ.
    """
    reader = fold.reader
    try:
        envelope = decode_own(stored.record, fold.cell)
    except SchemaError as error:
        raise SnapshotUnreadable(found=f"the record before it: {error}") from None
    commit = envelope.data
    if not isinstance(commit, CycleCommittedV1):
        raise SnapshotUnreadable(found=f"the record before it is a {envelope.type}, not a commit")
    if commit.state_digest != fold.machine.committed_digest(fold.state):
        raise SnapshotUnreadable(found="its state differs from the log's commit")
    named = (envelope.epoch, envelope.source, envelope.seq + 1, commit.cycle, commit.rules)
    inputs = {(one.topic, one.partition): one.next for one in commit.inputs}
    if (
        named != (reader.term, reader.owner, reader.seq, reader.cycle, reader.rules)
        or (commit.now_ms, commit.complete) != (reader.now_ms, reader.complete)
        or any(reader.inputs.get(source) != end for source, end in inputs.items())
    ):
        raise SnapshotUnreadable(found="its reader differs from the log's commit")
