"""The examples with PyTorch as gangs of a real cluster: stopped together, resumed at their step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.yard_cli import EXAMPLES, Dev, running_dev
from tests.torch.programs import PROGRAM_ENV
from tests.torch.stopped import LIMIT_S, numbers, output, pause_after_a_checkpoint
from yardmaster.client import Client

# All examples share one cluster: `make test-torch` runs a file on one worker. The gangs of two
# clusters on one machine would use the same ports.
pytestmark = [pytest.mark.torch, pytest.mark.timeout(420)]

STEPS, EVERY = 150, 10


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("dev"), nodes=2, slots=2) as dev:
        yield dev


@pytest.mark.parametrize(
    ("program", "signal"),
    [("torch_train.py", "TERM"), ("lightning_train.py", "USR1"), ("huggingface_train.py", "TERM")],
)
def test_an_example_stops_on_all_replicas_at_one_step_and_ends_as_if_it_had_not_stopped(
    dev: Dev, torch_python: str, tmp_path: Path, program: str, signal: str
) -> None:
    def job(pause: float) -> dict[str, Any]:
        flags = ["--steps", STEPS, "--every", EVERY, "--pause", pause, "--out", str(tmp_path)]
        return {
            "resources": {"gpus": 1},
            "replicas": 2,
            "stop": {"grace": "60s", "signal": signal},
            "run": {
                "command": [torch_python, str(EXAMPLES / program), *flags],
                "env": PROGRAM_ENV,
            },
        }

    with Client.from_env(dev.env) as client:
        (task_id,) = client.submit(job(0.1)).task_ids
        (undisturbed,) = client.submit(job(0)).task_ids
        pause_after_a_checkpoint(client, task_id)
        steps = set(numbers(r"stopped at step (\d+), state", output(client, task_id, 1)))
        checkpoint = client.task(task_id).checkpoint
        assert checkpoint is not None
        assert {str(checkpoint.step)} == steps
        assert EVERY <= checkpoint.step < STEPS - EVERY
        client.resume(task_id)
        ended = client.wait(task_id, undisturbed, timeout_s=LIMIT_S)
        printed = {task.task_id: output(client, task.task_id, task.attempt) for task in ended}
        assert [task.phase for task in ended] == ["succeeded"] * 2, printed
        resumed = numbers(r"resumed from step (\d+)\n", printed[task_id])
        assert set(resumed) == steps
        losses = {
            name: numbers(rf"finished after {STEPS} steps: loss (\S+)", texts)
            for name, texts in printed.items()
        }
        assert losses[task_id] == losses[undisturbed]
