"""A log around another log: the part that metrics, retries and planned faults share."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_schemas.topics import Topic

T = TypeVar("T")


class ForwardingLog:
    """Passes every call on to another log; see `EventLog` for the contract.

    A subclass overrides the calls that it observes, or `_forward`, which makes them.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def _forward(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call of the other log; all calls except `close` are made here."""
        return await call()

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        await self._forward(lambda: self._log.create_topics(topics, partitions))

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        return await self._forward(lambda: self._log.append(partition, batch))

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        return await self._forward(
            lambda: self._log.read(
                partition, offset, max_records=max_records, buffered_only=buffered_only
            )
        )

    async def end(self, partition: Partition) -> int:
        return await self._forward(lambda: self._log.end(partition))

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        return await self._forward(lambda: self._log.newest(partitions))

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        return await self._forward(lambda: self._log.wait(ends, timeout_s))

    async def close(self) -> None:
        await self._log.close()
