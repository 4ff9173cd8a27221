"""A log sink in memory; `yardmaster_eventlog.sqlite.writer` writes files."""

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, DETAILS, NODE_EVENTS, REQUESTS

#: The topics of a simulated run's log.
TOPICS = (DETAILS, REQUESTS, ADMISSIONS, NODE_EVENTS, DECISIONS)
T = TypeVar("T")


class MemorySink:
    """A log in memory, for tests and short runs."""

    def __init__(self) -> None:
        self._clock = _SetClock()
        self.log = MemoryLog(self._clock)
        _at_once(self.log.create_topics(TOPICS))

    def append(self, partition: Partition, records: Sequence[Record], now_ms: int) -> int:
        """Append records with the time `now_ms`."""
        self._clock.at_ms = now_ms
        return _at_once(self.log.append(partition, records))


class _SetClock:
    """A clock whose time the sink sets; `sleep` returns at once."""

    at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms

    def follow(self, appended_ms: int) -> int:
        return self.at_ms - appended_ms

    def resume(self, reached_ms: int) -> None:
        pass

    def monotonic_s(self) -> float:
        return self.at_ms / 1000

    async def sleep(self, seconds: float) -> None:
        pass


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the coroutine waited")
