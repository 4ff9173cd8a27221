"""The adapters that the contract suite tests, one after another."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.kafka_broker import KafkaBroker
from yardmaster_eventlog.kafka.log import KafkaLog, KafkaSettings
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_eventlog.testing import FaultPlan, FaultyLog
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import Topic

KINDS = [
    "memory",
    "faulty",
    "sqlite",
    pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.xdist_group("kafka")]),
]


def topic(name: str, **settings: object) -> Topic:
    """A topic for one test alone (all tests share one broker)."""
    unique = f"{name}.{uuid.uuid4().hex[:12]}"
    return Topic(name=unique, key="cell", writers=(), readers=(), **settings)  # type: ignore[arg-type]


@dataclass
class Subject:
    """A log under test: `open` returns another handle on it, as in another process."""

    kind: str
    open_handle: Callable[[], Awaitable[EventLog]]
    handles: list[EventLog] = field(default_factory=list)

    async def open(self) -> EventLog:
        log = await self.open_handle()
        self.handles.append(log)
        return log

    async def with_topic(self, **settings: object) -> tuple[EventLog, Partition]:
        """A handle, and the partition of a new topic."""
        log = await self.open()
        new = topic("t", **settings)
        await log.create_topics([new])
        return log, Partition(new.name)


@pytest.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    clock = SystemClock()
    kind: str = request.param
    memory = MemoryLog(clock)
    plan = FaultPlan(clock)

    async def open_handle() -> EventLog:
        match kind:
            case "memory":
                return memory.handle()
            case "faulty":
                return FaultyLog(memory.handle(), plan)
            case "sqlite":
                return await SqliteLog.open(tmp_path / "log.db", clock)
            case _:
                broker: KafkaBroker = request.getfixturevalue("kafka_broker")
                return await KafkaLog.open(KafkaSettings(bootstrap=broker.bootstrap), clock)

    subject = Subject(kind, open_handle)
    yield subject
    for log in subject.handles:
        await log.close()
