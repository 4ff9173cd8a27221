"""A log that tries again: LogUnavailable says that nothing was written, so trying again is safe.

An append of unknown outcome is never tried again: it may have landed, or may yet.
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
    """Any log; a call that finds it unavailable is tried again, ever slower, so many times."""

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
        """Make topics that are not there yet."""
        await self._try(lambda: self._log.create_topics(topics, partitions))

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch`, whole or not at all."""
        return await self._try(lambda: self._log.append(partition, batch))

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        """Records from `offset` on."""
        return await self._try(
            lambda: self._log.read(
                partition, offset, max_records=max_records, buffered_only=buffered_only
            )
        )

    async def end(self, partition: Partition) -> int:
        """The offset that the next record will get."""
        return await self._try(lambda: self._log.end(partition))

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """The newest record of each partition."""
        return await self._try(lambda: self._log.newest(partitions))

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait until a partition has a record at or after the offset given for it."""
        return await self._try(lambda: self._log.wait(ends, timeout_s))

    async def close(self) -> None:
        """The log's owner closes it; this handle has nothing of its own."""
