"""Restart: the newest snapshot that fits the log, then the tail. Without a snapshot, the whole log.

Snapshots are a cache, and only the log is believed: a snapshot's state must have the digest that
the log's commit names, and the cycles after it must lead to the states that their commits name. A
snapshot that is damaged, forged, of another version, or of another log is passed over with a
warning, and the one before it is tried. But one that knows more of the log than there is means that
the log lost its end, and that stops the machine: what it once decided must not be decided again
otherwise.
"""

from typing import Any, Final, TypeVar

from pydantic_core import from_json

from yardmaster_core.errors import ChainBroken, ForeignRecord, ImpossibleEvent, SnapshotUnreadable
from yardmaster_core.machine import Machine
from yardmaster_eventlog.errors import LogTruncated, SnapshotsUnavailable
from yardmaster_eventlog.port import EventLog, StoredRecord
from yardmaster_eventlog.snapshots import Snapshot, SnapshotStore
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.cycle_reader import decode_own, digest_of
from yardmaster_runtime.errors import ReplayDiverged
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import CycleCommittedV1

S = TypeVar("S")
#: What a restore from a snapshot may meet through the snapshot's fault.
SKIPPED: Final = (
    SnapshotUnreadable,
    ChainBroken,
    ForeignRecord,
    ImpossibleEvent,
    ReplayDiverged,
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
    """A fold that has caught up with the log.

    Raises:
        LogTruncated: the log ends before what a snapshot knows of it.
        and what `Fold.catch_up` raises from the start of the log: what it meets after a snapshot
        may be the snapshot's fault.
    """
    started_s = clock.monotonic_s()
    before: int | None = None
    while snapshots is not None:
        try:
            newest = await snapshots.newest(machine.name, cell, before=before)
        except SnapshotsUnavailable as error:
            metrics.telemetry.warn("snapshots_unavailable", code=error.code)
            break
        for bad in newest.bad:
            metrics.snapshots_skipped.inc()
            metrics.telemetry.warn("snapshot_skipped", code=bad.code, found=str(bad))
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
    fold = Fold(log, machine, cell, partition=partition, read_ahead=read_ahead)
    return await _caught_up(fold, clock, metrics, started_s)


async def _caught_up(
    fold: Fold[S], clock: Clock, metrics: RuntimeMetrics, started_s: float
) -> Fold[S]:
    """The fold at the end of the log, and the metrics of a restore that began at `started_s`."""
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
    """The fold where a snapshot was taken, checked against the log.

    Raises:
        SnapshotUnreadable: not a state of this machine and version, or of another log.
        LogTruncated: the log ends before it.
    """
    try:
        dump = from_json(snapshot.payload)
    except ValueError as error:
        raise SnapshotUnreadable(found=str(error)) from None
    fold = Fold(log, machine, cell, partition=partition, read_ahead=read_ahead, dump=dump)
    ends = {fold.own: fold.reader.next}
    for place in fold.inputs:
        ends[place] = fold.reader.inputs.get((place.topic, place.number), 0)
    for place, known in ends.items():
        end = await log.end(place)
        if end < known:
            raise LogTruncated(
                found=f"{place} ends at {end}, but the snapshot of cycle {snapshot.cycle} knows it "
                f"to {known} (if this is a new log, remove the old one's snapshots)"
            )
    last = await log.read(fold.own, fold.reader.next - 1, max_records=1)
    if not last or digest_of(last[0].record).hex() != fold.reader.head:
        raise SnapshotUnreadable(found="it is of another log")
    _check_against(fold, last[0])
    return fold


def _check_against(fold: Fold[Any], stored: StoredRecord) -> None:
    """Compare a snapshot's state and reader with the commit after which it was taken.

    Raises:
        SnapshotUnreadable: they are not those that the log's commit names.
    """
    reader = fold.reader
    try:
        envelope = decode_own(stored.record, fold.cell)
    except SchemaError as error:
        raise SnapshotUnreadable(found=f"what it was taken after: {error}") from None
    commit = envelope.data
    if not isinstance(commit, CycleCommittedV1):
        raise SnapshotUnreadable(found=f"it was taken after a {envelope.type}")
    if commit.state_digest != fold.machine.digest(fold.state):
        raise SnapshotUnreadable(found="its state is not the one that the log's commit names")
    named = (envelope.epoch, envelope.source, envelope.seq + 1, commit.cycle, commit.rules)
    inputs = {(one.topic, one.partition): one.next for one in commit.inputs}
    if (
        named != (reader.term, reader.owner, reader.seq, reader.cycle, reader.rules)
        or (commit.now_ms, commit.complete) != (reader.now_ms, reader.complete)
        or any(reader.inputs.get(place) != end for place, end in inputs.items())
    ):
        raise SnapshotUnreadable(found="its reader is not where the log's commit says")
