"""Amounts, positions and times as text: read, written, refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yardmaster_schemas.instants import parse_rfc3339, rfc3339
from yardmaster_schemas.position import Position
from yardmaster_schemas.quantities import duration_s, memory_mib, milli


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("256Gi", 262_144),
        ("512Mi", 512),
        ("1.5Ti", 1_572_864),
        ("1Ki", 1),
        ("1025Ki", 2),
        ("64G", 61_036),
        ("1M", 1),
        ("0Mi", 0),
    ],
)
def test_memory_is_in_mib_rounded_up(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("20m", 1200),
        ("12h", 43_200),
        ("1h30m", 5400),
        ("7d", 604_800),
        ("1w", 604_800),
        ("500ms", 1),
        ("0s", 0),
        ("1.5h", 5400),
    ],
)
def test_durations_are_in_seconds_rounded_up(text: str, seconds: int) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "h", "5 m", "-5m", "1e3s", "5m\n", "٣m", "999999999w"])
def test_text_that_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration|ten years"):
        duration_s(text)


@pytest.mark.parametrize("text", ["", "Gi", "5 Gi", "-5Gi", "5GB", "5gi", "1e3", "5Gi\n"])
def test_text_that_is_not_an_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount of memory"):
        memory_mib(text)


def test_too_much_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="out of range"):
        milli(float("inf"), "gpus")
    with pytest.raises(ValueError, match="-1 is below 0"):
        milli(-1, "gpus")


@given(st.text())
def test_no_text_breaks_the_readers(text: str) -> None:
    for read in (memory_mib, duration_s, Position.parse, parse_rfc3339):
        with contextlib.suppress(ValueError):
            read(text)


offsets = st.none() | st.integers(min_value=0, max_value=10**15 - 1)


@given(offsets, offsets, offsets, offsets)
def test_a_position_reads_as_it_was_written(
    r: int | None, a: int | None, n: int | None, d: int | None
) -> None:
    position = Position(cell="main", requests=r, admissions=a, node_events=n, decisions=d)
    assert Position.parse(str(position)) == position
    assert position.covers(position)


def test_a_position_is_printed_as_in_the_interface() -> None:
    text = "main@r4711.a4709.n1892.d3021"
    position = Position.parse(text)
    assert str(position) == text
    assert position.of("decisions") == 3021
    assert str(position.at("requests", 5)) == "main@r5.a4709.n1892.d3021"
    assert position.parts()[0] == ("requests", 4711)


@pytest.mark.parametrize(
    "text",
    ["", "main", "@r1", "main@r-1", "main@x1", "main@r1 ", "main@r1\n", "MAIN@r1", "main@d1.r1"],
)
def test_text_that_is_not_a_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a position"):
        Position.parse(text)


def test_a_position_covers_earlier_positions_of_its_own_cell() -> None:
    later = Position.parse("main@r5.a3")
    assert later.covers(Position.parse("main@r5"))
    assert later.covers(Position.parse("main@"))
    assert not later.covers(Position.parse("main@r6"))
    assert not later.covers(Position.parse("main@d1"))
    assert later.covers(Position.parse("main@d0"))
    assert not later.covers(Position.parse("other@r1"))


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
def test_a_time_is_read_as_it_was_written(time_ms: int) -> None:
    assert parse_rfc3339(rfc3339(time_ms)) == time_ms


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [("1970-01-01T00:00:00Z", 0), ("2026-01-31T13:00:00.5+01:00", 1_769_860_800_500)],
)
def test_times_in_other_zones_are_read(text: str, time_ms: int) -> None:
    assert parse_rfc3339(text) == time_ms


@pytest.mark.parametrize(
    "text",
    [
        "now",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "1969-12-31T23:59:59Z",
        "20260131",
        "2026-02-30T00:00:00Z",
    ],
)
def test_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an RFC 3339|offset|1970"):
        parse_rfc3339(text)


@pytest.mark.parametrize("text", ["2026-01-31T12Z", "20260131T120000Z"])
def test_a_shorter_form_of_a_time_is_not_said_to_lack_its_offset(text: str) -> None:
    with pytest.raises(ValueError, match="not an RFC 3339 time"):
        parse_rfc3339(text)
