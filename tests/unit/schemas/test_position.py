"""Positions are read back as printed, and compare by what they cover."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yardmaster_schemas.position import Position

OFFSETS = st.none() | st.integers(0, 10**15 - 1)
POSITIONS = st.builds(
    Position,
    cell=st.sampled_from(["main", "a", "eu-west.1"]),
    requests=OFFSETS,
    admissions=OFFSETS,
    node_events=OFFSETS,
    decisions=OFFSETS,
)


@given(POSITIONS)
def test_a_position_reads_back_what_it_prints(position: Position) -> None:
    assert Position.parse(str(position)) == position


def test_the_parts_are_next_offsets_by_topic() -> None:
    position = Position.parse("main@r4711.a4709.n1892.d3021")
    assert [position.of(t) for t in ("requests", "admissions", "node-events", "decisions")] == [
        *(4711, 4709, 1892, 3021)
    ]
    assert str(position.at("node-events", 1893)) == "main@r4711.a4709.n1893.d3021"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "main",
        "@r1",
        "main@x1",
        "main@d1.r1",
        "main@r1\n",
        "main@r-1",
        "Main@r1",
        "main@r1.r2",
        "main@r1.n56589d0048",
        "main@r1.",
        "main@.d1",
    ],
)
def test_text_that_is_not_a_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position"):
        Position.parse(text)


@given(POSITIONS, POSITIONS)
def test_covering_is_by_each_part_of_the_same_cell(one: Position, other: Position) -> None:
    topics = ("requests", "admissions", "node-events", "decisions")
    by_part = all((one.of(t) or 0) >= (other.of(t) or 0) for t in topics)
    assert one.covers(other) is (one.cell == other.cell and by_part)


def test_the_start_covers_only_itself() -> None:
    start = Position.start("main")
    assert start.covers(start)
    assert not start.covers(start.at("decisions", 1))
    assert start.at("decisions", 1).covers(start)
