"""DDP under torchrun in containers: code by `context`, stopped together, resumed at its step."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.containers import CONTAINER_IMAGE, is_there, remove_containers
from tests.support.yard_cli import EXAMPLES, Dev, running_dev
from tests.torch.programs import PROGRAM_ENV, ROOT
from tests.torch.stopped import LIMIT_S, numbers, output, pause_after_a_checkpoint
from yardmaster.client import Client
from yardmaster_schemas.api import Attempt

pytestmark = [pytest.mark.torch, pytest.mark.timeout(420)]

STEPS, EVERY = 150, 10
#: PyTorch of `make test-torch`. It brings its own C library, so it runs in any image.
TORCH: Final = ROOT / ".cache" / "torch"
#: Imported at the start of each Python: PyTorch of Debian is built without libuv, and the stores of
#: torchrun ignore USE_LIBUV.
SITE: Final = """
import sys
import torch.distributed

class TCPStore(torch.distributed.TCPStore):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs | {"use_libuv": False})

for module in ("torch.distributed", "torch.distributed.rendezvous"):
    sys.modules[module].TCPStore = TCPStore
"""


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory, torch_python: str) -> Iterator[Dev]:
    """Two nodes of one GPU; their containers share a network, PyTorch and the checkpoints."""
    if not is_there(CONTAINER_IMAGE):
        pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")
    if not Path(torch_python).is_relative_to(TORCH):
        pytest.skip(f"{torch_python} is not in {TORCH}, which containers mount")
    folder = tmp_path_factory.mktemp("dev")
    (folder / "checkpoints").mkdir()
    mounts = {
        "torch": {"path": str(TORCH)},
        "checkpoints": {"path": str(folder / "checkpoints"), "read_only": False},
    }
    env = {"YARD_AGENT_MOUNTS": json.dumps(mounts), "YARD_AGENT_CONTAINER_NETWORK": "host"}
    with running_dev(folder, nodes=2, slots=1, env=env) as dev:
        dev.yard("projects", "set", "default", "mounts=torch,checkpoints:rw")
        yield dev
    remove_containers(folder)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The folder of a user: a program, and the SDK, which the image lacks."""
    shutil.copy(EXAMPLES / "torch_train.py", tmp_path)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    shutil.copytree(ROOT / "libs/client/yardmaster", tmp_path / "yardmaster")
    return tmp_path


def test_ddp_in_two_containers_resumes_and_ends_with_the_loss_of_an_undisturbed_run(
    dev: Dev, torch_python: str, code: Path
) -> None:
    def job(pause: float) -> dict[str, Any]:
        torchrun = [torch_python, "-m", "torch.distributed.run", "torch_train.py"]
        flags = ["--steps", STEPS, "--every", EVERY, "--pause", pause, "--out", "/checkpoints"]
        return {
            "resources": {"gpus": 1},
            "replicas": 2,
            "stop": {"grace": "60s"},
            "run": {
                "image": CONTAINER_IMAGE,
                "context": str(code),
                "command": [*torchrun, *flags],
                "env": PROGRAM_ENV | {"PYTHONPATH": "."},
                "mounts": [
                    {"source": "torch", "target": str(TORCH)},
                    {"source": "checkpoints", "target": "/checkpoints", "read_only": False},
                ],
            },
        }

    with Client.from_env(dev.env) as client:
        (task_id,) = client.submit(job(0.1)).task_ids
        (undisturbed,) = client.submit(job(0)).task_ids
        pause_after_a_checkpoint(client, task_id)
        checkpoint = client.task(task_id).checkpoint
        assert checkpoint is not None, "".join(output(client, task_id, 1))[-2000:]
        assert EVERY <= checkpoint.step < STEPS - EVERY
        client.resume(task_id)
        ended = client.wait(task_id, undisturbed, timeout_s=LIMIT_S)
        printed = {task.task_id: output(client, task.task_id, task.attempt) for task in ended}
        assert [task.phase for task in ended] == ["succeeded"] * 2, printed
        attempts: list[Attempt] = client.attempts(task_id).items
    assert [sorted(each.nodes) for each in attempts] == [["node-1", "node-2"]] * 2
    resumed = numbers(r"resumed from step (\d+)\n", printed[task_id])
    assert resumed == [str(checkpoint.step)] * 2
    losses = {
        name: numbers(rf"finished after {STEPS} steps: loss (\S+)", texts)
        for name, texts in printed.items()
    }
    assert losses[task_id] == losses[undisturbed]
