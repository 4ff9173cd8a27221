"""The options of `yard simulate`: those that mean nothing are refused, zero is zero."""

import json
from pathlib import Path

import pytest

from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

TRACES = Path(__file__).parents[3] / "data" / "traces"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("waves:1", "--load", "1000"),
            "--te-share, --load and --grace are only for calibrated",
        ),
        (
            ("waves:1", "--grace", "0"),
            "--te-share, --load and --grace are only for calibrated",
        ),
        (("calibrated", "--not-preemptible"), "--not-preemptible are only for waves"),
        (("calibrated", "--preemptible"), "--not-preemptible are only for waves"),
        (
            ("waves:1", "--from", "2017-10-01"),
            "--from and --to are only for philly, csv",
        ),
        (
            ("waves:1", "--columns", "submit=at"),
            "--columns and --where are only for csv",
        ),
        (
            ("calibrated", "--where", "team=a"),
            "--columns and --where are only for csv",
        ),
        (("plain", "--cell", "other"), "--cell is only for log"),
        (("plain", "--checkpoint-cost", "5s"), "needs --checkpoint-every"),
        (("plain", "--node-repair", "0s"), "--node-repair needs --node-fails"),
        (("plain", "--node-fails", "0s"), "--node-fails 0s: expected a longer time"),
        (("plain", "--nodes", "10x0"), "1 to 64 GPUs each"),
    ],
)
def test_an_option_that_means_nothing_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *words]) == Exit.USAGE
    assert said in capsys.readouterr().err


def makespan_s(capsys: pytest.CaptureFixture[str], *words: str) -> float:
    """How long a run takes from its first submission to its last end."""
    assert run(["simulate", *words, "-o", "json", "--workers", "1"]) == Exit.DONE
    (one,) = json.loads(capsys.readouterr().out)["runs"]
    assert one["left"] == 0
    found: float = one["figures"][-1]["makespan_s"]
    return found


def test_nodes_that_fail_are_back_after_an_hour_unless_something_else_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("waves:1", "--node-fails", "2h")
    usual = makespan_s(capsys, *words)
    assert makespan_s(capsys, *words, "--node-repair", "1h") == usual
    assert makespan_s(capsys, *words, "--node-repair", "0s") < usual


def test_without_grace_tasks_stop_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("calibrated", "--jobs", "60", "--nodes", "4x8", "--policy", "lrtp")
    assert makespan_s(capsys, *words, "--grace", "0") > 0
