"""The file of a SQLite log: its tables, how it is created and recognized, its errors.

The records of a partition are adjacent in one b-tree, with the key (partition, offset). Pages have
8 KiB, because SQLite stores a record that does not fit into a page four times outside the page;
with pages of 4 KiB, that was every second record.

A new file is made under another name and then linked to its path, so that a process that finds a
file at the path finds a whole log; an empty file is refused.

Careful: do not open the file except through SQLite. Closing any descriptor of the file would drop
the locks that every connection of this process holds on it.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from yardmaster_eventlog.errors import (
    LogCorrupt,
    LogError,
    LogUnavailable,
    NotOurLog,
    OtherLogFormat,
)
from yardmaster_schemas.log_format import LOG_FORMAT

#: "Yard" in ASCII, at the place that SQLite reserves for the id of the program that owns the file.
APPLICATION_ID: Final = 0x59617264
PAGE_BYTES: Final = 8192

_SCHEMA: Final = f"""
PRAGMA page_size = {PAGE_BYTES};
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {LOG_FORMAT};
BEGIN;
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    number INTEGER NOT NULL,
    first INTEGER NOT NULL DEFAULT 0,   -- the oldest offset that retention has left
    next INTEGER NOT NULL DEFAULT 0,    -- the offset that the next record gets
    retention_ms INTEGER,
    compacted INTEGER NOT NULL,
    max_batch_bytes INTEGER NOT NULL,
    UNIQUE (topic, number)
);
CREATE TABLE newest (                   -- of compacted topics: the offset of each key's last record
    partition INTEGER NOT NULL,
    key BLOB NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (partition, key)
) WITHOUT ROWID;
CREATE TABLE records (
    partition INTEGER NOT NULL,         -- partitions.id
    offset INTEGER NOT NULL,
    appended_ms INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB,
    headers BLOB NOT NULL,
    PRIMARY KEY (partition, offset)
) WITHOUT ROWID;
CREATE VIEW log AS                  -- for people with a SQLite shell
    SELECT p.topic, p.number AS partition, r.offset, r.appended_ms, r.key, r.value
    FROM records r JOIN partitions p ON p.id = r.partition;
COMMIT;
"""

_ENDS: Final = """
SELECT topic || '/' || number, first, next, compacted,
    (SELECT max(offset) FROM records WHERE partition = p.id),
    (SELECT min(offset) FROM records WHERE partition = p.id)
FROM partitions p
"""


def connect(path: Path, *, create: bool, lock_timeout_s: float) -> sqlite3.Connection:
    """Open the log at `path`; create it with `create`.

    Raises:
        NotOurLog: the path holds something else, or it holds nothing and `create` is false.
        OtherLogFormat: the log has another format than this version.
        LogCorrupt: the file is damaged or cut short.
        LogUnavailable: the file cannot be opened, or stays locked.
    """
    _check_path(path, create=create)
    with translated(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=lock_timeout_s,
        )
    try:
        with translated(path):
            _recognize(path, connection)
            _check_size(path, connection)
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _check_ends(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise SQLite's errors in the block as errors of the log."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _as_log_error(path, error) from error


def primary(error: sqlite3.Error) -> int:
    """Return SQLite's result code without its extension."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def certainly_not_written(error: sqlite3.Error) -> bool:
    """Tell whether a failed COMMIT left no commit mark on disk, because its write was refused."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code == sqlite3.SQLITE_IOERR_WRITE or primary(error) in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
    )


def _check_path(path: Path, *, create: bool) -> None:
    """Check that the path holds a file that is not empty; with `create`, create a missing log.

    Raises: NotOurLog, LogCorrupt, LogUnavailable.
    """
    try:
        if path.is_dir():
            raise NotOurLog(path=path, found="a folder")
        if not path.exists():
            if not create:
                raise NotOurLog(path=path, found="there is nothing")
            _create(path)
        elif not path.is_file():
            raise NotOurLog(path=path, found="neither a file nor a folder")
        elif not path.stat().st_size:
            raise NotOurLog(path=path, found="an empty file")
    except OSError as error:
        raise LogUnavailable(found=f"{path}: {error.strerror}") from error


def _create(path: Path) -> None:
    """Create an empty log under another name, and link it to `path` once it is complete.

    If another process has created a log at `path` meanwhile, that log stays.

    Raises: LogCorrupt: the path has a write-ahead log but no file.
    """
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        raise LogCorrupt(path=path, found=f"only its {wal.name} is there")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    os.close(descriptor)
    new = Path(name)
    try:
        with translated(path), closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.executescript(_SCHEMA)
        with suppress(FileExistsError):  # another process was quicker; its log is used
            os.link(new, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        new.unlink()


def _recognize(path: Path, connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise NotOurLog(path=path, found="the database of another program")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != LOG_FORMAT:
        raise OtherLogFormat(path=path, found=f"format {version}", known=LOG_FORMAT)


def _check_size(path: Path, connection: sqlite3.Connection) -> None:
    # SQLite notices a missing page only when it needs the page. Pages may also be in the
    # write-ahead log; after a crash, the file alone is then incomplete, and that is no damage.
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    wal = path.with_name(path.name + "-wal")
    whole = (wal.exists() and wal.stat().st_size) or path.stat().st_size % page_bytes == 0
    if not whole:
        raise LogCorrupt(path=path, found="it is cut short, in the middle of a page")


def _check_ends(path: Path, connection: sqlite3.Connection) -> None:
    for name, first, end, compacted, newest, oldest in connection.execute(_ENDS):
        if newest is None:
            if first != end:
                raise LogCorrupt(
                    path=path, found=f"{name} should end at {end}, but holds no record"
                )
        elif newest != end - 1:
            raise LogCorrupt(
                path=path, found=f"{name} should end at {end}, but its last record is {newest}"
            )
        elif not compacted and oldest != first:
            raise LogCorrupt(
                path=path, found=f"{name} should start at {first}, but its first record is {oldest}"
            )


def _as_log_error(path: Path, error: sqlite3.DatabaseError) -> LogError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    match primary(error):
        case sqlite3.SQLITE_NOTADB:
            return NotOurLog(path=path, found="no database")
        case sqlite3.SQLITE_CORRUPT:
            return LogCorrupt(path=path, found=str(error))
        case sqlite3.SQLITE_IOERR if code == sqlite3.SQLITE_IOERR_SHORT_READ:
            return LogCorrupt(path=path, found="it is cut short")
        case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_CONSTRAINT | sqlite3.SQLITE_MISMATCH:
            # The statements are right for an undamaged file.
            return LogCorrupt(path=path, found=str(error))
        case _:
            return LogUnavailable(found=f"{path}: {error}")
