"""An agent on real brokers that is started before the relay creates its node's topic."""

import asyncio
import uuid
from pathlib import Path

import pytest

from tests.support.kafka_broker import KafkaBroker
from tests.support.node_agent import AgentCell
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_node_agent.errors import NotEnrolled
from yardmaster_node_agent.topic import find_topic
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import assignments

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]


async def test_the_agent_finds_the_topic_that_the_relay_made_meanwhile(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    clock = SystemClock()
    settings = KafkaSettings(bootstrap=kafka_broker.bootstrap)
    node = f"gpu-{uuid.uuid4().hex[:8]}"
    agents, relays = await KafkaLog.open(settings, clock), await KafkaLog.open(settings, clock)
    try:
        cell = AgentCell(tmp_path, log=agents, clock=clock)
        cell.configure(node=node, make_topic=False, topic_wait_s=0.5)
        with pytest.raises(NotEnrolled, match=node):
            await find_topic(cell.ports(), cell.settings, agents)
        cell.configure(topic_wait_s=60.0)
        ports = cell.ports()
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(find_topic(ports, cell.settings, agents))
            async with asyncio.timeout(30):
                while "topic" not in ports.health.reasons:
                    await clock.sleep(0.05)
            assert not looking.done()
            await relays.create_topics([assignments(node)])
            async with asyncio.timeout(30):
                await looking
    finally:
        await agents.close()
        await relays.close()
