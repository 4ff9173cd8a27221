"""The Kafka log alone: killed brokers, bounded appends, hostile records."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.record.util import calc_crc32c

from tests.contract.conftest import topic
from tests.support.kafka_broker import KafkaBroker
from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    BatchTooLarge,
    LogUnavailable,
    OffsetGone,
)
from yardmaster_eventlog.kafka import log as kafka
from yardmaster_eventlog.kafka.clients import Cursor, Producer, cancel_safe
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.port import Partition, Record, StoredRecord
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.log_metrics import EventLogMetrics
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import NODE_EVENTS, assignments

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]


@pytest.fixture
async def log(kafka_broker: KafkaBroker) -> AsyncIterator[KafkaLog]:
    log = await KafkaLog.open(KafkaSettings(bootstrap=kafka_broker.bootstrap), SystemClock())
    yield log
    await log.close()


async def test_a_client_that_closes_cannot_cancel_its_caller() -> None:
    async with cancel_safe():
        raise asyncio.CancelledError


async def test_a_cancellation_of_the_caller_survives_a_client_that_closes() -> None:
    begun = asyncio.Event()

    async def close() -> None:
        async with cancel_safe():
            with suppress(asyncio.CancelledError):
                begun.set()
                await asyncio.Event().wait()

    closing = asyncio.create_task(close())
    await begun.wait()
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()


async def read_all(log: KafkaLog, at: Partition) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    while more := await log.read(at, len(found), max_records=5000):
        found += more
    return found


def batch(mark: str, size: int) -> list[Record]:
    return [Record(b"main", f"{mark}/{each}/{size}".encode()) for each in range(size)]


def whole_batches(found: list[StoredRecord]) -> dict[str, int]:
    """Return where each batch begins; fail when one is torn or was written twice."""
    begins: dict[str, int] = {}
    at = 0
    while at < len(found):
        mark, first, size = (found[at].record.value or b"").decode().split("/")
        assert first == "0", f"offset {at}: {mark} has no beginning here"
        there = [stored.record for stored in found[at : at + int(size)]]
        assert there == batch(mark, int(size)), f"{mark} is torn at {at}"
        assert mark not in begins, f"{mark} was written twice"
        begins[mark] = at
        at += int(size)
    assert [stored.offset for stored in found] == list(range(len(found)))
    return begins


class Outcomes:
    """The outcomes that writers got for their batches."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.unknown: list[str] = []
        self.refused: list[str] = []
        #: Appends still to be acknowledged; None: for ever.
        self.left: int | None = None


async def write(log: KafkaLog, at: Partition, name: str, outcomes: Outcomes) -> None:
    number = 0
    while outcomes.left is None or outcomes.left > 0:
        mark = f"{name}.{number}"
        try:
            outcomes.acknowledged[mark] = await log.append(at, batch(mark, 1 + number * 31 % 200))
            outcomes.left = None if outcomes.left is None else outcomes.left - 1
        except AppendOutcomeUnknown:
            outcomes.unknown.append(mark)
        except LogUnavailable:
            outcomes.refused.append(mark)
        number += 1


async def acknowledged(outcomes: Outcomes, count: int) -> None:
    """Wait for `count` more acknowledgments, so that appends are under way."""
    enough = len(outcomes.acknowledged) + count
    while len(outcomes.acknowledged) < enough:  # noqa: ASYNC110 writers do not notify
        await asyncio.sleep(0.02)


async def test_batches_stay_whole_while_brokers_are_killed_and_restarted(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with KafkaBroker(tmp_path_factory.mktemp("killed")) as broker:
        settings = KafkaSettings(bootstrap=broker.bootstrap, append_timeout_s=1.0)
        log = await KafkaLog.open(settings, SystemClock())
        new = topic("killed")
        await log.create_topics([new])
        at = Partition(new.name)
        await warmed(broker)
        outcomes = Outcomes()
        async with asyncio.timeout(200), asyncio.TaskGroup() as group:
            for writer in range(3):
                group.create_task(write(log, at, f"w{writer}", outcomes))
            for _ in range(2):
                await acknowledged(outcomes, 30)
                broker.kill()
                await asyncio.sleep(1.5)  # longer than an append may take
                await asyncio.to_thread(broker.start)
            outcomes.left = 20
        begins = whole_batches(await read_all(log, at))
        await log.close()
    assert outcomes.unknown, "a dead broker leaves outcomes unknown"
    lost = {mark for mark, offset in outcomes.acknowledged.items() if begins.get(mark) != offset}
    assert not lost, "acknowledged, but not at the offset that its writer got"
    assert not begins.keys() & set(outcomes.refused), "reported as not written, but found"
    assert begins.keys() <= outcomes.acknowledged.keys() | set(outcomes.unknown)


async def test_after_an_unknown_outcome_the_tail_shows_whether_the_batch_was_written(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with KafkaBroker(tmp_path_factory.mktemp("unknown")) as broker:
        settings = KafkaSettings(
            bootstrap=broker.bootstrap, append_timeout_s=3.0, call_timeout_s=1.0
        )
        telemetry = Telemetry("test", now_ms=SystemClock().now_ms)
        log = await KafkaLog.open(settings, SystemClock(), EventLogMetrics(telemetry))
        new = topic("unknown")
        await log.create_topics([new])
        at = Partition(new.name)
        await warmed(broker)
        await appended(log, at, batch("first", 3))
        broker.kill()
        with pytest.raises(AppendOutcomeUnknown, match=new.name):
            await log.append(at, batch("second", 3))
        with pytest.raises(LogUnavailable):
            await log.append(at, batch("third", 3))  # no new producer without a broker
        with pytest.raises(LogUnavailable):
            await log.end(at)
        await asyncio.to_thread(broker.start)
        await warmed(broker)
        offset = await appended(log, at, batch("fourth", 3))
        begins = whole_batches(await read_all(log, at))
        await log.close()
    assert begins in ({"first": 0, "fourth": 3}, {"first": 0, "second": 3, "fourth": 6})
    assert begins["fourth"] == offset
    value = telemetry.registry.get_sample_value
    assert value("yard_test_log_producers_abandoned_total") == 1
    assert (value("yard_test_log_connects_total") or 0) >= 3, "two producers and a reader"
    assert (value("yard_test_log_calls_retried_total") or 0) > 0


async def test_appends_that_arrive_while_a_batch_is_written_form_the_next_batch(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = topic("together")
    await log.create_topics([new])
    at = Partition(new.name)
    await log.append(at, batch("first", 1))
    sizes: list[int] = []
    send = Producer.send_batch

    async def counted(producer: Producer, builder: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(builder.record_count())
        return await send(producer, builder, *args, **kwargs)

    monkeypatch.setattr(Producer, "send_batch", counted)
    offsets = await asyncio.gather(*(log.append(at, batch(f"b{n}", 3)) for n in range(100)))
    assert offsets == [1 + 3 * number for number in range(100)], "in the order of the calls"
    assert sizes == [3, 297]
    assert whole_batches(await read_all(log, at)).keys() == {
        "first",
        *(f"b{number}" for number in range(100)),
    }


async def test_appends_that_wait_for_a_lost_batch_are_not_written_or_acknowledged_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with KafkaBroker(tmp_path_factory.mktemp("shared")) as broker:
        settings = KafkaSettings(bootstrap=broker.bootstrap, append_timeout_s=2.0)
        log = await KafkaLog.open(settings, SystemClock())
        new = topic("shared")
        await log.create_topics([new])
        at = Partition(new.name)
        await warmed(broker)
        await appended(log, at, batch("first", 1))
        broker.kill()
        calls = [asyncio.create_task(log.append(at, batch(f"b{n}", 1))) for n in range(20)]
        calls[0].cancel()  # if it was sent, no call is left that gives it up
        found = await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.to_thread(broker.start)
        await warmed(broker)
        last = await appended(log, at, batch("last", 1))
        begins = whole_batches(await read_all(log, at))
        await log.close()
    assert begins["first"] == 0
    assert begins["last"] == last
    for number, outcome in enumerate(found):
        if isinstance(outcome, LogUnavailable):
            assert f"b{number}" not in begins
        else:
            assert isinstance(outcome, AppendOutcomeUnknown | asyncio.CancelledError)


async def closing_cursor(settings: KafkaSettings, at: Partition) -> Coroutine[Any, Any, None]:
    consumer = AIOKafkaConsumer(group_id=None, auto_offset_reset="none", **settings.client())
    cursor = Cursor(at, consumer)
    await cursor.start()
    cursor.seek(0)
    await cursor.fill(1, 0)
    return cursor.close()


async def closing_producer(settings: KafkaSettings, at: Partition) -> Coroutine[Any, Any, None]:
    producer = Producer(**settings.client())
    await producer.start()
    await producer.send_and_wait(at.topic, b"sent")
    return producer.abandon()


@pytest.mark.parametrize("opened", [closing_cursor, closing_producer])
async def test_a_cancellation_is_not_lost_while_a_client_closes(
    log: KafkaLog,
    kafka_broker: KafkaBroker,
    opened: Callable[[KafkaSettings, Partition], Awaitable[Coroutine[Any, Any, None]]],
) -> None:
    new = topic("closed")
    await log.create_topics([new])
    settings = KafkaSettings(bootstrap=kafka_broker.bootstrap)
    for steps in itertools.count(1):
        closing = asyncio.create_task(await opened(settings, Partition(new.name)))
        for _ in range(steps):
            await asyncio.sleep(0)
        if closing.done():
            break
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled(), f"cancelled after {steps} steps of the loop, and not heard"
    assert steps > 1, "it waits for nothing: this test says nothing"


async def warmed(broker: KafkaBroker) -> None:
    """Append one batch first, because a broker that has just started is slow at the first."""
    warm = await KafkaLog.open(KafkaSettings(bootstrap=broker.bootstrap), SystemClock())
    new = topic("warm")
    await warm.create_topics([new])
    await appended(warm, Partition(new.name), batch("warm", 1))
    await warm.close()


async def appended(log: KafkaLog, at: Partition, records: Sequence[Record]) -> int:
    """Append, and retry while the log is unavailable, since nothing was written then."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await log.append(at, records)
            except LogUnavailable:
                continue


async def test_no_broker_at_all_is_unavailable() -> None:
    settings = KafkaSettings(bootstrap="127.0.0.1:9", call_timeout_s=0.5)
    with pytest.raises(LogUnavailable):
        await KafkaLog.open(settings, SystemClock())


async def test_a_limit_that_only_the_broker_knows_is_respected(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    small = topic("small", max_batch_bytes=4096)
    await log.create_topics([small])
    at = Partition(small.name)
    other = await KafkaLog.open(KafkaSettings(bootstrap=kafka_broker.bootstrap), SystemClock())
    with pytest.raises(BatchTooLarge):
        await other.append(at, [Record(b"k", b"x" * 9000)])
    assert await other.append(at, [Record(b"k", b"x" * 100)]) == 0
    await other.close()


async def test_topics_are_configured_as_in_the_catalog(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    await log.create_topics([NODE_EVENTS, assignments("gpu-07")])
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    await admin.start()
    found = []
    for name in (NODE_EVENTS.name, "assignments.gpu-07"):
        (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        ((*_, entries),) = response.resources
        found.append({key: value for key, value, *_ in entries})
    await admin.close()
    node_events, assigned = found
    assert node_events["compression.type"] == "uncompressed"
    assert node_events["max.message.bytes"] == str(128 * 1024)
    assert node_events["retention.ms"] == "-1"
    assert node_events["message.timestamp.type"] == "LogAppendTime"
    assert node_events["unclean.leader.election.enable"] == "false"
    assert assigned["retention.ms"] == str(7 * 24 * 3_600_000)


async def test_a_header_name_that_is_not_text_does_not_stop_the_reader(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    new = topic("hostile")
    await log.create_topics([new])
    at = Partition(new.name)
    await log.append(at, batch("before", 3))
    await append_raw(kafka_broker, at, b"NAME", b"\xff\xfeAM")
    await log.append(at, batch("after", 3))

    assert await log.wait({at: 0}, 10)
    found = await read_all(log, at)
    assert [stored.offset for stored in found] == list(range(8))
    hostile = [stored.record for stored in found[3:5]]
    assert [record.headers for record in hostile] == [(("\ufffd\ufffdAM", b"v"),)] * 2
    assert [record.value for record in hostile] == [b"0", None]
    assert [stored.record for stored in found[:3]] == batch("before", 3)
    assert [stored.record for stored in found[5:]] == batch("after", 3)
    assert await log.append(at, batch("later", 1)) == 8
    assert len(await log.read(at, 8)) == 1


async def append_raw(broker: KafkaBroker, at: Partition, name: bytes, instead: bytes) -> None:
    """Write two records, with a header name that aiokafka itself would not write."""
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await producer.start()
    builder = producer.create_batch()
    for value in (b"0", None):
        builder.append(timestamp=0, key=b"k", value=value, headers=[(name.decode(), b"v")])
    content = bytearray(builder._build().replace(name, instead))
    content[17:21] = calc_crc32c(bytes(content[21:])).to_bytes(4, "big")
    builder._buffer = bytes(content)
    await (await producer.send_batch(builder, at.topic, partition=at.number))
    await producer.stop()


async def test_many_readers_of_one_handle_get_the_records_that_they_request(log: KafkaLog) -> None:
    names = [topic(f"many{uuid.uuid4().hex[:4]}") for _ in range(3)]
    await log.create_topics(names)
    partitions = [Partition(new.name) for new in names]
    for at in partitions:
        await log.append(at, batch(at.topic, 500))

    async def read(at: Partition, offset: int) -> None:
        found = await log.read(at, offset, max_records=10)
        assert [stored.offset for stored in found] == list(range(offset, offset + 10))

    async with asyncio.TaskGroup() as group:
        for offset in range(0, 480, 24):
            for at in partitions:
                group.create_task(read(at, offset))


async def test_a_buffered_read_reports_records_that_retention_removed(
    kafka_broker: KafkaBroker, log: KafkaLog
) -> None:
    made = topic(f"test-{uuid.uuid4().hex}")
    await log.create_topics([made])
    at = Partition(made.name)
    await log.append(at, batch("first", 3))
    assert await log.wait({at: 2}, 30)
    await log.append(at, batch("second", 3))
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    await admin.start()
    try:
        before = RecordsToDelete(before_offset=5)
        await admin.delete_records({TopicPartition(made.name, 0): before})
    finally:
        await admin.close()

    async def follow() -> None:
        while not await log.read(at, 0, buffered_only=True):
            await log.wait({at: 0}, 5.0)

    with pytest.raises(OffsetGone, match="starts at 5"):
        await asyncio.wait_for(follow(), 30)
    assert await log.wait({at: 5}, 30)
    assert len(await log.read(at, 5, buffered_only=True)) == 1


async def test_more_topics_than_fit_one_request_are_created(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "TOPICS_AT_ONCE", 2)
    mark = uuid.uuid4().hex[:8]
    topics = [topic(f"some{number}{mark}") for number in range(5)]
    await log.create_topics(topics)
    for each in topics:
        assert await log.append(Partition(each.name), batch("first", 1)) == 0


async def test_one_older_end_from_a_former_leader_is_no_loss(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = topic("t")
    await log.create_topics([new])
    at = Partition(new.name)
    await log.append(at, batch("a", 5))
    assert len(await read_all(log, at)) == 5
    ask = log._offsets.end_offsets
    older = [3]

    async def end_offsets(places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        ends = await ask(places)
        return dict.fromkeys(places, older.pop()) if older else ends

    monkeypatch.setattr(log._offsets, "end_offsets", end_offsets)
    log._on_interruption()
    assert not await log.read(at, 5)
    assert not older, "the former leader was asked"
    assert await log.append(at, batch("b", 1)) == 5
