"""The port of the event log: append-only partitions of records.

The contract is small on purpose: append a batch to one partition atomically and get its offset;
read a partition in order from an offset; return its end; wait for more. Adapters: `memory`,
`sqlite`, `kafka`; `testing.FaultyLog` wraps any of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, Protocol

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.topics import Topic

Header = tuple[str, bytes]
Headers = tuple[Header, ...]

# The most that a Kafka record batch adds to its keys, values and headers. Every adapter counts
# these bytes, so that a batch that one adapter accepts is accepted by all.
BATCH_OVERHEAD: Final = 61
RECORD_OVERHEAD: Final = 32
HEADER_OVERHEAD: Final = 10
LENGTH_BYTES: Final = 8
_length = Struct(">Q").pack


@writes_slots
@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One ordered sequence of records; all records of a cell in a topic are in one partition."""

    topic: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@writes_slots
@dataclass(frozen=True, slots=True)
class Record:
    """A record to append.

    A record without a value is a tombstone: in a compacted topic it erases the records of its key.
    """

    key: bytes
    value: bytes | None
    headers: Headers = ()
    #: The headers as `frame` returns them, where the encoder has computed them already.
    framed: bytes | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Bytes that count against a topic's limit: the content and the largest framing."""
        one_piece = frame(self.headers) if self.framed is None else self.framed
        headers = len(one_piece) - (2 * LENGTH_BYTES - HEADER_OVERHEAD) * len(self.headers)
        return RECORD_OVERHEAD + len(self.key) + len(self.value or b"") + headers


def sized(part: bytes) -> bytes:
    """Prefix a part of a record with its length (8 bytes, big endian), for record digests."""
    return _length(len(part)) + part


def frame(headers: Headers) -> bytes:
    """Join headers for a record digest: names and values, each `sized`."""
    return b"".join([sized(name.encode()) + sized(value) for name, value in headers])


#: Sets `Record.framed`, although records are frozen; for the encoder only.
write_framed: Final[Callable[[Record, bytes], None]] = Record.__dict__["framed"].__set__


def batch_bytes(batch: Sequence[Record]) -> int:
    """Return the bytes of a batch that count against `Topic.max_batch_bytes`, in every adapter."""
    return BATCH_OVERHEAD + sum(record.size for record in batch)


@writes_slots
@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record with its position and the time at which the log stored it (ms, the log's clock)."""

    partition: Partition
    offset: int
    appended_ms: int
    record: Record


def stored_record(
    partition: Partition,
    offset: int,
    appended_ms: int,
    key: bytes,
    value: bytes | None,
    headers: Headers,
) -> StoredRecord:
    """Return a stored record made of its parts."""
    return StoredRecord(partition, offset, appended_ms, Record(key, value, headers))


class Clock(Protocol):
    """The clock that logs need; `yardmaster_runtime.clock` has the real and the virtual clocks."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01T00:00Z."""

    def follow(self, appended_ms: int) -> int:
        """Adjust to the log's clock, which has just stamped a record with `appended_ms`.

        Returns: the milliseconds by which the host's clock is ahead of the log's.
        """

    def resume(self, reached_ms: int) -> None:
        """Continue the time of a log whose newest append was at `reached_ms`: start no earlier.

        If `reached_ms` is ahead of the host's clock, this clock passes at half speed until the
        host's clock has caught up.
        """

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; never decreases."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class EventLog(Protocol):
    """A log that all services share.

    An object is one handle for one event loop; several handles, in one process or in many, read and
    append the same records. A cancelled call may still take effect: the outcome of a cancelled
    append is as unknown as after AppendOutcomeUnknown.

    `append`, `read`, `end` and `wait` raise LogTruncated if a topic that is kept forever no longer
    has the newest record that this handle has returned or appended. The topic has then lost its
    end, even if other records have taken the lost offsets since. If a topic that expires lost its
    end, only the next `read` of that topic raises LogTruncated, once, so that the reader can
    continue at the end; calls on other topics do not raise it. See `seen`.
    """

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        """Create missing topics, each with `partitions` partitions; leave existing topics alone.

        Raises:
            LogUnavailable, LogClosed.
        """

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch` atomically; return the offset of its first record.

        The records get consecutive offsets, with no record of another batch between them.
        `batch_bytes` defines the size that counts against the topic's limit.

        Raises:
            ValueError: the batch is empty.
            BatchTooLarge: nothing was written; decide in smaller cycles.
            UnknownTopic: the partition does not exist; nothing was written.
            LogUnavailable: nothing was written; retry.
            AppendOutcomeUnknown: the batch may have been written, or may still be written; re-read
                the tail before deciding again.
            LogClosed: nothing was written.
        """

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        """Return at most `max_records` records from `offset` on, in order; none at the end.

        Does not wait for records. May return fewer than `max_records` although the partition has
        more: only an empty result means that `offset` is the end. Offsets of a compacted topic may
        have gaps: the first record may have a higher offset than `offset`, and of the records with
        one key at least the newest is kept, including a tombstone.

        With `buffered_only`, an adapter that would need a network request returns only the records
        that it has received already, possibly none. `wait` ends when such records exist.

        Raises:
            ReadPastEnd: `offset` is greater than the end.
            OffsetGone: retention removed the record.
            LogCorrupt: a record is missing.
            UnknownTopic, LogUnavailable, LogClosed.
        """

    async def end(self, partition: Partition) -> int:
        """Return the offset that the next record will get.

        Raises:
            UnknownTopic, LogUnavailable, LogClosed.
        """

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """Return the newest record of each partition; None if it is empty or does not exist.

        A call for thousands of partitions costs about as much as a call for one. A partition that
        cannot be read now is left out, as long as others can be read.

        Raises:
            LogUnavailable, LogClosed.
        """

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait until a partition has a record at or after the offset given for it.

        Returns:
            True when a record exists, or when a topic that expires ends before the offset given for
            it, which the next `read` reports; False after `timeout_s` seconds without either.

        Raises:
            LogTruncated: a topic that is kept forever ends before the offset given for it.
            UnknownTopic, LogUnavailable, LogClosed.
        """

    async def close(self) -> None:
        """Release files and connections; waiting calls end with LogClosed."""
