"""`yard simulate` as a user runs it: its output, its files, and their use by other commands."""

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.support.yard_cli import until

TRACES = Path(__file__).parents[1] / "data" / "traces"


YARD = (sys.executable, "-m", "yardmaster_cli.main")
ENV = {"NO_COLOR": "1", "HOME": "/nonexistent"}


def yard(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*YARD, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=ENV,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.db")
    }


def test_policies_are_compared_and_every_log_is_verified(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("simulate", "calibrated", "--jobs", 150, "--seed", "7,8")
    swept = ("--policy", "fitgpp:s_milli=1000|4000", "--policy", "fifo")
    said = yard(*words, *swept, "--out", out, "-o", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(said)))
    assert [row["policy"] for row in rows] == [
        "fitgpp (s_milli=1000)",
        "fitgpp (s_milli=4000)",
        "fifo",
    ]
    assert float(rows[1]["te_p50"]) == 1.0
    logs = digests(out)
    assert sorted(logs) == sorted(
        f"{policy}-{seed}.db"
        for policy in ("fitgpp-s_milli-1000", "fitgpp-s_milli-4000", "fifo")
        for seed in (7, 8)
    )
    for name in ("fifo-7.db", "fitgpp-s_milli-4000-8.db"):
        proved = yard("replay", "verify", "--log", out / name).stdout
        assert "ok: every recorded decision was reproduced" in proved
    tasks = parquet.read_table(out / "tasks.parquet")
    assert tasks.num_rows == 6 * 150
    assert set(tasks.column("outcome").to_pylist()) == {"succeeded"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "fitgpp (s_milli=4000)" in page
    # One worker produces the same logs as several processes.
    again = tmp_path / "again"
    yard(*words, *swept, "--out", again, "--workers", 1)
    assert digests(again) == logs


def test_a_recorded_log_is_simulated_under_another_policy(tmp_path: Path) -> None:
    first = tmp_path / "first"
    yard("simulate", "waves:1", "--policy", "fifo", "--out", first)
    recorded = f"log:{first / 'fifo-0.db'}"
    said = yard("simulate", recorded, "--policy", "own", "--policy", "fair_share", "-o", "json")
    runs = json.loads(said.stdout)["runs"]
    assert [run["policy"] for run in runs] == ["own", "fair_share"]
    for run in runs:
        figures = run["figures"][-1]
        assert (figures["tasks"], figures["succeeded"], run["left"]) == (642, 642, 0)
    own, fair = (run["figures"][-1]["completion_s_mean"] for run in runs)
    assert own != fair


def test_a_trace_with_failing_nodes_ends(tmp_path: Path) -> None:
    said = yard(
        *("simulate", f"philly:{TRACES / 'philly_jobs.csv.gz'}", "--jobs", 300, "--nodes", "20x8"),
        *("--policy", "priority", "--node-fails", "10d", "--checkpoint-every", "1h"),
        *("--restart-cost", "2m", "-o", "json", "--out", tmp_path / "out"),
    )
    (run,) = json.loads(said.stdout)["runs"]
    assert run["left"] == 0
    assert run["figures"][-1]["nodes_lost"] > 0
    yard("replay", "verify", "--log", tmp_path / "out" / "priority-0.db")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("atlantis",), "unknown workload atlantis"),
        (("calibrated", "--policy", "fitgp"), "did you mean fitgpp?"),
        (("calibrated", "--policy", "fitgpp:p=lots"), "fitgpp does not have these options"),
        (("calibrated", "--placement", "tetris"), "unknown placement tetris"),
        (("calibrated", "--seed", "9..1"), "9..1 is empty"),
        (("calibrated", "--node-repair", "1h"), "--node-repair needs --node-fails"),
        (("waves:1", "--te-share", "100"), "are only for calibrated"),
        (("csv:jobs.csv",), "the columns are not given"),
        (("philly:/dev/null",), "there is no such file"),
        (("waves:1", "--every", "soon"), "--every"),
    ],
)
def test_a_mistake_is_named_before_anything_runs(words: tuple[str, ...], said: str) -> None:
    done = yard("simulate", *words, code=2)
    assert said in done.stderr


def test_a_folder_that_is_not_empty_stays_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = yard("simulate", "calibrated", "--jobs", 10, "--out", tmp_path, code=2)
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_ctrl_c_stops_all_runs_and_leaves_no_partial_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    policies = [f"--policy={name}" for name in ("fifo", "sjf", "fair_share", "priority")]
    words = ("simulate", "waves:20", *policies, "--workers", "2", "--out", str(out))
    with subprocess.Popen(
        [*YARD, *words], stderr=subprocess.PIPE, text=True, env=ENV, start_new_session=True
    ) as process:
        until(lambda: any(out.glob("*.db")), "a run writes its log")
        os.killpg(process.pid, signal.SIGINT)  # like a terminal
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip(), list(out.iterdir())) == (130, "", [])
