"""The contract of every log (`yardmaster_eventlog.port`), for memory, SQLite and Kafka."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from tests.contract.conftest import Subject, topic
from tests.support.pauses import let_wait_begin
from yardmaster_eventlog.errors import (
    BatchTooLarge,
    LogClosed,
    LogTruncated,
    OffsetGone,
    ReadPastEnd,
    UnknownTopic,
)
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord, batch_bytes


def records(count: int, mark: str = "r") -> list[Record]:
    return [
        Record(b"main", f"{mark}{number}".encode(), (("ce_type", mark.encode()),))
        for number in range(count)
    ]


async def read_all(log: EventLog, partition: Partition, offset: int = 0) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    while more := await log.read(partition, offset, max_records=700):
        found += more
        offset = more[-1].offset + 1
    return found


def values(found: Sequence[StoredRecord]) -> list[bytes | None]:
    return [stored.record.value for stored in found]


async def test_a_batch_is_read_back_as_it_was_written_and_in_order(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    before_ms = time.time_ns() // 1_000_000
    assert await log.append(partition, records(3)) == 0
    found = await log.read(partition, 0)
    assert [stored.record for stored in found] == records(3)
    assert [stored.offset for stored in found] == [0, 1, 2]
    assert {stored.partition for stored in found} == {partition}
    for stored in found:
        assert before_ms - 1000 <= stored.appended_ms <= before_ms + 60_000


async def test_offsets_are_consecutive_from_zero_on(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    assert await log.end(partition) == 0
    firsts = [await log.append(partition, records(count)) for count in (1, 5, 2)]
    assert firsts == [0, 1, 6]
    assert await log.end(partition) == 8
    assert [stored.offset for stored in await read_all(log, partition)] == list(range(8))


async def test_every_field_of_a_record_survives(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    batch = [
        Record(b"", b"", ()),
        Record(b"key", None, ()),
        Record(b"\x00\xff", b"\x00\x01\x02\xff", (("a", b""), ("", b"x"), ("a", b"again"))),
        Record(b"k", b"v", (("zero", b"\x00\x1f\x00"), ("\x1f", b"\x00"), ("grüße", b"\xff"))),
        Record(b"k", b"v" * 70_000, (("long", b"h" * 5_000),)),
    ]
    await log.append(partition, batch)
    assert [stored.record for stored in await read_all(log, partition)] == batch


async def test_a_read_may_start_in_the_middle_of_a_batch_and_returns_at_most_max_records(
    subject: Subject,
) -> None:
    log, partition = await subject.with_topic()
    await log.append(partition, records(10, "a"))
    await log.append(partition, records(10, "b"))
    found = await log.read(partition, 7, max_records=5)
    assert values(found) == [b"a7", b"a8", b"a9", b"b0", b"b1"]
    found = await log.read(partition, 12, max_records=3)
    assert values(found) == [b"b2", b"b3", b"b4"]
    found = await log.read(partition, 3, max_records=1)
    assert values(found) == [b"a3"]


async def test_a_read_at_the_end_finds_nothing_and_one_past_it_is_an_error(
    subject: Subject,
) -> None:
    log, partition = await subject.with_topic()
    assert list(await log.read(partition, 0)) == []
    await log.append(partition, records(2))
    assert list(await log.read(partition, 2)) == []
    with pytest.raises(ReadPastEnd, match=r"Offset 3 .* ends at 2"):
        await log.read(partition, 3)
    await log.append(partition, records(2))
    assert len(await log.read(partition, 3)) == 1, "an error leaves the log usable"


async def test_an_offset_before_the_first_is_gone(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    await log.append(partition, records(1))
    with pytest.raises(OffsetGone):
        await log.read(partition, -1)


async def test_a_batch_that_is_too_large_leaves_nothing(subject: Subject) -> None:
    log, partition = await subject.with_topic(max_batch_bytes=4096)
    batch = [Record(b"main", b"x" * 500) for _ in range(8)]
    assert batch_bytes(batch) > 4096
    with pytest.raises(BatchTooLarge, match="4096"):
        await log.append(partition, batch)
    assert await log.end(partition) == 0
    assert await log.append(partition, batch[:7]) == 0


async def test_a_batch_just_within_the_limit_is_taken(subject: Subject) -> None:
    log, partition = await subject.with_topic(max_batch_bytes=10_000)
    headers = (("a", b"b"), ("c", b"d"))
    batch = [Record(b"k", b"v", headers) for _ in range(100)]
    room = 10_000 - batch_bytes([*batch, Record(b"k", b"", headers)])
    batch.append(Record(b"k", b"v" * room, headers))
    assert batch_bytes(batch) == 10_000
    assert await log.append(partition, batch) == 0
    assert len(await read_all(log, partition)) == 101


async def test_an_empty_batch_is_refused(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    with pytest.raises(ValueError, match="without records"):
        await log.append(partition, [])


async def test_an_unknown_topic_or_partition_is_named(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    for unknown in (Partition("nowhere"), Partition(partition.topic, 1)):
        for call in (
            log.append(unknown, records(1)),
            log.read(unknown, 0),
            log.end(unknown),
            log.wait({unknown: 0}, 0.05),
        ):
            with pytest.raises(UnknownTopic, match=unknown.topic):
                await call


async def test_topics_that_exist_stay_as_they_are(subject: Subject) -> None:
    log = await subject.open()
    old, new = topic("old"), topic("new")
    await log.create_topics([old])
    await log.append(Partition(old.name), records(2))
    await log.create_topics([new, old], partitions=2)
    assert await log.end(Partition(old.name)) == 2
    assert await log.end(Partition(new.name, 1)) == 0
    with pytest.raises(UnknownTopic):
        await log.end(Partition(old.name, 1))
    await log.create_topics([])


async def test_partitions_have_offsets_of_their_own(subject: Subject) -> None:
    log = await subject.open()
    wide = topic("wide")
    await log.create_topics([wide], partitions=3)
    for number in range(3):
        for _ in range(number + 1):
            await log.append(Partition(wide.name, number), records(2, f"p{number}-"))
    for number in range(3):
        found = await read_all(log, Partition(wide.name, number))
        assert [stored.offset for stored in found] == list(range(2 * number + 2))
        assert {(stored.record.value or b"")[:3] for stored in found} == {b"p%d-" % number}


async def test_concurrent_appends_never_interleave_nor_lose(subject: Subject) -> None:
    one, partition = await subject.with_topic()
    two = await subject.open()
    placed: dict[str, int] = {}

    async def write(log: EventLog, name: str) -> None:
        for number in range(8):
            mark = f"{name}.{number}."
            placed[mark] = await log.append(partition, records(1 + number % 5, mark))

    async with asyncio.TaskGroup() as group:
        for writer in range(6):
            group.create_task(write((one, two)[writer % 2], f"w{writer}"))

    found = await read_all(one, partition)
    expected: list[bytes] = []
    for mark, offset in sorted(placed.items(), key=lambda item: item[1]):
        assert offset == len(expected), f"batch {mark} is not at the offset that its writer got"
        number = int(mark.split(".")[1])
        expected += [f"{mark}{each}".encode() for each in range(1 + number % 5)]
    assert values(found) == expected


async def test_none_of_many_concurrent_appends_starves(subject: Subject) -> None:
    log, partition = await subject.with_topic(max_batch_bytes=4096)
    offsets: list[int] = []

    async def write(name: str) -> None:
        for number in range(4):
            batch = [Record(b"main", f"{name}.{number}".encode() + b" " * 300)] * 3
            offsets.append(await log.append(partition, batch))

    async with asyncio.TaskGroup() as group:
        for writer in range(60):
            group.create_task(write(f"w{writer}"))
    assert sorted(offsets) == list(range(0, 60 * 4 * 3, 3))
    found = [value for value in values(await read_all(log, partition)) if value]
    assert found[::3] == found[1::3] == found[2::3], "batches are whole"
    assert len(set(found)) == 240


async def test_appends_of_one_writer_keep_their_order(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    for number in range(30):
        await log.append(partition, records(1, f"n{number}."))
    assert values(await read_all(log, partition)) == [f"n{n}.0".encode() for n in range(30)]


async def test_two_handles_see_each_others_topics_and_records(subject: Subject) -> None:
    one, partition = await subject.with_topic()
    two = await subject.open()
    await one.append(partition, records(1, "one"))
    assert values(await two.read(partition, 0)) == [b"one0"]
    assert await two.append(partition, records(1, "two")) == 1
    assert values(await one.read(partition, 0)) == [b"one0", b"two0"]


async def test_closing_a_handle_leaves_the_others_open(subject: Subject) -> None:
    one, partition = await subject.with_topic()
    two = await subject.open()
    await one.append(partition, records(1))
    await one.close()
    assert await two.append(partition, records(1)) == 1
    assert len(await two.read(partition, 0)) == 2


async def test_every_call_on_a_closed_handle_raises_log_closed(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    await log.append(partition, records(1))
    await log.close()
    await log.close()
    for call in (
        log.create_topics([topic("late")]),
        log.append(partition, records(1)),
        log.read(partition, 0),
        log.end(partition),
        log.wait({partition: 0}, 0.05),
    ):
        with pytest.raises(LogClosed):
            await call


async def test_the_newest_record_of_many_partitions(subject: Subject) -> None:
    log, first = await subject.with_topic()
    _, second = await subject.with_topic()
    _, empty = await subject.with_topic()
    none = Partition("nowhere")
    beyond = Partition(first.topic, 99)
    await log.append(first, records(3))
    await log.append(second, records(1, "other"))
    found = await log.newest([first, second, empty, none, beyond])
    assert {place: stored and stored.record.value for place, stored in found.items()} == {
        first: b"r2",
        second: b"other0",
        empty: None,
        none: None,
        beyond: None,
    }
    await log.append(first, records(1, "later"))
    assert await log.newest([first]) == {first: (await log.read(first, 3))[0]}
    assert await log.newest([]) == {}


async def test_waiting_ends_when_a_record_comes_from_the_same_handle(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(log.wait({partition: 0}, 30))
        await let_wait_begin()
        assert not waiting.done()
        await log.append(partition, records(1))
        assert await waiting
    assert values(await log.read(partition, 0)) == [b"r0"]


async def test_waiting_ends_when_a_record_comes_from_another_handle(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    other = await subject.open()
    await log.append(partition, records(2))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(log.wait({partition: 2}, 30))
        await let_wait_begin()
        assert not waiting.done()
        await other.append(partition, records(1, "other"))
        assert await waiting
    assert values(await log.read(partition, 2)) == [b"other0"]


async def test_waiting_ends_at_once_when_the_record_is_there(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    await log.append(partition, records(3))
    for offset in (2, 0):
        assert await log.wait({partition: offset}, 30)
    assert values(await log.read(partition, 0)) == [b"r0", b"r1", b"r2"]


async def test_a_record_that_ended_a_wait_is_buffered(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    other = await subject.open()
    await log.append(partition, records(1))
    assert await log.wait({partition: 0}, 30)
    assert values(await log.read(partition, 0, buffered_only=True)) == [b"r0"]
    for offset in range(1, 4):
        assert not await log.read(partition, offset, buffered_only=True)
        await other.append(partition, records(1, str(offset)))
        assert await log.wait({partition: offset}, 30)
        found = await log.read(partition, offset, buffered_only=True)
        assert values(found) == [f"{offset}0".encode()]


async def test_waiting_for_any_of_several_partitions(subject: Subject) -> None:
    log, first = await subject.with_topic()
    _, second = await subject.with_topic()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(log.wait({first: 0, second: 0}, 30))
        await let_wait_begin()
        await log.append(second, records(1))
        assert await waiting
    assert not await log.wait({first: 0, second: 1}, 0.05)


async def test_waiting_without_a_record_ends_at_the_timeout(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    await log.append(partition, records(2))
    started = time.monotonic()
    assert not await log.wait({partition: 2}, 0.3)
    assert 0.25 < time.monotonic() - started < 3
    assert not await log.wait({partition: 2}, 0)
    with pytest.raises(LogTruncated, match="ends at 2"):
        await log.wait({partition: 5}, 10)  # the caller has read to 5


async def test_waiting_ends_with_an_error_when_the_handle_is_closed(subject: Subject) -> None:
    log, partition = await subject.with_topic()

    async def wait() -> None:
        with pytest.raises(LogClosed):
            await log.wait({partition: 0}, 30)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait())
        await let_wait_begin(0.1)
        await log.close()
        await waiting


async def test_a_cancelled_wait_leaves_the_log_usable(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(log.wait({partition: 0}, 30))
        await let_wait_begin()
        waiting.cancel()
    await log.append(partition, records(1))
    assert await log.wait({partition: 0}, 30)
    assert values(await log.read(partition, 0)) == [b"r0"]


async def test_a_reader_behind_and_one_at_the_end_do_not_disturb_each_other(
    subject: Subject,
) -> None:
    log, partition = await subject.with_topic()
    await log.append(partition, records(100))
    seen: list[bytes | None] = []

    async def follow() -> None:
        at = 100
        while len(seen) < 5:
            if await log.wait({partition: at}, 30):
                found = await log.read(partition, at)
                seen.extend(values(found))
                at += len(found)

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        for number in range(5):
            assert len(await log.read(partition, number * 7, max_records=20)) == 20
            await log.append(partition, records(1, f"new{number}."))
    assert seen == [f"new{number}.0".encode() for number in range(5)]


async def test_in_a_compacted_topic_the_newest_record_of_every_key_is_kept(
    subject: Subject,
) -> None:
    log, partition = await subject.with_topic(compacted=True)
    await log.append(partition, [Record(b"a", b"1"), Record(b"b", b"1"), Record(b"a", b"2")])
    await log.append(partition, [Record(b"c", b"1"), Record(b"b", None)])
    await log.append(partition, [Record(b"c", b"2")])
    found = await read_all(log, partition)
    newest = {stored.record.key: stored for stored in found}
    assert {key: stored.record.value for key, stored in newest.items()} == {
        b"a": b"2",
        b"b": None,
        b"c": b"2",
    }
    assert {key: stored.offset for key, stored in newest.items()} == {b"a": 2, b"b": 4, b"c": 5}
    assert [stored.offset for stored in found] == sorted(stored.offset for stored in found)
    assert await log.end(partition) == 6
    assert values(await log.read(partition, 5)) == [b"2"]
    assert list(await log.read(partition, 6)) == []


async def test_a_large_log_is_read_piece_by_piece(subject: Subject) -> None:
    log, partition = await subject.with_topic()
    batch = [Record(b"main", b"x" * 30_000) for _ in range(30)]
    for _ in range(12):
        await log.append(partition, batch)
    found = await read_all(log, partition)
    assert [stored.offset for stored in found] == list(range(360))
    assert {stored.record.value for stored in found} == {b"x" * 30_000}
