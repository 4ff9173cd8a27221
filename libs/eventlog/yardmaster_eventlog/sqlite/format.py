"""The file of a SQLite log: what lies in it, how it is made and recognised, what its errors mean.

A record's row id is its partition's number in the file and its offset in one integer, so that a
partition's records lie side by side in the one b-tree there is, and cost no second index. (A
composite key in a table WITHOUT ROWID was a fifth slower to append to.)

A new file is made under another name and then linked to its own, so that whoever finds a file at
the path finds a whole log; an empty file is none of ours.

Careful: the file must not be opened beside SQLite. Closing any descriptor of it would drop the
locks that every connection of this process holds on it.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from yardmaster_eventlog.errors import LogCorrupt, LogError, LogUnavailable, NotOurLog
from yardmaster_eventlog.port import Headers

#: "Yard" in ASCII, in the place that SQLite keeps for saying whose file it is.
APPLICATION_ID: Final = 0x59617264
FORMAT: Final = 1
OFFSET_BITS: Final = 40
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1

SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
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
CREATE TABLE records (
    id INTEGER PRIMARY KEY,             -- partitions.id << {OFFSET_BITS} | offset
    appended_ms INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB,
    headers BLOB NOT NULL
);
CREATE TABLE newest (                   -- of compacted topics: where a key's newest record lies
    partition INTEGER NOT NULL,
    key BLOB NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (partition, key)
) WITHOUT ROWID;
CREATE VIEW log AS                      -- for people with a sqlite shell
    SELECT p.topic, p.number AS partition, r.id & {OFFSET_MASK} AS offset, r.appended_ms,
        r.key, r.value
    FROM records r JOIN partitions p ON p.id = r.id >> {OFFSET_BITS};
COMMIT;
"""

_ENDS: Final = f"""
SELECT topic || '/' || number, first, next, compacted,
    (SELECT r.id FROM records r
     WHERE r.id >= p.id << {OFFSET_BITS} AND r.id < (p.id + 1) << {OFFSET_BITS}
     ORDER BY r.id DESC LIMIT 1) & {OFFSET_MASK},
    (SELECT r.id FROM records r
     WHERE r.id >= p.id << {OFFSET_BITS} AND r.id < (p.id + 1) << {OFFSET_BITS}
     ORDER BY r.id LIMIT 1) & {OFFSET_MASK}
FROM partitions p
"""


def connect(path: Path, *, create: bool, lock_timeout_s: float) -> sqlite3.Connection:
    """A connection to the log at `path`; with `create`, it is made when nothing is there.

    Raises:
        NotOurLog: something else is there, or nothing though `create` is false.
        LogCorrupt: it is damaged or cut short.
        LogUnavailable: it may not be opened, or stays locked.
    """
    _look(path, create=create)
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
            _recognise(path, connection)
            _check_size(path, connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            _check_ends(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as the log's."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _meaning(path, error) from error


def primary(error: sqlite3.Error) -> int:
    """SQLite's result code without its refinement."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def certainly_not_written(error: sqlite3.Error) -> bool:
    """A COMMIT that failed so left no commit mark on disk: the write of it was itself refused."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code == sqlite3.SQLITE_IOERR_WRITE or primary(error) in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
    )


def pack(headers: Headers) -> bytes:
    """Headers as one value: names between unit separators, then each value behind a zero byte.

    Splitting at a byte is what Python does fastest, and a topic's records share their names, which
    are so split but once. Where a name or value holds such a byte, all have lengths instead.
    """
    if not headers:
        return b""
    names = b"\x1f".join([name.encode() for name, _ in headers])
    packed = b"\x00".join([names, *[value for _, value in headers]])
    # A name may be empty, but not the first: a packed value that starts with zero has lengths.
    if packed[0] and packed.count(0) == len(headers) and names.count(31) == len(headers) - 1:
        return packed
    parts = [part for name, value in headers for part in (name.encode(), value)]
    return b"\x00" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def unpack(packed: bytes) -> Headers:
    """The headers that `pack` was given.

    Raises: ValueError when they were damaged.
    """
    if not packed:
        return ()
    if not packed[0]:
        return _with_lengths(packed)
    values = packed.split(b"\x00")
    names = _NAMES[values.pop(0)]
    if len(names) != len(values):  # for zip to check it would cost a third more
        raise ValueError("a header without a value")
    return tuple(zip(names, values, strict=False))


class _Names(dict[bytes, tuple[str, ...]]):
    """Header names, split once for all records that share them; no flood of made-up ones."""

    LIMIT: Final = 1024

    def __missing__(self, packed: bytes) -> tuple[str, ...]:
        names = tuple(packed.decode().split("\x1f"))
        if len(self) < self.LIMIT:
            self[packed] = names
        return names


_NAMES: Final = _Names()


def _with_lengths(packed: bytes) -> Headers:
    parts = []
    at = 1
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        part = packed[at + 4 : at + 4 + size]
        if len(part) < size:
            raise ValueError("headers are cut short")
        parts.append(part)
        at += 4 + size
    names = [name.decode() for name in parts[::2]]
    return tuple(zip(names, parts[1::2], strict=True))


def _look(path: Path, *, create: bool) -> None:
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
    left_over = path.with_name(path.name + "-wal")
    if left_over.exists() and left_over.stat().st_size:
        raise LogCorrupt(path=path, found=f"only its {left_over.name} is there")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    os.close(descriptor)
    new = Path(name)
    try:
        with translated(path), closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.executescript(SCHEMA)
        with suppress(FileExistsError):  # another process was quicker: its log is as good
            os.link(new, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        new.unlink()


def _recognise(path: Path, connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise NotOurLog(path=path, found="the database of another program")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != FORMAT:
        raise NotOurLog(
            path=path, found=f"a log of format {version}, and this Yardmaster knows {FORMAT}"
        )


def _check_size(path: Path, connection: sqlite3.Connection) -> None:
    # SQLite notices a missing page only when it needs it. While there is a write-ahead log, pages
    # may lie there, and the file is what a crash has left of it.
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    tail = path.with_name(path.name + "-wal")
    whole = (tail.exists() and tail.stat().st_size) or path.stat().st_size % page_bytes == 0
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


def _meaning(path: Path, error: sqlite3.DatabaseError) -> LogError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    match primary(error):
        case sqlite3.SQLITE_NOTADB:
            return NotOurLog(path=path, found="no database")
        case sqlite3.SQLITE_CORRUPT:
            return LogCorrupt(path=path, found=str(error))
        case sqlite3.SQLITE_IOERR if code == sqlite3.SQLITE_IOERR_SHORT_READ:
            return LogCorrupt(path=path, found="it is cut short")
        case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_CONSTRAINT | sqlite3.SQLITE_MISMATCH:
            # Our own statements are right in a file that is as we made it.
            return LogCorrupt(path=path, found=str(error))
        case _:
            return LogUnavailable(found=f"{path}: {error}")
