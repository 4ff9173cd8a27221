"""Where a gateway begins to fold the users: at quota's newest usable snapshot, or at the start of
`admissions`.

A snapshot is checked as quota checks it at a restart: its whole state must have the digest that the
log's commit names. So all of the state is loaded, and freed when the users are taken from it: one
second for 100,000 active jobs or a million ended ones. An unusable snapshot is skipped with a
warning. That includes one that is ahead of the log: quota stops there, and a gateway reads the log
that is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from yardmaster_core.access import User
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.commit import CommitReader
from yardmaster_core.errors import SnapshotUnreadable
from yardmaster_eventlog.errors import LogTruncated, OffsetGone, SnapshotsUnavailable
from yardmaster_eventlog.port import EventLog
from yardmaster_eventlog.snapshots import Snapshot, SnapshotStore
from yardmaster_runtime.machine.restore import from_snapshot
from yardmaster_runtime.telemetry.port import Telemetry

QUOTA: Final = QuotaMachine()
#: A snapshot is foreign or forged, it is ahead of the log, or its commit has expired.
SKIPPED: Final = (SnapshotUnreadable, LogTruncated, OffsetGone)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The users after a cycle of quota, and the reader that continues there."""

    users: Mapping[str, User]
    reader: CommitReader


async def newest_beginning(
    log: EventLog,
    snapshots: SnapshotStore | None,
    telemetry: Telemetry,
    *,
    cell: str,
    partition: int,
) -> Beginning:
    """Return the users of the newest usable snapshot; without one, the start of the log.

    Raises: LogUnavailable, UnknownTopic: a snapshot cannot be compared with the log.
    """
    before: int | None = None
    while snapshots is not None:
        try:
            newest = await snapshots.newest(QUOTA.name, cell, before=before)
        except SnapshotsUnavailable as error:
            telemetry.warn("snapshots_unavailable", code=error.code, found=str(error))
            break
        for bad in newest.bad:
            telemetry.warn("snapshot_skipped", code=bad.code, found=str(bad))
        if newest.snapshot is None:
            break
        before = newest.snapshot.cycle
        try:
            found = await _of_snapshot(log, newest.snapshot, cell, partition)
        except SKIPPED as error:
            telemetry.warn("snapshot_skipped", cycle=before, code=error.code, found=str(error))
        else:
            telemetry.info("users_from_snapshot", cycle=before, users=len(found.users))
            return found
    telemetry.info(
        "users_without_snapshot",
        found="no snapshot of quota is usable: the users are folded from the start of admissions, "
        "which takes longer the longer the log is",
    )
    return Beginning({}, CommitReader(QUOTA.name, cell, QUOTA.output.name))


async def _of_snapshot(log: EventLog, snapshot: Snapshot, cell: str, partition: int) -> Beginning:
    fold = await from_snapshot(log, QUOTA, cell, snapshot, partition=partition)
    return Beginning(dict(fold.state.users.items()), fold.reader)
