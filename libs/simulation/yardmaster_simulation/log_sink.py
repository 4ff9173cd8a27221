"""Where a run's log is written in memory; `yardmaster_eventlog.sqlite.writer` writes files."""

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, DETAILS, NODE_EVENTS, REQUESTS

#: What a run's log consists of.
TOPICS = (DETAILS, REQUESTS, ADMISSIONS, NODE_EVENTS, DECISIONS)
T = TypeVar("T")


class MemorySink:
    """A log in memory, for tests and short runs."""

    def __init__(self) -> None:
        self._clock = _SetClock()
        self.log = MemoryLog(self._clock)
        _at_once(self.log.create_topics(TOPICS))

    def append(self, partition: Partition, records: Sequence[Record], now_ms: int) -> int:
        """Append, at the time given."""
        self._clock.at_ms = now_ms
        return _at_once(self.log.append(partition, records))


class _SetClock:
    """A clock that shows what it is told, and on which nobody waits."""

    at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_s(self) -> float:
        return self.at_ms / 1000

    async def sleep(self, seconds: float) -> None:
        pass


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that waits for nothing returns."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waited")
