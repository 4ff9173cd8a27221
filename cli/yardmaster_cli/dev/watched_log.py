"""The log of the embedded mode, which says once that it takes no records, and when it does."""

from collections.abc import Mapping, Sequence

from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import Topic


class WatchedLog:
    """Passes every call on to another log, and notes whether its last append was possible.

    Every service retries by itself, so none of them would say that the disk is full.
    """

    def __init__(self, log: EventLog, telemetry: Telemetry) -> None:
        self._log = log
        self._telemetry = telemetry
        #: Why the last append was not possible; None: it was.
        self.fault: str | None = None

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        await self._log.create_topics(topics, partitions)

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        try:
            offset = await self._log.append(partition, batch)
        except LogUnavailable as error:
            if self.fault is None:
                self._telemetry.error(error.code, found=str(error))
            self.fault = str(error)
            raise
        if self.fault is not None:
            self._telemetry.warn("log_available")
            self.fault = None
        return offset

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        return await self._log.read(
            partition, offset, max_records=max_records, buffered_only=buffered_only
        )

    async def end(self, partition: Partition) -> int:
        return await self._log.end(partition)

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        return await self._log.newest(partitions)

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        return await self._log.wait(ends, timeout_s)

    async def close(self) -> None:
        await self._log.close()
