"""The newest record of each partition that a handle has returned or appended.

A log that lost its end gives new records the offsets of the lost ones, so a reader that only counts
offsets would continue with records that contradict what it has read. Therefore each adapter
compares the newest record that it knows with the log: the Kafka adapter after an interruption of a
connection, the other adapters at every read. The cost does not depend on the number of records.

If a topic that is kept forever lost records, the handle is unusable for that cell from then on:
every call on a partition with the cell's number raises `LogTruncated`, so that the process writes
nothing more. Topics that expire (heartbeats, output) are not synced, so a power loss takes their
end first, and no decision depends on them. Therefore only the next `read` of such a partition
raises `LogTruncated`, and its reader continues at the end (`reader.continue_at`). Other calls, and
calls on other topics, do not raise it.
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
        #: What was lost from topics that are kept, by the partition's number. A cell has the same
        #: number in every topic.
        self._stopped: dict[int, str] = {}

    def newest(self, partition: Partition) -> StoredRecord | None:
        """The newest known record of a partition."""
        return self._newest.get(partition)

    def all(self) -> list[StoredRecord]:
        """The newest known record of every partition."""
        return list(self._newest.values())

    def read(self, records: Sequence[StoredRecord]) -> None:
        """Note records of one partition, in order, that are about to be returned to a reader."""
        if records:
            self._take(records[-1])

    def appended(
        self, partition: Partition, offset: int, batch: Sequence[Record], before: int
    ) -> None:
        """Note an appended batch; `before` is the end that was known before the batch was sent.

        Raises: LogTruncated: the batch got an offset that another record had before.
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
        """Compare a known record with the log; a difference counts as a loss (see `lose`).

        `end`: the end of the partition. `found`: the log's record at the offset of `known`; None if
        it has expired or cannot be compared.
        """
        partition = known.partition
        if end <= known.offset:
            self.lose(partition, f"{partition} ends at {end}, but offset {known.offset} was seen")
        elif found is not None and found != known.record:
            self.lose(partition, f"{partition} has another record at offset {known.offset}")

    def lose(self, partition: Partition, found: str) -> None:
        """Note that a partition lost records, as `found` says; `check` raises the error."""
        self._newest.pop(partition, None)
        if is_kept(partition):
            self._stopped.setdefault(partition.number, found)
        else:
            self._lost[partition] = found

    def check(self, partition: Partition, *, reading: bool = False) -> None:
        """Raise LogTruncated if a topic that is kept lost records of the partition's cell.

        With `reading`, also raise it, once, if this partition expires and lost records.
        """
        if (found := self._stopped.get(partition.number)) is not None:
            raise LogTruncated(found=found)
        if reading and (lost := self._lost.pop(partition, None)) is not None:
            raise LogTruncated(found=lost, topic=partition.topic)

    def _take(self, stored: StoredRecord) -> None:
        known = self._newest.get(stored.partition)
        if known is None or known.offset < stored.offset:
            self._newest[stored.partition] = stored
