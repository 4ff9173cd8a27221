"""Where a gateway begins to fold the users: at quota's newest usable snapshot, or at the start of
`admissions`.

A snapshot is checked as quota checks it at a restart: its whole state must have the digest that the
log's commit names. So the gateway loads the whole state, takes the users from it and frees it. This
takes one second for 100,000 active jobs or a million ended jobs. An unusable snapshot is skipped
with a warning, also a snapshot that is ahead of the log: quota stops at such a snapshot, but a
gateway reads the log that is left. If the log has lost its first records, a gateway needs a
snapshot, as quota does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from yardmaster_core.access import User
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.admission.state import Log
from yardmaster_core.commit import CommitReader
from yardmaster_core.errors import SnapshotUnreadable
from yardmaster_eventlog.errors import LogTruncated, OffsetGone, SnapshotsUnavailable
from yardmaster_eventlog.port import EventLog
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.machine.beginning import cause_of
from yardmaster_runtime.machine.restore import from_snapshot
from yardmaster_runtime.telemetry.port import Telemetry

QUOTA: Final = QuotaMachine()
#: Errors for which a snapshot is skipped: it is foreign or forged, it is ahead of the log, or its
#: commit has expired.
SKIPPED: Final = (SnapshotUnreadable, LogTruncated, OffsetGone)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The users after a cycle of quota, and the reader that continues after this cycle.

    `log`: the identity of the log in a snapshot. `unusable`: why newer snapshots cannot be used.
    """

    users: Mapping[str, User]
    reader: CommitReader
    log: Log | None = None
    unusable: Sequence[str] = ()


async def newest_beginning(
    log: EventLog,
    snapshots: SnapshotStore | None,
    telemetry: Telemetry,
    *,
    cell: str,
    partition: int,
) -> Beginning:
    """Return the users of the newest usable snapshot; without one, no users and the log's start.

    Raises: LogUnavailable, UnknownTopic: a snapshot cannot be compared with the log.
    """
    before: int | None = None
    unusable: list[str] = []
    while snapshots is not None:
        try:
            newest = await snapshots.newest(QUOTA.name, cell, before=before)
        except SnapshotsUnavailable as error:
            telemetry.warn("snapshots_unavailable", code=error.code, found=str(error))
            unusable.append(cause_of(error))
            break
        for bad in newest.bad:
            telemetry.warn("snapshot_skipped", code=bad.code, found=str(bad))
            unusable.append(f"{bad.fields['name']}: {cause_of(bad)}")
        if newest.snapshot is None:
            break
        before = newest.snapshot.cycle
        try:
            fold = await from_snapshot(log, QUOTA, cell, newest.snapshot, partition=partition)
        except SKIPPED as error:
            telemetry.warn("snapshot_skipped", cycle=before, code=error.code, found=str(error))
            unusable.append(f"cycle {before}: {cause_of(error)}")
        else:
            users = dict(fold.state.users.items())
            telemetry.info("users_from_snapshot", cycle=before, users=len(users))
            return Beginning(users, fold.reader, fold.state.logs.get(cell), unusable)
    telemetry.info(
        "users_without_snapshot",
        found="no snapshot of quota is usable: the users are folded from the start of admissions, "
        "which takes longer the longer the log is",
    )
    reader = CommitReader(QUOTA.name, cell, QUOTA.output.name)
    return Beginning({}, reader, unusable=unusable)
