"""examples/check_chain.py checks the chain of a log from its bytes, without Yardmaster's code."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.kept_logs import KEPT, kept_file
from yardmaster_cli.main import run

PROGRAM = Path(__file__).parents[2] / "examples/check_chain.py"
Row = dict[str, Any]


@pytest.fixture(params=KEPT)
def rows(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> list[Row]:
    """The records of a kept log, as `yard log dump --raw` prints them."""
    path = kept_file(request.param, tmp_path)
    assert run(["log", "dump", "--raw", "--log", str(path)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def check(rows: list[Row]) -> subprocess.CompletedProcess[str]:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    # -I: without the environment, so without the packages of this tree.
    command = [sys.executable, "-I", "-S", str(PROGRAM)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def commits(rows: list[Row], topic: str) -> list[Row]:
    return [row for row in rows if row["topic"] == topic and row["type"] == "CycleCommitted"]


def test_the_chain_of_a_log_is_computed_from_its_bytes(rows: list[Row]) -> None:
    done = check(rows)
    assert done.returncode == 0, done.stderr
    for topic in ("admissions", "decisions"):
        assert f"{topic}: {len(commits(rows, topic))} cycles, head " in done.stdout


def changed_value(row: Row) -> None:
    value = base64.b64decode(row["raw"]["value"])
    row["raw"]["value"] = base64.b64encode(value.replace(b'"seq":', b'"seq": ')).decode()


def changed_header(row: Row) -> None:
    row["raw"]["headers"][0][1] = base64.b64encode(b"another").decode()


@pytest.mark.parametrize("change", [changed_value, changed_header])
@pytest.mark.parametrize("topic", ["requests", "admissions", "node-events", "decisions"])
def test_a_changed_record_is_named_by_the_commit_that_covers_it(
    rows: list[Row], topic: str, change: Callable[[Row], None]
) -> None:
    inputs = [row for row in rows if row["topic"] == topic and row["type"] != "TermStarted"]
    change(inputs[0])
    done = check(rows)
    assert done.returncode == 1
    assert "differs" in done.stderr or "prev is not the digest" in done.stderr


def test_a_missing_decision_is_found(rows: list[Row]) -> None:
    decision = next(
        row for row in rows if row["topic"] == "decisions" and row["type"] == "SlotsAllocated"
    )
    rows.remove(decision)
    done = check(rows)
    assert done.returncode == 1
    # Of the scheduler's own commit, or of quota's, which takes its decisions as inputs.
    assert "decisions differs" in done.stderr
