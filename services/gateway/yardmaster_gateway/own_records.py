"""Ends a gateway whose acknowledged records quota refuses.

A request is answered with 202 when it is in the log. If quota then refuses the record itself (as a
repeat, as one of an unknown version), the request is lost, and so is every later one: the gateway
must not stay in service. Quota's commits name the records that were refused; only the gateway knows
which of them it acknowledged.
"""

from typing import Final, NoReturn

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogUnavailable, OffsetGone, ReadPastEnd, UnknownTopic
from yardmaster_eventlog.port import Partition, StoredRecord
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.errors import OwnRecordRefused
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import CycleCommittedV1, RefusedRange
from yardmaster_schemas.topics import ADMISSIONS, REQUESTS

#: Records read at once, and records before the end at which a start begins to look.
MAX_READ: Final = 1_000
#: The longest wait for a record, and the pause after a read that failed, in seconds.
WAIT_S: Final = 30.0
PAUSE_S: Final = 1.0
_COMMIT: Final = ("ce_type", CycleCommittedV1.TYPE.encode())


async def watch_own_records(gateway: Gateway) -> NoReturn:
    """Follow quota's commits until one refuses a record that this gateway acknowledged.

    Raises:
        OwnRecordRefused, LogClosed.
    """
    ports = gateway.ports
    place = Partition(ADMISSIONS.name, gateway.settings.partition)
    offset: int | None = None
    while True:
        try:
            if offset is None:
                offset = max(0, await ports.log.end(place) - MAX_READ)
            found = await ports.log.read(place, offset, max_records=MAX_READ)
            if not found:
                await ports.log.wait({place: offset}, WAIT_S)
            for stored in found:
                await _check(gateway, stored)
                offset = stored.offset + 1
        except (LogUnavailable, UnknownTopic):
            await ports.clock.sleep(PAUSE_S)
        except (ReadPastEnd, OffsetGone):
            offset = None


async def _check(gateway: Gateway, stored: StoredRecord) -> None:
    if _COMMIT not in stored.record.headers:
        return
    try:
        commit = decode(stored.record).data
    except SchemaError:
        return  # every reader that folds the log stops there with a named error
    if not isinstance(commit, CycleCommittedV1):
        return
    for refused in commit.refused:
        if refused.topic == REQUESTS.name:
            await _check_range(gateway, refused)


async def _check_range(gateway: Gateway, refused: RefusedRange) -> None:
    place = Partition(REQUESTS.name, refused.partition)
    offset = refused.first
    while offset <= refused.last:
        most = min(MAX_READ, refused.last + 1 - offset)
        for stored in await gateway.ports.log.read(place, offset, max_records=most):
            offset = stored.offset + 1
            try:
                envelope = decode(stored.record)
            except SchemaError:
                continue  # not this gateway's: it decodes what it writes
            if gateway.writer.acknowledged(envelope):
                error = OwnRecordRefused(record=envelope.id, reason=refused.code.value)
                gateway.failed = str(error)
                gateway.ports.telemetry.error(
                    error.code,
                    record=envelope.id,
                    offset=stored.offset,
                    reason=refused.code.value,
                )
                raise error
