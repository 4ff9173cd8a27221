"""Writes to an idle `details` partition from time to time, so that Kafka removes erased records.

Kafka compacts only closed segments, and it closes an expired segment only when a new record
arrives. In an idle partition, erased records would therefore stay on the disk for ever. If a
gateway finds no new record since its last check, it appends a tombstone of an unused key, about a
hundred bytes, which compaction removes too. If several gateways run, the first to check writes, and
the others find its record. Each gateway appends a tombstone when it starts, so that its
clock follows the clock of the log before its first request. Logs other than Kafka remove erased
records at once and need no ticker.
"""

from typing import Final, NoReturn

from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import DETAILS

#: The tombstone. Its key is neither a job id nor the key of a note.
TICK: Final = Record(key=b"tick", value=None)


class DetailsTicker:
    """Checks one cell's partition of `details` every `every_s` seconds."""

    def __init__(
        self, log: EventLog, clock: Clock, telemetry: Telemetry, *, partition: int, every_s: float
    ) -> None:
        self._log = log
        self._clock = clock
        self._telemetry = telemetry
        self._partition = Partition(DETAILS.name, partition)
        self._every_s = every_s
        self._ticks = telemetry.counter("details_ticks", "Records that keep compaction going")
        self._missed = telemetry.counter("details_ticks_missed", "Checks that failed")

    async def run(self) -> NoReturn:
        """Check periodically until cancelled.

        Raises:
            LogClosed.
        """
        seen: int | None = None
        while True:
            try:
                seen = await self._check(seen)
            except (LogUnavailable, AppendOutcomeUnknown, UnknownTopic) as error:
                self._missed.inc()
                self._telemetry.warn("details_tick_missed", code=error.code)
            await self._clock.sleep(self._every_s)

    async def _check(self, seen: int | None) -> int:
        """Append a tick if the partition still ends at `seen`; return the present end.

        `seen` is the end at the last check; None: append in any case.
        """
        if seen is not None and (end := await self._log.end(self._partition)) != seen:
            return end
        offset = await self._log.append(self._partition, [TICK])
        self._ticks.inc()
        return offset + 1
