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
from tests.support.views_service import Story, ViewsWorld
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
async def world(
    tmp_path: Path, broker: KafkaBroker, redis: RedisServer
) -> AsyncIterator[ViewsWorld]:
    async with ViewsWorld(tmp_path, broker, redis, CELLS) as world:
        yield world


class Reports:
    """Reports that agents send, to every cell."""

    def __init__(self, world: ViewsWorld) -> None:
        self.world = world
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
            await (log or self.world.log).append(at, [record])
        except AppendOutcomeUnknown:
            await (log or self.world.log).append(at, [record])

    async def heard(self) -> None:
        """Wait until the views of every cell have the newest heartbeat."""
        for number, cell in enumerate(CELLS):
            end = await self.world.log.end(Partition(HEARTBEATS.name, number))
            store = self.world.store(cell)

            while (await store.notes()).get(HEARTBEATS.name) != end:
                self.world.check()
                await asyncio.sleep(0.05)
            assert await store.get(SeenRow, sample(NodeHeartbeatV1).data.node)


def why_not_ready(world: ViewsWorld, name: str) -> str | None:
    """Why a worker is not ready; None if it is."""
    lines = [line for line in world.said(name).splitlines() if '"event": "health"' in line]
    url = f"http://127.0.0.1:{json.loads(lines[-1])['port']}/readyz"
    try:
        urllib.request.urlopen(url, timeout=10).read()
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return None


async def two_workers(world: ViewsWorld) -> tuple[dict[str, Story], Reports]:
    """Two workers, of which each follows a cell; the cells have jobs and heartbeats."""
    stories = {cell: Story(cell) for cell in CELLS}
    reports = Reports(world)
    for name in ("one", "two"):
        world.start(name, **OFTEN)
    await until_joined(KafkaSettings(bootstrap=world.broker.bootstrap), GROUP, 2)
    await reports.send(20)
    await jobs(world, stories)
    await reports.heard()
    return stories, reports


async def jobs(world: ViewsWorld, stories: dict[str, Story]) -> None:
    """Write a job to every cell, and wait until the views show it."""
    for story in stories.values():
        story.job()
        await world.write(story)
        await world.shows(story)


def reported(world: ViewsWorld) -> bool:
    """Whether each worker has reported that a topic lost its end."""
    return all("reports_lost" in world.said(name) for name in world.workers)


async def assert_all_well(world: ViewsWorld) -> None:
    for name in world.workers:
        assert await asyncio.to_thread(why_not_ready, world, name) is None
        said = world.said(name)
        assert "cell_stopped" not in said
        assert "log_truncated" not in said


async def test_two_workers_stay_ready_when_heartbeats_and_output_are_lost(
    world: ViewsWorld,
) -> None:
    stories, reports = await two_workers(world)
    for lost in (10, 3):
        await asyncio.to_thread(world.broker.kill)
        for number in range(len(CELLS)):
            for topic in (HEARTBEATS, TASK_LOGS):
                at = Partition(topic.name, number)
                end = reports.sent - lost
                assert cut_tail(world.broker.directory, at, end) == end
        reports.sent -= lost
        await asyncio.to_thread(world.broker.start)
        await jobs(world, stories)
        await world.happens(lambda: reported(world))
        await reports.send(1)
        await reports.heard()
        await assert_all_well(world)


async def test_two_workers_stay_ready_while_the_topic_of_heartbeats_is_gone(
    world: ViewsWorld,
) -> None:
    stories, reports = await two_workers(world)
    admin = AIOKafkaAdminClient(bootstrap_servers=world.broker.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([HEARTBEATS.name])
    finally:
        await admin.close()
    for _ in range(3):
        await jobs(world, stories)
    await assert_all_well(world)
    log = await KafkaLog.open(KafkaSettings(bootstrap=world.broker.bootstrap), world.clock)
    try:
        await log.create_topics([HEARTBEATS], len(CELLS))
        reports.sent = 0
        await reports.send(5, log)
        await world.happens(lambda: reported(world))
        await reports.send(1, log)
    finally:
        await log.close()
    await reports.heard()
    await jobs(world, stories)
    await assert_all_well(world)
