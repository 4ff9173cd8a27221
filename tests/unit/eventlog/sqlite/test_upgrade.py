"""A log that an earlier version wrote is upgraded when it is opened, and loses nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from yardmaster_eventlog.errors import LogCorrupt, LogUnavailable
from yardmaster_eventlog.port import Headers, Partition, Record
from yardmaster_eventlog.sqlite.format import FORMAT, PAGE_BYTES
from yardmaster_eventlog.sqlite.headers import pack
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import ManualClock, SystemClock

EVENTS = Partition("events")
SECOND = Partition("events", 1)
DETAILS = Partition("details")
HEADERS: Headers = (("ce_type", b"Test"), ("ce_id", b"1"))

FORMAT_1 = """
PRAGMA application_id = 0x59617264;
PRAGMA user_version = 1;
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    number INTEGER NOT NULL,
    first INTEGER NOT NULL DEFAULT 0,
    next INTEGER NOT NULL DEFAULT 0,
    retention_ms INTEGER,
    compacted INTEGER NOT NULL,
    max_batch_bytes INTEGER NOT NULL,
    UNIQUE (topic, number)
);
CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    appended_ms INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB,
    headers BLOB NOT NULL
);
CREATE TABLE newest (
    partition INTEGER NOT NULL,
    key BLOB NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (partition, key)
) WITHOUT ROWID;
CREATE VIEW log AS
    SELECT p.topic, p.number AS partition, r.id & 1099511627775 AS offset, r.appended_ms,
        r.key, r.value
    FROM records r JOIN partitions p ON p.id = r.id >> 40;
"""


def former_log(path: Path, *, wal: bool = True) -> None:
    """Write a file of format 1: two partitions of events, and details with a tombstone."""
    with closing(sqlite3.connect(path)) as file:
        file.executescript(FORMAT_1)
        file.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
        file.executemany(
            "INSERT INTO partitions VALUES (?, ?, ?, ?, ?, ?, ?, 1000000)",
            [
                (1, "events", 0, 2, 500, 60_000, 0),
                (2, "events", 1, 0, 1, 60_000, 0),
                (3, "details", 0, 0, 3, None, 1),
            ],
        )
        rows: list[tuple[int, int, bytes, bytes | None, bytes]] = [
            (1 << 40 | n, 7, b"main", b"%d" % n * 300, pack(HEADERS)) for n in range(2, 500)
        ]
        rows += [
            (2 << 40, 8, b"other", b"second", b""),
            (3 << 40 | 1, 8, b"job2", b"stays", b""),
            (3 << 40 | 2, 9, b"job1", None, b""),
        ]
        file.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
        file.executemany("INSERT INTO newest VALUES (3, ?, ?)", [(b"job2", 1), (b"job1", 2)])
        file.commit()


@pytest.mark.parametrize("wal", [True, False])
async def test_every_record_of_the_former_format_is_read_after_the_upgrade(
    tmp_path: Path, wal: bool
) -> None:
    path = tmp_path / "log.db"
    former_log(path, wal=wal)
    for _ in range(2):  # once upgraded, and once as a log of this format
        log = await SqliteLog.open(path, SystemClock(), create=False)
        found = await log.read(EVENTS, 2)
        assert [stored.offset for stored in found] == list(range(2, 500))
        assert [stored.appended_ms for stored in found] == [7] * 498
        assert found[10].record == Record(b"main", b"12" * 300, HEADERS)
        assert [stored.record for stored in await log.read(SECOND, 0)] == [
            Record(b"other", b"second")
        ]
        assert [(stored.offset, stored.record) for stored in await log.read(DETAILS, 0)] == [
            (1, Record(b"job2", b"stays")),
            (2, Record(b"job1", None)),
        ]
        await log.close()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        assert file.execute("PRAGMA page_size").fetchone() == (PAGE_BYTES,)
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("SELECT count(*) FROM log").fetchone() == (501,)


async def test_an_upgraded_log_is_appended_to_compacted_and_expired_as_before(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    former_log(path)
    clock = ManualClock(100_000)
    log = await SqliteLog.open(path, clock, create=False)
    assert await log.append(EVENTS, [Record(b"main", b"new")]) == 500
    assert [stored.offset for stored in await log.read(EVENTS, 500)] == [500], "the old expired"
    assert await log.append(DETAILS, [Record(b"job2", None)]) == 3
    assert [stored.offset for stored in await log.read(DETAILS, 0)] == [2, 3]
    await log.close()


async def test_a_former_log_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    former_log(path)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM records").fetchone() == (501,)
        with pytest.raises(LogUnavailable, match="stop the programs that use it"):
            await SqliteLog.open(path, SystemClock(), create=False)
        assert other.execute("PRAGMA user_version").fetchone() == (1,)
    log = await SqliteLog.open(path, SystemClock(), create=False)
    assert await log.end(EVENTS) == 500
    await log.close()


async def test_a_damaged_former_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    former_log(path)
    with closing(sqlite3.connect(path)) as file:
        file.execute("DELETE FROM records WHERE id = ?", (1 << 40 | 499,))
        file.commit()
    with pytest.raises(LogCorrupt, match="events/0 should end at 500"):
        await SqliteLog.open(path, SystemClock(), create=False)
