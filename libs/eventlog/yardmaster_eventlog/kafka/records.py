"""A lenient decoder of record batches in the brokers' format, for batches that aiokafka refuses.

Header names should be UTF-8, and aiokafka fails at a name that is not. Brokers accept a record with
such a name, so a compromised agent could write one and block every reader of its topic. This
decoder reads the record and marks the damage (U+FFFD); the reader then refuses it like any
malformed record.

Source: Apache Kafka's documentation, "Message format", record batches of magic 2.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from yardmaster_eventlog.port import Headers, Partition, StoredRecord, stored_record

#: Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last
#: timestamp, producer's id, epoch and sequence, count.
_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_END: Final = 12
_MAGIC: Final = 2
_COMPRESSION: Final = 0x07
_APPEND_TIME: Final = 0x08
_CONTROL: Final = 0x20


class UnreadableBatch(ValueError):
    """A batch that no broker would have accepted, or a compressed one."""


def records(partition: Partition, offset: int, data: bytes) -> Sequence[StoredRecord]:
    """Return the records of a fetch response from `offset` on; skip a truncated last batch.

    Raises: UnreadableBatch.
    """
    found: list[StoredRecord] = []
    at = 0
    try:
        while at + _HEAD.size <= len(data):
            end = at + _LENGTH_END + int.from_bytes(data[at + 8 : at + 12], "big")
            if end > len(data):
                break
            found += [each for each in _batch(partition, data[at:end]) if each.offset >= offset]
            at = end
    except IndexError as error:
        raise UnreadableBatch(f"{partition}: a record ends beyond its batch") from error
    return found


def _batch(partition: Partition, data: bytes) -> Iterator[StoredRecord]:
    base, _, _, magic, _, attributes, _, first_ms, last_ms, _, _, _, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or attributes & _COMPRESSION:
        raise UnreadableBatch(f"{partition} offset {base}: magic {magic}, attributes {attributes}")
    if attributes & _CONTROL:
        return
    at = _HEAD.size
    for _ in range(count):
        _, at = _number(data, at)  # its length
        at += 1  # its attributes, of which there are none
        elapsed_ms, at = _number(data, at)
        delta, at = _number(data, at)
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        headers, at = _headers(data, at)
        appended_ms = last_ms if attributes & _APPEND_TIME else first_ms + elapsed_ms
        yield stored_record(partition, base + delta, appended_ms, key or b"", value, headers)


def _headers(data: bytes, at: int) -> tuple[Headers, int]:
    """Return the headers that begin at `at`, and the position after them."""
    count, at = _number(data, at)
    headers = []
    for _ in range(count):
        name, at = _bytes(data, at)
        value, at = _bytes(data, at)
        headers.append(((name or b"").decode(errors="replace"), value or b""))
    return tuple(headers), at


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the byte string at `at` (None: null), and the position after it."""
    size, at = _number(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise IndexError
    return data[at : at + size], at + size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length zigzag integer, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
