"""The three logs: how fast they append and read records of 400 bytes.

A single append waits for its outcome before the next begins, so it shows the cost of durability:
none in memory, an fsync in SQLite, the broker's acknowledgment in Kafka. One handle writes and
another reads, in one process.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.timing import Row, collector_off, quantile
from tests.support.kafka_broker import KafkaBroker
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import Topic

BYTES = 400
PAGE = 1_000

Open = Callable[[], Awaitable[EventLog]]


def memory(quick: bool) -> list[Row]:
    """The log in memory."""
    log = MemoryLog(SystemClock())

    async def handle() -> EventLog:
        return log.handle()

    return asyncio.run(_measure("memory", handle, 2_000, 100_000, quick=quick))


def sqlite(quick: bool) -> list[Row]:
    """The log in one SQLite file in the folder for temporary files."""
    with tempfile.TemporaryDirectory() as folder:

        async def handle() -> EventLog:
            return await SqliteLog.open(Path(folder) / "log.db", SystemClock())

        return asyncio.run(_measure("sqlite", handle, 500, 50_000, quick=quick))


def kafka(quick: bool) -> list[Row]:
    """One real broker on the same machine."""
    from yardmaster_eventlog.kafka.log import KafkaLog
    from yardmaster_eventlog.kafka.settings import KafkaSettings

    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder)) as broker:

        async def handle() -> EventLog:
            return await KafkaLog.open(KafkaSettings(bootstrap=broker.bootstrap), SystemClock())

        return asyncio.run(_measure("kafka", handle, 500, 50_000, quick=quick))


async def _measure(kind: str, handle: Open, lone: int, many: int, *, quick: bool) -> list[Row]:
    if quick:
        lone, many = lone // 10, many // 10
    writer = await handle()
    reader = await handle()
    topic = Topic(name="bench", key="cell", writers=(), readers=())
    await writer.create_topics([topic])
    where = Partition("bench")
    record = Record(key=b"main", value=b"x" * BYTES)
    for _ in range(10):  # the first appends open connections and fill caches
        await writer.append(where, [record])
    with collector_off():
        waits = []
        for _ in range(lone):
            start = time.perf_counter()
            await writer.append(where, [record])
            waits.append(time.perf_counter() - start)
        rates = {size: await _append(writer, where, record, size, many) for size in (100, 1_000)}
        read_rate = await _read(reader, where)
    await writer.close()
    await reader.close()
    return [
        Row(f"{kind}: lone append, p50", quantile(waits, 0.5) * 1000, "ms"),
        Row(f"{kind}: lone append, p99", quantile(waits, 0.99) * 1000, "ms"),
        Row(f"{kind}: append, batches of 100", rates[100], "records/s"),
        Row(f"{kind}: append, batches of 1,000", rates[1_000], "records/s"),
        Row(f"{kind}: read, {PAGE:,} at once", read_rate, "records/s"),
    ]


async def _append(
    log: EventLog, where: Partition, record: Record, size: int, records: int
) -> float:
    """Records per second, one batch after another."""
    batch = [record] * size
    start = time.perf_counter()
    for _ in range(records // size):
        await log.append(where, batch)
    return records / (time.perf_counter() - start)


async def _read(log: EventLog, where: Partition) -> float:
    """Records per second from the first to the end."""
    end = await log.end(where)
    offset = 0
    start = time.perf_counter()
    while offset < end:
        offset += len(await log.read(where, offset, max_records=PAGE))
    return end / (time.perf_counter() - start)
