"""Reads the topic `decisions` cycle by cycle for the relay, each cycle with its records.

Only counted cycles are returned: cycles whose commit is in the log and was not fenced off.
"""

from collections.abc import Mapping, MutableMapping

from yardmaster_core.commit import CommitReader, CountedCycle
from yardmaster_eventlog.port import EventLog, Record, StoredRecord
from yardmaster_eventlog.reader import Cursor
from yardmaster_runtime.cycle_reader import CycleReader
from yardmaster_schemas.envelope import Envelope, Event


class DecidedCycles(CycleReader):
    """Iterates over the counted cycles of `decisions`; see the module.

    `decoded` has records that the leader in this process has decoded already, by offset. Records
    that are read are removed from it.
    """

    def __init__(
        self,
        log: EventLog,
        cursor: Cursor,
        reader: CommitReader,
        decoded: MutableMapping[int, Envelope[Event]],
    ) -> None:
        super().__init__(cursor, reader)
        self._log = log
        self._decoded = decoded
        self._records: dict[int, Record] = {}

    @property
    def ahead(self) -> int:
        """Number of records that were read and not yet returned."""
        return len(self.cursor)

    def feed(
        self, stored: StoredRecord, envelope: Envelope[Event] | None = None
    ) -> CountedCycle | None:
        """Add a record to its cycle; return the cycle if this record completes it.

        The record is kept until `next_with_records` returns its cycle. It is not decoded again if
        the leader has decoded it.
        """
        self._records[stored.offset] = stored.record
        return super().feed(stored, envelope or self._decoded.pop(stored.offset, None))

    async def next_with_records(
        self, *, buffered_only: bool = False
    ) -> tuple[CountedCycle, Mapping[int, Record]] | None:
        """Return the next cycle and its records by offset; None if the log has no more now."""
        counted = await self.next(buffered_only=buffered_only)
        if counted is None:
            return None
        records, self._records = self._records, {}
        return counted, records

    async def wait(self, timeout_s: float) -> None:
        """Wait for more records, at most `timeout_s`."""
        await self._log.wait({self.cursor.partition: self.cursor.end}, timeout_s)
