"""`yardmaster.torch.StopGuard` with PyTorch: processes of one group over gloo."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0


class Ranks:
    """The processes of a gang; each has its own stop file, as each replica has."""

    def __init__(self, python: str, folder: Path, args: Sequence[Sequence[str]]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.processes = [
            subprocess.Popen(
                [python, str(ROOT / "tests/torch/ranks.py"), *each],
                env={
                    **{name: value for name, value in os.environ.items() if "YARD" not in name},
                    "PYTHONPATH": str(ROOT / "libs/client"),
                    "OMP_NUM_THREADS": "1",
                    # PyTorch of Debian is built without libuv.
                    "USE_LIBUV": "0",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(args)),
                    "YARD_STOP_FILE": str(folder / f"stop-{rank}"),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, each in enumerate(args)
        ]

    def until_begun(self) -> None:
        """Wait until every rank has finished its first step."""
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "begun\n", line or process.communicate()[1]

    def results(self) -> list[dict[str, Any]]:
        """The result of each rank, as it prints it at its end."""
        found = []
        try:
            for process in self.processes:
                out, err = process.communicate(timeout=LIMIT_S)
                assert process.returncode == 0, err
                found.append(json.loads(out.splitlines()[-1]))
        finally:
            for process in self.processes:
                process.kill()
        return found


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


def test_a_signal_to_one_rank_stops_all_at_the_same_step(torch_python: str, tmp_path: Path) -> None:
    ranks = Ranks(torch_python, tmp_path, [["--pause", "0.01"]] * 2)
    ranks.until_begun()
    ranks.processes[1].send_signal(signal.SIGTERM)
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
