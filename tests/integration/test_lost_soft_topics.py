"""Heartbeats and output that a real broker lost, or a topic that was deleted, stop no views."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tests.support.cut_tail import cut_tail
from tests.support.events import sample
from tests.support.groups import until_joined
from tests.support.kafka_broker import KafkaBroker
from tests.support.redis_server import RedisServer
from tests.support.views_service import Story, ViewsProcesses
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.port import Partition, Record
from yardmaster_projections.rows import SeenRow
from yardmaster_schemas.events.expiring import NodeHeartbeatV1, TaskOutputV1
from yardmaster_schemas.topics import HEARTBEATS, TASK_LOGS
from yardmaster_views.faust_app import GROUP

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("soft"),
]
CELLS = ("main", "east")
#: The lag is measured all the time, so that every read of the log meets the loss.
OFTEN = {"YARD_HEALTH_PORT": "0", "YARD_VIEWS_MEASURE_S": "0.05"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as redis:
        yield redis


@pytest.fixture
async def views(
    tmp_path: Path, broker: KafkaBroker, redis: RedisServer
) -> AsyncIterator[ViewsProcesses]:
    async with ViewsProcesses(tmp_path, broker, redis, CELLS) as views:
        yield views


class Reports:
    """Reports that agents send, to every cell."""

    def __init__(self, views: ViewsProcesses) -> None:
        self.views = views
        self.sent = 0

    async def send(self, count: int, log: KafkaLog | None = None) -> None:
        for _ in range(count):
            self.sent += 1
            beat = replace(sample(NodeHeartbeatV1), seq=self.sent)
            output = replace(sample(TaskOutputV1), seq=self.sent)
            for number in range(len(CELLS)):
                for topic, one in ((HEARTBEATS, beat), (TASK_LOGS, output)):
                    await self._append(Partition(topic.name, number), encode(one, "key"), log)

    async def _append(self, at: Partition, record: Record, log: KafkaLog | None) -> None:
        """Append as an agent does, which repeats what a broker without a memory of it refuses."""
        try:
            await (log or self.views.log).append(at, [record])
        except AppendOutcomeUnknown:
            await (log or self.views.log).append(at, [record])

    async def heard(self) -> None:
        """Wait until the views of every cell have the newest heartbeat."""
        for number, cell in enumerate(CELLS):
            end = await self.views.log.end(Partition(HEARTBEATS.name, number))
            store = self.views.store(cell)

            while (await store.notes()).get(HEARTBEATS.name) != end:
                self.views.check()
                await asyncio.sleep(0.05)
            assert await store.get(SeenRow, sample(NodeHeartbeatV1).data.node)


def why_not_ready(views: ViewsProcesses, name: str) -> str | None:
    """Why a worker is not ready; None if it is."""
    lines = [line for line in views.said(name).splitlines() if '"event": "health"' in line]
    url = f"http://127.0.0.1:{json.loads(lines[-1])['port']}/readyz"
    try:
        urllib.request.urlopen(url, timeout=10).read()
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return None


async def two_workers(views: ViewsProcesses) -> tuple[dict[str, Story], Reports]:
    """Two workers, of which each follows a cell; the cells have jobs and heartbeats."""
    stories = {cell: Story(cell) for cell in CELLS}
    reports = Reports(views)
    for name in ("one", "two"):
        views.start(name, **OFTEN)
    await until_joined(KafkaSettings(bootstrap=views.broker.bootstrap), GROUP, 2)
    await reports.send(20)
    await jobs(views, stories)
    await reports.heard()
    return stories, reports


async def jobs(views: ViewsProcesses, stories: dict[str, Story]) -> None:
    """Write a job to every cell, and wait until the views show it."""
    for story in stories.values():
        story.job()
        await views.write(story)
        await views.shows(story)


def reported(views: ViewsProcesses) -> bool:
    """Whether each worker has reported that a topic lost its end."""
    return all("reports_lost" in views.said(name) for name in views.workers)


async def assert_all_well(views: ViewsProcesses) -> None:
    for name in views.workers:
        assert await asyncio.to_thread(why_not_ready, views, name) is None
        said = views.said(name)
        assert "cell_stopped" not in said
        assert "log_truncated" not in said


async def test_two_workers_stay_ready_when_heartbeats_and_output_are_lost(
    views: ViewsProcesses,
) -> None:
    stories, reports = await two_workers(views)
    for lost in (10, 3):
        await asyncio.to_thread(views.broker.kill)
        for number in range(len(CELLS)):
            for topic in (HEARTBEATS, TASK_LOGS):
                at = Partition(topic.name, number)
                end = reports.sent - lost
                assert cut_tail(views.broker.directory, at, end) == end
        reports.sent -= lost
        await asyncio.to_thread(views.broker.start)
        await jobs(views, stories)
        await views.happens(lambda: reported(views))
        await reports.send(1)
        await reports.heard()
        await assert_all_well(views)


async def test_two_workers_stay_ready_while_the_topic_of_heartbeats_is_gone(
    views: ViewsProcesses,
) -> None:
    stories, reports = await two_workers(views)
    admin = AIOKafkaAdminClient(bootstrap_servers=views.broker.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([HEARTBEATS.name])
    finally:
        await admin.close()
    for _ in range(3):
        await jobs(views, stories)
    await assert_all_well(views)
    log = await KafkaLog.open(KafkaSettings(bootstrap=views.broker.bootstrap), views.clock)
    try:
        await log.create_topics([HEARTBEATS], len(CELLS))
        reports.sent = 0
        await reports.send(5, log)
        await views.happens(lambda: reported(views))
        await reports.send(1, log)
    finally:
        await log.close()
    await reports.heard()
    await jobs(views, stories)
    await assert_all_well(views)
