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
            "--te-share and --load are only for calibrated",
        ),
        (
            ("waves:1", "--grace", "0"),
            "--grace is only for calibrated",
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


ORG = """\
departments:
  above: {quota: {default: {deserved: 3}}}
projects:
  a: {department: above, quota: {default: {deserved: 2, over-quota: off}}}
  b: {department: above, quota: {default: {deserved: 1}}}
"""


def test_an_organization_of_a_file_gives_projects_quotas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    org = tmp_path / "org.yaml"
    org.write_text(ORG)
    words = ["simulate", "waves:1", "--org", str(org), "--workers", "1", "-o", "json"]
    assert run([*words, "--policy", "quota", "--policy", "fifo"]) == Exit.DONE
    quota, fifo = json.loads(capsys.readouterr().out)["runs"]
    of_a, of_b = quota["projects"]
    assert [of_a["project"], of_b["project"]] == ["a", "b"]
    assert (of_a["over_quota_gpu_hours"], of_a["within_deserved_gpu_hours"]) == (
        0,
        of_a["gpu_hours"],
    )
    assert of_b["over_quota_gpu_hours"] > 0
    assert fifo["projects"][0]["over_quota_gpu_hours"] > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cell: {project-tasks: 5}", "the key cell has no effect on a simulation"),
        ("projects: {a: {department: nowhere}}", "department_unknown nowhere"),
        ("pools: {big: {policy: quota}}", "pool_unknown big"),
        ("projects: {a: {qouta: 3}}", "qouta"),
    ],
)
def test_an_organization_that_a_run_cannot_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    org = tmp_path / "org.yaml"
    org.write_text(text)
    assert run(["simulate", "waves:1", "--org", str(org), "--workers", "1"]) == Exit.USAGE
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
