"""The log of the embedded mode; it reports once when appends begin to fail, and when they work."""

from collections.abc import Sequence

from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.forwarding import ForwardingLog
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.telemetry.port import Telemetry


class WatchedLog(ForwardingLog):
    """Passes every call on to another log, and records whether the last append succeeded.

    Every service retries by itself, so no service would report that the disk is full.
    """

    def __init__(self, log: EventLog, telemetry: Telemetry) -> None:
        super().__init__(log)
        self._telemetry = telemetry
        #: Why the last append failed; None: it succeeded.
        self.fault: str | None = None

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        try:
            offset = await super().append(partition, batch)
        except LogUnavailable as error:
            if self.fault is None:
                self._telemetry.error(error.code, found=str(error))
            self.fault = str(error)
            raise
        if self.fault is not None:
            self._telemetry.warn("log_available")
            self.fault = None
        return offset
