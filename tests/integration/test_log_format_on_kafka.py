"""A log on Kafka that another version created is refused by setup, services and log tools."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka_broker import KafkaBroker
from tests.support.logs import first_record
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.port import Partition
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.topics import TOPICS

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]
FORMER = LOG_FORMAT - 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker of its own: the names of a log's topics are fixed."""
    with KafkaBroker(tmp_path / "kafka") as broker:
        yield broker


async def write(bootstrap: str) -> None:
    log = await KafkaLog.open(KafkaSettings(bootstrap=bootstrap), SystemClock())
    await log.create_topics(list(TOPICS.values()))
    await log.append(Partition("requests"), [first_record(FORMER)])
    await log.close()


async def ends(bootstrap: str) -> dict[str, int]:
    log = await KafkaLog.open(KafkaSettings(bootstrap=bootstrap), SystemClock())
    found = {topic: await log.end(Partition(topic)) for topic in TOPICS}
    await log.close()
    return found


def test_setup_services_and_log_tools_refuse_another_format_by_name(broker: KafkaBroker) -> None:
    asyncio.run(write(broker.bootstrap))
    url = f"kafka://{broker.bootstrap}"
    refused = f"{url} is a log of format {FORMER}, and this version of Yardmaster reads and writes"
    for module, words, code in [
        ("yardmaster_cli.main", ["setup", "--log", url], 2),
        ("yardmaster_cli.main", ["log", "dump", "--log", url], 2),
        ("yardmaster_cli.main", ["replay", "verify", "--log", url], 2),
        ("yardmaster_gateway.main", [], 100),
        ("yardmaster_quota.main", [], 100),
        ("yardmaster_views.faust_app", [], 100),
    ]:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            env={"YARD_LOG": url, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, (module, done.stdout, done.stderr)
        assert refused in done.stderr, module
    assert asyncio.run(ends(broker.bootstrap)) == {
        topic: int(topic == "requests") for topic in TOPICS
    }
