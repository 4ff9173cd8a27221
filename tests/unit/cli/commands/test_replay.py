"""The text of `yard replay verify`."""

from typing import Any

import pytest

from yardmaster_cli.commands.replay import _reason, _report_lines
from yardmaster_cli.log.moments import Moment
from yardmaster_eventlog.port import Partition
from yardmaster_runtime.replay.report import MachineProof, Report, RulesRange
from yardmaster_schemas.reasons import WaitCode


def report(**others: Any) -> Report:
    proof = MachineProof(
        machine="quota",
        ranges=(RulesRange(rules=1, first_cycle=1, last_cycle=1, derived=True),),
        terms=1,
        cycles=1,
        decisions=1,
        inputs=2,
        refused=1,
        from_cycle=0,
        unreadable_then=0,
        dropped=0,
        last_cycle=1,
        now_ms=0,
    )
    parts: dict[str, Any] = {
        "findings": (),
        "promises": (),
        "proved": (proof,),
        "unproved": {},
        "details_checked": 1,
        "details_gone": 0,
        "details_unnamed": 0,
    }
    return Report(**parts | others)


def test_one_of_a_thing_is_reported_in_the_singular() -> None:
    assert _report_lines(report(), 0.5) == [
        "quota: 1 cycle of 1 term, 2 inputs, 1 decision recomputed, 1 claim refused",
        "1 detail checked against what requests recorded",
        "ok: every recorded decision was reproduced (0.50 s)",
    ]


def test_records_that_no_cycle_has_read_are_counted_and_said_to_be_normal() -> None:
    lines = _report_lines(report(unproved={Partition("decisions"): (2, 162)}), 0.5)
    assert lines[1] == (
        "not checked: 160 records of decisions from offset 2 on, which no cycle has read yet; "
        "this is normal"
    )


@pytest.mark.parametrize(
    ("codes", "shown"),
    [
        ({"a": "insufficient_free"}, "insufficient_free"),
        ({"a": "exceeds_every_node"}, "never: exceeds_every_node"),
        (
            {"b": "insufficient_free", "a": "exceeds_every_node"},
            "never: exceeds_every_node in a, insufficient_free in b",
        ),
    ],
)
def test_the_reason_is_that_of_ls_with_the_pools_if_there_are_several(
    codes: dict[str, str], shown: str
) -> None:
    assert _reason({pool: WaitCode(code) for pool, code in codes.items()}) == shown


@pytest.mark.parametrize(
    ("moment", "missed"),
    [
        (Moment(cycle=9), "the log has no cycle 9 yet; this is its last, cycle 7"),
        (Moment(cycle=7), None),
        (Moment(at_ms=1001), "the time is in the future; this is the end of the log, cycle 7"),
        (Moment(at_ms=1000), None),
    ],
)
def test_a_moment_after_the_end_of_the_log_is_named(moment: Moment, missed: str | None) -> None:
    assert moment.missed(7, 1000) == missed
