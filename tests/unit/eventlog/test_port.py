"""Records as adapters make and count them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from yardmaster_eventlog.port import (
    BATCH_OVERHEAD,
    HEADER_OVERHEAD,
    RECORD_OVERHEAD,
    Partition,
    Record,
    StoredRecord,
    batch_bytes,
    frame,
    stored_record,
    write_framed,
)

HEADERS = st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=8))).map(tuple)
RECORDS = st.builds(Record, st.binary(max_size=8), st.none() | st.binary(max_size=50), HEADERS)


def test_a_partition_is_named_with_its_topic_and_number() -> None:
    assert str(Partition("decisions", 3)) == "decisions/3"


@given(RECORDS, st.integers(0, 2**53))
def test_the_quick_way_to_a_stored_record_gives_what_the_constructors_give(
    record: Record, offset: int
) -> None:
    at = Partition("t")
    quick = stored_record(at, offset, 5, record.key, record.value, record.headers)
    plain = StoredRecord(at, offset, 5, record)
    assert quick == plain
    assert hash(quick) == hash(plain)
    assert repr(quick) == repr(plain)


def test_a_size_counts_bytes_not_characters_and_what_frames_them() -> None:
    record = Record(b"key", b"value", (("grün", b"\x00\x01"), ("a", b"")))
    assert record.size == RECORD_OVERHEAD + 3 + 5 + 2 * HEADER_OVERHEAD + 5 + 2 + 1
    assert Record(b"", None).size == RECORD_OVERHEAD
    assert batch_bytes([record, record]) == BATCH_OVERHEAD + 2 * record.size


@given(RECORDS)
def test_a_record_that_knows_its_headers_in_one_piece_is_the_same_record(record: Record) -> None:
    knows = replace(record)
    write_framed(knows, frame(record.headers))
    assert (knows, hash(knows), repr(knows)) == (record, hash(record), repr(record))
    assert knows.size == record.size
