"""The spool of a container's output: each part once, whenever the agent was killed."""

from pathlib import Path

import pytest

from yardmaster_node_agent.executors.engine import OutputPart, seconds_of
from yardmaster_node_agent.executors.spool import Spool

FIRST, SECOND = "2026-11-27T22:00:00.000000001Z", "2026-11-27T22:00:00.000000002Z"
PARTS = [
    OutputPart(FIRST, b"a\n"),
    OutputPart(SECOND, b"b\n"),
    OutputPart(SECOND, b"b\n"),
    OutputPart(SECOND, b"c\n"),
]


@pytest.mark.parametrize("seen", range(len(PARTS) + 1))
def test_a_later_spool_continues_where_the_earlier_one_was(tmp_path: Path, seen: int) -> None:
    Spool(tmp_path / "stdout").add(PARTS[:seen])
    later = Spool(tmp_path / "stdout")
    # The engine returns all parts of the newest time again.
    newest = PARTS[seen - 1].at if seen else ""
    later.add([part for part in PARTS if part.at >= newest])
    assert (tmp_path / "stdout").read_bytes() == b"a\nb\nb\nc\n"


def test_bytes_that_were_written_without_their_position_are_cut(tmp_path: Path) -> None:
    Spool(tmp_path / "stdout").add(PARTS[:1])
    with (tmp_path / "stdout").open("ab") as file:
        file.write(b"b\n")
    later = Spool(tmp_path / "stdout")
    later.add(PARTS)
    assert (tmp_path / "stdout").read_bytes() == b"a\nb\nb\nc\n"


def test_a_time_in_seconds_keeps_its_nanoseconds() -> None:
    assert seconds_of("1970-01-01T00:01:00.5Z") == "60.500000000"
    assert seconds_of("1970-01-01T00:01:00Z") == "60.000000000"
    assert seconds_of(FIRST).endswith(".000000001")
