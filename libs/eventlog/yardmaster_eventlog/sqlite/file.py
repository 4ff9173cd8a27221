"""One connection to a SQLite log. All records are written by `LogFile._insert`.

Every call blocks; `log` calls from threads.
"""

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
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
from yardmaster_eventlog.sqlite.format import certainly_not_written, connect, primary, translated
from yardmaster_eventlog.sqlite.headers import pack, unpack
from yardmaster_schemas.topics import Topic

#: One read returns at most about this many bytes, however many records were requested.
READ_BYTES: Final = 8 * 1024 * 1024
#: Records that one append removes at most, so that retention does not delay it for long.
EXPIRE_RECORDS: Final = 5_000
LOCK_RETRY_S: Final = 0.001

#: offset, appended_ms, key, value, headers.
_Row = tuple[int, int, bytes, bytes | None, bytes]


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A partition's id in the file and its topic's options; never changes."""

    id: int
    partition: Partition
    retention_ms: int | None
    compacted: bool
    max_batch_bytes: int


@dataclass(frozen=True, slots=True)
class Write:
    """One batch to append."""

    to: StoredPartition
    batch: Sequence[Record]


class LogFile:
    """One connection to a log; for one thread at a time.

    Raises: LogUnavailable, LogCorrupt from every method, in addition to those that it names.
    """

    def __init__(self, path: Path, *, create: bool, lock_timeout_s: float) -> None:
        """Open the log at `path`; with `create`, create it when the path is free.

        Raises:
            NotOurLog: the path holds something else, or it holds nothing and `create` is false.
            OtherLogFormat: the log has another format than this version.
            LogCorrupt: the file is damaged or cut short.
        """
        self.path = path
        self.lock_timeout_s = lock_timeout_s
        #: Whether the write-ahead log still contains deleted records; `truncate_wal` removes them.
        self.erased = False
        self._db = connect(path, create=create, lock_timeout_s=lock_timeout_s)
        self._broken = False
        self._expired_ms: dict[int, int] = {}

    def close(self) -> None:
        """Close the connection; the last one to close removes the write-ahead log."""
        with suppress(sqlite3.Error):
            self._db.close()

    def create_topics(self, topics: Sequence[Topic], partitions: int) -> None:
        """Create the partitions of missing topics."""
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
        """Return what the file stores about a partition.

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
        """Return the offset that the partition's next record will get."""
        with translated(self.path):
            return self._bounds(stored)[1]

    def data_version(self) -> int:
        """Return a number that changes when another connection, of any process, commits.

        The call only reads shared memory.
        """
        with translated(self.path):
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def append(self, writes: Sequence[Write], now_ms: int) -> list[int]:
        """Append all batches in one durable transaction; return their first offsets.

        Raises:
            LogUnavailable: nothing was written.
            AppendOutcomeUnknown: the commit itself failed.
        """
        offsets = []
        with translated(self.path), self._transaction():
            for write in writes:
                offsets.append(self._bounds(write.to)[1])
                self._insert(write.to, offsets[-1], [(now_ms, record) for record in write.batch])
                if write.to.retention_ms is not None:
                    self._expire(write.to, now_ms, write.to.retention_ms)
        return offsets

    def cut(
        self, ends: Mapping[Partition, int], emptied: str, mark: tuple[Partition, Record]
    ) -> None:
        """Remove all records at or after each end, in one durable transaction.

        In topics whose names begin with `emptied`, all records are removed. `mark` is appended. No
        other process may write to the log meanwhile.
        """
        with translated(self.path), self._transaction():
            for partition, end in ends.items():
                stored = self.find(partition)
                self._delete(stored, end, self._bounds(stored)[1])
                self._db.execute("UPDATE partitions SET next = ? WHERE id = ?", (end, stored.id))
            names = "SELECT topic FROM partitions WHERE topic LIKE ? AND number = ?"
            number = mark[0].number
            for (topic,) in self._db.execute(names, (f"{emptied}%", number)).fetchall():
                stored = self.find(Partition(topic, number))
                end = self._bounds(stored)[1]
                self._delete(stored, 0, end)
                self._db.execute("UPDATE partitions SET first = ? WHERE id = ?", (end, stored.id))
            to = self.find(mark[0])
            self._insert(to, self._bounds(to)[1], [(time.time_ns() // 1_000_000, mark[1])])

    def copy_to(self, path: Path) -> None:
        """Copy the whole log to a new file, durably."""
        with translated(self.path):
            self._db.execute("VACUUM INTO ?", (str(path),))

    @contextmanager
    def bulk(self) -> Iterator[None]:
        """Make `load` fast in the block; if the process dies in the block, the file is useless."""
        with translated(self.path):
            for setting in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
                self._db.execute(f"PRAGMA {setting}")
            self._db.execute("BEGIN")
            yield
            self._db.execute("COMMIT")
            self._db.execute("PRAGMA locking_mode = NORMAL")
            self._db.execute("PRAGMA journal_mode = WAL")

    def begin_at(self, stored: StoredPartition, offset: int) -> None:
        """Let an empty partition begin at an offset, as after its older records have expired."""
        with translated(self.path):
            self._db.execute(
                "UPDATE partitions SET first = ?, next = ? WHERE id = ?",
                (offset, offset, stored.id),
            )

    def first(self, stored: StoredPartition) -> int:
        """Return the offset of the oldest record that the partition has not lost."""
        with translated(self.path):
            return self._bounds(stored)[0]

    def load(self, to: StoredPartition, rows: Sequence[tuple[int, Record]]) -> None:
        """Append (appended_ms, record) pairs, within `bulk`."""
        with translated(self.path):
            self._insert(to, self._bounds(to)[1], rows)

    def read(
        self, stored: StoredPartition, offset: int, max_records: int
    ) -> Sequence[StoredRecord]:
        """Return records from `offset` on; fewer than `max_records` when they are large.

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
            self._check_complete(stored, offset, rows)
        return self._records(stored, rows)

    def record_at(self, stored: StoredPartition, offset: int) -> tuple[int, Record | None]:
        """Return the partition's end, and its record at `offset`; None without such a record."""
        with translated(self.path):
            end = self._bounds(stored)[1]
            rows = self._rows(stored, offset, offset + 1, 1)
        return end, self._records(stored, rows)[0].record if rows else None

    def newest(self, partition: Partition) -> StoredRecord | None:
        """Return a partition's newest record; None when it is empty or does not exist."""
        try:
            stored = self.find(partition)
            end = self.end(stored)
            found = self.read(stored, end - 1, 1) if end else ()
        except (UnknownTopic, OffsetGone):
            return None
        return found[0] if found else None

    def newest_ms(self) -> int:
        """Return the newest append time of all partitions' last records; 0 without a record."""
        with translated(self.path):
            row = self._db.execute(
                "SELECT MAX(appended_ms) FROM partitions JOIN records"
                " ON partition = id AND offset = next - 1"
            ).fetchone()
        return row[0] or 0

    def truncate_wal(self) -> None:
        """Empty the write-ahead log, which still holds deleted records, unless it is in use."""
        with translated(self.path):
            busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        self.erased = self.erased and bool(busy)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the writes of the block durably, or roll them back when it raises.

        Raises: AppendOutcomeUnknown: the commit failed, and may count after a crash.
        """
        self._begin()
        try:
            yield
        except BaseException:
            # After some errors SQLite has rolled back already. No commit mark is on disk, so
            # nothing was written.
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
            # For example, the sync failed. The commit mark may be on disk. After a crash it then
            # counts, unless a later append overwrites it.
            self._broken = True
            raise AppendOutcomeUnknown(topic=self.path.name, found=str(error)) from error

    def _begin(self) -> None:
        """Begin a write transaction; first reconnect if the last commit failed.

        Raises: LogUnavailable: another process held the lock for `lock_timeout_s`.
        """
        if self._broken:
            self._db.close()
            self._db = connect(self.path, create=False, lock_timeout_s=self.lock_timeout_s)
            self._broken = False
        # SQLite's own busy handler backs off to 100 ms, so a process that retries faster would
        # always get the lock first.
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

    def _insert(self, to: StoredPartition, first: int, rows: Sequence[tuple[int, Record]]) -> None:
        """Write (appended_ms, record) pairs from offset `first` on: the only writer of records."""
        self._db.executemany(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
            [
                (to.id, offset, now_ms, record.key, record.value, pack(record.headers))
                for offset, (now_ms, record) in enumerate(rows, first)
            ],
        )
        self._db.execute("UPDATE partitions SET next = ? WHERE id = ?", (first + len(rows), to.id))
        if to.compacted:
            for offset, (_, record) in enumerate(rows, first):
                self._replace(to, record.key, offset)

    def _replace(self, stored: StoredPartition, key: bytes, offset: int) -> None:
        older = self._db.execute(
            "SELECT offset FROM newest WHERE partition = ? AND key = ?", (stored.id, key)
        ).fetchone()
        if older is not None:
            self._delete(stored, older[0], older[0] + 1)
        self._db.execute("INSERT OR REPLACE INTO newest VALUES (?, ?, ?)", (stored.id, key, offset))

    def _expire(self, stored: StoredPartition, now_ms: int, retention_ms: int) -> None:
        """Delete records of a partition that are older than its retention, a bounded number."""
        # Look only 50 times per retention; records are therefore kept up to 2 % longer.
        if now_ms - self._expired_ms.get(stored.id, 0) < retention_ms // 50:
            return
        rows = self._db.execute(
            "SELECT offset, appended_ms FROM records WHERE partition = ? ORDER BY offset LIMIT ?",
            (stored.id, EXPIRE_RECORDS),
        ).fetchall()
        kept = next((offset for offset, at_ms in rows if at_ms >= now_ms - retention_ms), None)
        if kept is None:
            kept = rows[-1][0] + 1  # more records are due: the next append removes them
        else:
            self._expired_ms[stored.id] = now_ms
        if kept > rows[0][0]:
            self._delete(stored, rows[0][0], kept)
            self._db.execute("UPDATE partitions SET first = ? WHERE id = ?", (kept, stored.id))

    def _delete(self, stored: StoredPartition, first: int, end: int) -> None:
        self._db.execute(
            "DELETE FROM records WHERE partition = ? AND offset >= ? AND offset < ?",
            (stored.id, first, end),
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
            "SELECT offset, appended_ms, key, value, headers FROM records"
            " WHERE partition = ? AND offset >= ? AND offset < ? ORDER BY offset LIMIT ?",
            (stored.id, offset, end, max_records),
        )
        with closing(cursor):
            rows: list[_Row] = []
            left = READ_BYTES
            while left > 0 and (more := cursor.fetchmany(100)):
                rows += more
                left -= sum(len(value or b"") for _, _, _, value, _ in more)
        return rows

    def _check_complete(self, stored: StoredPartition, offset: int, rows: Sequence[_Row]) -> None:
        if rows and rows[0][0] == offset and rows[-1][0] == offset + len(rows) - 1:
            return
        missing = next(
            (at for at, row in enumerate(rows, offset) if row[0] != at), offset + len(rows)
        )
        raise LogCorrupt(
            path=self.path,
            found=f"{stored.partition} lacks offset {missing}",
            partition=stored.partition,
            offset=missing,
        )

    def _records(self, stored: StoredPartition, rows: Sequence[_Row]) -> Sequence[StoredRecord]:
        partition = stored.partition
        out: list[StoredRecord] = []
        try:
            for offset, appended_ms, key, value, headers in rows:
                out.append(
                    stored_record(partition, offset, appended_ms, key, value, unpack(headers))
                )
        except ValueError as error:
            offset = rows[len(out)][0]
            raise LogCorrupt(
                path=self.path,
                found=f"the headers of {partition} offset {offset} cannot be read",
                partition=partition,
                offset=offset,
            ) from error
        return out
