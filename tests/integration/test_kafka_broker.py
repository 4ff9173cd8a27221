"""The broker of the other tests serves requests and keeps acknowledged records after a kill."""

import socket
import uuid
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.support.kafka_broker import KafkaBroker
from yardmaster_localcluster import broker as local_broker
from yardmaster_localcluster.ports import HOST, free_ports

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]


async def create_topic(bootstrap: str) -> str:
    name = f"test-{uuid.uuid4().hex}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()
    return name


async def append(bootstrap: str, topic: str, values: list[bytes]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)


async def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        while len(found) < count:
            records = await consumer.getmany(partition, timeout_ms=1000)
            found += [record.value for batch in records.values() for record in batch]
    return found


async def test_appended_records_are_read(kafka_broker: KafkaBroker) -> None:
    topic = await create_topic(kafka_broker.bootstrap)
    await append(kafka_broker.bootstrap, topic, [b"1", b"2", b"3"])
    assert await read(kafka_broker.bootstrap, topic, 3) == [b"1", b"2", b"3"]


async def test_a_killed_broker_comes_back_with_its_records(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:
        before = broker.bootstrap
        topic = await create_topic(before)
        await append(before, topic, [b"kept"])
        broker.kill()
        assert not broker.running
        assert broker.start() == before
        assert await read(before, topic, 1) == [b"kept"]


async def test_another_process_takes_over_a_folder_with_its_records_and_address(
    tmp_path: Path,
) -> None:
    with KafkaBroker(tmp_path) as first:
        before = first.bootstrap
        topic = await create_topic(before)
        await append(before, topic, [b"kept"])
        first.stop()
    with KafkaBroker(tmp_path) as second:
        assert second.bootstrap == before
        assert await read(before, topic, 1) == [b"kept"]


def test_a_port_that_another_process_has_taken_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((HOST, 0)) as other:
        taken = other.getsockname()[1]
        chosen = iter([taken, *free_ports(3)])
        monkeypatch.setattr(
            local_broker, "free_ports", lambda count: [next(chosen) for _ in range(count)]
        )
        with KafkaBroker(tmp_path) as broker:
            assert broker.bootstrap != f"{HOST}:{taken}"
