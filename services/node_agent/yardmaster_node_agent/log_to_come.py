"""A log that is not open yet: an agent that starts while the log is away has things to look after.

Until it is there every call says that it is unavailable, which an agent outlives.
"""

import asyncio
from collections.abc import Mapping, Sequence

from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_schemas.topics import Topic


class LogToCome:
    """The log that `is_there` was called with; before that it is away."""

    def __init__(self) -> None:
        self._log: EventLog | None = None
        self.opened = asyncio.Event()

    def is_there(self, log: EventLog) -> None:
        """Be that log from now on."""
        self._log = log
        self.opened.set()

    def _there(self) -> EventLog:
        if self._log is None:
            raise LogUnavailable(found="it was not reached since the start")
        return self._log

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        """Make topics that are not there yet."""
        await self._there().create_topics(topics, partitions)

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch`, whole or not at all."""
        return await self._there().append(partition, batch)

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        """Records from `offset` on."""
        return await self._there().read(
            partition, offset, max_records=max_records, buffered_only=buffered_only
        )

    async def end(self, partition: Partition) -> int:
        """The offset that the next record will get."""
        return await self._there().end(partition)

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """The newest record of each partition."""
        return await self._there().newest(partitions)

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait until a partition has a record at or after the offset given for it."""
        return await self._there().wait(ends, timeout_s)

    async def close(self) -> None:
        """Close the log, when it came."""
        if self._log is not None:
            await self._log.close()
