"""A fence: the last record that was read from each topic, stored outside the log.

A log that lost its end stops the processes that have read more of it (`yardmaster_eventlog.seen`).
After a restart, such a process no longer knows what it had read and would continue on the shorter
log: a scheduler would decide again about tasks that agents already run. Therefore the offset and
the digest of the last record that was read are stored outside the log: machines store them with
their snapshots, views in their store, agents in their ledger. When the process starts, it compares
them with the log.

An operator may shorten a log on purpose (`yard log cut`), which starts a new *generation* of it:
the number of cuts, recorded in the topic `cuts`. A fence names the generation of the log that was
read. A fence of an earlier generation does not apply.

A fence names its log, cell and machine, and has a checksum. A fence that is damaged, or that
belongs to another log (for example in a folder that was restored to the wrong place), proves
nothing about this log: it is reported and ignored. The next write replaces it.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NoReturn

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogTruncated, OffsetGone, SnapshotsUnavailable
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.reader import record_at
from yardmaster_eventlog.snapshots import FENCE, SnapshotStore
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.private_files import warn_writable
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.machine import LogCutV1
from yardmaster_schemas.topics import CUTS

FORMAT: Final = 1
#: Seconds between two writes; a stored fence may lack the records read since its last write.
EVERY_S: Final = 1.0
#: The longest pause while the store is unavailable, in seconds.
MAX_PAUSE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A record that was read: its offset and its digest in hexadecimal."""

    offset: int
    digest: str


Marks = Mapping[Partition, Mark]


async def check_marks(log: EventLog, marks: Marks, *, kept_in: str) -> None:
    """Compare records that were read with the log; records that have expired are skipped.

    `kept_in` says where the marks are stored; the error names it, because the marks may be wrong
    instead of the log.

    Raises:
        LogTruncated: the log has no record at the offset of a mark, or a different record.
        LogError: the log cannot be read.
    """
    for partition, mark in marks.items():
        end = await log.end(partition)
        if end <= mark.offset:
            raise LogTruncated(
                found=f"{partition} ends at {end}, but offset {mark.offset} was read before, as "
                f"{kept_in} says",
                topic=partition.topic,
            )
        try:
            found = await log.read(partition, mark.offset, max_records=1)
        except OffsetGone:
            continue
        if digest_of(found[0].record).hex() != mark.digest:
            raise LogTruncated(
                found=f"{partition} has another record at offset {mark.offset} than the one that "
                f"was read before, as {kept_in} says",
                topic=partition.topic,
            )


async def last_cut(log: EventLog, number: int) -> LogCutV1 | None:
    """Return the newest cut of a cell's log; `number` is the cell's partition.

    Raises:
        SchemaError: a newer program made the cut.
        LogError: the log cannot be read.
    """
    partition = Partition(CUTS.name, number)
    stored = (await log.newest([partition])).get(partition)
    cut = None if stored is None else decode(stored.record).data
    return cut if isinstance(cut, LogCutV1) else None


def check_generation(read: int, log: int) -> bool:
    """Tell whether the log has a newer generation than the one that was read.

    Raises: LogTruncated: the log has lost the record of a cut.
    """
    if log < read:
        raise LogTruncated(
            found=f"it is of generation {log}, but generation {read} was read before"
        )
    return log > read


class Fence:
    """The fence of one machine of a cell, which all its candidates share.

    A write never replaces the mark of another candidate that has read further.
    """

    def __init__(
        self,
        store: SnapshotStore,
        machine: str,
        cell: str,
        own: Partition,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        """`own`: the partition that the machine writes."""
        self._store = store
        self._machine = machine
        self._cell = cell
        self._clock = clock
        self._telemetry = telemetry
        self._path = f"{store.url.rstrip('/')}/{machine}/{cell}/{FENCE}"
        self._own = own
        self._log_name: str | None = None
        self._generation = 0
        self._marks: Marks = {}
        self._changed = asyncio.Event()
        #: Whether the last write failed.
        self._unavailable = False
        self._unusable = telemetry.counter(
            "fences_unusable", "Fences that were damaged or belong to another log or machine"
        )

    async def check(self, log: EventLog) -> None:
        """Compare the stored fence with the log; if the fence cannot be read, only report that.

        Also report if other users may write the machine's snapshots or its fence.

        If the log was cut since the fence was written, remove the snapshots of later cycles
        instead.

        Raises:
            LogTruncated: a candidate of this machine has read more of the log.
            LogError: the log cannot be read.
        """
        self._log_name = await _name_of(log, self._own)
        cut = await last_cut(log, self._own.number)
        self._generation = 0 if cut is None else cut.generation
        try:
            generation, marks = await self._load()
            writable = await self._store.writable_by_others(self._machine, self._cell)
        except SnapshotsUnavailable as error:
            self._telemetry.error("fence_unreadable", code=error.code, found=str(error))
            return
        if writable is not None:
            warn_writable(self._telemetry, *writable)
        if not check_generation(generation, self._generation) or cut is None:
            await check_marks(
                log,
                marks,
                kept_in=f"the fence {self._path} (if no broker lost records, this file is wrong: "
                "move it away)",
            )
            return
        kept = next((one.cycle for one in cut.cycles if one.machine == self._machine), 0)
        try:
            gone = await self._store.discard_after(self._machine, self._cell, kept)
        except SnapshotsUnavailable as error:
            self._telemetry.warn("snapshots_unavailable", code=error.code, found=str(error))
            return  # the fence keeps the earlier generation, so the next start tries again
        self._telemetry.warn("log_was_cut", generation=cut.generation, snapshots_removed=len(gone))
        await self.write({})

    def advance(self, marks: Marks) -> None:
        """Set the marks that `run` stores next."""
        self._marks = dict(marks)
        self._changed.set()

    async def run(self) -> NoReturn:
        """Store the marks whenever they have advanced, once in `EVERY_S` seconds at most.

        While the store is unavailable, the pause doubles up to `MAX_PAUSE_S`.
        """
        pause_s = EVERY_S
        while True:
            await self._changed.wait()
            self._changed.clear()
            written = await self.write(self._marks)
            pause_s = EVERY_S if written else min(2 * pause_s, MAX_PAUSE_S)
            await self._clock.sleep(pause_s)

    async def write(self, marks: Marks) -> bool:
        """Store the marks; return whether they are stored.

        An unavailable store is reported once, and the next write contains them.
        """
        try:
            await self._write(marks)
        except SnapshotsUnavailable as error:
            if not self._unavailable:
                self._telemetry.warn("fence_not_written", code=error.code, found=str(error))
            self._unavailable = True
            return False
        if self._unavailable:
            self._telemetry.info("fence_written_again")
        self._unavailable = False
        return True

    async def _write(self, marks: Marks) -> None:
        generation, read = await self._load()
        stored = dict(read) if generation == self._generation else {}
        for partition, mark in marks.items():
            if partition not in stored or stored[partition].offset < mark.offset:
                stored[partition] = mark
        await self._store.save_fence(self._machine, self._cell, self._dump(stored))

    async def _load(self) -> tuple[int, Marks]:
        """Return the generation and the marks of the stored fence.

        Raises: SnapshotsUnavailable.
        """
        content = await self._store.load_fence(self._machine, self._cell)
        if content is None:
            return 0, {}
        try:
            stored = _parse(content)
            foreign = [
                f"its {name} is {stored[name]}, not {own}"
                for name, own in self._owner().items()
                if own is not None and stored[name] not in (None, own)
            ]
            if not foreign:
                return int(stored["generation"]), parse_marks(stored["read"])
            event, found = "fence_foreign", "; ".join(foreign)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            event, found = "fence_unreadable", f"it is damaged: {error}"
        self._unusable.inc()
        self._telemetry.error(
            event,
            path=self._path,
            found=found,
            hint="it is not believed, and is replaced; find out what changed it. If the brokers "
            "lost records too, only the other machines notice that",
        )
        return 0, {}

    def _owner(self) -> dict[str, str | None]:
        return {"log": self._log_name, "cell": self._cell, "machine": self._machine}

    def _dump(self, marks: Marks) -> bytes:
        fence = {
            "format": FORMAT,
            **self._owner(),
            "generation": self._generation,
            "read": dump_marks(marks),
        }
        return json.dumps({**fence, "sha256": _checksum(fence)}, indent=1).encode() + b"\n"


async def _name_of(log: EventLog, own: Partition) -> str | None:
    """Return the digest of the first record that the machine wrote; None if it wrote no record.

    The digest identifies the log, because that record contains random digits. The log's own first
    record, LogCreated, is not used: not every machine may read its topic.

    Raises: LogError: the log cannot be read.
    """
    first = await record_at(log, own, 0)
    return None if first is None else digest_of(first.record).hex()


def _checksum(fence: Mapping[str, Any]) -> str:
    return sha256(json.dumps(fence, sort_keys=True).encode()).hexdigest()


def dump_marks(marks: Marks) -> dict[str, Any]:
    """Return marks as plain JSON."""
    return {
        str(partition): [mark.offset, mark.digest]
        for partition, mark in sorted(marks.items(), key=lambda one: one[0])
    }


def parse_marks(stored: Mapping[str, Any]) -> Marks:
    """Return the marks of `dump_marks`; raises ValueError, TypeError."""
    marks = {}
    for name, (offset, digest) in stored.items():
        topic, _, number = name.rpartition("/")
        marks[Partition(topic, int(number))] = Mark(int(offset), str(digest))
    return marks


def _parse(content: bytes) -> dict[str, Any]:
    """Return the fence in a file; raises ValueError, TypeError, KeyError, AttributeError."""
    stored: dict[str, Any] = json.loads(content)
    if stored.pop("sha256") != _checksum(stored):
        raise ValueError("its checksum does not match")
    if stored["format"] != FORMAT:
        raise ValueError(f"format {stored['format']}, expected {FORMAT}")
    return stored
