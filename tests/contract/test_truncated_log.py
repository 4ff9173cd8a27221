"""A log that lost its end stops every handle that has seen more, in every adapter."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.conftest import KINDS, topic
from tests.support.cut_tail import cut_tail
from tests.support.kafka_broker import KafkaBroker
from yardmaster_eventlog.errors import LogTruncated, ReadPastEnd
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_eventlog.reader import Cursor
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_eventlog.testing import FaultPlan, FaultyLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import DETAILS, HEARTBEATS, REQUESTS

#: How long an adapter may take to notice, in seconds; Kafka reconnects first.
NOTICED_S = 30.0


@dataclass
class Harmed:
    """A log whose partitions can be cut; `open` returns another handle."""

    open: Callable[[], Awaitable[EventLog]]
    cut: Callable[[Partition, int], Awaitable[object]]


@pytest.fixture(params=KINDS)
async def harmed(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Harmed]:
    clock = SystemClock()
    kind: str = request.param
    handles: list[EventLog] = []
    memory = MemoryLog(clock)
    broker = KafkaBroker(tmp_path_factory.mktemp("cut")) if kind == "kafka" else None
    if broker is not None:
        await asyncio.to_thread(broker.start)

    async def open_handle() -> EventLog:
        log: EventLog
        if broker is not None:
            log = await KafkaLog.open(KafkaSettings(bootstrap=broker.bootstrap), clock)
        elif kind == "sqlite":
            log = await SqliteLog.open(tmp_path / "log.db", clock)
        else:
            log = memory.handle() if kind == "memory" else FaultyLog(memory.handle(), plan)
        handles.append(log)
        return log

    async def cut(partition: Partition, end: int) -> None:
        if broker is not None:
            await asyncio.to_thread(broker.kill)
            assert cut_tail(broker.directory, partition, end) == end
            await asyncio.to_thread(broker.start)
        elif kind == "sqlite":
            cut_file(tmp_path / "log.db", partition, end)
        else:
            memory.cut(partition, end)

    plan = FaultPlan(clock)
    yield Harmed(open_handle, cut)
    for log in handles:
        await log.close()
    if broker is not None:
        await asyncio.to_thread(broker.kill)


def cut_file(path: Path, partition: Partition, end: int) -> None:
    with sqlite3.connect(path) as db:
        where = (partition.topic, partition.number)
        (number,) = db.execute(
            "SELECT id FROM partitions WHERE topic = ? AND number = ?", where
        ).fetchone()
        db.execute("DELETE FROM records WHERE partition = ? AND offset >= ?", (number, end))
        db.execute("UPDATE partitions SET next = ? WHERE id = ?", (end, number))
    db.close()


async def write(log: EventLog, at: Partition, mark: str, count: int) -> None:
    """Append `count` batches of one record each."""
    for each in range(count):
        await log.append(at, [Record(b"main", f"{mark} {each}".encode())])


async def read(log: EventLog, at: Partition, offset: int = 0) -> list[bytes | None]:
    return [stored.record.value for stored in await log.read(at, offset, max_records=100)]


async def test_a_short_log_stops_a_reader_that_waits_for_more(harmed: Harmed) -> None:
    log, other = await harmed.open(), await harmed.open()
    at = Partition(REQUESTS.name)
    await log.create_topics([REQUESTS])
    await write(other, at, "first", 5)
    await read(log, at)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(raised_by(log.wait({at: 5}, NOTICED_S)))
        await harmed.cut(at, 3)
        assert "ends at 3" in str(await waiting)
    with pytest.raises(LogTruncated, match="ends at 3"):
        await read(log, at, 5)


async def raised_by(call: Awaitable[object]) -> LogTruncated:
    with pytest.raises(LogTruncated) as raised:
        await call
    return raised.value


async def test_a_log_that_grew_again_stops_readers_and_writers_that_saw_other_records(
    harmed: Harmed,
) -> None:
    reader, writer = await harmed.open(), await harmed.open()
    at, elsewhere = Partition(REQUESTS.name), Partition(DETAILS.name)
    await reader.create_topics([REQUESTS, DETAILS])
    await write(writer, at, "first", 5)
    cursor = Cursor(reader, at, 0, 100)
    await cursor.take(5)
    await harmed.cut(at, 3)
    await write(await harmed.open(), at, "again", 6)
    with pytest.raises(LogTruncated, match="another record at offset 4"):
        await cursor.take(7)
    with pytest.raises(LogTruncated, match="another record at offset 4"):
        await write(writer, at, "more", 1)
    assert len(await read(await harmed.open(), at)) == 9, "the writer has written nothing"
    for log in (reader, writer):
        with pytest.raises(LogTruncated):
            await write(log, elsewhere, "other topics too", 1)


async def test_a_handle_that_has_seen_nothing_beyond_the_end_continues(harmed: Harmed) -> None:
    log, other = await harmed.open(), await harmed.open()
    at = Partition(REQUESTS.name)
    await log.create_topics([REQUESTS])
    await write(other, at, "first", 5)
    assert len(await log.read(at, 0, max_records=3)) == 3
    await harmed.cut(at, 3)
    await write(log, at, "again", 1)
    assert await read(log, at, 3) == [b"again 0"]
    with pytest.raises(ReadPastEnd):
        await read(log, at, 9)


async def test_readers_of_an_expiring_topic_are_notified_once_and_continue(harmed: Harmed) -> None:
    log, other = await harmed.open(), await harmed.open()
    at, kept = Partition(HEARTBEATS.name), topic("kept")
    await log.create_topics([HEARTBEATS, kept])
    await write(other, at, "first", 5)
    await read(log, at)
    await harmed.cut(at, 3)
    with pytest.raises(LogTruncated, match="ends at 3"):
        await read(log, at, 5)
    assert await log.end(at) == 3
    await write(await harmed.open(), at, "again", 1)
    assert await read(log, at, 3) == [b"again 0"]
    await write(log, Partition(kept.name), "kept", 1)
