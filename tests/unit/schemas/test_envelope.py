"""The envelope identifies a record, and nothing goes in or out that the schemas do not allow."""

import dataclasses
import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.events import any_envelope, key_of, sample, schema
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.port import Record
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import MalformedRecord, SchemaError
from yardmaster_schemas.events import EVENTS

PAUSED = EVENTS["TaskPaused", 1]


def altered(**fields: object) -> Record:
    """A golden-like record with fields of its envelope replaced, headers as they were."""
    record = encode(sample(PAUSED), "main")
    assert record.value is not None
    value = json.loads(record.value) | fields
    return dataclasses.replace(record, value=json.dumps(value).encode())


def test_the_id_is_source_epoch_and_seq() -> None:
    envelope = dataclasses.replace(sample(PAUSED), source="gateway/gw-2", epoch=3, seq=41)
    assert envelope.id == "gateway/gw-2/3/41"


def test_two_starts_of_a_source_never_share_an_id() -> None:
    one = sample(PAUSED)
    assert one.id != dataclasses.replace(one, epoch=one.epoch + 1).id


def test_an_id_may_be_a_cause() -> None:
    one = sample(PAUSED)
    after = dataclasses.replace(one, cause=one.id)
    assert decode(encode(after, "main")).cause == one.id


@pytest.mark.parametrize(
    "fields",
    [
        {"source": "gateway"},
        {"source": "Gateway/x"},
        {"epoch": -1},
        {"seq": 2**53},
        {"seq": 1.0},
        {"seq": "1"},
        {"subject": ""},
        {"subject": "two words"},
        {"time_ms": None},
        {"actor": {"kind": "robot", "id": "x"}},
        {"actor": {"kind": "user", "id": "Ada Lovelace"}},
        {"cause": "gateway/gw-1"},
        {"traceparent": "00-zz"},
        {"more": 1},
        {"data": None},
        {"data": {"job_id": "4kq7w2mz9c1f", "why": "because"}},
        {"version": 2},
        {"type": "TaskResumed"},
    ],
)
def test_fields_that_the_envelope_forbids_are_malformed(fields: dict[str, object]) -> None:
    with pytest.raises(MalformedRecord):
        decode(altered(**fields))


@pytest.mark.parametrize("fields", [{"source": "gateway/gw-9"}, {"seq": 99}, {"time_ms": 1}])
def test_headers_that_disagree_with_the_value_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(MalformedRecord, match="disagree"):
        decode(altered(**fields))


def test_an_error_names_the_field_and_repeats_no_value() -> None:
    with pytest.raises(MalformedRecord) as caught:
        decode(altered(subject="a secret with spaces"))
    assert "subject" in str(caught.value)
    assert "secret" not in str(caught.value)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(envelope=any_envelope())
def test_an_encoded_event_decodes_to_the_same_event(envelope: Envelope[Event]) -> None:
    record = encode(envelope, key_of(type(envelope.data)))
    back = decode(record)
    assert back == envelope
    assert encode(back, key_of(type(envelope.data))) == record
    assert record.value is not None
    Draft202012Validator(schema(type(envelope.data))).validate(json.loads(record.value))


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(EVENTS)),
    edits=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_bytes_are_decoded_or_refused_and_nothing_else(
    name: tuple[str, int], edits: list[tuple[int, int]]
) -> None:
    record = encode(sample(EVENTS[name]), "main")
    assert record.value is not None
    damaged = bytearray(record.value)
    for at, byte in edits:
        damaged[at % len(damaged)] = byte
    with suppress(SchemaError):
        decode(dataclasses.replace(record, value=bytes(damaged)))
