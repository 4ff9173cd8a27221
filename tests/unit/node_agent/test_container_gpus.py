"""GPUs of containers, on a fake engine that says what a test wants."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_engine import FakeEngine, fake_engine
from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors.docker import DockerExecutor
from yardmaster_node_agent.executors.engine import Engine
from yardmaster_node_agent.executors.guarding import Guarding
from yardmaster_node_agent.executors.port import Launch
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import Run

KEY = ReplicaKey("4kq7w2mz9c1f.0", 1, 0)
RUN = Run(script="true", image="train:1")
NVIDIA: dict[str, Any] = {"Runtimes": {"runc": {}, "nvidia": {}}}
CDI = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-1"}]}
#: What Podman 4.3 says of itself.
PODMAN = {
    "Version": "4.3.1",
    "Components": [
        {"Name": "Podman Engine", "Version": "4.3.1", "Details": {"APIVersion": "4.3.1"}},
        {"Name": "Conmon", "Version": "conmon version 2.1.6, commit: unknown"},
        {"Name": "OCI Runtime (crun)", "Version": "crun version 1.8.1"},
    ],
}


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    async with fake_engine() as fake:
        yield fake


def executor(fake: FakeEngine, folder: Path) -> DockerExecutor:
    clock = SystemClock()
    telemetry = Telemetry("node_agent", now_ms=clock.now_ms, level="error")
    guarding = Guarding(folder / "guard", fake.socket, folder / "renewed")
    return DockerExecutor(
        folder / "containers", clock, Engine(fake.socket), telemetry, guarding=guarding
    )


@pytest.mark.parametrize(
    ("info", "driver", "device", "hidden"),
    [(NVIDIA, "nvidia", "GPU-1", False), (CDI, "cdi", "nvidia.com/gpu=GPU-1", True)],
)
async def test_gpus_are_requested_by_the_driver_that_the_engine_has(
    fake: FakeEngine,
    tmp_path: Path,
    info: dict[str, object],
    driver: str,
    device: str,
    hidden: bool,
) -> None:
    """With CDI, NVIDIA's runtime must not add GPUs of its own."""
    fake.info = info
    await executor(fake, tmp_path).prepare(Launch(KEY, RUN, {}, devices=("GPU-1",)))
    (created,) = fake.created
    (request,) = created["HostConfig"]["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == (driver, [device])
    assert ("NVIDIA_VISIBLE_DEVICES=void" in created["Env"]) is hidden


async def test_podman_runs_jobs_without_gpus_and_refuses_those_with_gpus_by_its_name(
    fake: FakeEngine, tmp_path: Path
) -> None:
    fake.version, fake.info = PODMAN, CDI
    containers = executor(fake, tmp_path)
    with pytest.raises(ExecutorFailed, match="Podman ignores requests for GPUs: run Docker"):
        await containers.prepare(Launch(KEY, RUN, {}, devices=("GPU-1",)))
    assert fake.created == []
    await containers.prepare(Launch(KEY, RUN, {}))
    assert [each["HostConfig"]["DeviceRequests"] for each in fake.created] == [[]]
