"""The spool of a container's output: each part once, whenever the agent was killed."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    later.begin()
    # The engine returns all parts of the newest time again.
    newest = PARTS[seen - 1].at if seen else ""
    later.add([part for part in PARTS if part.at >= newest])
    assert (tmp_path / "stdout").read_bytes() == b"a\nb\nb\nc\n"


def test_bytes_that_were_written_without_their_position_are_cut(tmp_path: Path) -> None:
    Spool(tmp_path / "stdout").add(PARTS[:1])
    with (tmp_path / "stdout").open("ab") as file:
        file.write(b"b\n")
    later = Spool(tmp_path / "stdout")
    later.begin()
    later.add(PARTS)
    assert (tmp_path / "stdout").read_bytes() == b"a\nb\nb\nc\n"


def test_a_time_in_seconds_keeps_its_nanoseconds() -> None:
    assert seconds_of("1970-01-01T00:01:00.5Z") == "60.500000000"
    assert seconds_of("1970-01-01T00:01:00Z") == "60.000000000"
    assert seconds_of(FIRST).endswith(".000000001")


def copy(path: Path, log: Sequence[OutputPart], live: Sequence[OutputPart]) -> None:
    """Copy a log as an agent does that follows `live`."""
    spool = Spool(path)
    path.touch()
    since = spool.begin()
    if not spool.follow([part for part in live if seconds_of(part.at) >= since]):
        whole(spool, log)


def whole(spool: Spool, log: Sequence[OutputPart]) -> None:
    """Read a log to its end."""
    while True:
        since = spool.begin()
        for part in log:
            if seconds_of(part.at) >= since or since == "0":
                spool.add([part])
        if spool.complete():
            return


def at(number: int) -> str:
    """A time as an engine writes it, without zeros at its end."""
    return f"2026-11-27T22:00:00.{number:09d}".rstrip("0").rstrip(".") + "Z"


@given(
    log=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([b"a\n", b"b\n", b"c"]))),
    cuts=st.lists(st.integers(0, 30)),
    repeats=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=3),
)
def test_a_followed_log_is_whole_whatever_the_engine_repeats(
    log: list[tuple[int, bytes]], cuts: list[int], repeats: list[tuple[int, int]]
) -> None:
    parts = [OutputPart(at(time), data) for time, data in sorted(log)]
    with TemporaryDirectory() as folder:
        path = Path(folder, "stdout")
        for cut in sorted(cuts):
            copy(path, parts[:cut], parts[:cut])
        live = list(parts)
        for begins, ends in repeats:
            begins, ends = min(begins, len(live)), min(ends, len(live))
            live[ends:ends] = live[begins:ends]
        copy(path, parts, live)
        assert path.read_bytes() == b"".join(part.data for part in parts)


def test_after_a_part_that_the_engine_has_removed_all_is_new(tmp_path: Path) -> None:
    copy(tmp_path / "stdout", PARTS[:1], PARTS[:1])
    later = [OutputPart("2026-11-27T22:00:01Z", b"x\n"), OutputPart("2026-11-27T22:00:02Z", b"y\n")]
    copy(tmp_path / "stdout", later, later)
    assert (tmp_path / "stdout").read_bytes() == b"a\nx\ny\n"


def test_parts_with_older_times_after_the_clock_was_set_back_are_output(tmp_path: Path) -> None:
    log = [OutputPart(at(time), b"%d\n" % time) for time in (1, 5, 3, 4, 5, 6)]
    copy(tmp_path / "stdout", log, log)
    assert (tmp_path / "stdout").read_bytes() == b"1\n5\n3\n4\n5\n6\n"
