"""The SQLite log alone: several processes, SIGKILL, damage that is named, erasure."""

import asyncio
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.pauses import let_wait_begin
from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    LogCorrupt,
    LogUnavailable,
    NotOurLog,
    OffsetGone,
    OtherLogFormat,
)
from yardmaster_eventlog.port import Partition, Record, StoredRecord
from yardmaster_eventlog.sqlite import log as sqlite_module
from yardmaster_eventlog.sqlite.file import LogFile, Write
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import ManualClock, SystemClock
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.topics import Topic

TOPIC = Topic(name="t", key="cell", writers=(), readers=())
AT = Partition("t")

#: Appends batches for ever; prints [batch, size, offset] when one was acknowledged.
WRITER = """
import asyncio, json, sys
from pathlib import Path
from yardmaster_eventlog.port import (Partition, Record)
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import Topic

async def main(path, name, batches):
    log = await SqliteLog.open(Path(path), SystemClock(), append_timeout_s=30, lock_timeout_s=25)
    await log.create_topics([Topic(name="t", key="cell", writers=(), readers=())])
    for number in range(int(batches)):
        size = 1 + number * 7 % 40
        mark = f"{name}.{number}"
        batch = [
            Record(b"main", json.dumps([mark, each, size]).encode() + b" " * 300)
            for each in range(size)
        ]
        offset = await log.append(Partition("t"), batch)
        print(json.dumps([mark, size, offset]), flush=True)
    await log.close()

asyncio.run(main(*sys.argv[1:]))
"""


def writer(path: Path, name: str, batches: int = 10**9) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(batches)], stdout=subprocess.PIPE
    )


def run_alone(program: str, path: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, timeout=60, check=False
    )


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def read_all(log: SqliteLog, at: Partition = AT) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    while more := await log.read(at, len(found)):
        found += more
    return found


def assert_whole(found: list[StoredRecord], acknowledged: dict[str, tuple[int, int]]) -> None:
    """Every batch is whole, and every acknowledged one is at the offset that its writer got."""
    begins: dict[str, tuple[int, int]] = {}
    at = 0
    while at < len(found):
        mark, first, size = json.loads(found[at].record.value or b"")
        assert first == 0, f"offset {at}: {mark} has no beginning here"
        batch = [json.loads(stored.record.value or b"") for stored in found[at : at + size]]
        assert batch == [[mark, each, size] for each in range(size)], f"{mark} is torn at {at}"
        assert mark not in begins, f"{mark} was written twice"
        begins[mark] = (size, at)
        at += size
    assert [stored.offset for stored in found] == list(range(len(found)))
    lost = {mark: said for mark, said in acknowledged.items() if begins.get(mark) != said}
    assert not lost, "acknowledged, but not there"


def acknowledgements(output: bytes) -> dict[str, tuple[int, int]]:
    lines = output.decode().splitlines(keepends=True)
    said = [json.loads(line) for line in lines if line.endswith("\n")]
    return {mark: (size, offset) for mark, size, offset in said}


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = await SqliteLog.open(tmp_path / "log.db", SystemClock())
    await log.create_topics([TOPIC])
    yield log
    await log.close()


async def test_append_times_follow_the_last_append_whatever_the_clock_of_the_host_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, record, right_ns = Partition(TOPIC.name), Record(b"key", b"value"), time.time_ns
    first_ms = right_ns() // 10**6
    for opened in range(2):
        log = await SqliteLog.open(tmp_path / "log.db", SystemClock())
        await log.create_topics([TOPIC])
        await log.append(at, [record])
        for days in (1, -365):
            monkeypatch.setattr(time, "time_ns", lambda d=days: right_ns() + d * 86_400 * 10**9)
            await log.append(at, [record])
        times_ms = [stored.appended_ms for stored in await log.read(at, 0)]
        assert len(times_ms) == 3 + 3 * opened, "the second handle opens the file a year behind"
        assert times_ms == sorted(times_ms)
        assert times_ms[-1] - first_ms < 60_000
        await log.close()


async def test_processes_that_append_at_once_write_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    writers = [writer(path, f"w{number}", 60) for number in range(3)]
    acknowledged: dict[str, tuple[int, int]] = {}
    for each in writers:
        output, _ = each.communicate(timeout=120)
        assert each.returncode == 0
        acknowledged |= acknowledgements(output)
    assert len(acknowledged) == 180
    log = await SqliteLog.open(path, SystemClock(), create=False)
    assert_whole(await read_all(log), acknowledged)
    await log.close()


async def test_a_killed_writer_leaves_whole_batches_and_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    acknowledged: dict[str, tuple[int, int]] = {}
    for round_ in range(4):
        writers = [writer(path, f"r{round_}w{number}") for number in range(2)]
        for at, each in enumerate(writers):
            assert each.stdout is not None
            first = [each.stdout.readline() for _ in range(20 + 13 * round_ + 5 * at)]
            each.send_signal(signal.SIGKILL)
            # Not communicate: it passes over what readline has read ahead.
            rest = each.stdout.read()
            each.stdout.close()
            each.wait(timeout=60)
            acknowledged |= acknowledgements(b"".join(first) + rest)
        log = await SqliteLog.open(path, SystemClock(), create=False)
        assert_whole(await read_all(log), acknowledged)
        await log.close()
    assert len(acknowledged) > 200


async def test_an_append_of_another_process_wakes_a_waiting_call_within_milliseconds(
    log: SqliteLog, tmp_path: Path
) -> None:
    with writer(tmp_path / "log.db", "other", 1) as process:
        assert await log.wait({AT: 0}, 60)
        assert len(await log.read(AT, 0)) == 1
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"short", "no database"),
        (os.urandom(100_000), "no database"),
        (b"SQLite format 3\x00" + bytes(200), "no database"),
    ],
)
async def test_a_foreign_file_is_refused_and_left_unchanged(
    tmp_path: Path, content: bytes, found: str
) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(content)
    with pytest.raises(NotOurLog, match=found):
        await SqliteLog.open(path, SystemClock())
    assert path.read_bytes() == content


async def test_a_folder_or_another_programs_database_is_not_our_log(tmp_path: Path) -> None:
    with pytest.raises(NotOurLog, match="a folder"):
        await SqliteLog.open(tmp_path, SystemClock())
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE records (id INTEGER PRIMARY KEY)")
    with pytest.raises(NotOurLog, match="another program"):
        await SqliteLog.open(path, SystemClock())
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",), "not touched"


@pytest.mark.parametrize("number", [LOG_FORMAT - 1, LOG_FORMAT + 1])
async def test_a_log_of_another_format_is_refused_by_name_and_left_unchanged(
    log: SqliteLog, tmp_path: Path, number: int
) -> None:
    path = tmp_path / "log.db"
    await log.close()
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {number}")
    before = path.read_bytes()
    with pytest.raises(OtherLogFormat, match=rf"log\.db is a log of format {number}, .*changed"):
        await SqliteLog.open(path, SystemClock())
    assert path.read_bytes() == before


async def test_no_log_is_created_unless_requested(tmp_path: Path) -> None:
    with pytest.raises(NotOurLog, match="there is nothing"):
        await SqliteLog.open(tmp_path / "log.db", SystemClock(), create=False)
    assert names_in(tmp_path) == []
    with pytest.raises(LogUnavailable, match="No such file"):
        await SqliteLog.open(tmp_path / "no" / "log.db", SystemClock())


async def test_only_its_owner_may_read_a_new_log(log: SqliteLog, tmp_path: Path) -> None:
    assert (tmp_path / "log.db").stat().st_mode & 0o777 == 0o600
    assert [name for name in names_in(tmp_path) if name.endswith(".new")] == []


async def filled(path: Path, batches: int = 50) -> None:
    log = await SqliteLog.open(path, SystemClock())
    await log.create_topics([TOPIC])
    for number in range(batches):
        await log.append(AT, [Record(b"main", f"{number}.{n}".encode() * 50) for n in range(20)])
    await log.close()


async def outcome(path: Path) -> str:
    """The result of opening and reading a log: the error's code, or the number of records."""
    try:
        log = await SqliteLog.open(path, SystemClock())
    except (NotOurLog, LogCorrupt) as error:
        return error.code
    try:
        return str(len(await read_all(log)))
    except LogCorrupt as error:
        return error.code
    finally:
        await log.close()


async def test_a_file_cut_short_anywhere_is_never_read_as_a_whole_log(tmp_path: Path) -> None:
    path, cut = tmp_path / "log.db", tmp_path / "cut.db"
    await filled(path)
    size = path.stat().st_size
    for share in (0, 1, 10, 40, 70, 99):
        shutil.copy(path, cut)
        os.truncate(cut, size * share // 100)
        assert await outcome(cut) in ("log_corrupt", "not_our_log"), f"cut to {share} %"
    shutil.copy(path, cut)
    os.truncate(cut, size - 1)
    assert await outcome(cut) == "log_corrupt"


async def test_a_log_of_which_only_the_wal_is_left_is_not_created_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "log.db-wal").write_bytes(b"the tail of a log")
    with pytest.raises(LogCorrupt, match=r"only its log\.db-wal is there"):
        await SqliteLog.open(tmp_path / "log.db", SystemClock())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM records WHERE offset = 999", "t/0 should end at 1000, but .* is 998"),
        ("DELETE FROM records WHERE offset = 0", "t/0 should start at 0, but .* is 1"),
        ("DELETE FROM records", "t/0 should end at 1000, but holds no record"),
        ("UPDATE partitions SET next = 900", "t/0 should end at 900, but .* is 999"),
        ("DROP TABLE records", "no such table"),
    ],
)
async def test_ends_that_contradict_the_records_are_damage(
    tmp_path: Path, change: str, said: str
) -> None:
    await filled(tmp_path / "log.db")
    with closing(sqlite3.connect(tmp_path / "log.db")) as other:
        other.executescript(change)
    with pytest.raises(LogCorrupt, match=said):
        await SqliteLog.open(tmp_path / "log.db", SystemClock())


async def test_a_record_missing_in_the_middle_is_named_when_it_is_read(tmp_path: Path) -> None:
    await filled(tmp_path / "log.db")
    with closing(sqlite3.connect(tmp_path / "log.db")) as other, other:
        other.execute("DELETE FROM records WHERE offset = 321")
    log = await SqliteLog.open(tmp_path / "log.db", SystemClock())
    assert len(await log.read(AT, 0, max_records=321)) == 321
    for offset in (300, 321):
        with pytest.raises(LogCorrupt, match="t/0 lacks offset 321") as raised:
            await log.read(AT, offset)
        assert raised.value.fields["offset"] == 321
    assert len(await log.read(AT, 322)) == 678
    await log.close()


async def test_headers_that_cannot_be_read_are_damage(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "log.db", SystemClock())
    await log.create_topics([TOPIC])
    await log.append(AT, [Record(b"", b"", (("ce_type", b"X"), ("ce_id", b"1")))] * 3)
    with closing(sqlite3.connect(tmp_path / "log.db")) as other, other:
        other.execute("UPDATE records SET headers = x'41' WHERE offset = 1")
    with pytest.raises(LogCorrupt, match="headers of t/0 offset 1"):
        await log.read(AT, 0)
    await log.close()


async def test_a_log_that_stays_locked_is_unavailable_and_nothing_was_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    log = await SqliteLog.open(path, SystemClock(), lock_timeout_s=0.2)
    await log.create_topics([TOPIC])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogUnavailable, match="stayed locked"):
            await log.append(AT, [Record(b"", b"1")])
        assert await log.end(AT) == 0, "reading still works"
        other.execute("ROLLBACK")
    assert await log.append(AT, [Record(b"", b"2")]) == 0
    await log.close()


async def test_an_append_beyond_its_deadline_is_withdrawn_if_the_disk_had_not_begun_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    log = await SqliteLog.open(path, SystemClock(), append_timeout_s=0.3, lock_timeout_s=20)
    await log.create_topics([TOPIC])
    outcomes: list[type[Exception]] = []

    async def append(mark: bytes) -> None:
        try:
            await log.append(AT, [Record(b"", mark)])
        except (LogUnavailable, AppendOutcomeUnknown) as error:
            outcomes.append(type(error))

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with asyncio.TaskGroup() as group:
            group.create_task(append(b"begun"))
            await let_wait_begin()  # the first append has begun in the writer's thread
            group.create_task(append(b"waits"))
        assert outcomes == [AppendOutcomeUnknown, LogUnavailable]
        other.execute("ROLLBACK")
    assert await log.wait({AT: 0}, 30), "the begun one lands late"
    await log.append(AT, [Record(b"", b"next")])
    assert [stored.record.value for stored in await read_all(log)] == [b"begun", b"next"]
    await log.close()


DISK_FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.port import (Partition, Record)
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import Topic

async def main(path):
    at = Partition("t")
    log = await SqliteLog.open(path, SystemClock())
    await log.create_topics([Topic(name="t", key="cell", writers=(), readers=())])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    written = refused = 0
    while refused < 5:
        try:
            assert await log.append(at, [Record(b"", b"x" * 20_000)] * 9) == written
            written += 9
        except LogUnavailable:
            refused += 1
            assert await log.end(at) == written, "refused, and yet there"
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert await log.append(at, [Record(b"", b"room again")]) == written
    await log.close()
    print(written + 1)

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_a_full_disk_refuses_appends_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    done = run_alone(DISK_FULL, path)
    assert done.returncode == 0, done.stderr.decode()
    log = await SqliteLog.open(path, SystemClock(), create=False)
    assert await log.end(AT) == int(done.stdout) == len(await read_all(log)) > 9
    await log.close()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1_000_000


class BrokenSync(LogFile):
    """A file whose next commit fails after, or before, it has taken place."""

    landed = True
    broken = True

    def _commit(self) -> None:
        if not self.broken:
            return super()._commit()
        self.broken = False
        if self.landed:
            super()._commit()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_that_fails_to_sync_has_an_unknown_outcome(tmp_path: Path, landed: bool) -> None:
    whole = LogFile(tmp_path / "log.db", create=True, lock_timeout_s=1)
    whole.create_topics([TOPIC], 1)
    file = BrokenSync(tmp_path / "log.db", create=False, lock_timeout_s=1)
    file.landed = landed
    stored = file.find(AT)
    with pytest.raises(AppendOutcomeUnknown):
        file.append([Write(stored, [Record(b"", b"1")])], 0)
    assert whole.end(stored) == landed, "nothing half done is left, and no lock"
    assert file.append([Write(stored, [Record(b"", b"2")])], 0) == [int(landed)]
    file.close()
    whole.close()


async def test_records_expire_and_their_offsets_are_not_used_again(tmp_path: Path) -> None:
    clock = ManualClock()
    log = await SqliteLog.open(tmp_path / "log.db", clock)
    short = Topic(name="short", key="cell", writers=(), readers=(), retention_ms=3_600_000)
    await log.create_topics([short])
    at = Partition("short")
    await log.append(at, [Record(b"", b"old")] * 3)
    clock.advance(3000)
    await log.append(at, [Record(b"", b"younger")])
    clock.advance(1000)
    assert await log.append(at, [Record(b"", b"new")]) == 4
    assert [stored.record.value for stored in await log.read(at, 3)] == [b"younger", b"new"]
    with pytest.raises(OffsetGone, match="starts at 3"):
        await log.read(at, 2)
    clock.advance(90_000)
    assert await log.append(at, [Record(b"", b"newest")]) == 5
    with pytest.raises(OffsetGone, match="starts at 5"):
        await log.read(at, 4)
    await log.close()
    again = await SqliteLog.open(tmp_path / "log.db", clock, create=False)
    assert await again.end(at) == 6
    await again.close()


async def test_an_erased_value_is_in_no_file_of_the_log_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "TRUNCATE_AFTER_S", 0.05)
    log = await SqliteLog.open(tmp_path / "log.db", SystemClock())
    details = Topic(name="details", key="job", writers=(), readers=(), compacted=True)
    await log.create_topics([details])
    at = Partition("details")
    secret = b"the name of a person " * 500
    await log.append(at, [Record(b"job1", secret), Record(b"job2", b"stays")])

    def seen() -> bool:
        return any(b"name of a person" in path.read_bytes() for path in tmp_path.glob("*-wal"))

    assert seen()
    await log.append(at, [Record(b"job1", None)])
    for _ in range(100):
        if not seen():
            break
        await asyncio.sleep(0.02)
    assert not seen()
    values = [(stored.record.key, stored.record.value) for stored in await log.read(at, 0)]
    assert values == [(b"job2", b"stays"), (b"job1", None)]
    await log.close()
    assert b"name of a person" not in (tmp_path / "log.db").read_bytes()


async def test_a_closed_log_leaves_one_file_and_no_thread(tmp_path: Path) -> None:
    await filled(tmp_path / "log.db", 3)
    assert names_in(tmp_path) == ["log.db"]
    for _ in range(100):
        if not any(thread.name.startswith("eventlog-") for thread in threading.enumerate()):
            break
        await asyncio.sleep(0.02)
    assert [t.name for t in threading.enumerate() if t.name.startswith("eventlog-")] == []
