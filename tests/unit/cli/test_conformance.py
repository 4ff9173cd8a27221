"""`yard conformance`: what it prints, and how it ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from yardmaster.cli.errors import Exit
from yardmaster.cli.main import run

FITS: dict[str, Any] = {
    "id": "fits",
    "options": {},
    "agents": [{"id": "a1", "slots": 2}],
    "task": {"slots": 1},
    "expected": {"agents": ["a1"]},
}
LATER: dict[str, Any] = {"id": "later", "steps": [], "nodes": [], "queues": []}


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
    code, out, _ = said(capsys, tmp_path / "some.jsonl", FITS, LATER)
    assert code == 0
    assert out == [
        "skipped later: policy quota is not built yet",
        "1 passed, 0 failed, 1 skipped",
    ]


def test_a_failure_says_the_difference_and_the_check_says_no(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = {**FITS, "id": "wrong", "expected": {"agents": []}}
    code, out, _ = said(capsys, tmp_path / "some.jsonl", wrong, FITS)
    assert code == Exit.CHECK_FAILED
    assert out == ["failed wrong: it goes to a1", "1 passed, 1 failed, 0 skipped"]


@pytest.mark.parametrize(
    ("scenario", "about"),
    [
        ({"id": "what", "is": "this"}, "what is of no format"),
        ({**FITS, "task": {"slots": -1}}, "fits: task.slots"),
        ({**FITS, "expected": {"nodes": 1}}, "it says nothing of where the task goes"),
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
