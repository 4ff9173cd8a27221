"""Reading the log: a partition in order, one record by its position, the details of a request.

`yardmaster_runtime.cycle_reader` reads the cycles of a machine that count. It is not in this
package, because `yardmaster_core.commit` decides which cycles count, and this package may not
import that module.
"""

from collections import deque
from collections.abc import Sequence
from hashlib import sha256

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import (
    DetailsUnreadable,
    LogCorrupt,
    LogError,
    LogTruncated,
    OffsetGone,
    ReadPastEnd,
)
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.topics import DETAILS


class Cursor:
    """Reads one partition in order, and reads ahead of the records that are taken."""

    def __init__(self, log: EventLog, partition: Partition, offset: int, ahead: int) -> None:
        self.partition = partition
        #: The offset of the next record to be taken.
        self.offset = offset
        self._log = log
        self._ahead = ahead
        self._buffer: deque[StoredRecord] = deque()

    @property
    def end(self) -> int:
        """Offset after the last record that was read."""
        return self.offset + len(self._buffer)

    def __len__(self) -> int:
        return len(self._buffer)

    def newest_ms(self) -> int:
        """Return the latest append time of the buffered records (ms, the log's clock), or 0."""
        return max((stored.appended_ms for stored in self._buffer), default=0)

    def peek(self) -> StoredRecord:
        """Return the next buffered record without taking it."""
        return self._buffer[0]

    def pop(self) -> StoredRecord:
        """Take the next buffered record."""
        self.offset += 1
        return self._buffer.popleft()

    async def fill(self, count: int, *, buffered_only: bool = False) -> int:
        """Read until `count` records are buffered or the log ends; return how many are buffered.

        With `buffered_only`, only records that this process has received already are read.

        Raises:
            LogTruncated: the log ends before a record that was read earlier.
            LogCorrupt: a record is missing.
        """
        while len(self._buffer) < count:
            most = max(self._ahead, count - len(self._buffer))
            records = await self._read(most, buffered_only=buffered_only)
            if not records:
                break
            if records[0].offset != self.end or records[-1].offset != self.end + len(records) - 1:
                missing = next(
                    at for at, stored in enumerate(records, self.end) if stored.offset != at
                )
                raise LogCorrupt(
                    path=str(self.partition),
                    found=f"no record at offset {missing}",
                    partition=self.partition,
                    offset=missing,
                )
            self._buffer.extend(records)
        return len(self._buffer)

    async def _read(self, count: int, *, buffered_only: bool) -> Sequence[StoredRecord]:
        """Read the next records; before a damaged record, only the intact records up to it.

        Raises: LogTruncated: the log ends before a record that was read; the errors of `read`.
        """
        try:
            return await self._log.read(
                self.partition, self.end, max_records=count, buffered_only=buffered_only
            )
        except ReadPastEnd as error:
            raise LogTruncated(
                found=f"{self.partition} ends before offset {self.end}, which was read before"
            ) from error
        except LogCorrupt as error:
            # The records before the damaged one are intact and are delivered first.
            damaged = error.fields.get("offset")
            if not isinstance(damaged, int) or damaged <= self.end:
                raise
            return await self._log.read(self.partition, self.end, max_records=damaged - self.end)

    async def take(self, until: int) -> list[StoredRecord]:
        """Take all records before offset `until`, or fewer where the log ends earlier."""
        count = min(await self.fill(until - self.offset), until - self.offset)
        return [self.pop() for _ in range(count)]


async def first_offset(log: EventLog, partition: Partition) -> int:
    """Return the offset of the oldest record that the log still has; the end, if it has none.

    Raises:
        UnknownTopic, LogUnavailable, LogClosed, LogTruncated.
    """
    try:
        await log.read(partition, 0, max_records=1)
    except OffsetGone as gone:
        return int(str(gone.fields["start"]))
    except LogCorrupt:
        return 0  # the first record is damaged; the caller's own read reports that
    return 0


async def continue_at(log: EventLog, partition: Partition, error: LogError) -> int:
    """Return the offset at which the reader of a topic that expires continues after an error.

    After `OffsetGone` the reader continues at the oldest record, and after a loss of records at the
    end.

    Raises: `error`, if it is any other error; and the errors of `EventLog.end`.
    """
    start = error.fields.get("start")
    if isinstance(error, OffsetGone) and isinstance(start, int):
        return start
    lost = isinstance(error, LogTruncated | ReadPastEnd)
    if not lost or error.fields.get("topic") != partition.topic:
        raise error
    return await log.end(partition)


def what_is_lost(error: LogError) -> str:
    """Describe a loss in a topic that expires, without the advice for topics that are kept."""
    found = error.fields.get("found")
    return found if isinstance(found, str) else str(error)


async def record_at(log: EventLog, partition: Partition, offset: int) -> StoredRecord | None:
    """Return the record at an offset; None where it was erased, has expired or never existed.

    Raises:
        LogError: the log failed.
    """
    try:
        found = await log.read(partition, offset, max_records=1)
    except (OffsetGone, ReadPastEnd):
        return None
    if not found or found[0].offset != offset or found[0].record.value is None:
        return None
    return found[0]


def decoded(stored: StoredRecord) -> Envelope[Event] | None:
    """Return the envelope of a record; None where it cannot be decoded."""
    try:
        return decode(stored.record)
    except SchemaError:
        return None


def details_digest(value: bytes | None) -> str:
    """Return the SHA-256 of a details record's value, as a request refers to it (64 hex digits)."""
    return sha256(value or b"").hexdigest()


async def read_details(log: EventLog, ref: DetailsRef) -> Envelope[Event]:
    """Return the event in `details` that a request refers to, after checking its digest.

    Raises:
        DetailsUnreadable: the record was erased, differs from the digest, or cannot be decoded.
        LogError: the log failed.
    """
    stored = await record_at(log, Partition(DETAILS.name, ref.partition), ref.offset)
    if stored is None:
        raise _unreadable(ref, "they were erased")
    if details_digest(stored.record.value) != ref.digest:
        raise _unreadable(ref, "they do not match their digest")
    try:
        return decode(stored.record)
    except SchemaError as error:
        raise _unreadable(ref, f"they cannot be decoded ({error.code})") from None


def _unreadable(ref: DetailsRef, found: str) -> DetailsUnreadable:
    return DetailsUnreadable(partition=ref.partition, offset=ref.offset, found=found)
