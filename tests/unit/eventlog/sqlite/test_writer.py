"""A log that was written in one go is a log like any other."""

from pathlib import Path

import pytest

from yardmaster_eventlog.errors import NotOurLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_eventlog.sqlite.writer import ROWS, SqliteWriter
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import DECISIONS, DETAILS

AT = Partition(DECISIONS.name)
TOPICS = (DETAILS, DECISIONS)


def record(number: int) -> Record:
    return Record(b"main", b"%d" % number, (("ce_type", b"Test"), ("n", b"%d" % number)))


async def test_a_written_log_is_read_back_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    writer = SqliteWriter(path, TOPICS)
    records = [record(number) for number in range(ROWS + 10)]
    assert writer.append(AT, records[:3], 5) == 0
    assert writer.append(AT, records[3:], 7) == 3
    assert writer.append(Partition(DETAILS.name), [record(1)], 7) == 0
    writer.close()
    log = await SqliteLog.open(path, SystemClock(), create=False)
    try:
        found = [
            stored for first in (0, ROWS) for stored in await log.read(AT, first, max_records=ROWS)
        ]
        assert [stored.record for stored in found] == records
        assert [stored.appended_ms for stored in found[:4]] == [5, 5, 5, 7]
        assert await log.append(AT, [record(0)]) == len(records)
        # A newer record of a key takes the place of the one that was written.
        await log.append(Partition(DETAILS.name), [record(2)])
        assert [stored.offset for stored in await log.read(Partition(DETAILS.name), 0)] == [1]
    finally:
        await log.close()


def test_an_existing_file_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"mine")
    with pytest.raises(NotOurLog, match="path of its own"):
        SqliteWriter(path, TOPICS)
    assert path.read_bytes() == b"mine"


def test_a_discarded_log_leaves_no_file(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "log.db", TOPICS)
    writer.append(AT, [record(number) for number in range(ROWS)], 5)
    writer.discard()
    assert list(tmp_path.iterdir()) == []
