"""Writes a whole SQLite log into a new file, for records of simulated runs.

The file is complete once `close` has returned; nothing may read it before.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from yardmaster_eventlog.errors import NotOurLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.sqlite.file import LogFile
from yardmaster_schemas.topics import Topic

#: Records that are collected before they are written together.
ROWS: Final = 5_000
LOCK_TIMEOUT_S: Final = 5.0


class SqliteWriter:
    """A new log at `path` with one partition of each of `topics`.

    Raises:
        NotOurLog: the path is taken.
        LogUnavailable: the file cannot be created or written.
    """

    def __init__(self, path: Path, topics: Sequence[Topic]) -> None:
        if path.exists():
            raise NotOurLog(path=path, found="a file; a simulated log needs a path of its own")
        self._path = path
        self._open = ExitStack()
        self._file = LogFile(path, create=True, lock_timeout_s=LOCK_TIMEOUT_S)
        self._file.create_topics(topics, 1)
        self._open.enter_context(self._file.bulk())
        self._partitions = {topic.name: self._file.find(Partition(topic.name)) for topic in topics}
        self._ends = dict.fromkeys(self._partitions, 0)
        #: (appended_ms, record) pairs to write, by topic.
        self._rows: dict[str, list[tuple[int, Record]]] = {name: [] for name in self._partitions}
        self._collected = 0

    def append(self, partition: Partition, records: Sequence[Record], now_ms: int) -> int:
        """Append to a topic; return the offset of the first record."""
        topic = partition.topic
        first = self._ends[topic]
        self._rows[topic] += [(now_ms, record) for record in records]
        self._ends[topic] = first + len(records)
        self._collected += len(records)
        if self._collected >= ROWS:
            self._write()
        return first

    def close(self) -> None:
        """Write what was collected, and complete the file."""
        self._write()
        self._open.close()
        self._file.close()

    def discard(self) -> None:
        """Close without completing the file, and remove it."""
        self._file.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def _write(self) -> None:
        for topic, rows in self._rows.items():
            if rows:
                self._file.load(self._partitions[topic], rows)
                rows.clear()
        self._collected = 0
