"""The example with PyTorch as a gang of a real cluster: stopped together, resumed at its step."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.yard_cli import EXAMPLES, Dev, running_dev
from yardmaster.client import Client

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300), pytest.mark.xdist_group("torch")]

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
STEPS, EVERY = 400, 10


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("dev"), nodes=2, slots=1) as dev:
        yield dev


def output(client: Client, task_id: str, attempt: int) -> list[str]:
    """The output of each replica in an attempt."""
    found = ["", ""]
    for piece in client.output(task_id, attempt=attempt):
        found[piece.replica] += piece.text
    return found


def test_the_example_stops_on_all_replicas_at_one_step_and_resumes_there(
    dev: Dev, torch_python: str, tmp_path: Path
) -> None:
    flags = ["--steps", STEPS, "--every", EVERY, "--pause", 0.05, "--out", str(tmp_path)]
    job = {
        "resources": {"gpus": 1},
        "replicas": 2,
        "stop": {"grace": "60s"},
        "run": {
            "command": [torch_python, str(EXAMPLES / "torch_train.py"), *flags],
            "env": {
                "PYTHONPATH": str(ROOT / "libs/client"),
                "OMP_NUM_THREADS": 1,
                # PyTorch of Debian is built without libuv.
                "USE_LIBUV": 0,
            },
        },
    }
    with Client.from_env(dev.env) as client:
        submitted = client.submit(job)
        (task_id,) = submitted.task_ids
        paused = False
        for change in client.watch(["task"], timeout_s=LIMIT_S):
            task = change.data.get("item") or {}
            if task.get("task_id") != task_id:
                continue
            if not paused and task["checkpoint"] is not None:
                client.pause(task_id)
                paused = True
            if paused and task["phase"] in ("pending", "failed"):
                break
        printed = output(client, task_id, 1)
        steps = {
            step for text in printed for step in re.findall(r"stopped at step (\d+), state", text)
        }
        assert len(steps) == 1, printed
        assert all("stopped at step" in text for text in printed), printed
        checkpoint = client.task(task_id).checkpoint
        assert checkpoint is not None
        assert {str(checkpoint.step)} == steps
        assert EVERY <= checkpoint.step < STEPS
        client.resume(task_id)
        (task,) = client.wait(task_id, timeout_s=LIMIT_S)
        printed = output(client, task_id, task.attempt)
        assert task.phase == "succeeded", printed
        for text in printed:
            assert f"resumed from step {checkpoint.step}\n" in text
            assert f"finished after {STEPS} steps" in text
