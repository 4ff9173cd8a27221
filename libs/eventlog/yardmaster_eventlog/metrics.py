"""What a log is seen to do: `MeteredLog` around any adapter, and what Kafka's tells of itself."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogError
from yardmaster_eventlog.port import Clock, EventLog, Partition, Record, StoredRecord
from yardmaster_schemas.topics import Topic


class LogMetrics(Protocol):
    """Told of each call; must not wait."""

    def waiting(self, change: int) -> None:
        """So many more (or fewer) batches wait for their acknowledgement."""

    def appended(self, topic: str, records: int, seconds: float) -> None:
        """A batch was acknowledged, so long after it was asked for."""

    def refused(self, topic: str, code: str) -> None:
        """A batch was not written, for sure; the error's code says why."""

    def unknown(self, topic: str) -> None:
        """Whether a batch was written is not known."""

    def read(self, topic: str, records: int) -> None:
        """Records were given to a reader."""

    def connected(self) -> None:
        """A producer or a consumer was connected: at first use, and again after it was lost."""

    def retried(self) -> None:
        """A call was made again within its deadline: the brokers did not answer."""

    def abandoned(self) -> None:
        """A producer was thrown away, with all that it still held."""


class NoMetrics:
    """Nobody looks."""

    __slots__ = ()

    def waiting(self, change: int) -> None:
        """Nothing."""

    def appended(self, topic: str, records: int, seconds: float) -> None:
        """Nothing."""

    def refused(self, topic: str, code: str) -> None:
        """Nothing."""

    def unknown(self, topic: str) -> None:
        """Nothing."""

    def read(self, topic: str, records: int) -> None:
        """Nothing."""

    def connected(self) -> None:
        """Nothing."""

    def retried(self) -> None:
        """Nothing."""

    def abandoned(self) -> None:
        """Nothing."""


NO_METRICS: Final = NoMetrics()


class MeteredLog:
    """Any log, its calls counted; it changes nothing about them."""

    def __init__(self, log: EventLog, clock: Clock, metrics: LogMetrics) -> None:
        self._log = log
        self._clock = clock
        self._metrics = metrics

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        """Make topics that are not there yet."""
        await self._log.create_topics(topics, partitions)

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch`, timed."""
        metrics, started_s = self._metrics, self._clock.monotonic_s()
        metrics.waiting(1)
        try:
            offset = await self._log.append(partition, batch)
        except AppendOutcomeUnknown:
            metrics.unknown(partition.topic)
            raise
        except LogError as error:
            metrics.refused(partition.topic, error.code)
            raise
        finally:
            metrics.waiting(-1)
        took_s = self._clock.monotonic_s() - started_s
        metrics.appended(partition.topic, len(batch), took_s)
        return offset

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        """Records from `offset` on."""
        found = await self._log.read(
            partition, offset, max_records=max_records, buffered_only=buffered_only
        )
        if found:
            self._metrics.read(partition.topic, len(found))
        return found

    async def end(self, partition: Partition) -> int:
        """The offset that the next record will get."""
        return await self._log.end(partition)

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        """The newest record of each partition."""
        return await self._log.newest(partitions)

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        """Wait for records."""
        return await self._log.wait(ends, timeout_s)

    async def close(self) -> None:
        """Close the log."""
        await self._log.close()
