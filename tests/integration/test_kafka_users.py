"""The brokers' users on a real broker: what a rule allows works, and all else is refused."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import create_conn
from aiokafka.errors import (
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Float64, Int8, Int16, Int32, Schema, String
from aiokafka.structs import TopicPartition

from tests.support.cut_tail import cut_tail
from tests.support.kafka_broker import KafkaBroker
from yardmaster_eventlog.errors import LogAccessRefused, LogTruncated, LogUnavailable
from yardmaster_eventlog.kafka.log import KafkaLog
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.kafka.users import create_users
from yardmaster_eventlog.port import Partition, Record
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.access import ADMIN, AGENT_BYTE_RATE, AGENTS, SERVICES
from yardmaster_schemas.topics import TOPICS, assignments

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka_users")]

PASSWORD = "correct-horse-battery"
RECORD = Record(b"k", b"v")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[KafkaBroker]:
    """A broker whose data was created by a broker without users."""
    with KafkaBroker(folder):
        pass
    with KafkaBroker(folder, admin_password=PASSWORD) as broker:
        yield broker


def settings(broker: KafkaBroker, user: str, password: str = PASSWORD) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=broker.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN" if user == ADMIN else "SCRAM-SHA-512",
        sasl_username=user,
        sasl_password=password,
        call_timeout_s=5.0,
    )


@pytest.fixture
async def admin(broker: KafkaBroker) -> AsyncIterator[KafkaLog]:
    log = await KafkaLog.open(settings(broker, ADMIN), SystemClock())
    await log.create_topics([*TOPICS.values(), assignments("n2")])
    yield log
    await log.close()


async def test_a_password_to_a_broker_of_this_machine_is_no_warning(
    broker: KafkaBroker, admin: KafkaLog, caplog: pytest.LogCaptureFixture
) -> None:
    log = await KafkaLog.open(settings(broker, ADMIN), SystemClock())
    await log.end(Partition("requests"))
    await log.close()
    assert "in the clear" not in caplog.text


async def test_users_do_what_their_rules_allow_and_nothing_else(
    broker: KafkaBroker, admin: KafkaLog
) -> None:
    users = {"gateway": PASSWORD, "agent-n1": PASSWORD}
    begin = await admin.end(Partition("node-events"))
    # A repeated setup changes nothing.
    for _ in range(2):
        await create_users(settings(broker, ADMIN), users)
    agent = await KafkaLog.open(settings(broker, "agent-n1"), SystemClock())
    try:
        await agent.create_topics([assignments("n1")])
        await agent.append(Partition("node-events"), [RECORD])
        assert not await agent.read(Partition("assignments.n1"), 0)
        for topic in ("requests", "admissions", "decisions", "assignments.n1"):
            with pytest.raises(LogUnavailable, match="Authorization"):
                await agent.append(Partition(topic), [RECORD])
        for topic in ("requests", "node-events", "assignments.n2"):
            with pytest.raises(LogUnavailable, match="Authorization"):
                await agent.read(Partition(topic), 0)
        with pytest.raises(LogUnavailable, match="Authorization"):
            await agent.create_topics([assignments("n3")])
        with pytest.raises(LogUnavailable, match="Authorization"):
            await create_users(settings(broker, "agent-n1"), {"gateway": "mine-now"})
    finally:
        await agent.close()
    assert await admin.end(Partition("node-events")) == begin + 1
    assert await admin.end(Partition("requests")) == 0


async def test_no_user_but_the_administrator_may_delete_or_change_topics_or_delete_records(
    broker: KafkaBroker, admin: KafkaLog
) -> None:
    at = Partition("admissions")
    users = (*SERVICES, AGENTS, "agent-n1")
    await create_users(settings(broker, ADMIN), dict.fromkeys(users, PASSWORD))
    own = assignments("n1")
    await admin.create_topics([own])
    await admin.append(at, [RECORD])
    names = [*TOPICS, own.name]
    for user in users:
        client = AIOKafkaAdminClient(**settings(broker, user).client())
        await client.start()
        try:
            deleted = await client.delete_topics(names)
            codes = {each[0]: for_code(each[1]) for each in deleted.topic_error_codes}
            assert codes == dict.fromkeys(names, TopicAuthorizationFailedError), user
            (changed,) = await client.alter_configs(
                [
                    ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "1"})
                    for name in names
                ]
            )
            codes = {each[3]: for_code(each[0]) for each in changed.resources}
            assert codes == dict.fromkeys(names, TopicAuthorizationFailedError), user
            before = {TopicPartition(at.topic, at.number): RecordsToDelete(before_offset=1)}
            with pytest.raises(KafkaError):
                await client.delete_records(before)
        finally:
            await client.close()
    assert len(await admin.read(at, 0)) >= 1


async def test_without_a_known_user_the_broker_and_its_controller_refuse_every_client(
    broker: KafkaBroker, admin: KafkaLog
) -> None:
    await create_users(settings(broker, ADMIN), {"quota": PASSWORD})
    for user, password in (("quota", "wrong"), ("unknown", PASSWORD), (ADMIN, "wrong")):
        with pytest.raises(LogAccessRefused):
            await KafkaLog.open(settings(broker, user, password), SystemClock())
    controller = (broker.directory / "server.properties").read_text().split()[3]
    for address in (broker.bootstrap, f"127.0.0.1:{controller}"):
        with pytest.raises(LogUnavailable):
            await KafkaLog.open(KafkaSettings(bootstrap=address, call_timeout_s=3.0), SystemClock())


async def test_a_new_password_replaces_the_old_one(broker: KafkaBroker, admin: KafkaLog) -> None:
    await create_users(settings(broker, ADMIN), {"views": PASSWORD})
    await create_users(settings(broker, ADMIN), {"views": "another"})
    with pytest.raises(LogAccessRefused):
        await KafkaLog.open(settings(broker, "views"), SystemClock())
    log = await KafkaLog.open(settings(broker, "views", "another"), SystemClock())
    assert await log.end(Partition("requests")) == 0
    await log.close()


async def test_new_users_are_ready_only_when_the_broker_accepts_their_passwords(
    broker: KafkaBroker, admin: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    async def late(host: str, port: int, **client: object) -> object:
        """A broker that has not applied the change yet refuses the first two connections."""
        attempts.append(str(client["sasl_plain_username"]))
        if len(attempts) <= 2:
            raise SaslAuthenticationFailed
        return await create_conn(host, port, **client)

    monkeypatch.setattr("yardmaster_eventlog.kafka.users.create_conn", late)
    await create_users(settings(broker, ADMIN), {"gateway": PASSWORD, "views": PASSWORD})
    assert attempts == ["views"] * 3


async def test_a_writer_that_may_not_read_its_topic_continues_after_a_restart_of_the_broker(
    broker: KafkaBroker, admin: KafkaLog
) -> None:
    await create_users(settings(broker, ADMIN), {"agent-n1": PASSWORD})
    agent = await KafkaLog.open(settings(broker, "agent-n1"), SystemClock())
    at = Partition("node-events")
    try:
        before = await agent.append(at, [RECORD])
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        assert await agent.append(at, [RECORD]) == before + 1
        end = before + 1
        await asyncio.to_thread(broker.kill)
        assert cut_tail(broker.directory, at, end) == end
        await asyncio.to_thread(broker.start)
        with pytest.raises(LogTruncated, match=f"ends at {end}"):
            await agent.append(at, [RECORD])
    finally:
        await agent.close()


def test_only_the_owner_may_read_the_settings_with_the_password(broker: KafkaBroker) -> None:
    path = broker.directory / "server.properties"
    assert PASSWORD in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


class _DescribeQuotasResponse(Response):  # type: ignore[misc]
    API_KEY = 48
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", String("utf-8")),
        (
            "entries",
            Array(
                ("entity", Array(("type", String("utf-8")), ("name", String("utf-8")))),
                ("values", Array(("key", String("utf-8")), ("value", Float64))),
            ),
        ),
    )


class _DescribeQuotasStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 48
    API_VERSION = 0
    RESPONSE_TYPE = _DescribeQuotasResponse
    SCHEMA = Schema(
        (
            "components",
            Array(("type", String("utf-8")), ("match_type", Int8), ("match", String("utf-8"))),
        ),
        ("strict", Boolean),
    )


class _DescribeQuotas(Request[_DescribeQuotasStruct]):  # type: ignore[misc]
    API_KEY = 48

    def build(self, struct: type[_DescribeQuotasStruct]) -> _DescribeQuotasStruct:
        return struct([("user", 2, None)], False)


async def rates(broker: KafkaBroker) -> dict[str, dict[str, float]]:
    """The quotas of each user that has some."""
    admin = AIOKafkaAdminClient(**settings(broker, ADMIN).client())
    await admin.start()
    try:
        answer = await admin._send_to_controller(_DescribeQuotas())
    finally:
        await admin.close()
    assert answer.error_code == 0, answer
    return {entity[0][1]: dict(values) for entity, values in answer.entries}


async def test_a_flood_of_an_agent_is_slowed_down_to_its_rate(
    broker: KafkaBroker, admin: KafkaLog
) -> None:
    rate, size = 256 * 1024, 3 * 1024 * 1024
    users = {"agent-n7": PASSWORD, "agent-n8": PASSWORD, "scheduler": PASSWORD}
    await create_users(settings(broker, ADMIN), users)
    found = await rates(broker)
    assert found["agent-n8"] == {"producer_byte_rate": AGENT_BYTE_RATE}
    assert "scheduler" not in found
    await create_users(settings(broker, ADMIN), {"agent-n7": PASSWORD}, agent_byte_rate=rate)
    assert (await rates(broker))["agent-n7"] == {"producer_byte_rate": rate}
    took = {}
    for user in ("agent-n7", "agent-n8"):
        log = await KafkaLog.open(settings(broker, user), SystemClock())
        try:
            begun = time.monotonic()
            for _ in range(size // (64 * 1024)):
                await log.append(Partition("node-events"), [Record(b"k", b"v" * 64 * 1024)])
            took[user] = time.monotonic() - begun
        finally:
            await log.close()
    # Kafka averages over 11 s, so a first burst is free; a rate of 256 KiB takes 3 MiB in 12 s.
    assert took["agent-n7"] > took["agent-n8"] + 2, took
