"""A cell on a log in memory; the test writes the records of the services that do not run."""

import io
import json
from collections.abc import Sequence
from typing import Any, Self

from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_runtime.clock import Clock, ManualClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.topics import TOPICS

CELL = "main"


class MemoryCell:
    """A log, a clock and the log lines of the services; subclasses run one service, or several."""

    def __init__(self, log: EventLog | None = None, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or ManualClock()
        self.log: EventLog = log or MemoryLog(self.clock)
        self.lines = io.StringIO()

    async def create(self) -> Self:
        """Create the topics."""
        await self.log.create_topics(list(TOPICS.values()))
        return self

    def telemetry(self, service: str) -> Telemetry:
        return Telemetry(service, now_ms=self.clock.now_ms, stream=self.lines)

    async def put(
        self, topic: str, what: Sequence[Envelope[Event] | Record], partition: int = 0
    ) -> None:
        """Append events, or raw records, as one batch."""
        records = [each if isinstance(each, Record) else encode(each, CELL) for each in what]
        await self.log.append(Partition(topic, partition), records)

    async def stored(self, topic: str) -> list[StoredRecord]:
        """All records of a topic."""
        return list(await self.log.read(Partition(topic), 0, max_records=1_000_000))

    async def events(self, topic: str) -> list[Event]:
        """All events of a topic."""
        return [decode(each.record).data for each in await self.stored(topic)]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines of an event."""
        lines = map(json.loads, self.lines.getvalue().splitlines())
        return [line for line in lines if line["event"] == event]
