"""The headers of a record as one column."""

from typing import Final

from yardmaster_eventlog.port import Headers


def pack(headers: Headers) -> bytes:
    """Return headers as one value: names joined by 0x1F, then each value after a zero byte.

    This form is the fastest to read in Python: bytes are split at one byte, and the names, which
    are the same in all records of a topic, are split only once. If a name or value contains one of
    the two bytes, each part is stored with its length instead.
    """
    if not headers:
        return b""
    names = b"\x1f".join([name.encode() for name, _ in headers])
    packed = b"\x00".join([names, *[value for _, value in headers]])
    # A leading zero byte marks the form with lengths, so the first name may not be empty here.
    if packed[0] and packed.count(0) == len(headers) and names.count(31) == len(headers) - 1:
        return packed
    parts = [part for name, value in headers for part in (name.encode(), value)]
    return b"\x00" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def unpack(packed: bytes) -> Headers:
    """Return the headers that were given to `pack`.

    Raises: ValueError when the value is damaged.
    """
    if not packed:
        return ()
    if not packed[0]:
        return _with_lengths(packed)
    values = packed.split(b"\x00")
    names = _NAMES[values.pop(0)]
    if len(names) != len(values):  # a check by zip would cost a third more
        raise ValueError("a header without a value")
    return tuple(zip(names, values, strict=False))


class _Names(dict[bytes, tuple[str, ...]]):
    """Header names, split once for all records that share them.

    The number of entries is bounded, because a hostile writer could invent names.
    """

    LIMIT: Final = 1024

    def __missing__(self, packed: bytes) -> tuple[str, ...]:
        names = tuple(packed.decode().split("\x1f"))
        if len(self) < self.LIMIT:
            self[packed] = names
        return names


_NAMES: Final = _Names()


def _with_lengths(packed: bytes) -> Headers:
    parts = []
    at = 1
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        part = packed[at + 4 : at + 4 + size]
        if len(part) < size:
            raise ValueError("headers are cut short")
        parts.append(part)
        at += 4 + size
    names = [name.decode() for name in parts[::2]]
    return tuple(zip(names, parts[1::2], strict=True))
