"""Fractions of GPUs are enforced where an MPS daemon answers; no test needs a GPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.mps import LOGS, FakeDaemon, mps_limiter, programs
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_node_agent.devices import Devices, MpsControl
from yardmaster_node_agent.errors import MpsUnusable
from yardmaster_node_agent.fraction_limits import FractionLimiter, NoLimits, choose_limiter
from yardmaster_node_agent.ports import Ports, host_ports
from yardmaster_node_agent.settings import MPS_PIPES, Settings
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.node_events import FractionLimits

TWO = Devices(("0", "1"), 80_000)
#: Answers like the control program while the daemon of this directory runs.
CONTROL = """
read line
test "$line" = get_default_active_thread_percentage || exit 1
if test "$CUDA_MPS_PIPE_DIRECTORY" = "%s"; then echo 100.0; else
  echo Cannot find MPS control daemon process; exit 1; fi
"""
SMI = "echo 0, 81559; echo 1, 81559"


def chosen(
    setting: bool | None = None,
    *,
    running: bool = True,
    devices: Devices = TWO,
    driver_mib: int = 0,
    closed: Path | None = None,
) -> tuple[FractionLimiter, str]:
    def memory_of(names: Sequence[str]) -> int:
        assert names == devices.names
        return driver_mib

    return choose_limiter(
        setting,
        daemon=FakeDaemon(running),
        log_directory=LOGS,
        devices=devices,
        memory_of=memory_of,
        blocked=lambda _: closed,
    )


# Variables


@pytest.mark.parametrize(
    ("gpu_milli", "memory_mib", "percentage", "limit"),
    [(500, 81_559, "50", "40779M"), (999, 1000, "99", "999M"), (1, 500, "1", "1M")],
)
def test_both_limits_are_rounded_down_and_at_least_one(
    gpu_milli: int, memory_mib: int, percentage: str, limit: str
) -> None:
    assert mps_limiter(gpu_memory_mib=memory_mib).variables(gpu_milli, 1) == {
        "CUDA_MPS_PIPE_DIRECTORY": str(MPS_PIPES),
        "CUDA_MPS_LOG_DIRECTORY": "/var/log/nvidia-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percentage,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit}",
    }


def test_the_memory_limit_numbers_gpus_as_the_task_sees_them() -> None:
    found = mps_limiter(gpu_memory_mib=8000).variables(250, 3)
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2000M,1=2000M,2=2000M"


def test_the_memory_limit_of_a_fraction_by_memory_is_what_it_requested() -> None:
    found = mps_limiter(gpu_memory_mib=81_559).variables(260, 2, memory_mib=20_480)
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M,1=20480M"
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "26"


@pytest.mark.parametrize(("gpu_milli", "gpus"), [(1000, 2), (0, 0)])
def test_whole_gpus_and_tasks_without_gpus_have_no_limits(gpu_milli: int, gpus: int) -> None:
    assert mps_limiter().variables(gpu_milli, gpus) == {}


# The choice


def test_fractions_are_enforced_by_default_where_a_daemon_answers() -> None:
    limiter, reason = chosen()
    assert (limiter.limits, reason) == (FractionLimits.MPS, "")
    assert isinstance(chosen(False)[0], NoLimits)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"running": False}, f"no MPS control daemon answers at {MPS_PIPES}"),
        ({"closed": MPS_PIPES}, f"{MPS_PIPES} is closed to their user"),
        ({"devices": Devices(("0",))}, "the memory of its GPUs is unknown"),
    ],
)
def test_enforcement_is_not_claimed_where_it_is_impossible_and_demanding_it_is_an_error(
    given: dict[str, Any], reason: str
) -> None:
    limiter, found = chosen(**given)
    assert limiter.limits is FractionLimits.NONE
    assert reason in found
    with pytest.raises(MpsUnusable, match=reason):
        chosen(True, **given)


def test_the_driver_reports_memory_that_the_inventory_lacks() -> None:
    limiter, _ = chosen(devices=Devices(("GPU-a",)), driver_mib=4000)
    assert limiter.variables(500, 1)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2000M"


def test_a_node_without_gpus_has_nothing_to_enforce_whatever_the_setting() -> None:
    limiter, _ = chosen(True, running=False, devices=Devices())
    assert limiter.limits is FractionLimits.NONE


# The daemon


def test_a_daemon_is_found_by_its_pipe_directory(tmp_path: Path) -> None:
    folder = programs(tmp_path / "bin", {"control": CONTROL % "/run/mps"})
    command = str(folder / "control")
    assert MpsControl(Path("/run/mps"), command).answers()
    assert not MpsControl(MPS_PIPES, command).answers()


@pytest.mark.parametrize("body", ["exit 0", "echo 100.0; exit 1", "echo Cannot find it", "echo 0"])
def test_another_answer_counts_as_none(tmp_path: Path, body: str) -> None:
    folder = programs(tmp_path / "bin", {"control": body})
    assert not MpsControl(tmp_path, str(folder / "control")).answers()
    assert not MpsControl(tmp_path, "no-such-command-anywhere").answers()


async def test_the_agent_notices_that_the_daemon_ended(tmp_path: Path) -> None:
    daemon = FakeDaemon()
    limiter = mps_limiter(daemon)
    assert await limiter.missing() is None
    daemon.running = False
    assert await limiter.missing() == f"no MPS control daemon answers at {MPS_PIPES}"
    folder = programs(tmp_path / "bin", {"control": "echo 100.0"})
    assert await MpsControl(tmp_path, str(folder / "control")).ask()


# The ports of a machine


def ports(folder: Path, **given: Any) -> Ports:
    clock = SystemClock()
    return host_ports(
        Settings(node="n1", data_dir=folder / "data", task_users="same", **given),
        log=MemoryLog(clock),
        clock=clock,
        chance=SystemChance(),
        telemetry=Telemetry("node_agent", now_ms=clock.now_ms, level="warning"),
    )


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs, and a daemon at the folder that is returned."""
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    bodies = {"nvidia-smi": SMI, "nvidia-cuda-mps-control": CONTROL % pipes}
    monkeypatch.setenv("PATH", f"{programs(tmp_path / 'bin', bodies)}:/usr/bin:/bin")
    return pipes


def test_a_machine_with_a_daemon_enforces_fractions(tmp_path: Path, nvidia: Path) -> None:
    found = ports(tmp_path, mps_pipe_directory=nvidia, mps_log_directory="/logs")
    assert found.limiter.limits is FractionLimits.MPS
    variables = found.limiter.variables(500, 1)
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == str(nvidia)
    assert variables["CUDA_MPS_LOG_DIRECTORY"] == "/logs"
    assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40779M"


def test_declared_gpus_get_their_memory_from_the_driver(tmp_path: Path, nvidia: Path) -> None:
    declared = ports(tmp_path, gpus=2, mps_pipe_directory=nvidia)
    assert declared.limiter.limits is FractionLimits.MPS
    assert declared.machine.devices == Devices(("0", "1"), 81_559)
    more = ports(tmp_path, gpus=4, mps_pipe_directory=nvidia)
    assert more.limiter.limits is FractionLimits.NONE, "the machine has fewer GPUs"
    assert more.machine.devices.memory_mib == 0


def test_a_machine_without_a_daemon_joins_as_before(tmp_path: Path, nvidia: Path) -> None:
    found = ports(tmp_path, gpus=4)
    assert found.limiter.limits is FractionLimits.NONE
    assert found.machine.devices == Devices(("0", "1", "2", "3"), 0)
    with pytest.raises(MpsUnusable, match="YARD_AGENT_MPS"):
        ports(tmp_path, gpus=4, mps=True)
    simulated = ports(tmp_path, gpus=4, executor="simulated", mps_pipe_directory=nvidia)
    assert simulated.limiter.limits is FractionLimits.NONE, "it runs nothing"
