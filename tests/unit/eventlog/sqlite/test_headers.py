"""Headers in one value: what is packed is unpacked, and damage is a ValueError."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from yardmaster_eventlog.port import Headers
from yardmaster_eventlog.sqlite.headers import pack, unpack

NAMES = st.text(alphabet=st.characters(codec="utf-8"), max_size=6)
VALUES = st.binary(max_size=6) | st.sampled_from([b"\x00", b"\x1f", b"\x00\x1f"])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6).map(tuple))
@example(())
@example((("", b""),))
@example((("", b""), ("", b"")))
@example((("\x1f", b""),))
@example((("a", b"\x00"), ("b", b"")))
@example((("a\x1fb", b"1"), ("c", b"2")))
def test_packed_headers_are_unpacked_unchanged(headers: Headers) -> None:
    assert unpack(pack(headers)) == headers


@given(st.binary(max_size=40))
@example(b"\x00\x00\x00\x00\x01")
@example(b"\x00\x00\x00\x00\x01a")
@example(b"a\x1fb\x00c")
@example(b"\xff\x00c")
def test_any_bytes_are_headers_or_damage(packed: bytes) -> None:
    try:
        headers = unpack(packed)
    except ValueError:
        return
    assert unpack(pack(headers)) == headers


def test_headers_that_lost_a_value_are_damage() -> None:
    with pytest.raises(ValueError, match="without a value"):
        unpack(b"a\x1fb\x00c")
