"""`yardmaster.torch.run_and_exit` ends a process that could hang at its end."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.torch.programs import PROGRAM_ENV

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

LIMIT_S = 60.0
#: A thread of gloo is left with the last reference to a tensor. It waits for the lock of the
#: interpreter in order to release it, and the destructor of the group waits for the thread.
PROGRAM = """
import sys
import torch, torch.distributed as dist
from yardmaster.torch import run_and_exit

def main():
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
    tensor = torch.ones(5_000_000)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    print("the last line", end="")
    {end}

{call}
"""


def run(python: str, folder: Path, end: str, call: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [python, "-c", PROGRAM.format(end=end, call=call), str(folder / "store")],
        env={**os.environ, **PROGRAM_ENV},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("return None", 0, ""),
        ("return 3", 3, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise ValueError('no data')", 1, "ValueError: no data\n"),
    ],
    ids=["returned", "code", "exit", "error"],
)
def test_a_process_ends_with_its_code_although_a_thread_of_gloo_has_a_tensor(
    torch_python: str, tmp_path: Path, end: str, code: int, error: str
) -> None:
    ended = run(torch_python, tmp_path, end, "run_and_exit(main)")
    assert (ended.returncode, ended.stdout) == (code, "the last line"), ended.stderr
    assert ended.stderr.endswith(error)
