"""Shortens topics on Kafka, although Kafka removes records only from the start of a partition.

A topic is copied to a file first. Then the topic is deleted, created again, and filled from the
file up to the new end. Offsets stay, because topics that are kept forever have no gaps. If a
partition has lost its first records, fillers take the offsets of those records and are then
deleted. The records get new append times. If a cut is interrupted, `refill` with the same file
completes it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import NoError, UnknownTopicOrPartitionError, for_code

from yardmaster_eventlog.errors import LogInUse, LogUnavailable, UnknownTopic
from yardmaster_eventlog.kafka.log import KafkaLog
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.port import (
    BATCH_OVERHEAD,
    Clock,
    EventLog,
    Partition,
    Record,
    batch_bytes,
)
from yardmaster_eventlog.reader import first_offset
from yardmaster_eventlog.sqlite.file import LogFile
from yardmaster_schemas.topics import TOPICS, Topic

#: Records of one batch, and of one read.
BATCH_RECORDS: Final = 500
#: How long a topic may take to be deleted.
DELETED_S: Final = 60.0
RETRY_S: Final = 0.2
LOCK_TIMEOUT_S: Final = 5.0
#: A record that takes the offset of a record that has expired, until the filler is deleted too.
FILLER: Final = Record(b"", b"")


@dataclass(frozen=True, slots=True)
class _Range:
    """The offsets of a partition's records."""

    first: int
    end: int


_Ranges = Mapping[Partition, _Range]


async def back_up(
    settings: KafkaSettings, clock: Clock, topics: Sequence[str], path: Path, mark: Record
) -> None:
    """Copy topics, with the partitions of all cells, to a new SQLite log at `path`.

    Append `mark` to the topic `cuts` of the copy.

    Raises: LogError.
    """
    log = await KafkaLog.open(settings, clock)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    file = LogFile(unfinished, create=True, lock_timeout_s=LOCK_TIMEOUT_S)
    try:
        file.create_topics([TOPICS["cuts"]], 1)
        counts = {topic: await partitions(log, topic) for topic in topics}
        for topic, count in counts.items():
            file.create_topics([TOPICS[topic]], count)
        with file.bulk():
            file.load(file.find(Partition("cuts")), [(clock.now_ms(), mark)])
            for topic, count in counts.items():
                for number in range(count):
                    await _copy(log, Partition(topic, number), file)
    finally:
        file.close()
        await log.close()
    unfinished.rename(path)


async def partitions(log: EventLog, topic: str) -> int:
    """Count the partitions of a topic; 0 if the topic does not exist.

    Raises: LogUnavailable.
    """
    count = 0
    while True:
        try:
            await log.end(Partition(topic, count))
        except UnknownTopic:
            return count
        count += 1


async def _copy(log: EventLog, partition: Partition, file: LogFile) -> None:
    """Copy all records of a partition to the file, with their offsets and append times."""
    to, offset = file.find(partition), await first_offset(log, partition)
    file.begin_at(to, offset)
    while found := await log.read(partition, offset, max_records=BATCH_RECORDS):
        file.load(to, [(stored.appended_ms, stored.record) for stored in found])
        offset = found[-1].offset + 1


async def refill(
    settings: KafkaSettings, clock: Clock, path: Path, ends: Mapping[Partition, int], emptied: str
) -> None:
    """Replace topics by their copies in the file, up to `ends`.

    After an interruption, a second call completes the work. In topics whose names begin with
    `emptied`, all records of the partition numbers in `ends` are deleted. The mark in the file is
    appended last.

    Raises:
        LogInUse: the log has records that the copy lacks.
        LogError: call it again.
    """
    file = LogFile(path, create=False, lock_timeout_s=LOCK_TIMEOUT_S)
    admin = AIOKafkaAdminClient(**settings.client())
    await admin.start()
    try:
        names = list(dict.fromkeys(partition.topic for partition in ends))
        for name in names:
            await _check_not_grown(settings, clock, _copied(file, name))
        for name in names:
            await _replace(settings, clock, admin, file, TOPICS[name], ends)
        numbers = sorted({partition.number for partition in ends})
        await _empty(admin, emptied, numbers)
        (mark,) = file.read(file.find(Partition("cuts")), 0, 1)
        log = await KafkaLog.open(settings, clock)
        try:
            for number in numbers:
                to = Partition("cuts", number)
                marks = await log.read(to, await first_offset(log, to))
                if mark.record not in [stored.record for stored in marks]:
                    await log.append(to, [mark.record])
        finally:
            await log.close()
    finally:
        await admin.close()
        file.close()


async def _replace(
    settings: KafkaSettings,
    clock: Clock,
    admin: AIOKafkaAdminClient,
    file: LogFile,
    topic: Topic,
    ends: Mapping[Partition, int],
) -> None:
    """Delete a topic, create it again, and fill it from the file up to its new ends.

    Does nothing if the topic has these ends already.
    """
    wanted = {
        at: _Range(copied.first, ends.get(at, copied.end))
        for at, copied in _copied(file, topic.name).items()
    }
    if await _ranges(settings, clock, wanted) == wanted:
        return
    await admin.delete_topics([topic.name])
    async with asyncio.timeout(DELETED_S):
        while True:
            (found,) = await admin.describe_topics([topic.name])
            if for_code(found["error_code"]) is UnknownTopicOrPartitionError:
                break
            await asyncio.sleep(RETRY_S)
    # A handle of its own: an older one knows the records that were deleted.
    log = await KafkaLog.open(settings, clock)
    try:
        await log.create_topics([topic], len(wanted))
        for partition, one in wanted.items():
            await _skip(log, admin, partition, one.first, topic.max_batch_bytes)
            await _fill(log, file, partition, one.end, topic.max_batch_bytes)
    finally:
        await log.close()
    if (now := await _ranges(settings, clock, wanted)) != wanted:
        raise LogUnavailable(found=f"{topic.name} has {now}, expected {wanted}")


def _copied(file: LogFile, topic: str) -> dict[Partition, _Range]:
    """The partitions of a topic in the copy, and the offsets of their records."""
    found: dict[Partition, _Range] = {}
    while True:
        partition = Partition(topic, len(found))
        try:
            stored = file.find(partition)
            found[partition] = _Range(file.first(stored), file.end(stored))
        except UnknownTopic:
            return found


async def _check_not_grown(settings: KafkaSettings, clock: Clock, copied: _Ranges) -> None:
    """Raise LogInUse if a partition on the brokers ends after its copy."""
    now = await _ranges(settings, clock, copied)
    if grown := [at for at, one in now.items() if one.end > copied[at].end]:
        raise LogInUse(found=f"{', '.join(map(str, grown))} grew after the copy was made")


async def _ranges(settings: KafkaSettings, clock: Clock, partitions: _Ranges) -> _Ranges:
    """The offsets that partitions have on the brokers; empty if one of them does not exist."""
    log = await KafkaLog.open(settings, clock)
    try:
        return {at: _Range(await first_offset(log, at), await log.end(at)) for at in partitions}
    except UnknownTopic:
        return {}  # it was deleted before an interruption
    finally:
        await log.close()


async def _skip(
    log: EventLog, admin: AIOKafkaAdminClient, partition: Partition, first: int, limit: int
) -> None:
    """Let an empty partition begin at offset `first`.

    Kafka cannot set an offset, so fillers are appended up to `first` and then deleted.
    """
    most = (limit - BATCH_OVERHEAD) // FILLER.size
    for offset in range(0, first, most):
        await log.append(partition, [FILLER] * min(most, first - offset))
    if first:
        place = TopicPartition(partition.topic, partition.number)
        await admin.delete_records({place: RecordsToDelete(first)})


async def _fill(log: EventLog, file: LogFile, partition: Partition, end: int, limit: int) -> None:
    """Append the records of a partition in the file, up to `end`; `limit`: bytes of a batch."""
    stored = file.find(partition)
    offset = file.first(stored)
    while offset < end:
        most = min(BATCH_RECORDS, end - offset)
        batch = [one.record for one in file.read(stored, offset, most)]
        while batch_bytes(batch) > limit:
            batch = batch[: (len(batch) + 1) // 2]
        offset += len(batch)
        await log.append(partition, batch)


async def _empty(admin: AIOKafkaAdminClient, prefix: str, numbers: Sequence[int]) -> None:
    """Delete all records of these partition numbers from topics that begin with `prefix`."""
    names = [name for name in await admin.list_topics() if name.startswith(prefix)]
    places = {}
    for found in await admin.describe_topics(names) if names else ():
        if for_code(found["error_code"]) is not NoError:
            raise LogUnavailable(found=f"{found['topic']} cannot be described")
        for each in found["partitions"]:
            if each["partition"] in numbers:
                # -1: up to the end.
                places[TopicPartition(found["topic"], each["partition"])] = RecordsToDelete(-1)
    if places:
        await admin.delete_records(places)
