"""Repeats requests that the gateway has acknowledged although quota then refused their records.

The gateway answers a request with 202 as soon as its record is in the log. Quota later refuses the
record, whatever it requests, if its number does not increase or its epoch is far ahead of the time
of the cell. The cause is a record of this source that another process wrote, or a log whose clock
was wrong.
The gateway then begins a new source and appends the requests again, in their order. Quota's commits
name the refused records; only the gateway knows which of them it acknowledged.

A record that is refused a second time, or for another reason, ends the gateway: it must not stay in
service.
"""

from collections import deque
from typing import Final, NoReturn

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    LogUnavailable,
    OffsetGone,
    ReadPastEnd,
    UnknownTopic,
)
from yardmaster_eventlog.port import Partition, StoredRecord
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.errors import Busy, OwnRecordRefused
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import CycleCommittedV1, RefusedRange
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import ADMISSIONS, REQUESTS

#: The most records of one read; also the number of newest records that are checked at the start.
MAX_READ: Final = 1_000
#: The longest wait for a record, and the pause after a failed read or append, in seconds.
WAIT_S: Final = 30.0
PAUSE_S: Final = 1.0
_COMMIT: Final = ("ce_type", CycleCommittedV1.TYPE.encode())
#: Codes of refusals that a repetition by a new source avoids.
_OF_NUMBER: Final = frozenset({RefusalCode.REPEATED, RefusalCode.EPOCH_AHEAD})


async def watch_own_records(gateway: Gateway) -> NoReturn:
    """Follow quota's commits, and repeat the requests that they refuse.

    Raises:
        OwnRecordRefused, LogClosed.
    """
    ports = gateway.ports
    repeater = _Repeater(gateway)
    partition = Partition(ADMISSIONS.name, gateway.settings.partition)
    offset: int | None = None
    arrived = False
    while True:
        try:
            if offset is None:
                offset = max(0, await ports.log.end(partition) - MAX_READ)
            # After a wait, the records are here: asking the broker for the end would find no more.
            found = await ports.log.read(
                partition, offset, max_records=MAX_READ, buffered_only=arrived
            )
            arrived = bool(found) or await ports.log.wait({partition: offset}, WAIT_S)
            for stored in found:
                await repeater.check(stored)
                offset = stored.offset + 1
        except (LogUnavailable, UnknownTopic):
            await ports.clock.sleep(PAUSE_S)
        except (ReadPastEnd, OffsetGone):
            offset = None


class _Repeater:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        #: Refused requests before this offset were repeated, or another client wrote them.
        self._checked = 0
        #: Offsets of the newest requests that are repetitions themselves.
        self._repeated: deque[int] = deque(maxlen=MAX_READ)
        self._count = gateway.ports.telemetry.counter(
            "requests_repeated", "Acknowledged requests recorded again because quota refused them"
        )

    async def check(self, stored: StoredRecord) -> None:
        """Check the requests that a record of `admissions` refuses, if it is a commit."""
        if _COMMIT not in stored.record.headers:
            return
        try:
            commit = decode(stored.record).data
        except SchemaError:
            return  # every reader that folds the log stops at this record and reports it
        if not isinstance(commit, CycleCommittedV1):
            return
        for refused in commit.refused:
            if refused.topic == REQUESTS.name:
                await self._check_range(refused)

    async def _check_range(self, refused: RefusedRange) -> None:
        gateway, partition = self._gateway, Partition(REQUESTS.name, refused.partition)
        offset = max(refused.first, self._checked)
        while offset <= refused.last:
            count = min(MAX_READ, refused.last + 1 - offset)
            for stored in await gateway.ports.log.read(partition, offset, max_records=count):
                offset = stored.offset + 1
                try:
                    envelope = decode(stored.record)
                except SchemaError:
                    continue  # not written by this gateway, which can decode its own records
                if gateway.writer.acknowledged(envelope):
                    await self._refused(stored.offset, envelope, refused.code)
                self._checked = offset

    async def _refused(self, offset: int, envelope: Envelope[Event], code: RefusalCode) -> None:
        """Repeat a refused request of this gateway as a record of a new source.

        Raises: OwnRecordRefused: a repetition cannot help, or the record is a repetition itself.
        """
        gateway, telemetry = self._gateway, self._gateway.ports.telemetry
        error = OwnRecordRefused(record=envelope.id, reason=code.value)
        telemetry.error(error.code, record=envelope.id, offset=offset, reason=code.value)
        if code not in _OF_NUMBER or offset in self._repeated:
            gateway.failed = str(error)
            raise error
        if envelope.source == gateway.writer.source:
            await gateway.writer.begin_source()
        self._repeated.append(await self._append(envelope))
        self._count.inc()

    async def _append(self, envelope: Envelope[Event]) -> int:
        """Append a request again until the log takes it, and return its offset.

        A try with an unknown outcome is repeated: two records do less harm than none.
        """
        while True:
            try:
                return await self._gateway.writer.repeat(envelope)
            except (LogUnavailable, AppendOutcomeUnknown, Busy):
                await self._gateway.ports.clock.sleep(PAUSE_S)
