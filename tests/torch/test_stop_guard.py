"""`yardmaster.torch.StopGuard` with PyTorch: processes of one group over gloo."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.torch.programs import PROGRAM_ENV, ROOT
from yardmaster_localcluster.ports import free_ports

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

LIMIT_S = 60.0


class Ranks:
    """The processes of a gang; each has its own stop file and process group, as a replica has."""

    def __init__(self, python: str, folder: Path, args: Sequence[Sequence[str]]) -> None:
        self.size = len(args)
        self.process = subprocess.Popen(
            [python, str(ROOT / "tests/torch/ranks.py"), json.dumps(args)],
            env={
                **{name: value for name, value in os.environ.items() if "YARD" not in name},
                **PROGRAM_ENV,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_ports(1)[0]),
                "WORLD_SIZE": str(self.size),
                "YARD_STOP_FILE": str(folder / "stop"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until_begun(self) -> list[int]:
        """Wait until every rank has finished its first step; return their process ids."""
        assert self.process.stdout is not None
        found = {}
        for _ in range(self.size):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            said = json.loads(line)
            found[said["rank"]] = said["pid"]
        return [found[rank] for rank in range(self.size)]

    def results(self) -> list[dict[str, Any]]:
        """The result of each rank, as it prints it at its end."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        finally:
            self.process.kill()
        assert self.process.returncode == 0, err
        said = [json.loads(line) for line in out.splitlines()]
        found = {each.pop("rank"): each for each in said if "pid" not in each}
        return [found[rank] for rank in range(self.size)]


def stopped(step: int) -> dict[str, Any]:
    return {"step": step, "stopping": True, "later": True}


@pytest.mark.parametrize(
    ("every", "first", "step"),
    [(1, 1, 7), (5, 1, 10), (5, 8, 10)],
    ids=["each", "fifth", "resumed"],
)
def test_all_ranks_stop_at_the_same_step_although_each_gets_its_request_in_another(
    torch_python: str, tmp_path: Path, every: int, first: int, step: int
) -> None:
    common = ["--every", str(every), "--first", str(first)]
    requested_at = [12, max(7, first), 9]
    args = [[*common, "--stop-at", str(at)] for at in requested_at]
    assert Ranks(torch_python, tmp_path, args).results() == [stopped(step)] * 3


@pytest.mark.parametrize(
    ("worker", "number"),
    [([], signal.SIGTERM), (["--worker"], signal.SIGUSR1)],
    ids=["alone", "worker"],
)
def test_a_signal_to_all_processes_of_one_rank_stops_all_ranks_at_the_same_step(
    torch_python: str, tmp_path: Path, worker: list[str], number: signal.Signals
) -> None:
    ranks = Ranks(torch_python, tmp_path, [["--pause", "0.01", *worker]] * 2)
    os.killpg(ranks.until_begun()[1], number)
    first, second = ranks.results()
    assert first == second
    assert first["stopping"]


def test_a_given_group_is_used(torch_python: str, tmp_path: Path) -> None:
    args = [["--given-group"], ["--given-group", "--stop-at", "3"]]
    assert Ranks(torch_python, tmp_path, args).results() == [stopped(3)] * 2


def test_a_single_process_without_a_group_stops_at_the_same_steps(
    torch_python: str, tmp_path: Path
) -> None:
    args = [["--alone", "--every", "5", "--stop-at", "7"]]
    assert Ranks(torch_python, tmp_path, args).results() == [stopped(10)]


def test_ranks_at_different_steps_are_an_error_on_each(torch_python: str, tmp_path: Path) -> None:
    found = Ranks(torch_python, tmp_path, [["--first", "1"], ["--first", "4"]]).results()
    said = "the ranks are at the steps 1 to 4; call should_stop once in each step on every rank"
    assert found == [{"error": said}] * 2
