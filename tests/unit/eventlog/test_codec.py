"""Hostile bytes: whatever a record holds, decoding raises only a short SchemaError, quickly."""

import dataclasses
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.events import any_envelope, sample
from yardmaster_eventlog.codec import MAX_VALUE_BYTES, adapter, decode, encode
from yardmaster_eventlog.port import Headers, Record, frame
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.errors import MalformedRecord, SchemaError, UnknownEventType, UnknownVersion
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.instants import rfc3339

WHOLE = {key: encode(sample(cls), "main") for key, cls in sorted(EVENTS.items())}
KEYS = st.sampled_from(sorted(WHOLE))
HEADERS = st.lists(st.tuples(st.text(max_size=12), st.binary(max_size=12)), max_size=9).map(tuple)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from([2**53, 2**63, -(2**64), 10**400, "\ud800", "é" * 300, "0" * 5000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)


def tried(record: Record) -> None:
    """Decode; a decoded event must decode to the same event when it is encoded again."""
    try:
        envelope = decode(record)
    except SchemaError as error:
        too_long = len(str(error)) > 700
    else:
        again = encode(envelope, record.key.decode(errors="replace"))
        assert decode(again) == envelope
        return
    assert not too_long, "what is said of a hostile record stays short"


def body(record: Record) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(record.value or b"")
    return value


def with_body(record: Record, value: object) -> Record:
    return dataclasses.replace(record, value=json.dumps(value).encode())


@given(KEYS, HEADERS, st.binary(max_size=300))
def test_random_bytes(key: tuple[str, int], headers: Headers, value: bytes) -> None:
    tried(Record(b"main", value, headers))
    tried(dataclasses.replace(WHOLE[key], value=value))
    tried(dataclasses.replace(WHOLE[key], headers=headers))
    tried(dataclasses.replace(WHOLE[key], headers=(*WHOLE[key].headers, *headers)))


@given(KEYS, st.data())
def test_bytes_changed_in_a_true_record(key: tuple[str, int], data: st.DataObject) -> None:
    record = WHOLE[key]
    value = bytearray(record.value or b"")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    tried(dataclasses.replace(record, value=bytes(value)))


@given(KEYS, st.data(), JSON)
def test_any_json_in_any_place_of_a_true_record(
    key: tuple[str, int], data: st.DataObject, new: object
) -> None:
    whole = body(WHOLE[key])
    at: Any = whole
    while True:
        field = data.draw(st.sampled_from(sorted(at, key=str) or ["new"]))
        inner = at.get(field)
        if not isinstance(inner, dict) or not inner or data.draw(st.booleans()):
            break
        at = inner
    if data.draw(st.booleans()):
        at[field] = new
    else:
        at.pop(field, None)
        at[data.draw(st.text(max_size=5))] = new
    tried(with_body(WHOLE[key], whole))


@given(JSON)
def test_any_json_at_all(value: object) -> None:
    for key in WHOLE:
        tried(with_body(WHOLE[key], value))


RECORD = WHOLE["TaskStarted", 1]


@pytest.mark.parametrize("depth", [20, 300, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_deep_nesting(depth: int, brackets: str) -> None:
    opening = "[" if brackets == "[]" else '{"a":'
    nested = opening * depth + "1" + brackets[1] * depth
    for value in (nested, '{"data":' + nested + "}", opening * depth):
        with pytest.raises(SchemaError):
            decode(dataclasses.replace(RECORD, value=value.encode()))


@pytest.mark.parametrize(
    "number", ["9" * 4000, "-" + "9" * 4000, "1e400", "-0", "1.0", "9007199254740992", "1e3"]
)
def test_numbers_beyond_what_every_reader_holds_exactly(number: str) -> None:
    value = json.dumps(body(RECORD) | {"seq": "HERE"}).replace('"HERE"', number).encode()
    record = dataclasses.replace(RECORD, value=value)
    if number == "-0":
        tried(record)
    else:
        with pytest.raises(MalformedRecord):
            decode(record)


@pytest.mark.parametrize("time_ms", [2**53 - 1, 253_402_300_800_000])
def test_a_time_after_the_year_9999(time_ms: int) -> None:
    record = with_body(RECORD, body(RECORD) | {"time_ms": time_ms})
    with pytest.raises(MalformedRecord, match="time_ms"):
        decode(record)


def test_the_last_moment_of_the_year_9999_is_a_time() -> None:
    assert rfc3339(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"


def as_its_schema_writes_it(envelope: Envelope[Any]) -> bytes:
    """Encode with pydantic."""
    written: bytes = adapter(envelope.type, envelope.version).dump_json(envelope)
    return written


@given(any_envelope())
def test_a_value_is_encoded_as_by_its_schema(envelope: Envelope[Any]) -> None:
    assert encode(envelope, "main").value == as_its_schema_writes_it(envelope)


@pytest.mark.parametrize("key", sorted(EVENTS))
@pytest.mark.parametrize("full", [True, False])
def test_every_event_is_written_as_its_schema_writes_it(key: tuple[str, int], full: bool) -> None:
    envelope = sample(EVENTS[key], full=full)
    assert encode(envelope, "main").value == as_its_schema_writes_it(envelope)


TEXTS = st.text() | st.sampled_from(["\x00\x07\x1f\x7f\x80", '\u2028\\"/<', "Grün €", "\U0001f600"])


@given(TEXTS, TEXTS)
def test_free_text_is_written_as_its_schema_writes_it(note: str, subject: str) -> None:
    envelope = sample(EVENTS["RequestNoted", 1])
    noted = dataclasses.replace(envelope.data, text=note, subject=subject)
    changed = dataclasses.replace(envelope, data=noted)
    assert encode(changed, "main").value == adapter("RequestNoted", 1).dump_json(changed)


@pytest.mark.parametrize(
    "number", [10**40, -(10**40), 2**64, 2**63, -(2**63), 1e16, 1.5e300, 5e-324, -0.0, 0.1]
)
def test_a_parameter_may_be_any_number(number: float) -> None:
    envelope = sample(EVENTS["JobDetailed", 1])
    params = ({"n": number, "deeper": [{"n": number}]},)
    changed = dataclasses.replace(envelope, data=dataclasses.replace(envelope.data, params=params))
    record = encode(changed, "4kq7w2mz9c1f")
    assert record.value == adapter("JobDetailed", 1).dump_json(changed)
    assert decode(record) == changed


@given(any_envelope())
def test_a_record_knows_its_headers_in_one_piece(envelope: Envelope[Any]) -> None:
    record = encode(envelope, "main")
    traced = envelope.traceparent is not None
    assert record.framed == (None if traced else frame(record.headers))


def test_a_record_with_other_headers_knows_nothing_of_the_old_ones() -> None:
    record = encode(sample(EVENTS["TaskStarted", 1], full=False), "main")
    assert record.framed
    assert dataclasses.replace(record, headers=record.headers[1:]).framed is None


@given(st.integers(0, 253_402_300_799_999))
@example(0)
def test_times_are_written_as_rfc_3339_says(time_ms: int) -> None:
    text = rfc3339(time_ms)
    assert len(text) == 24
    read = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    assert (read.days * 86_400 + read.seconds) * 1000 + read.microseconds // 1000 == time_ms


def test_duplicated_keys_make_no_record_that_its_headers_do_not_know() -> None:
    for field, other in (("source", '"node/other"'), ("seq", "777"), ("type", '"NodeJoined"')):
        twice = (RECORD.value or b"")[:-1] + f',"{field}":{other}}}'.encode()
        with pytest.raises(MalformedRecord):
            decode(dataclasses.replace(RECORD, value=twice))
    doubled = dataclasses.replace(RECORD, headers=(*RECORD.headers, RECORD.headers[0]))
    with pytest.raises(MalformedRecord, match="disagree"):
        decode(doubled)


@pytest.mark.parametrize(
    "value", [None, b"", b"null", b"\xff\xfe{}", b'{"a":"\xc3\x28"}', "{}".encode("utf-16")]
)
def test_values_that_are_not_events_are_refused(value: bytes | None) -> None:
    with pytest.raises(MalformedRecord):
        decode(dataclasses.replace(RECORD, value=value))


def test_a_value_of_more_than_a_batch_may_be_is_not_parsed() -> None:
    value = b" " * MAX_VALUE_BYTES + (RECORD.value or b"")
    with pytest.raises(MalformedRecord, match="bytes"):
        decode(dataclasses.replace(RECORD, value=value))


def headed(**changes: bytes) -> Record:
    headers = tuple((name, changes.get(name, value)) for name, value in RECORD.headers)
    return dataclasses.replace(RECORD, headers=headers)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"ce_type": b"NobodyKnows"}, UnknownEventType),
        ({"ce_type": b""}, UnknownEventType),
        ({"ce_type": b"x" * 65}, MalformedRecord),
        ({"ce_type": b"\xff"}, MalformedRecord),
        ({"ce_type": b"NodeJoined"}, MalformedRecord),
        ({"yard_version": b"999"}, UnknownVersion),
        ({"yard_version": b"0"}, UnknownVersion),
        ({"yard_version": b"-1"}, UnknownVersion),
        ({"yard_version": b"1" * 10_000}, UnknownVersion),
        ({"yard_version": b"01"}, MalformedRecord),
        ({"yard_version": b"\xd9\xa1"}, MalformedRecord),
        ({"ce_time": b"2026-01-31T12:00:00Z"}, MalformedRecord),
        ({"ce_specversion": b"0.3"}, MalformedRecord),
        ({"ce_id": b"node/other/1/1"}, MalformedRecord),
    ],
)
def test_headers_that_are_wrong(changes: dict[str, bytes], error: type[SchemaError]) -> None:
    with pytest.raises(error):
        decode(headed(**changes))


def test_headers_in_another_order_or_fewer_are_refused() -> None:
    for headers in (RECORD.headers[::-1], RECORD.headers[:-1], RECORD.headers[1:], ()):
        with pytest.raises(MalformedRecord):
            decode(dataclasses.replace(RECORD, headers=headers))


def test_a_record_full_of_mistakes_costs_no_more_than_its_size() -> None:
    many = body(RECORD) | {f"k{number}": number for number in range(10_000)}
    record = with_body(RECORD, many)
    assert len(record.value or b"") < 160 * 1024
    started = time.perf_counter()
    with pytest.raises(MalformedRecord) as raised:
        decode(record)
    assert time.perf_counter() - started < 1.0
    assert len(str(raised.value)) < 700
