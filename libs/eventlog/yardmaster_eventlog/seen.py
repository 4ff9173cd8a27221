"""The newest record of each partition that a handle has returned or appended.

A log that lost its end gives new records the offsets of the lost ones, so a reader that only counts
offsets would continue with records that contradict what it has read. Therefore each adapter
compares the newest record that it knows with the log: Kafka's when a connection was interrupted,
the others at every read. The cost does not depend on the number of records.

If a topic that is kept forever lost records, the handle is unusable for its cell from then on:
every call on a partition with that number raises `LogTruncated`, so that its process writes nothing
more. Topics that expire (heartbeats, output) are not synced, so a power loss takes their end first,
and nothing is decided on them: only the next `read` of the partition raises, and its reader
continues at the end (`reader.continue_at`). No other call and no other topic notices.
"""

from collections.abc import Sequence

from yardmaster_eventlog.errors import LogTruncated
from yardmaster_eventlog.port import Partition, Record, StoredRecord
from yardmaster_schemas.topics import topic


def is_kept(partition: Partition) -> bool:
    """Whether the partition's records never expire."""
    known = topic(partition.topic)
    return known is None or known.retention_ms is None


class SeenRecords:
    """The newest records that one handle knows, one per partition."""

    def __init__(self) -> None:
        self._newest: dict[Partition, StoredRecord] = {}
        self._lost: dict[Partition, str] = {}
        #: By the partition's number, which is the cell's in every topic.
        self._stopped: dict[int, str] = {}

    def newest(self, partition: Partition) -> StoredRecord | None:
        """The newest known record of a partition."""
        return self._newest.get(partition)

    def all(self) -> list[StoredRecord]:
        """The newest known record of every partition."""
        return list(self._newest.values())

    def read(self, records: Sequence[StoredRecord]) -> None:
        """Take records of one partition that a reader gets, in order."""
        if records:
            self._take(records[-1])

    def appended(
        self, partition: Partition, offset: int, batch: Sequence[Record], before: int
    ) -> None:
        """Take an appended batch; `before` is the end that was known before it was sent.

        Raises: LogTruncated: the batch got an offset that another record had.
        """
        if offset < before:
            self.lose(partition, f"{partition} has a new record at {offset}, but ended at {before}")
            self.check(partition)
        if is_kept(partition):
            self._take(StoredRecord(partition, offset + len(batch) - 1, 0, batch[-1]))

    def known_end(self, partition: Partition) -> int:
        """The lowest end that the partition can have."""
        known = self._newest.get(partition)
        return 0 if known is None else known.offset + 1

    def compare(self, known: StoredRecord, end: int, found: Record | None) -> None:
        """Compare a known record with the log's end, and with its record at that offset.

        `found`: None if the record has expired.
        """
        partition = known.partition
        if end <= known.offset:
            self.lose(partition, f"{partition} ends at {end}, but offset {known.offset} was seen")
        elif found is not None and found != known.record:
            self.lose(partition, f"{partition} has another record at offset {known.offset}")

    def lose(self, partition: Partition, found: str) -> None:
        """Record that a partition lost records; `check` raises the error."""
        self._newest.pop(partition, None)
        if is_kept(partition):
            self._stopped.setdefault(partition.number, found)
        else:
            self._lost[partition] = found

    def check(self, partition: Partition, *, reading: bool = False) -> None:
        """Raise LogTruncated if topics that are kept lost records that this handle has seen.

        With `reading`, also once for this partition if it expires.
        """
        if (found := self._stopped.get(partition.number)) is not None:
            raise LogTruncated(found=found)
        if reading and (lost := self._lost.pop(partition, None)) is not None:
            raise LogTruncated(found=lost, topic=partition.topic)

    def _take(self, stored: StoredRecord) -> None:
        known = self._newest.get(stored.partition)
        if known is None or known.offset < stored.offset:
            self._newest[stored.partition] = stored
