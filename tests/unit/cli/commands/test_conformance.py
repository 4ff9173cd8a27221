"""`yard conformance`: what it prints, and how it ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

FITS: dict[str, Any] = {
    "id": "fits",
    "options": {},
    "agents": [{"id": "a1", "slots": 2}],
    "task": {"slots": 1},
    "expected": {"agents": ["a1"]},
}
PASS: dict[str, Any] = {
    "id": "pass",
    "policy": "fair_share",
    "options": {},
    "agents": [{"id": "a1", "slots": 1}],
    "groups": [{"id": "g"}],
    "tasks": [{"id": "t", "group": "g", "slots": 1, "state": "pending", "created_order": 1}],
    "expected": {"to_allocate": ["t"], "to_release": []},
}
#: Its task runs, but on no agent that is listed.
UNCLEAR: dict[str, Any] = {
    **PASS,
    "id": "unclear",
    "tasks": [{**PASS["tasks"][0], "state": "allocated", "on": []}],
}


def said(
    capsys: pytest.CaptureFixture[str], path: Path, *scenarios: object
) -> tuple[int, list[str], str]:
    path.write_text("\n".join(map(json.dumps, scenarios)))
    code = run(["conformance", str(path)])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_a_line_is_printed_for_each_that_was_skipped_and_one_at_the_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = said(capsys, tmp_path / "some.jsonl", FITS, UNCLEAR)
    assert code == 0
    assert out == [
        "skipped unclear: t runs, but the scenario does not say where all of its slots are",
        "1 passed, 0 failed, 1 skipped",
    ]


def test_a_failure_says_the_difference_and_the_check_says_no(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = {**FITS, "id": "wrong", "expected": {"agents": []}}
    code, out, _ = said(capsys, tmp_path / "some.jsonl", wrong, FITS)
    assert code == Exit.CHECK_FAILED
    assert out == ["failed wrong: the task is placed on a1", "1 passed, 1 failed, 0 skipped"]


@pytest.mark.parametrize(
    ("scenario", "about"),
    [
        ({"id": "what", "is": "this"}, "what has none of the formats"),
        ({**FITS, "task": {"slots": -1}}, "fits: task.slots"),
        ({**FITS, "expected": {"nodes": 1}}, "no field of the expected placement is set"),
        ({**FITS, "agents": [{"id": "a1", "slots": 10**12}]}, "fits: agents.0.slots"),
        ({**FITS, "agents": [{"id": "a1", "slots": 1, "zero_slot_used": 10**9}]}, "zero_slot_used"),
        ({**PASS, "groups": [{"id": "g", "weight": float("inf")}]}, "pass: groups.0.weight"),
        ([1], "line 1: it has no id"),
    ],
)
def test_what_cannot_be_read_is_bad_usage(
    scenario: object, about: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = said(capsys, tmp_path / "some.jsonl", scenario)
    assert code == Exit.USAGE
    assert about in err
    assert "some.jsonl" in err


def test_a_file_that_is_not_there_or_no_text_is_bad_usage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["conformance", str(tmp_path / "none.jsonl")]) == Exit.USAGE
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    assert run(["conformance", str(tmp_path / "bytes.jsonl")]) == Exit.USAGE
    (tmp_path / "half.jsonl").write_text('{"id": ')
    assert run(["conformance", str(tmp_path / "half.jsonl")]) == Exit.USAGE
    assert "line 1" in capsys.readouterr().err


def test_what_cannot_be_read_keeps_nothing_else_from_being_tried(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = {**PASS, "id": "wrong", "expected": {"to_allocate": [], "to_release": []}}
    some = tmp_path / "some.jsonl"
    deep = "[" * 100_000
    some.write_text("\n".join([json.dumps(PASS), '{"id": ', deep, json.dumps(wrong)]))
    assert run(["conformance", str(some)]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "failed wrong: unexpected in starts: t",
        "1 passed, 1 failed, 0 skipped",
    ]
    assert "line 2: Expecting value" in captured.err
    assert "line 3: it is nested too deeply" in captured.err


def test_only_line_feeds_end_a_scenario_and_a_mark_of_byte_order_is_passed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    noted = json.dumps({**FITS, "note": "one\u2028two\x85three"}, ensure_ascii=False)
    some = tmp_path / "some.jsonl"
    some.write_bytes(f"\ufeff{noted}\r\n{noted}\r\n".encode())
    assert run(["conformance", str(some)]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed, 0 skipped\n"


def test_a_verdict_is_one_line_whatever_a_scenario_calls_things(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = "\x1b[2J\n\ud800"
    odd = {**PASS, "id": name, "expected": {"to_allocate": [], "to_release": []}}
    code, out, _ = said(capsys, tmp_path / "some.jsonl", odd)
    assert code == Exit.CHECK_FAILED
    assert out[0] == r"failed \x1b[2J\n\ud800: unexpected in starts: t"


def test_a_place_among_agents_of_one_name_is_skipped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    twice = {**FITS, "agents": FITS["agents"] * 2}
    code, out, _ = said(capsys, tmp_path / "some.jsonl", twice)
    assert code == 0
    assert out[0] == "skipped fits: two agents have the same id"


def test_a_file_that_is_not_there_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conformance", "nosuch.jsonl"]) == Exit.USAGE
    assert capsys.readouterr().err == "error: cannot read nosuch.jsonl: No such file or directory\n"
