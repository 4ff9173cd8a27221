"""Writes to a quiet `details` partition now and then, so that what was erased leaves the disk.

Kafka compacts only segments that are closed, and closes one when a record comes after its time is
over. In a partition that nobody writes to any more the erased bytes would stay for ever. So a
gateway that finds nothing new since its last look writes a tombstone of a key that nobody uses,
about a hundred bytes, which compaction removes as well. Of several gateways the first to look
writes, and the others find that it did. Other logs remove what was erased at once and need none.
"""

from typing import Final, NoReturn

from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.topics import DETAILS

#: No job's id and no note's key.
TICK: Final = Record(key=b"tick", value=None)


class DetailsTicker:
    """Looks at one cell's partition every `every_s` seconds."""

    def __init__(
        self, log: EventLog, clock: Clock, telemetry: Telemetry, *, partition: int, every_s: float
    ) -> None:
        self._log = log
        self._clock = clock
        self._telemetry = telemetry
        self._place = Partition(DETAILS.name, partition)
        self._every_s = every_s
        self._ticks = telemetry.counter("details_ticks", "Records that keep compaction going")
        self._missed = telemetry.counter("details_ticks_missed", "Looks that the log did not take")

    async def run(self) -> NoReturn:
        """Look until cancelled.

        Raises:
            LogClosed.
        """
        seen = 0
        while True:
            try:
                seen = await self._look(seen)
            except (LogUnavailable, AppendOutcomeUnknown, UnknownTopic) as error:
                self._missed.inc()
                self._telemetry.warn("details_tick_missed", code=error.code)
            await self._clock.sleep(self._every_s)

    async def _look(self, seen: int) -> int:
        """The partition's end, after a tick where it has not moved."""
        end = await self._log.end(self._place)
        if end == 0 or end != seen:
            return end
        offset = await self._log.append(self._place, [TICK])
        self._ticks.inc()
        return offset + 1
