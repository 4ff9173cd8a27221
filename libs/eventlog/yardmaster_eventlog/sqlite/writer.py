"""Writes a whole SQLite log into a new file in one go, for what was made elsewhere: simulated runs.

The file is whole once `close` has returned; until then it is of no use, and nobody may read it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from yardmaster_eventlog.errors import NotOurLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.sqlite.file import LogFile
from yardmaster_eventlog.sqlite.format import OFFSET_BITS, connect, pack, translated
from yardmaster_schemas.topics import Topic

#: Rows that are kept back until they are written together, and those written by one statement,
#: which costs a seventh less than one statement each.
ROWS: Final = 5_000
TOGETHER: Final = 50
COLUMNS: Final = 5
LOCK_TIMEOUT_S: Final = 5.0


class SqliteWriter:
    """A new log at `path` with one partition of each of `topics`.

    Raises:
        NotOurLog: something is there already.
        LogUnavailable: the file cannot be made or written.
    """

    def __init__(self, path: Path, topics: Sequence[Topic]) -> None:
        if path.exists():
            raise NotOurLog(path=path, found="a file; a simulated log needs a path of its own")
        file = LogFile(path, create=True, lock_timeout_s=LOCK_TIMEOUT_S)
        try:
            file.create_topics(topics, 1)
            self._ids = {topic.name: file.find(Partition(topic.name)).id for topic in topics}
        finally:
            file.close()
        self._path = path
        self._compacted = {topic.name for topic in topics if topic.compacted}
        self._ends = dict.fromkeys(self._ids, 0)
        #: The rows' columns, one after another.
        self._columns: list[int | bytes | None] = []
        self._newest: list[tuple[int, bytes, int]] = []
        self._db = connect(path, create=False, lock_timeout_s=LOCK_TIMEOUT_S)
        with translated(path):
            # What a crash leaves half written is thrown away: nothing waits for the disk, and
            # nothing is written twice.
            self._db.execute("PRAGMA journal_mode = OFF")
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("BEGIN")

    def append(self, partition: Partition, records: Sequence[Record], now_ms: int) -> int:
        """Append to a topic; returns the offset of the first record.

        In a compacted topic every key may come but once.
        """
        topic = partition.topic
        id_, first = self._ids[topic], self._ends[topic]
        row = (id_ << OFFSET_BITS) + first
        columns = self._columns
        for at, record in enumerate(records, row):
            columns += (at, now_ms, record.key, record.value, pack(record.headers))
        if topic in self._compacted:
            self._newest += [(id_, record.key, at) for at, record in enumerate(records, first)]
        self._ends[topic] = first + len(records)
        if len(columns) >= ROWS * COLUMNS:
            self._write()
        return first

    def close(self) -> None:
        """Write what is kept back, and make the log whole."""
        self._write()
        with translated(self._path):
            ends = [(end, self._ids[topic]) for topic, end in self._ends.items()]
            self._db.executemany("UPDATE partitions SET next = ? WHERE id = ?", ends)
            self._db.execute("COMMIT")
            self._db.execute("PRAGMA locking_mode = NORMAL")
            self._db.execute("PRAGMA journal_mode = WAL")
        self._db.close()

    def discard(self) -> None:
        """Close without making it whole, and remove it."""
        self._db.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def _write(self) -> None:
        columns = self._columns
        with translated(self._path):
            for start in range(0, len(columns), TOGETHER * COLUMNS):
                part = columns[start : start + TOGETHER * COLUMNS]
                rows = ", ".join(["(?, ?, ?, ?, ?)"] * (len(part) // COLUMNS))
                self._db.execute(f"INSERT INTO records VALUES {rows}", part)
            self._db.executemany("INSERT INTO newest VALUES (?, ?, ?)", self._newest)
        columns.clear()
        self._newest.clear()
