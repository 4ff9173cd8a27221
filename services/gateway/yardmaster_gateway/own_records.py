"""Stops a gateway if quota refuses records that the gateway has acknowledged.

The gateway answers a request with 202 as soon as it is in the log. If quota then refuses the record
itself (as repeated, or because its version is unknown), the request is lost, and so is every later
one. Such a gateway must not stay in service. Quota's commits name the refused records; only the
gateway knows which of them it acknowledged.
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

#: Records per read, and the number of newest records that are checked at the start.
MAX_READ: Final = 1_000
#: The longest wait for a record, and the pause after a failed read, in seconds.
WAIT_S: Final = 30.0
PAUSE_S: Final = 1.0
_COMMIT: Final = ("ce_type", CycleCommittedV1.TYPE.encode())


async def watch_own_records(gateway: Gateway) -> NoReturn:
    """Follow quota's commits until one refuses a record that this gateway acknowledged.

    Raises:
        OwnRecordRefused, LogClosed.
    """
    ports = gateway.ports
    partition = Partition(ADMISSIONS.name, gateway.settings.partition)
    offset: int | None = None
    while True:
        try:
            if offset is None:
                offset = max(0, await ports.log.end(partition) - MAX_READ)
            found = await ports.log.read(partition, offset, max_records=MAX_READ)
            if not found:
                await ports.log.wait({partition: offset}, WAIT_S)
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
        return  # every reader that folds the log stops at this record and reports it
    if not isinstance(commit, CycleCommittedV1):
        return
    for refused in commit.refused:
        if refused.topic == REQUESTS.name:
            await _check_range(gateway, refused)


async def _check_range(gateway: Gateway, refused: RefusedRange) -> None:
    partition = Partition(REQUESTS.name, refused.partition)
    offset = refused.first
    while offset <= refused.last:
        count = min(MAX_READ, refused.last + 1 - offset)
        for stored in await gateway.ports.log.read(partition, offset, max_records=count):
            offset = stored.offset + 1
            try:
                envelope = decode(stored.record)
            except SchemaError:
                continue  # not written by this gateway, which can decode its own records
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
