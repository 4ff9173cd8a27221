"""Encodes events as records and decodes them.

The value is the whole envelope as JSON; the headers repeat its CloudEvents attributes. A record
whose headers and value disagree is refused. Decoding is one pass of the validator compiled for the
event's type; only bodies of old versions are parsed twice, to be upcast before validation.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from struct import Struct
from typing import Any, Final

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from yardmaster_eventlog.port import Header, Headers, Record, frame, sized, write_framed
from yardmaster_schemas.envelope import SPEC_VERSION, Envelope, Event
from yardmaster_schemas.errors import MalformedRecord, UnknownEventType, UnknownVersion
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.events.details import JobDetailedV1
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.upcasters import UPCASTERS, upcast

#: The largest batch; a larger value is refused before it is parsed.
MAX_VALUE_BYTES: Final = 1024 * 1024
MAX_TYPE_CHARACTERS: Final = 64
#: The names of the headers whose values differ from record to record.
_ID: Final = sized(b"ce_id")
_SUBJECT: Final = sized(b"ce_subject")
_TIME: Final = sized(b"ce_time")
#: Writes the same bytes as pydantic, in half the time.
_ENCODER: Final = msgspec.json.Encoder()
_length = Struct(">Q").pack


@cache
def adapter(type_: str, version: int) -> TypeAdapter[Envelope[Any]]:
    """Return the compiled validator of an event's envelope.

    Raises:
        UnknownEventType, UnknownVersion.
    """
    cls = _known(type_, version)
    return TypeAdapter(Envelope[cls])  # type: ignore[valid-type]


def _known(type_: str, version: int) -> type[Event]:
    cls = EVENTS.get((type_, version))
    if cls is not None:
        return cls
    if any(known == type_ for known, _ in EVENTS):
        raise UnknownVersion(type=type_, version=version)
    raise UnknownEventType(type=type_)


@cache
def _dump(type_: str, version: int) -> Callable[[Envelope[Any]], bytes]:
    _known(type_, version)
    return _dump_details if type_ == JobDetailedV1.TYPE else _ENCODER.encode


def _dump_details(envelope: Envelope[JobDetailedV1]) -> bytes:
    if envelope.data.params:
        # Users' JSON may hold any number; only pydantic writes large numbers and fractions as the
        # schema does.
        return adapter(envelope.type, envelope.version).dump_json(envelope)
    return _ENCODER.encode(envelope)


@lru_cache(maxsize=4096)
def _author(type_: str, source: str) -> tuple[Header, Header, bytes]:
    """Return the headers between id and subject, and their framed bytes.

    The framed bytes end with the name of the header for the subject.
    """
    of_type, of_source = ("ce_type", type_.encode()), ("ce_source", source.encode())
    return of_type, of_source, frame((of_type, of_source)) + _SUBJECT


@lru_cache(maxsize=256)
def _moment(time_ms: int, version: int) -> tuple[Header, Header, Header, bytes]:
    """Return the headers after the subject, and their framed bytes."""
    time = rfc3339(time_ms).encode()
    spec, of_version, framed = _conforms(version)
    return ("ce_time", time), spec, of_version, _TIME + sized(time) + framed


@cache
def _conforms(version: int) -> tuple[Header, Header, bytes]:
    spec = ("ce_specversion", SPEC_VERSION.encode())
    of_version = ("yard_version", str(version).encode())
    return spec, of_version, frame((spec, of_version))


def _headers(envelope: Envelope[Any]) -> Headers:
    type_, source, _ = _author(envelope.type, envelope.source)
    time, spec, version, _ = _moment(envelope.time_ms, envelope.version)
    # The same as `Envelope.id`, without the call.
    id_ = ("ce_id", f"{envelope.source}/{envelope.epoch}/{envelope.seq}".encode())
    fixed = (id_, type_, source, ("ce_subject", envelope.subject.encode()), time, spec, version)
    if envelope.traceparent is None:
        return fixed
    return (*fixed, ("traceparent", envelope.traceparent.encode()))


def encode(envelope: Envelope[Any], key: str) -> Record:
    """Return the record of an event; the topic's entry in the catalog defines `key` (cell, job)."""
    value = _dump(envelope.type, envelope.version)(envelope)
    headers = _headers(envelope)
    record = Record(key.encode(), value, headers)
    if envelope.traceparent is None:
        # The framed headers are joined from parts. Most parts are the same in many records, and are
        # therefore cached.
        id_, subject = headers[0][1], headers[3][1]
        _, _, author = _author(envelope.type, envelope.source)
        _, _, _, moment = _moment(envelope.time_ms, envelope.version)
        parts = (_ID, _length(len(id_)), id_, author, _length(len(subject)), subject, moment)
        write_framed(record, b"".join(parts))
    return record


def decode(record: Record) -> Envelope[Event]:
    """Return the event of a record.

    Raises:
        UnknownEventType, UnknownVersion: a newer program wrote the record.
        MalformedRecord: the record is not an event, is damaged, or has headers that contradict its
            value.
    """
    headers = dict(record.headers)
    value = record.value
    if value is None or len(value) > MAX_VALUE_BYTES:
        raise MalformedRecord(found="no value" if value is None else f"{len(value)} bytes")
    try:
        type_ = headers["ce_type"].decode()
        version_text = headers["yard_version"].decode()
        version = int(version_text) if version_text.isdecimal() and len(version_text) < 4 else -1
    except (KeyError, UnicodeDecodeError):
        raise MalformedRecord(found="headers ce_type and yard_version are missing") from None
    if len(type_) > MAX_TYPE_CHARACTERS:
        raise MalformedRecord(found=f"an event type of {len(type_)} characters")
    old = (type_, version) in UPCASTERS
    try:
        if not old:
            envelope = adapter(type_, version).validate_json(value)
        else:
            envelope = _decode_old(type_, version, value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        # The location contains keys of the record. A hostile record may have long ones, so the
        # message is cut.
        raise MalformedRecord(found=f"{type_}.{where[:120]}: {first['msg'][:200]}") from None
    except (RecursionError, ValueError) as error:
        raise MalformedRecord(found=f"{type_}: {type(error).__name__}") from None
    if envelope.type != type_ or (not old and _headers(envelope) != record.headers):
        raise MalformedRecord(found=f"{type_}: headers and value disagree")
    return envelope


def _decode_old(type_: str, version: int, value: bytes) -> Envelope[Any]:
    body = from_json(value)
    if not isinstance(body, dict) or not isinstance(body.get("data"), dict):
        raise ValueError("no object")
    reached, data = upcast(type_, version, body["data"])
    return adapter(type_, reached).validate_json(
        to_json({**body, "version": reached, "data": data})
    )
