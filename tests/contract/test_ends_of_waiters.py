"""The end that a reader sees of a log that lost nothing never falls, however many append."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.contract.conftest import Subject
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_eventlog.sqlite.file import LogFile, Write
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import HEARTBEATS, NODE_EVENTS, Topic

APPENDERS = 4
READERS = 3
#: Long enough that an end that is out of date would be seen in each adapter.
WAIT_S = 60.0


async def write(log: EventLog, partition: Partition, name: str, batches: int) -> int:
    """Append batches of one to three records; return the number of records."""
    count = 0
    for number in range(batches):
        size = 1 + number % 3
        await log.append(partition, [Record(name.encode(), b"%d" % number)] * size)
        count += size
    return count


async def follow(log: EventLog, partition: Partition, count: int) -> int:
    """Read `count` records as they arrive, waiting at the end; return the number of waits."""
    offset = waits = 0
    while offset < count:
        if found := await log.read(partition, offset):
            offset = found[-1].offset + 1
        else:
            waits += 1
            await log.wait({partition: offset}, WAIT_S)
    return waits


async def appended_and_followed(
    writers: Sequence[EventLog], readers: Sequence[EventLog], partition: Partition, batches: int
) -> int:
    """Append and follow at the same time; return the number of waits. A false loss is raised."""
    count = len(writers) * sum(1 + number % 3 for number in range(batches))
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(follow(log, partition, count)) for log in readers]
        for number, log in enumerate(writers):
            group.create_task(write(log, partition, f"w{number}", batches))
    return sum(each.result() for each in waits)


@pytest.mark.parametrize("topic", [HEARTBEATS, NODE_EVENTS], ids=lambda topic: topic.name)
async def test_many_appenders_and_readers_of_one_handle_see_no_loss(
    subject: Subject, topic: Topic
) -> None:
    log, partition = await subject.with_topic(retention_ms=topic.retention_ms)
    batches = 100 if subject.kind == "kafka" else 400
    assert await appended_and_followed([log] * APPENDERS, [log] * READERS, partition, batches)


async def test_many_appenders_and_readers_of_several_handles_see_no_loss(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    writers = [log, log, *[await subject.open() for _ in range(APPENDERS - 2)]]
    readers = [log, writers[-1], await subject.open()]
    batches = 100 if subject.kind == "kafka" else 300
    assert await appended_and_followed(writers, readers, partition, batches)


class DelayedAnswers:
    """Every acknowledgment of an append arrives after its records can be read."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._append = LogFile.append

    def append(self, file: LogFile, writes: Sequence[Write], now_ms: int) -> list[int]:
        offsets = self._append(file, writes, now_ms)
        time.sleep(self._delay_s)  # in the writer's thread, after the commit
        return offsets


@pytest.fixture
def delayed_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    delayed = DelayedAnswers(0.01)
    monkeypatch.setattr(
        LogFile, "append", lambda file, writes, now_ms: delayed.append(file, writes, now_ms)
    )


@pytest.mark.parametrize("topic", [HEARTBEATS, NODE_EVENTS], ids=lambda topic: topic.name)
@pytest.mark.parametrize("handles", [1, 2])
@pytest.mark.usefixtures("delayed_answers")
async def test_an_acknowledgment_that_is_late_is_no_loss_to_a_reader_that_is_further(
    tmp_path: Path, topic: Topic, handles: int
) -> None:
    clock = SystemClock()
    logs = [await SqliteLog.open(tmp_path / "log.db", clock) for _ in range(handles)]
    await logs[0].create_topics([HEARTBEATS, NODE_EVENTS])
    partition = Partition(topic.name)
    writers = [logs[number % handles] for number in range(APPENDERS)]
    try:
        assert await appended_and_followed(writers, logs * 2, partition, 60)
    finally:
        for log in logs:
            await log.close()
