"""The log in memory: plain objects, for tests and the simulator.

It implements limits, retention and compaction like the other adapters, and is lost when the process
ends. `handle()` returns another handle on the same records, as a second process would open one:
closing one handle leaves the others open.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import count
from operator import attrgetter

from yardmaster_eventlog.errors import (
    BatchTooLarge,
    LogClosed,
    OffsetGone,
    ReadPastEnd,
    UnknownTopic,
)
from yardmaster_eventlog.port import Clock, Partition, Record, StoredRecord, batch_bytes
from yardmaster_eventlog.seen import SeenRecords
from yardmaster_eventlog.waiting import Waiter
from yardmaster_schemas.topics import Topic

_offset = attrgetter("offset")


class _Sequence:
    """The records of one partition."""

    def __init__(self, partition: Partition, topic: Topic) -> None:
        self.partition = partition
        self.topic = topic
        #: The oldest offset that retention has not removed; compaction does not move it.
        self.first = 0
        self.next = 0
        self.records: list[StoredRecord] = []
        #: Of a compacted topic: the offset of the newest record of each key.
        self.newest: dict[bytes, int] = {}

    def append(self, batch: Sequence[Record], now_ms: int) -> int:
        offset = self.next
        self.records += [
            StoredRecord(self.partition, at, now_ms, record)
            for at, record in enumerate(batch, offset)
        ]
        self.next += len(batch)
        if self.topic.compacted:
            for at, record in enumerate(batch, offset):
                self._replace(record.key, at)
        if self.topic.retention_ms is not None:
            self._expire(now_ms - self.topic.retention_ms)
        return offset

    def read(self, offset: int, max_records: int) -> Sequence[StoredRecord]:
        if self.topic.compacted:
            start = bisect_left(self.records, offset, key=_offset)
        else:
            start = offset - self.first
        return self.records[start : start + max_records]

    def at(self, offset: int) -> Record | None:
        """The record at an offset; None if it has expired or was replaced."""
        found = self.read(offset, 1) if offset >= self.first else ()
        return found[0].record if found and found[0].offset == offset else None

    def cut(self, end: int) -> None:
        """Lose the records from offset `end` on, as a broker without power may."""
        self.records = [stored for stored in self.records if stored.offset < end]
        self.newest = {stored.record.key: stored.offset for stored in self.records}
        self.next = end

    def lose_before(self, offset: int) -> None:
        """Lose the records before an offset, as a wrong retention would delete them."""
        self.first = offset
        self.records = [stored for stored in self.records if stored.offset >= offset]

    def _replace(self, key: bytes, at: int) -> None:
        older = self.newest.get(key)
        if older is not None:
            del self.records[bisect_left(self.records, older, key=_offset)]
        self.newest[key] = at

    def _expire(self, before_ms: int) -> None:
        gone = 0
        for stored in self.records:
            if stored.appended_ms >= before_ms:
                break
            gone += 1
        if gone:
            self.first = self.records[gone - 1].offset + 1
            del self.records[:gone]


class _Shared:
    """The content of a log, which all its handles share."""

    def __init__(self) -> None:
        self.sequences: dict[Partition, _Sequence] = {}
        self.waiters: dict[int, Waiter] = {}
        self.count = count()


class MemoryLog:
    """A log in this process; see `EventLog` for its contract."""

    def __init__(self, clock: Clock, _shared: _Shared | None = None) -> None:
        self._clock = clock
        self._shared = _shared or _Shared()
        self._seen = SeenRecords()
        self._waiters: dict[int, Waiter] = {}
        self._closed = False

    def handle(self) -> "MemoryLog":
        """Return another handle on the same records."""
        return MemoryLog(self._clock, self._shared)

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        """Create missing topics."""
        self._check_open()
        for topic in topics:
            if Partition(topic.name) in self._shared.sequences:
                continue
            for number in range(partitions):
                partition = Partition(topic.name, number)
                self._shared.sequences[partition] = _Sequence(partition, topic)

    def cut(self, partition: Partition, end: int) -> None:
        """Lose the records from offset `end` on, as a broker without power may; for tests."""
        self._shared.sequences[partition].cut(end)
        for waiter in self._shared.waiters.values():
            waiter.see(partition, end)

    def lose_before(self, partition: Partition, offset: int) -> None:
        """Lose the records before an offset, as a wrong retention would delete them; for tests."""
        self._shared.sequences[partition].lose_before(offset)

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch` atomically; return the offset of its first record."""
        sequence = self._checked(partition)
        if not batch:
            raise ValueError("a batch without records")
        size = batch_bytes(batch)
        if size > sequence.topic.max_batch_bytes:
            raise BatchTooLarge(
                size=size, limit=sequence.topic.max_batch_bytes, topic=partition.topic
            )
        offset = sequence.append(batch, self._clock.now_ms())
        self._seen.appended(partition, offset, batch, before=offset)
        for waiter in self._shared.waiters.values():
            waiter.see(partition, sequence.next)
        # Every other adapter yields to other tasks here; a caller that relies on not being
        # interrupted must fail with this one too.
        await self._clock.sleep(0)
        return offset

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        sequence = self._checked(partition, reading=True)
        if offset > sequence.next:
            raise ReadPastEnd(topic=partition.topic, offset=offset, end=sequence.next)
        if offset < sequence.first:
            raise OffsetGone(topic=partition.topic, offset=offset, start=sequence.first)
        found = sequence.read(offset, max_records)
        self._seen.read(found)
        return found

    async def end(self, partition: Partition) -> int:
        """Return the offset that the next record will get."""
        return self._checked(partition).next

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """Return the newest record of each partition."""
        self._check_open()
        sequences = ((place, self._shared.sequences.get(place)) for place in partitions)
        return {
            place: sequence.records[-1] if sequence is not None and sequence.records else None
            for place, sequence in sequences
        }

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait until a partition has a record at or after the offset given for it."""
        self._check_open()
        waiter = Waiter(ends)
        for partition in ends:
            waiter.see(partition, self._checked(partition).next)
        if waiter.grown:
            # A caller that loops on a log with ever more records must not block other tasks.
            await self._clock.sleep(0)
            return True
        number = next(self._shared.count)
        self._shared.waiters[number] = self._waiters[number] = waiter
        try:
            return await waiter.woken(self._clock, timeout_s)
        finally:
            del self._shared.waiters[number], self._waiters[number]

    async def close(self) -> None:
        """Close this handle; waiting calls end with LogClosed."""
        self._closed = True
        for waiter in self._waiters.values():
            waiter.fail(LogClosed())

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed()

    def _checked(self, partition: Partition, *, reading: bool = False) -> _Sequence:
        """Return a partition's records.

        Raises: LogTruncated if they no longer contain the newest record that this handle has seen.
        """
        sequence = self._sequence(partition)
        known = self._seen.newest(partition)
        if known is not None:
            self._seen.compare(known, sequence.next, sequence.at(known.offset))
        self._seen.check(partition, reading=reading)
        return sequence

    def _sequence(self, partition: Partition) -> _Sequence:
        self._check_open()
        sequence = self._shared.sequences.get(partition)
        if sequence is None:
            raise UnknownTopic(topic=partition.topic, partition=partition.number)
        return sequence
