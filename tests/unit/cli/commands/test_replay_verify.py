"""`yard replay verify` on a kept log: with several processes, and of the chain alone."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.kept_logs import KEPT, kept_file
from yardmaster_cli.main import run

ROOT = Path(__file__).parents[4]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return kept_file(KEPT[0], tmp_path)


def verify(capsys: pytest.CaptureFixture[str], log: Path, *options: str) -> tuple[int, Any]:
    code = run(["replay", "verify", "--log", str(log), "-o", "json", *options])
    document = json.loads(capsys.readouterr().out)
    assert document.pop("seconds") >= 0
    return code, document


def change_one_decision(log: Path) -> int:
    """Change the value of a decision in the file; return its offset."""
    with closing(sqlite3.connect(log)) as database, database:
        offset, value = database.execute(
            "SELECT offset, value FROM records JOIN partitions ON partition = partitions.id "
            "WHERE topic = 'decisions' AND CAST(value AS TEXT) LIKE '%\"SlotsAllocated\"%' LIMIT 1"
        ).fetchone()
        database.execute(
            "UPDATE records SET value = ? WHERE offset = ? AND partition = "
            "(SELECT id FROM partitions WHERE topic = 'decisions')",
            (value.replace(b'"attempt":1', b'"attempt":2'), offset),
        )
    return int(offset)


def test_several_processes_report_the_same_as_one(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    alone = verify(capsys, log, "--workers", "1")
    assert alone[0] == 0
    assert alone[1]["ok"]
    assert verify(capsys, log, "--workers", "3") == alone
    assert verify(capsys, log) == alone


@pytest.mark.parametrize("options", [("--workers", "1"), ("--workers", "2"), ("--chain",)])
def test_a_changed_decision_is_named(
    capsys: pytest.CaptureFixture[str], log: Path, options: tuple[str, ...]
) -> None:
    offset = change_one_decision(log)
    code, document = verify(capsys, log, *options)
    assert code == 1
    first = document["findings"][0]
    assert (first["topic"], first["offset"]) == ("decisions", offset)
    assert run(["replay", "verify", "--log", str(log), *options]) == 1
    shown = capsys.readouterr().out
    assert f"DIFFERS: decisions partition 0 offset {offset}: " in shown
    assert "NOT ok (" in shown


def test_the_heads_of_the_chain_are_those_that_the_example_computes(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    code, document = verify(capsys, log, "--chain")
    assert code == 0
    assert run(["log", "dump", "--raw", "--log", str(log)]) == 0
    dumped = capsys.readouterr().out
    program = [sys.executable, "-I", "-S", str(ROOT / "examples/check_chain.py")]
    done = subprocess.run(program, input=dumped, capture_output=True, text=True, check=True)
    heads = dict(zip(("admissions", "decisions"), document["machines"], strict=True))
    for topic, machine in heads.items():
        assert f"{topic}: {machine['cycles']} cycles, head {machine['head']}" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--views", "--chain"), "without --chain and --workers"),
        (("--views", "--workers", "2"), "without --chain and --workers"),
        (("--redis", "redis://localhost"), "--redis has no effect without --views"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    capsys: pytest.CaptureFixture[str], log: Path, options: tuple[str, ...], said: str
) -> None:
    assert run(["replay", "verify", "--log", str(log), *options]) == 2
    assert said in capsys.readouterr().err
