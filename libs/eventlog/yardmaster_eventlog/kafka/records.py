"""Record batches as brokers keep them, read leniently: for what aiokafka will not decode.

Header names are text, and aiokafka reads no further than one that is not. Brokers take such a
record, so a fallen agent could write one and halt every reader of its topic. Here it is read with
the damage marked (U+FFFD), and refused by whoever checks what it says, as any malformed record is.

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
    """A batch that is not as a broker would have taken it, or compressed."""


def records(partition: Partition, offset: int, data: bytes) -> Sequence[StoredRecord]:
    """The records from `offset` on in what a broker gave for a fetch, but for a batch cut short.

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
        raise UnreadableBatch(f"{partition}: a record ends behind its batch") from error
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
    count, at = _number(data, at)
    headers = []
    for _ in range(count):
        name, at = _bytes(data, at)
        value, at = _bytes(data, at)
        headers.append(((name or b"").decode(errors="replace"), value or b""))
    return tuple(headers), at


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _number(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise IndexError
    return data[at : at + size], at + size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer in zigzag order, and where the next thing starts."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
