"""`core.commit`: which records count, and which contradictions are reported."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.logs import Entry, LogBuilder, incarnation
from yardmaster_core.commit import (
    GENESIS,
    CommitReader,
    CountedCycle,
    first_unmarked,
    marks,
    range_digest,
    record_digest,
)
from yardmaster_core.errors import ChainBroken, ForeignRecord, SnapshotUnreadable
from yardmaster_eventlog.port import Headers, frame
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events.admissions import CancelAcceptedV1

ONE, OTHER = incarnation(1), incarnation(2)


def cancelled(number: int) -> CancelAcceptedV1:
    return CancelAcceptedV1(job_id=f"job{number:09d}")


def feed(reader: CommitReader, entry: Entry, offset: int | None = None) -> CountedCycle | None:
    assert entry.envelope is not None
    return reader.feed(entry.offset if offset is None else offset, entry.digest, entry.envelope)


def log_of(*steps: Callable[[LogBuilder], object]) -> LogBuilder:
    log = LogBuilder()
    for step in steps:
        step(log)
    return log


def read(log: LogBuilder, reader: CommitReader | None = None) -> list[CountedCycle]:
    reader = reader or CommitReader("quota", "main", "admissions")
    counted = []
    for entry in log.of("admissions")[reader.next :]:
        cycle = feed(reader, entry)
        if cycle is not None:
            counted.append(cycle)
    return counted


def feed_all(entries: list[tuple[int, Entry]]) -> None:
    reader = CommitReader("quota", "main", "admissions")
    for offset, entry in entries:
        feed(reader, entry, offset)


def test_a_cycle_counts_only_with_its_commit() -> None:
    log = log_of(lambda it: it.quota.cycle(cancelled(1), cancelled(2)))
    reader = CommitReader("quota", "main", "admissions")
    entries = log.of("admissions")
    for entry in entries[:-1]:
        assert feed(reader, entry) is None
    assert reader.pending == 2
    assert reader.boundary == 0
    cycle = feed(reader, entries[-1])
    assert cycle is not None
    assert [offset for offset, _ in cycle.decisions] == [1, 2]
    assert (cycle.first_offset, cycle.offset, cycle.first_seq) == (1, 3, 1)
    assert (reader.boundary, reader.pending, reader.head) == (4, 0, entries[-1].digest.hex())


def test_a_term_belongs_to_the_first_incarnation_that_wrote_it() -> None:
    log = log_of(lambda it: it.quota.start_term(ONE), lambda it: it.quota.start_term(OTHER, term=1))
    reader = CommitReader("quota", "main", "admissions")
    read(log, reader)
    assert (reader.term, reader.owner, reader.dropped) == (1, f"quota/main.{ONE}", 1)
    log.quota.cycle(cancelled(1))
    assert len(read(log, reader)) == 1


def test_a_late_batch_of_a_lower_term_is_dropped() -> None:
    log = LogBuilder()
    log.quota.start_term(ONE)
    old = log.quota.writer
    log.quota.start_term(OTHER)
    log.append("admissions", old.envelope(cancelled(1), "x"))
    log.quota.cycle(cancelled(2))
    reader = CommitReader("quota", "main", "admissions")
    counted = read(log, reader)
    assert [d.data for _, d in counted[0].decisions] == [cancelled(2)]
    assert reader.dropped == 1


def test_a_late_batch_that_is_appended_before_the_next_term_counts() -> None:
    log = log_of(
        lambda it: it.quota.start_term(ONE),
        lambda it: it.quota.cycle(cancelled(1)),
        lambda it: it.quota.start_term(OTHER),
        lambda it: it.quota.cycle(cancelled(2)),
    )
    assert [cycle.commit.cycle for cycle in read(log)] == [1, 2]


def test_the_next_term_drops_uncommitted_decisions() -> None:
    log = LogBuilder()
    log.quota.cycle(cancelled(1), cancelled(2), keep=[0, 1])
    log.quota.cycles -= 1
    log.quota.start_term(OTHER)
    log.quota.cycle(cancelled(3))
    reader = CommitReader("quota", "main", "admissions")
    (cycle,) = read(log, reader)
    assert [d.data for _, d in cycle.decisions] == [cancelled(3)]
    assert reader.dropped == 2


def test_a_dump_is_of_the_last_commit_and_later_records_are_fed_again() -> None:
    log = log_of(lambda it: it.quota.cycle(cancelled(1)))
    reader = CommitReader("quota", "main", "admissions")
    read(log, reader)
    log.quota.cycle(cancelled(2), keep=[0])
    log.quota.cycles -= 1
    log.quota.start_term(OTHER)
    log.quota.cycle(cancelled(3))
    before = reader.dump()
    entry = log.of("admissions")[3]
    feed(reader, entry)
    assert reader.dump() == before
    again = CommitReader.load(before)
    assert again.next == 3
    assert len(read(log, again)) == 1
    read(log, reader)
    assert again.dump() == reader.dump()


@pytest.mark.parametrize("dump", [None, {}, {"machine": "quota"}, [], "x"])
def test_a_value_that_is_no_reader_dump_is_not_loaded(dump: Any) -> None:
    with pytest.raises(SnapshotUnreadable):
        CommitReader.load(dump)


def altered(**changes: Any) -> Callable[[LogBuilder], object]:
    return lambda it: it.quota.cycle(cancelled(2), commit=changes)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"cycle": 3}, "cycle 3 follows cycle 1"),
        ({"prev": GENESIS}, "prev is not the digest"),
        ({"now_ms": 1}, "time and its now_ms differ"),
        ({"decisions": 2}, "the count or the marks"),
        ({"decision_marks": "0" * 16}, "the count or the marks"),
        ({"decisions_digest": "0" * 64}, "the digest of its decisions"),
        ({"decisions_digest": "0" * 64, "decision_marks": "0" * 16}, "is not decision 1"),
        ({"cell": "other"}, "commits for quota of other"),
        ({"term": 2}, "term 2"),
    ],
)
def test_a_commit_that_does_not_match_breaks_the_chain(changes: dict[str, Any], found: str) -> None:
    log = log_of(lambda it: it.quota.cycle(cancelled(1)), altered(**changes))
    with pytest.raises(ChainBroken) as error:
        read(log)
    assert found in str(error.value.fields["found"])
    assert error.value.fields["offset"] in (3, 4)


def test_the_time_never_goes_backwards() -> None:
    log = log_of(lambda it: it.quota.cycle(), lambda it: it.quota.cycle(after_ms=-5000))
    with pytest.raises(ChainBroken, match="now_ms decreases"):
        read(log)


@pytest.mark.parametrize("skip", [1, 2, 3])
def test_a_removed_record_is_reported_at_its_offset(skip: int) -> None:
    log = log_of(lambda it: it.quota.cycle(cancelled(1), cancelled(2)), lambda it: it.quota.cycle())
    entries = [entry for entry in log.of("admissions") if entry.offset != skip]
    with pytest.raises(ChainBroken) as error:
        feed_all([(entry.offset, entry) for entry in entries])
    assert error.value.fields["offset"] == skip
    with pytest.raises(ChainBroken) as error:
        feed_all(list(enumerate(entries)))
    assert error.value.fields["offset"] == skip


def test_inputs_continue_where_the_last_cycle_ended() -> None:
    log = LogBuilder()
    log.raw("requests")
    log.raw("requests")
    log.quota.cycle(take={"requests": 1})
    assert read(log)[0].commit.inputs[0].next == 1
    log.quota.taken["requests"] = 0
    log.quota.cycle()
    with pytest.raises(ChainBroken, match="continues at 0, expected 1"):
        read(log)


def record_of(log: LogBuilder, **changes: Any) -> Envelope[Any]:
    return replace(log.quota.writer.envelope(cancelled(9), "x"), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "node/gpu-07"},
        {"source": f"quota/other.{ONE}"},
        {"source": f"scheduler/main.{ONE}"},
    ],
)
def test_a_record_of_another_writer_is_foreign(changes: dict[str, Any]) -> None:
    log = log_of(lambda it: it.quota.start_term(ONE))
    log.append("admissions", record_of(log, **changes))
    with pytest.raises(ForeignRecord) as error:
        read(log)
    assert error.value.fields["offset"] == 1


def test_an_event_type_of_another_topic_is_foreign() -> None:
    log = log_of(lambda it: it.scheduler.start_term(ONE))
    reader = CommitReader("scheduler", "main", "decisions")
    entry = log.append("decisions", log.scheduler.writer.envelope(cancelled(1), "x"))
    first = log.of("decisions")[0]
    feed(reader, first)
    with pytest.raises(ForeignRecord, match="does not belong"):
        feed(reader, entry)


def test_a_skipped_term_breaks_the_chain() -> None:
    log = log_of(lambda it: it.quota.start_term(ONE), lambda it: it.quota.start_term(OTHER, term=3))
    with pytest.raises(ChainBroken, match="starts term 3"):
        read(log)


def test_a_record_of_a_term_that_never_started_breaks_the_chain() -> None:
    log = log_of(lambda it: it.quota.start_term(ONE))
    log.append("admissions", record_of(log, epoch=2))
    with pytest.raises(ChainBroken, match="term 2 has not started"):
        read(log)


def test_digests_differ_where_concatenated_parts_are_equal() -> None:
    digests = {
        record_digest(b"ab", [("c", b"d")], b"e"),
        record_digest(b"a", [("bc", b"d")], b"e"),
        record_digest(b"ab", [("c", b"de")], b""),
        record_digest(b"ab", [("c", b"de")], None),
        record_digest(b"ab", [], b"cde"),
    }
    assert len(digests) == 5


def test_headers_given_as_bytes_have_the_same_digest() -> None:
    given: list[Headers] = [(), (("ce_id", b"x" * 3000),), (("grün", b""), ("b", b"\x00"))]
    for headers in given:
        assert record_digest(b"k", frame(headers), b"v") == record_digest(b"k", headers, b"v")


def test_marks_show_which_record_changed() -> None:
    digests = [record_digest(b"k", [], bytes([n])) for n in range(5)]
    recorded = marks(digests)
    assert first_unmarked(digests, recorded) is None
    changed = [*digests[:3], record_digest(b"k", [], b"x"), digests[4]]
    assert first_unmarked(changed, recorded) == 3
    assert first_unmarked(digests[:3], recorded) == 3
    assert range_digest(digests) != range_digest(changed)


def test_a_term_start_moved_before_cycles_is_reported_itself() -> None:
    log = LogBuilder()
    log.quota.start_term(ONE)
    for number in range(3):
        log.quota.cycle(cancelled(number))
    log.quota.start_term(OTHER)
    log.quota.cycle(cancelled(9))
    entries = log.of("admissions")
    moved = [entries[0], entries[7], *entries[2:7], entries[1], *entries[8:]]
    with pytest.raises(ChainBroken) as caught:
        feed_all(list(enumerate(moved)))
    assert caught.value.fields["offset"] == 1


def test_a_wrong_number_in_a_terms_first_commit_is_reported_at_that_commit() -> None:
    log = LogBuilder()
    log.quota.cycle(cancelled(1))
    log.quota.start_term(OTHER)
    entries = log.quota.cycle(cancelled(2), commit={"cycle": 92})
    with pytest.raises(ChainBroken) as caught:
        read(log)
    assert caught.value.fields["offset"] == entries[-1].offset
