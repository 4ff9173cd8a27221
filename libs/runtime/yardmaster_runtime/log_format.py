"""The check that a log on Kafka has the format of this version.

The format of a SQLite file is checked by its adapter.
"""

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogCorrupt, OffsetGone, OtherLogFormat, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import LogCreatedV1
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.topics import REQUESTS


async def check_log_format(log: EventLog, shown: str) -> None:
    """Check the first record of the log's first cell; an empty log has every format.

    Args:
        shown: the name of the log in the error.
    Raises:
        OtherLogFormat: the log was created by a version that uses another format.
        LogError: the log cannot be read.
    """
    try:
        found = await log.read(Partition(REQUESTS.name), 0, max_records=1)
    except (UnknownTopic, OffsetGone, LogCorrupt):
        # Without its first record, the log cannot be checked here.
        return
    # A first record that cannot be read, or of another type, is damage, which the readers of the
    # log report.
    if not found or ("ce_type", LogCreatedV1.TYPE.encode()) not in found[0].record.headers:
        return
    try:
        event = decode(found[0].record).data
    except SchemaError:
        if b'"format"' in (found[0].record.value or b""):
            return
        # Before formats had numbers, LogCreated had no field for one.
        raise OtherLogFormat(path=shown, found="an earlier format", known=LOG_FORMAT) from None
    if isinstance(event, LogCreatedV1) and event.format != LOG_FORMAT:
        raise OtherLogFormat(path=shown, found=f"format {event.format}", known=LOG_FORMAT)
