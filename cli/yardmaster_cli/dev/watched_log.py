"""The log of the embedded mode, which says once that it takes no records, and when it does."""

from collections.abc import Sequence

from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.forwarding import ForwardingLog
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.telemetry.port import Telemetry


class WatchedLog(ForwardingLog):
    """Passes every call on to another log, and notes whether its last append was possible.

    Every service retries by itself, so none of them would say that the disk is full.
    """

    def __init__(self, log: EventLog, telemetry: Telemetry) -> None:
        super().__init__(log)
        self._telemetry = telemetry
        #: Why the last append was not possible; None: it was.
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
