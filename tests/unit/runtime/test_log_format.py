"""A log says in its first record by which format it was written."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.logs import first_record
from yardmaster_eventlog.errors import LogCorrupt, OtherLogFormat
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record, StoredRecord
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.log_format import check_log_format
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.topics import REQUESTS


async def log_of(*records: Record) -> MemoryLog:
    log = MemoryLog(ManualClock())
    await log.create_topics([REQUESTS])
    if records:
        await log.append(Partition("requests"), records)
    return log


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (LOG_FORMAT - 1, f"format {LOG_FORMAT - 1}"),
        (LOG_FORMAT + 1, f"format {LOG_FORMAT + 1}"),
        (None, "an earlier format"),
    ],
)
async def test_a_log_of_another_format_is_refused_by_name(written: int | None, found: str) -> None:
    log = await log_of(first_record(written))
    with pytest.raises(OtherLogFormat, match=f"kafka://there is a log of {found}, and this"):
        await check_log_format(log, "kafka://there")


async def test_a_log_of_this_format_and_one_that_is_not_set_up_are_accepted() -> None:
    await check_log_format(MemoryLog(ManualClock()), "no topics")
    await check_log_format(await log_of(), "no records")
    await check_log_format(await log_of(first_record()), "set up")


async def test_a_first_record_that_is_no_log_created_is_left_to_its_readers() -> None:
    await check_log_format(await log_of(Record(b"main", b"{}")), "damaged")


class Unreadable(MemoryLog):
    """A log whose first record cannot be read."""

    async def read(self, *args: Any, **kwargs: Any) -> Sequence[StoredRecord]:
        raise LogCorrupt(path="log.db", found="the headers of requests/0 offset 0 cannot be read")


async def test_a_first_record_that_is_damaged_is_left_to_its_readers() -> None:
    await check_log_format(Unreadable(ManualClock()), "headers")
    whole = first_record()
    damaged = replace(whole, value=(whole.value or b"").replace(b'"type"', b'"typf"'))
    assert damaged != whole
    await check_log_format(await log_of(damaged), "value")
