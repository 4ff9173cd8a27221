"""The detected devices of a node, with and without a driver."""

import io
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.mps import programs
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_node_agent.devices import (
    Devices,
    cpu_milli,
    detect_gpus,
    free_port,
    gpu_memory_mib,
    memory_mib,
    own_variables,
    parse_smi,
)
from yardmaster_node_agent.ports import host_ports
from yardmaster_node_agent.settings import Settings
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry


def test_a_machine_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert detect_gpus(tmp_path / "none", "no-such-command-anywhere") == Devices()


def test_gpus_that_are_counted_in_proc_have_unknown_memory(tmp_path: Path) -> None:
    for address in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / address).mkdir()
    assert detect_gpus(tmp_path, "no-such-command-anywhere") == Devices(("0", "1"), 0)


@pytest.mark.parametrize("body", ["exit 9", "echo surprise", "echo 'a, b'"])
def test_a_faulty_driver_is_read_through_proc(tmp_path: Path, body: str) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o700)
    gpus = tmp_path / "gpus"
    (gpus / "0000:01:00.0").mkdir(parents=True)
    assert detect_gpus(gpus, str(command)) == Devices(("0",), 0)


def test_nvidia_smi_reports_indexes_and_the_smallest_memory() -> None:
    assert parse_smi("0, 81559\n1, 143771\n") == Devices(("0", "1"), 81_559)
    assert parse_smi("0, [N/A]\n") == Devices(("0",), 0)
    assert parse_smi("") == Devices()


def test_the_memory_of_named_gpus_is_known_only_if_the_driver_knows_each(tmp_path: Path) -> None:
    body = 'test "$2" = GPU-a,GPU-b && echo "0, 81559" && echo "1, 40960" || exit 6'
    command = str(programs(tmp_path, {"nvidia-smi": body}) / "nvidia-smi")
    assert gpu_memory_mib(("GPU-a", "GPU-b"), command) == 40_960
    assert gpu_memory_mib(("MIG-c",), command) == 0
    fewer = str(programs(tmp_path, {"fewer": "echo 0, 81559"}) / "fewer")
    assert gpu_memory_mib(("0", "1"), fewer) == 0
    assert gpu_memory_mib(("0",), "no-such-command-anywhere") == 0


@pytest.mark.parametrize(
    ("said", "cpus"),
    [
        ({"gpus": 64}, 64_000),
        ({"devices": ("0",) * 64}, 64_000),
        ({"gpus": 64, "cpu_milli": 500}, 500),
        ({"gpus": 0}, cpu_milli()),
    ],
)
async def test_a_node_has_a_cpu_for_each_declared_slot(
    tmp_path: Path, said: dict[str, Any], cpus: int
) -> None:
    settings = Settings(node="n1", address="127.0.0.1", data_dir=tmp_path, **said)
    clock = SystemClock()
    ports = host_ports(
        settings,
        log=MemoryLog(clock),
        clock=clock,
        chance=SystemChance(),
        telemetry=Telemetry("node_agent", now_ms=clock.now_ms),
    )
    assert ports.machine.cpu_milli == cpus


@pytest.mark.parametrize(("users", "said"), [("same", False), ("auto", os.geteuid() != 0)])
def test_an_agent_that_is_to_run_tasks_as_its_own_user_does_not_warn_of_it(
    tmp_path: Path, users: str, said: bool
) -> None:
    lines = io.StringIO()
    log = MemoryLog(clock := SystemClock())
    telemetry = Telemetry("node_agent", now_ms=clock.now_ms, level="warning", stream=lines)
    settings = Settings(node="n1", data_dir=tmp_path, gpus=0, task_users=users)
    host_ports(settings, log=log, clock=clock, chance=SystemChance(), telemetry=telemetry)
    # As root it depends on whether the folders are closed to the other user.
    assert ("tasks_not_isolated" in lines.getvalue()) == said or (users, os.geteuid()) == (
        "auto",
        0,
    )


async def test_agents_of_one_machine_divide_its_cpus_and_its_memory(tmp_path: Path) -> None:
    found = {
        agents: host_ports(
            Settings(node="n1", data_dir=tmp_path / str(agents), gpus=0, machine_agents=agents),
            log=MemoryLog(clock := SystemClock()),
            clock=clock,
            chance=SystemChance(),
            telemetry=Telemetry("node_agent", now_ms=clock.now_ms, level="error"),
        ).machine
        for agents in (1, 4)
    }
    assert found[4].cpu_milli == found[1].cpu_milli // 4
    assert found[4].memory_mib == found[1].memory_mib // 4 == memory_mib() // 4


def test_the_machine_has_cpus_and_memory() -> None:
    assert cpu_milli() >= 1000
    assert memory_mib() > 0
    assert 0 < free_port() < 65_536


def test_only_variables_on_the_list_are_passed_on_and_never_the_agents_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "LC_TIME": "de_DE",
        "YARD_LOG": "kafka://user:password@broker",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "PATHS": "/other",
    }
    monkeypatch.setattr(os, "environ", environ)
    assert own_variables(("PATH", "LC_*")) == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "LC_TIME": "de_DE",
    }
    assert own_variables(("YARD_*", "Y*")) == {}


@pytest.mark.parametrize("name", ["*", "", "A*B", "A=B", "[A]*"])
def test_a_list_of_passed_variables_names_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="passed"):
        Settings(node="n1", data_dir=tmp_path, passed=(name,))
