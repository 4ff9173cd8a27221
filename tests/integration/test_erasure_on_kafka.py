"""Erased bytes leave the broker's files even in a partition without writers, because of the ticker
(design: without it, a quiet partition kept erased bytes for as long as it was observed).
"""

import asyncio
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.support.kafka_broker import KafkaBroker
from tests.support.views import telemetry
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.port import Partition, Record
from yardmaster_gateway.background.details_ticker import DetailsTicker
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import DETAILS

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]

PLACE = Partition(DETAILS.name)
SECRET = b"confidential-content"
KEPT = b"this-is-still-needed"
#: Of the topic in this test; in production it is a day.
LAG_MS = 3_000
#: How long the test observes that a quiet partition keeps erased bytes.
QUIET_S = 15.0
GONE_S = 90


def on_disk(broker: KafkaBroker, what: bytes) -> list[str]:
    """Segment files of `details` that contain the bytes `what`."""
    segments = (broker.directory / "data").glob(f"{DETAILS.name}-0/*.log")
    return [path.name for path in segments if what in path.read_bytes()]


async def hurry(broker: KafkaBroker) -> None:
    """Compact after seconds instead of a day."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        config = {"cleanup.policy": "compact", "max.compaction.lag.ms": str(LAG_MS)}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, PLACE.topic, config)])
    finally:
        await admin.close()


async def test_erased_bytes_leave_the_segments_of_a_partition_that_is_ticked(
    tmp_path: Path,
) -> None:
    clock = SystemClock()
    with KafkaBroker(tmp_path, settings={"log.cleaner.backoff.ms": "1000"}) as broker:
        log = await KafkaLog.open(KafkaSettings(bootstrap=broker.bootstrap), clock)
        try:
            await log.create_topics([DETAILS])
            await hurry(broker)
            offset = await log.append(PLACE, [Record(b"job-a", SECRET)])
            await log.append(PLACE, [Record(b"job-b", KEPT)])
            await log.append(PLACE, [Record(b"job-a", None)])
            # A shorter repetition of the design's measurement: without a tick nothing is compacted.
            await asyncio.sleep(QUIET_S)
            assert on_disk(broker, SECRET), "a quiet partition is compacted: is the ticker needed?"

            ticker = DetailsTicker(
                *(log, clock, telemetry("gateway")), partition=PLACE.number, every_s=LAG_MS / 1000
            )
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(ticker.run())
                for _ in range(GONE_S):
                    await asyncio.sleep(1)
                    if not on_disk(broker, SECRET):
                        break
                ticking.cancel()
            assert not on_disk(broker, SECRET)
            assert on_disk(broker, KEPT)
            found = {s.offset: s.record for s in await log.read(PLACE, 0)}
            assert offset not in found
            assert found[offset + 1] == Record(b"job-b", KEPT)
        finally:
            await log.close()
