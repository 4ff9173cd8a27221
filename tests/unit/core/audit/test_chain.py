"""S1: terms, commits and their chain."""

import dataclasses
from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    allocated,
    placed,
    submitted,
)
from tests.unit.core.audit.cell_log import (
    JOB,
    OTHER,
    A,
    B,
    admit,
    expect_one,
    found,
    run,
)
from yardmaster_core import commit as committed
from yardmaster_core.audit import chain as audited


def test_records_of_a_fenced_leader_do_not_count(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    admit(log, OTHER)
    late = LogBuilder()
    late.scheduler.start_term("aaaaaaaaaaaa")
    late.scheduler.cycle()
    fenced = late.scheduler.cycle(allocated(B, placed("n1", 0)))
    log.scheduler.start_term("bbbbbbbbbbbb")
    for entry in fenced:
        assert entry.envelope is not None
        log.append("decisions", entry.envelope)
    log.scheduler.cycle(allocated(B, placed("n1", 1)))
    assert found(log) == ()


def test_a_term_belongs_to_its_first_incarnation(log: LogBuilder) -> None:
    log.scheduler.start_term("bbbbbbbbbbbb")
    log.scheduler.start_term("cccccccccccc", term=2)
    log.scheduler.cycle()
    assert found(log) == ()


def test_an_uncommitted_batch_is_dropped_by_the_next_term(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n9", 0)), take={}, keep=[0])
    log.scheduler.cycles -= 1
    log.scheduler.start_term("bbbbbbbbbbbb")
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    assert found(log) == ()


def test_both_ends_compute_the_same_digests() -> None:
    """Otherwise the audit would report correct chains as broken."""
    headers = (("ce_id", b"x/1/0"), ("ce_type", b"T"))
    for value in (b"{}", b"", None):
        ours = audited.record_digest(b"main", headers, value)
        assert ours == committed.record_digest(b"main", headers, value)
        assert audited.range_digest([ours, ours]) == committed.range_digest([ours, ours])
        assert audited.unmarked([ours], committed.marks([ours])) is None


@pytest.mark.parametrize(
    ("commit", "word"),
    [
        ({"cycle": 9}, "expected cycle 2, found cycle 9"),
        ({"prev": "1" * 64}, "prev"),
        ({"decisions": 3}, "expected 3 decisions, found 1"),
        ({"decision_marks": "0" * 16}, "not decision 1"),
        ({"decisions_digest": "0" * 64}, "decisions_digest"),
        ({"term": 7}, "was written in term 1"),
    ],
)
def test_s1_a_commit_that_does_not_match(log: LogBuilder, commit: Any, word: str) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0)), commit=commit)
    expect_one(log, "S1", word)


def test_s1_a_missing_decision(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    log.scheduler.cycle(allocated(A, placed("n1", 0)), allocated(B, placed("n1", 1)), keep=[1, 2])
    expect_one(log, "S1", "expected seq")


def test_s1_a_batch_that_is_appended_twice(log: LogBuilder) -> None:
    admit(log, JOB)
    for entry in log.scheduler.cycle(allocated(A, placed("n1", 0)))[-1:]:
        assert entry.envelope is not None
        log.append("decisions", entry.envelope)
    findings = found(log)
    assert {f.predicate for f in findings} == {"S1", "S2"}


def test_s1_a_term_that_skips_a_number(log: LogBuilder) -> None:
    log.scheduler.start_term("bbbbbbbbbbbb", term=5)
    expect_one(log, "S1", "expected term 2 to start, found 5")


def test_s1_a_term_that_never_started(log: LogBuilder) -> None:
    entry = log.scheduler.cycle()[0]
    assert entry.envelope is not None
    log.append("decisions", dataclasses.replace(entry.envelope, epoch=8))
    expect_one(log, "S1", "written in term 8")


def test_s1_a_foreign_record(log: LogBuilder) -> None:
    log.append("decisions", log.gateway.envelope(submitted(JOB), JOB))
    expect_one(log, "S1", "found TaskSubmitted")


def test_s1_undecodable_bytes(log: LogBuilder) -> None:
    log.raw("admissions")
    expect_one(log, "S1", "undecodable", topic="admissions")
