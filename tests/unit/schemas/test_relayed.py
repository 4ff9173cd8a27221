"""The relay's header of a copy, written and read."""

import pytest

from yardmaster_schemas.relayed import NOWHERE, OFFSET_HEADER, RelayedFrom, relayed_from

LIFE = "0123456789ab"


@pytest.mark.parametrize(
    "origin", [RelayedFrom(0), RelayedFrom(7, LIFE, (0,)), RelayedFrom(7, LIFE, (1, 4095))]
)
def test_a_header_is_read_as_it_was_written(origin: RelayedFrom) -> None:
    name, value = origin.header()
    assert (name, relayed_from(value)) == (OFFSET_HEADER, origin)


def test_the_header_of_a_copied_assignment_is_its_offset_alone_as_in_earlier_versions() -> None:
    assert RelayedFrom(12).header() == ("yard_offset", b"12")
    assert RelayedFrom(12, LIFE).header() == ("yard_offset", b"12")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"-1",
        b"x",
        b"7 ",
        b"7 0123456789ab",
        b"7 0123456789ab ",
        b"7 0123456789ab 1,",
        b"7 short 1",
        b"7  0123456789ab 1",
        b"9" * 17,
    ],
)
def test_a_value_of_another_form_is_ignored(value: bytes) -> None:
    assert relayed_from(value) == NOWHERE
