"""GPUs in containers of the engine of the machine: those that it has, or a refusal.

`deploy/ci/newer_engine.sh` runs this on an engine with invented devices.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.containers import CONTAINER_IMAGE, ENGINE_SOCKET, is_there
from tests.support.half_open import collect_half_open
from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors.docker import DockerExecutor
from yardmaster_node_agent.executors.engine import Engine
from yardmaster_node_agent.executors.guarding import Guarding
from yardmaster_node_agent.executors.port import Launch
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.engine_gpus import GpuChoice, cdi_devices, runtimes
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import Run

KEY = ReplicaKey("4kq7w2mz9c1f.0", 1, 0)
#: The invented GPU of newer_engine.sh, and what its specification changes in a container.
INVENTED = "GPU-invented"
RUN = Run(
    script='echo "$YARD_CDI_GPU $NVIDIA_VISIBLE_DEVICES"; cat /run/cdi-gpu', image=CONTAINER_IMAGE
)


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    if not is_there(CONTAINER_IMAGE):
        pytest.skip(f"Docker has no image {CONTAINER_IMAGE}")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)
    collect_half_open()


def containers(folder: Path, choice: GpuChoice) -> DockerExecutor:
    clock = SystemClock()
    telemetry = Telemetry("node_agent", now_ms=clock.now_ms, level="error")
    root, engine = folder / "containers", Engine(ENGINE_SOCKET)
    guarding = Guarding(folder / "guard", ENGINE_SOCKET, folder / "renewed")
    return DockerExecutor(root, clock, engine, telemetry, guarding=guarding, gpu_choice=choice)


def engine_info() -> dict[str, Any]:
    words = ("docker", "info", "--format", "{{json .}}")
    said = subprocess.run(words, capture_output=True, check=True).stdout
    return dict(json.loads(said))


async def test_a_container_gets_the_gpus_that_the_engine_lists_or_is_refused(folder: Path) -> None:
    info = await asyncio.to_thread(engine_info)
    executor = containers(folder, "auto")
    launch = Launch(KEY, RUN, {}, devices=(INVENTED,))
    if f"nvidia.com/gpu={INVENTED}" in cdi_devices(info):
        await executor.prepare(launch)
        execution = await executor.start(launch)
        assert await execution.exited() == Exit(exit_code=0)
        assert execution.files.read_output("stdout", 0, 100) == b"yes void\nmounted\n"
    else:
        assert not runtimes(info), "this test is for machines without GPUs"
        with pytest.raises(ExecutorFailed, match="neither a runtime of NVIDIA's nor CDI devices"):
            await executor.prepare(launch)
    await executor.forget(KEY)


async def test_a_driver_that_the_engine_lacks_is_a_failed_start(folder: Path) -> None:
    executor = containers(folder, "nvidia")
    launch = Launch(KEY, RUN, {}, devices=(INVENTED,))
    await executor.prepare(launch)
    with pytest.raises(ExecutorFailed, match="could not select device driver"):
        await executor.start(launch)
    await executor.forget(KEY)
