"""Reading record batches leniently: the same as aiokafka reads, and more where it stops."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from yardmaster_eventlog.kafka.records import UnreadableBatch, records
from yardmaster_eventlog.port import Partition, Record

AT = Partition("t")
HEADERS = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=200)),
    max_size=4,
).map(tuple)
RECORDS = st.lists(
    st.builds(Record, st.binary(max_size=80), st.none() | st.binary(max_size=300), HEADERS),
    min_size=1,
    max_size=8,
)


def built(batch: list[Record], base: int = 0, compression: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10**6,
    )
    for at, record in enumerate(batch):
        builder.append(
            at, timestamp=1000 + at, key=record.key, value=record.value, headers=[*record.headers]
        )
    content = bytearray(builder.build())
    content[:8] = base.to_bytes(8, "big")
    return bytes(content)


@given(RECORDS, RECORDS)
def test_batches_are_read_as_their_writer_built_them(one: list[Record], two: list[Record]) -> None:
    data = built(one, 40) + built(two, 40 + len(one))
    found = records(AT, 0, data)
    assert [stored.record for stored in found] == [*one, *two]
    assert [stored.offset for stored in found] == [*range(40, 40 + len(one) + len(two))]
    assert found[0].appended_ms == 1000


@given(RECORDS, st.integers(0, 300))
def test_a_batch_cut_short_is_left_for_the_next_fetch(batch: list[Record], lost: int) -> None:
    data = built(batch) + built(batch, len(batch))
    found = records(AT, 0, data[: len(data) - lost])
    assert len(found) in (0, len(batch), 2 * len(batch))


def test_records_before_the_requested_offset_are_left_out() -> None:
    found = records(AT, 12, built([Record(b"k", b"%d" % n) for n in range(5)], 10))
    assert [stored.offset for stored in found] == [12, 13, 14]


def test_a_header_name_that_is_no_text_is_marked() -> None:
    data = built([Record(b"k", b"v", (("NAME", b"1"),))]).replace(b"NAME", b"\xff\xffOK")
    (stored,) = records(AT, 0, data)
    assert stored.record.headers == (("\ufffd\ufffdOK", b"1"),)


def test_the_time_of_the_log_counts_where_the_broker_set_it() -> None:
    data = bytearray(built([Record(b"k", b"1"), Record(b"k", b"2")]))
    data[22] |= 0x08
    data[35:43] = (777_000).to_bytes(8, "big")
    assert [stored.appended_ms for stored in records(AT, 0, bytes(data))] == [777_000] * 2


def test_control_batches_hold_no_records() -> None:
    data = bytearray(built([Record(b"k", b"1")]))
    data[22] |= 0x20
    assert records(AT, 0, bytes(data)) == []


def test_a_compressed_batch_is_not_unpacked() -> None:

    with pytest.raises(UnreadableBatch, match="attributes 1"):
        records(AT, 0, built([Record(b"k", b"1" * 500)], compression=1))


@given(RECORDS, st.data())
def test_damage_is_an_error_or_other_records_but_never_a_crash(
    batch: list[Record], data: st.DataObject
) -> None:
    content = bytearray(built(batch))
    for _ in range(3):
        content[data.draw(st.integers(61, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        records(AT, 0, bytes(content))
    except UnreadableBatch:
        return
