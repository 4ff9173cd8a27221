"""Metrics of logs: `MeteredLog` around any adapter, and the internal events of Kafka's adapter."""

from collections.abc import Sequence
from typing import Final, Protocol

from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogError
from yardmaster_eventlog.forwarding import ForwardingLog
from yardmaster_eventlog.port import Clock, EventLog, Partition, Record, StoredRecord


class LogMetrics(Protocol):
    """Receives the events of a log; must not block."""

    def waiting(self, change: int) -> None:
        """The number of batches without an acknowledgment changed by `change`."""

    def appended(self, topic: str, records: int, seconds: float) -> None:
        """A batch was acknowledged, `seconds` after the call."""

    def refused(self, topic: str, code: str) -> None:
        """A batch was certainly not written; `code` is the error's."""

    def unknown(self, topic: str) -> None:
        """Whether a batch was written is unknown."""

    def read(self, topic: str, records: int) -> None:
        """Records were returned to a reader."""

    def clock_ahead(self, topic: str, seconds: float) -> None:
        """The host's clock is ahead of the clock of the broker that acknowledged a batch."""

    def connected(self) -> None:
        """A producer or a consumer connected: at its first use, or after a lost connection."""

    def retried(self) -> None:
        """A call was retried within its deadline, because the brokers did not answer."""

    def abandoned(self) -> None:
        """A producer was discarded, with all batches that it had not sent."""


class NoMetrics:
    """Ignores all events."""

    __slots__ = ()

    def waiting(self, change: int) -> None:
        """Do nothing."""

    def appended(self, topic: str, records: int, seconds: float) -> None:
        """Do nothing."""

    def refused(self, topic: str, code: str) -> None:
        """Do nothing."""

    def unknown(self, topic: str) -> None:
        """Do nothing."""

    def read(self, topic: str, records: int) -> None:
        """Do nothing."""

    def clock_ahead(self, topic: str, seconds: float) -> None:
        """Do nothing."""

    def connected(self) -> None:
        """Do nothing."""

    def retried(self) -> None:
        """Do nothing."""

    def abandoned(self) -> None:
        """Do nothing."""


NO_METRICS: Final = NoMetrics()


class MeteredLog(ForwardingLog):
    """Counts the calls of any log, and otherwise passes them on unchanged."""

    def __init__(self, log: EventLog, clock: Clock, metrics: LogMetrics) -> None:
        super().__init__(log)
        self._clock = clock
        self._metrics = metrics

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        """Append `batch`, and measure the time."""
        metrics, started_s = self._metrics, self._clock.monotonic_s()
        metrics.waiting(1)
        try:
            offset = await super().append(partition, batch)
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
        found = await super().read(
            partition, offset, max_records=max_records, buffered_only=buffered_only
        )
        if found:
            self._metrics.read(partition.topic, len(found))
        return found
