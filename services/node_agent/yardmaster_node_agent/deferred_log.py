"""A log that is opened later, so that an agent can start while the log is unavailable.

Before it is opened, every call raises LogUnavailable, and the agent retries the call.
"""

import asyncio
from collections.abc import Mapping, Sequence

from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_schemas.topics import Topic


class DeferredLog:
    """Forwards each call to the log given to `attach`; before that the log is unavailable."""

    def __init__(self) -> None:
        self._log: EventLog | None = None
        self.opened = asyncio.Event()

    def attach(self, log: EventLog) -> None:
        """Forward calls to `log` from now on."""
        self._log = log
        self.opened.set()

    def _attached(self) -> EventLog:
        if self._log is None:
            raise LogUnavailable(found="it was not reached since the start")
        return self._log

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        """Create the topics that do not exist yet."""
        await self._attached().create_topics(topics, partitions)

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch`, whole or not at all."""
        return await self._attached().append(partition, batch)

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        return await self._attached().read(
            partition, offset, max_records=max_records, buffered_only=buffered_only
        )

    async def end(self, partition: Partition) -> int:
        """The offset that the next record will get."""
        return await self._attached().end(partition)

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """The newest record of each partition."""
        return await self._attached().newest(partitions)

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait until a partition has a record at or after the offset given for it."""
        return await self._attached().wait(ends, timeout_s)

    async def close(self) -> None:
        """Close the log if it was attached."""
        if self._log is not None:
            await self._log.close()
