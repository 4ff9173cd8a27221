"""Quota and `yard doctor` compare the settings of topics on a real broker with the expected."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.support.kafka_broker import KafkaBroker
from yardmaster.local_cluster import DevServer
from yardmaster_cli.commands.doctor import topic_findings
from yardmaster_cli.findings import Finding
from yardmaster_eventlog.kafka.log import KafkaLog
from yardmaster_eventlog.kafka.settings import KafkaSettings, topic_settings
from yardmaster_eventlog.kafka.users import create_users
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.access import ADMIN
from yardmaster_schemas.topics import NODE_EVENTS, TOPICS

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka_users")]
PASSWORD = "correct-horse-battery"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker of its own with users: the names of a log's topics are fixed."""
    with KafkaBroker(tmp_path / "kafka", admin_password=PASSWORD) as broker:
        yield broker


def admin_settings(broker: KafkaBroker) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=broker.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_username=ADMIN,
        sasl_password=PASSWORD,
    )


async def set_up(broker: KafkaBroker, users: list[str]) -> None:
    log = await KafkaLog.open(admin_settings(broker), SystemClock())
    await log.create_topics(list(TOPICS.values()))
    await log.close()
    await create_users(admin_settings(broker), dict.fromkeys(users, PASSWORD))


async def set_retention(broker: KafkaBroker, ms: str) -> None:
    settings = admin_settings(broker)
    # AlterConfigs replaces all settings of the topic.
    config = {**topic_settings(NODE_EVENTS, settings), "retention.ms": ms}
    admin = AIOKafkaAdminClient(**settings.client())
    await admin.start()
    try:
        await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, NODE_EVENTS.name, config)]
        )
    finally:
        await admin.close()


def first_line_of_quota(broker: KafkaBroker, user: str, tmp_path: Path, event: str) -> object:
    """Run the service as `user` until it logs `event`; return that line."""
    secret = tmp_path / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    env = {
        "YARD_LOG": f"kafka://{broker.bootstrap}",
        "YARD_DATA": str(tmp_path / "data"),
        "YARD_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "YARD_KAFKA__SASL_USERNAME": user,
        "YARD_KAFKA__SASL_PASSWORD_FILE": str(secret),
        "PATH": "/usr/bin:/bin",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "yardmaster_quota.main"],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            for text in process.stderr:
                line = json.loads(text) if text.startswith("{") else {}
                if line.get("event") == event:
                    return line
        finally:
            process.terminate()
    raise AssertionError(f"quota ended without {event}")


def doctor(broker: KafkaBroker, tmp_path: Path) -> list[Finding]:
    folder = tmp_path / "credentials" / "kafka"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "auditor").write_text(PASSWORD)
    dev = DevServer(
        server="http://127.0.0.1:1",
        token="",
        pid=1,
        what="yard up",
        log=f"kafka://{broker.bootstrap}",
        credentials=str(folder.parent),
    )
    return list(topic_findings(dev))


@pytest.mark.timeout(180)
def test_a_wrong_retention_is_reported_by_the_next_start_of_quota_and_by_doctor(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    asyncio.run(set_up(broker, ["quota", "auditor"]))
    [found] = doctor(broker, tmp_path)
    assert found.good, found
    asyncio.run(set_retention(broker, "3600000"))
    line = first_line_of_quota(broker, "quota", tmp_path, "topic_settings_differ")
    assert isinstance(line, dict)
    named = {
        "topic": "node-events",
        "setting": "retention.ms",
        "found": "3600000",
        "expected": "-1",
    }
    assert named.items() <= line.items()
    [found] = doctor(broker, tmp_path)
    assert found.state == "differ"
    assert found.needed
    assert found.found == "node-events: retention.ms is 3600000, expected -1"


@pytest.mark.timeout(180)
def test_a_broker_that_refuses_to_describe_is_reported(broker: KafkaBroker, tmp_path: Path) -> None:
    # The user of views may read the log, and may not read the settings of its topics.
    asyncio.run(set_up(broker, ["views"]))
    line = first_line_of_quota(broker, "views", tmp_path, "topic_settings_unread")
    assert isinstance(line, dict)
    assert "node-events: TopicAuthorizationFailedError" in str(line["found"])
