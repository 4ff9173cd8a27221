"""One connection to a SQLite log: reading from it and appending to it.

Everything here blocks; `sqlite` calls it from its own threads.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    LogCorrupt,
    LogUnavailable,
    OffsetGone,
    ReadPastEnd,
    UnknownTopic,
)
from yardmaster_eventlog.port import Partition, Record, StoredRecord, stored_record
from yardmaster_eventlog.sqlite.format import (
    OFFSET_BITS,
    OFFSET_MASK,
    certainly_not_written,
    connect,
    pack,
    primary,
    translated,
    unpack,
)
from yardmaster_schemas.topics import Topic

#: One read gives at most about this much, however many records were asked for.
READ_BYTES: Final = 8 * 1024 * 1024
#: Records that one append removes at most, so that it does not wait long for retention.
EXPIRE_RECORDS: Final = 5_000
LOCK_RETRY_S: Final = 0.001

#: id, appended_ms, key, value, headers.
_Row = tuple[int, int, bytes, bytes | None, bytes]


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A partition's number in the file, and what its topic asks for. Never changes."""

    id: int
    partition: Partition
    retention_ms: int | None
    compacted: bool
    max_batch_bytes: int

    @property
    def row(self) -> int:
        """The row id of offset 0."""
        return self.id << OFFSET_BITS


@dataclass(frozen=True, slots=True)
class Write:
    """One batch to be appended."""

    to: StoredPartition
    batch: Sequence[Record]


class LogFile:
    """One connection to a log; for one thread at a time.

    Raises: LogUnavailable, LogCorrupt from every method, beside what it names itself.
    """

    def __init__(self, path: Path, *, create: bool, lock_timeout_s: float) -> None:
        """Open the log at `path`; with `create`, make it when nothing is there.

        Raises:
            NotOurLog: something else is there, or nothing though `create` is false.
            LogCorrupt: it is damaged or cut short.
        """
        self.path = path
        self.lock_timeout_s = lock_timeout_s
        #: Something was deleted; the write-ahead log still shows it until `forget` has run.
        self.erased = False
        self._db = connect(path, create=create, lock_timeout_s=lock_timeout_s)
        self._broken = False
        self._expired_ms: dict[int, int] = {}

    def close(self) -> None:
        """Close; the last connection to close tidies the write-ahead log away."""
        with suppress(sqlite3.Error):
            self._db.close()

    def create_topics(self, topics: Sequence[Topic], partitions: int) -> None:
        """Make the partitions of topics that are not there yet."""
        with translated(self.path), self._transaction():
            for topic in topics:
                there = "SELECT 1 FROM partitions WHERE topic = ?"
                if self._db.execute(there, (topic.name,)).fetchone():
                    continue
                self._db.executemany(
                    "INSERT INTO partitions"
                    " (topic, number, retention_ms, compacted, max_batch_bytes)"
                    " VALUES (?, ?, ?, ?, ?)",
                    [
                        (topic.name, n, topic.retention_ms, topic.compacted, topic.max_batch_bytes)
                        for n in range(partitions)
                    ],
                )

    def find(self, partition: Partition) -> StoredPartition:
        """What the file knows of a partition.

        Raises: UnknownTopic.
        """
        with translated(self.path):
            row = self._db.execute(
                "SELECT id, retention_ms, compacted, max_batch_bytes FROM partitions"
                " WHERE topic = ? AND number = ?",
                (partition.topic, partition.number),
            ).fetchone()
        if row is None:
            raise UnknownTopic(topic=partition.topic, partition=partition.number)
        return StoredPartition(row[0], partition, row[1], bool(row[2]), row[3])

    def end(self, stored: StoredPartition) -> int:
        """The offset that the partition's next record will get."""
        with translated(self.path):
            return self._bounds(stored)[1]

    def data_version(self) -> int:
        """A number that changes when another connection, of any process, has committed. Cheap."""
        with translated(self.path):
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def append(self, writes: Sequence[Write], now_ms: int) -> list[int]:
        """Append all batches in one transaction, safe on disk on return; their first offsets.

        Raises:
            LogUnavailable: nothing was written.
            AppendOutcomeUnknown: the commit itself failed.
        """
        with translated(self.path), self._transaction():
            return [self._append(write, now_ms) for write in writes]

    def read(
        self, stored: StoredPartition, offset: int, max_records: int
    ) -> Sequence[StoredRecord]:
        """Records from `offset` on; fewer than there are when they are large.

        Raises: ReadPastEnd, OffsetGone.
        """
        with translated(self.path):
            self._db.execute("BEGIN")
            try:
                first, end = self._bounds(stored)
                rows = self._rows(stored, offset, end, max_records)
            finally:
                self._db.execute("COMMIT")
        topic = stored.partition.topic
        if offset > end:
            raise ReadPastEnd(topic=topic, offset=offset, end=end)
        if offset < first:
            raise OffsetGone(topic=topic, offset=offset, start=first)
        if not stored.compacted and offset < end:
            self._check_whole(stored, offset, rows)
        return self._records(stored, rows)

    def forget(self) -> bool:
        """Empty the write-ahead log, where deleted records still lie; False while it is needed."""
        with translated(self.path):
            busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if not busy:
            self.erased = False
        return not busy

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._begin()
        try:
            yield
        except BaseException:
            # After some errors SQLite has itself rolled back. Nothing of this transaction is on
            # disk with a commit mark, so nothing of it was written.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        try:
            self._commit()
        except sqlite3.Error as error:
            if self._db.in_transaction:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            if certainly_not_written(error):
                raise
            # Synching failed, say: the commit mark may or may not be on disk, and what is there
            # counts after a crash unless a later append takes its place.
            self._broken = True
            raise AppendOutcomeUnknown(topic=self.path.name, found=str(error)) from error

    def _begin(self) -> None:
        if self._broken:
            self._db.close()
            self._db = connect(self.path, create=False, lock_timeout_s=self.lock_timeout_s)
            self._broken = False
        # Not SQLite's own busy handler: it backs off to 100 ms and leaves the lock to the quicker.
        deadline = time.monotonic() + self.lock_timeout_s
        self._db.execute("PRAGMA busy_timeout = 0")
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if primary(error) != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() >= deadline:
                    raise LogUnavailable(
                        found=f"{self.path} stayed locked for {self.lock_timeout_s:g} s"
                    ) from error
            time.sleep(LOCK_RETRY_S)

    def _commit(self) -> None:
        self._db.execute("COMMIT")

    def _append(self, write: Write, now_ms: int) -> int:
        stored = write.to
        offset = self._bounds(stored)[1]
        row = stored.row + offset
        self._db.executemany(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?)",
            [
                (row + at, now_ms, record.key, record.value, pack(record.headers))
                for at, record in enumerate(write.batch)
            ],
        )
        end = offset + len(write.batch)
        self._db.execute("UPDATE partitions SET next = ? WHERE id = ?", (end, stored.id))
        if stored.compacted:
            for at, record in enumerate(write.batch, offset):
                self._replace(stored, record.key, at)
        if stored.retention_ms is not None:
            self._expire(stored, now_ms, stored.retention_ms)
        return offset

    def _replace(self, stored: StoredPartition, key: bytes, at: int) -> None:
        older = self._db.execute(
            "SELECT offset FROM newest WHERE partition = ? AND key = ?", (stored.id, key)
        ).fetchone()
        if older is not None:
            self._db.execute("DELETE FROM records WHERE id = ?", (stored.row + older[0],))
            self.erased = True
        self._db.execute("INSERT OR REPLACE INTO newest VALUES (?, ?, ?)", (stored.id, key, at))

    def _expire(self, stored: StoredPartition, now_ms: int, retention_ms: int) -> None:
        # A fiftieth of the retention too long is kept, for one look in fifty.
        if now_ms - self._expired_ms.get(stored.id, 0) < retention_ms // 50:
            return
        first, end = self._bounds(stored)
        rows = self._db.execute(
            "SELECT id, appended_ms FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (stored.row + first, stored.row + end, EXPIRE_RECORDS),
        ).fetchall()
        kept = next((id_ for id_, at_ms in rows if at_ms >= now_ms - retention_ms), None)
        if kept is None:
            kept = rows[-1][0] + 1  # more is to go: the next append goes on
        else:
            self._expired_ms[stored.id] = now_ms
        if kept > stored.row + first:
            self._db.execute(
                "DELETE FROM records WHERE id >= ? AND id < ?", (stored.row + first, kept)
            )
            self._db.execute(
                "UPDATE partitions SET first = ? WHERE id = ?", (kept - stored.row, stored.id)
            )
            self.erased = True

    def _bounds(self, stored: StoredPartition) -> tuple[int, int]:
        row = self._db.execute(
            "SELECT first, next FROM partitions WHERE id = ?", (stored.id,)
        ).fetchone()
        if row is None:
            raise LogCorrupt(path=self.path, found=f"partition {stored.partition} is gone")
        return row[0], row[1]

    def _rows(self, stored: StoredPartition, offset: int, end: int, max_records: int) -> list[_Row]:
        cursor = self._db.execute(
            "SELECT id, appended_ms, key, value, headers FROM records"
            " WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (stored.row + offset, stored.row + end, max_records),
        )
        with closing(cursor):
            rows: list[_Row] = []
            left = READ_BYTES
            while left > 0 and (more := cursor.fetchmany(100)):
                rows += more
                left -= sum(len(value or b"") for _, _, _, value, _ in more)
        return rows

    def _check_whole(self, stored: StoredPartition, offset: int, rows: Sequence[_Row]) -> None:
        found = [row[0] for row in rows]
        if found and found[0] == stored.row + offset and found[-1] - found[0] == len(found) - 1:
            return
        there = set(found)
        missing = next(at for at in range(offset, OFFSET_MASK) if stored.row + at not in there)
        raise LogCorrupt(
            path=self.path,
            found=f"{stored.partition} lacks offset {missing}",
            partition=stored.partition,
            offset=missing,
        )

    def _records(self, stored: StoredPartition, rows: Sequence[_Row]) -> Sequence[StoredRecord]:
        partition, base = stored.partition, stored.row
        out: list[StoredRecord] = []
        try:
            for id_, appended_ms, key, value, headers in rows:
                out.append(
                    stored_record(partition, id_ - base, appended_ms, key, value, unpack(headers))
                )
        except ValueError as error:
            at = rows[len(out)][0] - base
            raise LogCorrupt(
                path=self.path,
                found=f"the headers of {partition} offset {at} cannot be read",
                partition=partition,
                offset=at,
            ) from error
        return out
