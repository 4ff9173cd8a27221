"""A log that retries: LogUnavailable means that nothing was written, so a retry is safe.

An append of unknown outcome is not retried, because it may still be written.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from prometheus_client import Counter

from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.settings import RetryLimits
from yardmaster_schemas.topics import Topic

T = TypeVar("T")


class RetryingLog:
    """Retries the calls of another log with back-off while that log is unavailable."""

    def __init__(self, log: EventLog, clock: Clock, limits: RetryLimits, retries: Counter) -> None:
        self._log = log
        self._clock = clock
        self._limits = limits
        self._retries = retries

    async def _try(self, call: Callable[[], Awaitable[T]]) -> T:
        backoff = self._limits.backoff()
        tries = 0
        while True:
            tries += 1
            try:
                return await call()
            except LogUnavailable:
                if tries == self._limits.attempts:
                    raise
                self._retries.inc()
                await self._clock.sleep(backoff.next_s())

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        await self._try(lambda: self._log.create_topics(topics, partitions))

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        return await self._try(lambda: self._log.append(partition, batch))

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        return await self._try(
            lambda: self._log.read(
                partition, offset, max_records=max_records, buffered_only=buffered_only
            )
        )

    async def end(self, partition: Partition) -> int:
        return await self._try(lambda: self._log.end(partition))

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        return await self._try(lambda: self._log.newest(partitions))

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        return await self._try(lambda: self._log.wait(ends, timeout_s))

    async def close(self) -> None:
        """Do nothing: the owner of the inner log closes it."""
