"""An agent whose node has no topic yet: it waits and says so, and ends with a name."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.node_agent import AgentCell
from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_node_agent.errors import NotEnrolled
from yardmaster_node_agent.topic import find_topic
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.topics import Topic, assignments


class Closed(MemoryLog):
    """A log that refuses to create topics while it is `shut`, like the access rules of a broker."""

    shut = True

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        if self.shut:
            raise LogUnavailable(found="TopicAuthorizationFailedError")
        await super().create_topics(topics, partitions)


class Waiting:
    """An agent of node n1 that looks for its topic, and its clock."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.clock = ManualClock()
        self.log = Closed(self.clock)
        self.cell = AgentCell(folder, log=self.log, clock=self.clock)
        self.cell.configure(topic_wait_s=60.0, **settings)
        self.ports = self.cell.ports()

    async def find(self) -> None:
        await find_topic(self.ports, self.cell.settings, self.log)

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            for _ in range(10):
                await asyncio.sleep(0)
            self.clock.advance(1)


async def test_an_existing_topic_is_used(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    waiting.log.shut = False
    await waiting.log.create_topics([assignments("n1")])
    waiting.log.shut = True
    await waiting.find()
    assert not waiting.ports.health.reasons.get("topic")


async def test_an_agent_that_may_create_topics_creates_its_own(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    waiting.log.shut = False
    await waiting.find()
    assert await waiting.log.end(Partition("assignments.n1")) == 0


@pytest.mark.parametrize("make_topic", [True, False])
async def test_an_agent_waits_until_its_node_is_enrolled_and_reports_that(
    tmp_path: Path, make_topic: bool
) -> None:
    waiting = Waiting(tmp_path, make_topic=make_topic)
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(waiting.find())
        await waiting.seconds(30)
        assert not looking.done()
        said = waiting.ports.health.reasons["topic"]
        assert "assignments.n1" in said
        assert "yard nodes enroll n1 --pool default" in said
        waiting.log.shut = False
        await waiting.log.create_topics([assignments("n1")])
        await waiting.seconds(3)
        assert looking.done()


async def test_a_setting_keeps_an_agent_from_creating_its_topic(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, make_topic=False)
    waiting.log.shut = False
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(waiting.find())
        await waiting.seconds(10)
        assert not looking.done()
        looking.cancel()


async def test_an_agent_without_a_topic_ends_with_not_enrolled(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)

    async def fails() -> None:
        with pytest.raises(NotEnrolled, match="yard nodes enroll n1") as raised:
            await waiting.find()
        assert raised.value.code == "not_enrolled"

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(fails())
        await waiting.seconds(59)
        assert not looking.done()
        await waiting.seconds(5)
        assert looking.done()


async def test_an_agent_waits_for_a_topic_with_too_few_partitions_and_reports_that(
    tmp_path: Path,
) -> None:
    waiting = Waiting(tmp_path, partition=1)
    waiting.log.shut = False
    await waiting.log.create_topics([assignments("n1")], 1)
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(waiting.find())
        await waiting.seconds(10)
        assert not looking.done()
        assert "has no partition 1" in waiting.ports.health.reasons["topic"]
        looking.cancel()
