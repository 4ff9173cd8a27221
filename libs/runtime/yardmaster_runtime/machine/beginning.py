"""Logs that have lost their first records, for example by a wrong retention on the brokers.

A machine folds such a log from a snapshot whose commit the log still has, with all records after
it. Without one, its state at the beginning of the log is unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from yardmaster_core.machine import Machine
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.reader import first_offset
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.errors import LogBeginsLater
from yardmaster_schemas.errors import YardmasterError


async def later_beginnings(
    log: EventLog, partitions: Iterable[Partition]
) -> Mapping[Partition, int]:
    """Return the first offset of each partition that has lost its first records.

    Raises: LogError: the log cannot be read.
    """
    firsts = {}
    for partition in partitions:
        try:
            first = await first_offset(log, partition)
        except UnknownTopic:
            continue
        if first:
            firsts[partition] = first
    return firsts


def topics_of(machine: Machine[Any], number: int) -> list[Partition]:
    """Return the partitions that a machine of a cell reads: its own topic, then its inputs."""
    return [Partition(topic.name, number) for topic in (machine.output, *machine.inputs)]


def expired_records(firsts: Mapping[Partition, int]) -> str:
    """Name the records that have expired."""
    return ", ".join(
        f"records 0 to {first - 1} of {at} have expired" for at, first in firsts.items()
    )


def cause_of(error: YardmasterError) -> str:
    """Return what is wrong with a snapshot, without advice."""
    return str(error.fields.get("found", error))


async def needs_snapshot(
    log: EventLog,
    machine: Machine[Any],
    cell: str,
    number: int,
    snapshots: SnapshotStore | None,
    unusable: Sequence[str],
) -> LogBeginsLater:
    """Return the error of a machine that has no snapshot to begin from.

    `unusable`: why each snapshot that was found cannot be used.

    Raises: LogError: the log cannot be read.
    """
    if snapshots is None:
        found = "no place of snapshots is known: name it (YARD_SNAPSHOTS, --snapshots)"
    else:
        found = f"{snapshots.url.rstrip('/')}/{machine.name}/{cell} has no usable one"
        found += f" ({'; '.join(unusable)})" if unusable else " (there is none at all)"
    firsts = await later_beginnings(log, topics_of(machine, number))
    return LogBeginsLater(
        expired=expired_records(firsts),
        needs=f"{machine.name} of cell {cell} needs a snapshot that covers them, and {found}. Copy "
        "its snapshots there from a backup, restore the log from a backup, or start with an empty "
        "log.",
    )
