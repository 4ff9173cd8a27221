"""The port of the event log: partitions of records that only grow.

What it promises is small on purpose: append a batch to one partition atomically and get its
offset; read a partition from an offset, in order; know its end; wait for more. Adapters: `memory`,
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

# What a Kafka record batch takes beside keys, values and headers, at most: so a batch that one
# log takes no other refuses.
BATCH_OVERHEAD: Final = 61
RECORD_OVERHEAD: Final = 32
HEADER_OVERHEAD: Final = 10
LENGTH_BYTES: Final = 8
_length = Struct(">Q").pack


@writes_slots
@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One ordered sequence of records; a cell's records of a topic all lie in one."""

    topic: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@writes_slots
@dataclass(frozen=True, slots=True)
class Record:
    """What is appended; a value of None is a tombstone that erases its key in a compacted topic."""

    key: bytes
    value: bytes | None
    headers: Headers = ()
    #: The headers as `frame` makes them, where whoever made the record had them at hand.
    framed: bytes | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Bytes that count against a topic's limit: what it holds, and what frames it at most."""
        one_piece = frame(self.headers) if self.framed is None else self.framed
        headers = len(one_piece) - (2 * LENGTH_BYTES - HEADER_OVERHEAD) * len(self.headers)
        return RECORD_OVERHEAD + len(self.key) + len(self.value or b"") + headers


def sized(part: bytes) -> bytes:
    """A part of a record behind its length (8 bytes, big endian), as a record's digest takes it."""
    return _length(len(part)) + part


def frame(headers: Headers) -> bytes:
    """Headers in one piece, as a record's digest takes them: names and values, each `sized`."""
    return b"".join([sized(name.encode()) + sized(value) for name, value in headers])


#: For whoever makes records: sets `framed`, though they are frozen.
write_framed: Final[Callable[[Record, bytes], None]] = Record.__dict__["framed"].__set__


def batch_bytes(batch: Sequence[Record]) -> int:
    """Bytes of a batch that count against `Topic.max_batch_bytes`, alike in every log."""
    return BATCH_OVERHEAD + sum(record.size for record in batch)


@writes_slots
@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record read back: where it lies, and when the log took it (ms, by the log's clock)."""

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
    """A record read back, from its parts."""
    return StoredRecord(partition, offset, appended_ms, Record(key, value, headers))


class Clock(Protocol):
    """What logs ask of time; `yardmaster_runtime.clock` has the real one and the virtual ones."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00Z."""

    def monotonic_s(self) -> float:
        """Seconds from some start; never falls."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class EventLog(Protocol):
    """A log that all services share.

    An object is one handle on it, for one event loop; several handles, in one process or in many,
    see the same records. A call that was cancelled may still take effect: an append then has an
    outcome as unknown as after AppendOutcomeUnknown.
    """

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        """Make topics that are not there yet, each with `partitions` partitions; leave the others.

        Raises:
            LogUnavailable, LogClosed.
        """

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch`, whole or not at all; return the offset of its first record.

        The records lie at consecutive offsets, and no other batch lies between them. Its size is
        what `batch_bytes` says.

        Raises:
            ValueError: the batch is empty.
            BatchTooLarge: nothing was written; decide in smaller cycles.
            UnknownTopic: there is no such partition; nothing was written.
            LogUnavailable: nothing was written; it may be tried again.
            AppendOutcomeUnknown: it may have been written, or may be yet; re-read the tail before
                deciding again.
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
        """Records from `offset` on, in order, at most `max_records`; none when `offset` is the end.

        Does not wait for records. Fewer than `max_records` may come though there are more: only
        none says that `offset` is the end. In a compacted topic offsets may have gaps: the first
        record returned may lie after `offset`, and of records with one key at least the newest is
        there, a tombstone included.

        With `buffered_only` none may come though there are some: the log is not asked, if that takes a
        way, but gives what it has been sent. `wait` ends when there is something at hand.

        Raises:
            ReadPastEnd: `offset` is greater than the end.
            OffsetGone: retention removed it.
            LogCorrupt: a record that should be there is not.
            UnknownTopic, LogUnavailable, LogClosed.
        """

    async def end(self, partition: Partition) -> int:
        """The offset that the next record will get.

        Raises:
            UnknownTopic, LogUnavailable, LogClosed.
        """

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """The newest record of each partition, None where there is none or no such partition.

        For thousands of partitions, which together cost about as much as one. Left out are those
        that cannot be read now, while others can.

        Raises:
            LogUnavailable, LogClosed.
        """

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait until a partition has a record at or after the offset given for it.

        Returns:
            True when one has; False after `timeout_s` seconds without.

        Raises:
            UnknownTopic, LogUnavailable, LogClosed.
        """

    async def close(self) -> None:
        """Let go of files and connections; calls that wait end with LogClosed."""
