"""Reads the cycles that count from a machine's topic: for leaders, standbys, replay, relay, views.

`yardmaster_core.commit` decides which cycles count; this module reads, decodes and digests the
records for it.
"""

from yardmaster_core.commit import CommitReader, CountedCycle, record_digest
from yardmaster_core.errors import ForeignRecord
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import Record, StoredRecord
from yardmaster_eventlog.reader import Cursor
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import MalformedRecord, SchemaError


def digest_of(record: Record) -> bytes:
    """Return the digest of a record, as `yardmaster_core.commit` defines it."""
    headers = record.headers if record.framed is None else record.framed
    return record_digest(record.key, headers, record.value)


def decode_own(record: Record, cell: str) -> Envelope[Event]:
    """Return the event of a record in a machine's own topic.

    Raises:
        SchemaError: a newer program wrote the record, or the record is damaged. The caller must
            not skip such a record.
    """
    if record.key != cell.encode():
        raise MalformedRecord(found=f"its key is not {cell}")
    return decode(record)


class CycleReader:
    """Reads one machine's topic in order and returns the cycles that count."""

    def __init__(self, cursor: Cursor, reader: CommitReader) -> None:
        self.cursor = cursor
        self.reader = reader
        #: Digest of the record that was fed last.
        self.digest = b""

    def feed(
        self, stored: StoredRecord, envelope: Envelope[Event] | None = None
    ) -> CountedCycle | None:
        """Feed the topic's next record; return the cycle that it completes.

        `envelope`: the record's event, where the caller has decoded it already.

        Raises:
            ForeignRecord: the record cannot be decoded, or another program wrote it.
            ChainBroken: the record contradicts those before it.
        """
        if envelope is None:
            try:
                envelope = decode_own(stored.record, self.reader.cell)
            except SchemaError as error:
                raise ForeignRecord(
                    topic=stored.partition.topic,
                    offset=stored.offset,
                    found=f"{error.code}: {error}",
                ) from error
        self.digest = digest_of(stored.record)
        return self.reader.feed(stored.offset, self.digest, envelope)

    async def next(self, *, buffered_only: bool = False) -> CountedCycle | None:
        """Return the next counted cycle; None when the log ends before one.

        With `buffered_only`, only records that this process has received already are read.

        Raises: the errors of `feed` and of `Cursor.fill`.
        """
        while await self.cursor.fill(1, buffered_only=buffered_only):
            counted = self.feed(self.cursor.pop())
            if counted is not None:
                return counted
        return None
