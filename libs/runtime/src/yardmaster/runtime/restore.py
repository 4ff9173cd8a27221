"""Restart: the newest snapshot that fits the log, then the tail. Without a snapshot, the whole log.

Snapshots are a cache. One that is damaged, of another version, or of another log is passed over
with a warning; but one that knows more of the log than there is means that the log lost its end,
and that stops the machine: what it once decided must not be decided again otherwise.
"""

from typing import TypeVar

from pydantic_core import from_json

from yardmaster.core.errors import SnapshotUnreadable
from yardmaster.core.machine import Machine
from yardmaster.eventlog.errors import LogTruncated, SnapshotsUnavailable
from yardmaster.eventlog.port import EventLog
from yardmaster.eventlog.snapshots import Snapshot, SnapshotStore
from yardmaster.runtime.batch import digest_of
from yardmaster.runtime.clock import Clock
from yardmaster.runtime.fold import Fold
from yardmaster.runtime.metrics import RuntimeMetrics

S = TypeVar("S")


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
        and what `Fold.catch_up` raises.
    """
    started_s = clock.monotonic_s()
    fold: Fold[S] | None = None
    before: int | None = None
    while snapshots is not None and fold is None:
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
        except SnapshotUnreadable as unreadable:
            metrics.snapshots_skipped.inc()
            metrics.telemetry.warn(
                "snapshot_skipped", cycle=before, code=unreadable.code, found=str(unreadable)
            )
    if fold is None:
        fold = Fold(log, machine, cell, partition=partition, read_ahead=read_ahead)
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
    if machine.digest(fold.state) != dump["digest"]:
        raise SnapshotUnreadable(found="its state has another digest than when it was taken")
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
    return fold
