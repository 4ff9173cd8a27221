"""Checks of the container engine and of limits of tasks, as `yard doctor` shows them."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from yardmaster_cli.findings import Finding
from yardmaster_cli.task_checks import (
    engine_findings,
    gpu_finding,
    info_findings,
    process_limits,
)

LIMITS = {"MemoryLimit": True, "SwapLimit": True, "CpuCfsQuota": True, "PidsLimit": True}
INFO: dict[str, Any] = {"Driver": "overlay2", "CgroupVersion": "2", "Runtimes": {"runc": {}}}
VERSIONS = {"Version": "28.2", "ApiVersion": "1.50", "MinAPIVersion": "1.24"}


class Answers(BaseHTTPRequestHandler):
    """An engine that answers what it is."""

    versions = VERSIONS

    def do_GET(self) -> None:
        info = {**INFO, **LIMITS}
        said = {"/version": self.versions, "/v1.50/info": info}[self.path]
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    with TemporaryDirectory() as folder:
        path = f"{folder}/e.sock"
        with ThreadingUnixStreamServer(path, Answers) as engine:
            threading.Thread(target=engine.serve_forever, daemon=True).start()
            yield {"YARD_AGENT_ENGINE_SOCKET": path}
            engine.shutdown()


def by_name(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


def test_an_engine_that_agents_can_use_is_named_with_its_versions(env: dict[str, str]) -> None:
    found = by_name(engine_findings(env))
    engine = found["container engine"]
    assert engine.good
    socket = env["YARD_AGENT_ENGINE_SOCKET"]
    assert engine.found == f"28.2 at {socket}: API 1.24 to 1.50, of which agents use 1.50"
    assert found["container storage"].found == "overlay2"
    assert found["limits of containers"].found == "cgroups version 2: memory, swap, cpu, pids"


def test_an_engine_without_a_common_version_is_unusable(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "versions", {"ApiVersion": "1.40", "MinAPIVersion": "1.12"})
    [engine] = engine_findings(env)
    assert engine.state == "unusable"
    assert engine.found.endswith(
        "1.12 to 1.40, and the agent needs one of 1.41 to 1.51: upgrade Docker"
    )
    assert not engine.needed


def test_a_missing_engine_is_only_for_jobs_with_an_image(tmp_path: Path) -> None:
    [engine] = engine_findings({"YARD_AGENT_ENGINE_SOCKET": str(tmp_path / "none")})
    assert engine.state == "absent"
    assert engine.get.startswith("only for jobs with an image")


@pytest.mark.parametrize(
    ("said", "what", "state", "words"),
    [
        ({"Driver": "vfs"}, "container storage", "slow", "vfs"),
        (
            {"CgroupVersion": "1", "SwapLimit": False},
            "limits of containers",
            "partial",
            "cgroups version 1 without limits of swap",
        ),
    ],
)
def test_an_engine_says_what_it_has(
    said: dict[str, Any], what: str, state: str, words: str
) -> None:
    found = by_name(info_findings({**INFO, **LIMITS, **said}))[what]
    assert found.state == state
    assert words in found.found


@pytest.mark.parametrize(
    ("said", "wanted", "state", "found"),
    [
        ({}, "auto", "absent", "the engine has neither a runtime of NVIDIA's nor CDI devices"),
        ({}, "cdi", "ok", "driver cdi; the engine has neither"),
        ({}, "none", "absent", "YARD_AGENT_CONTAINER_GPUS=none"),
        (
            {"Runtimes": {"nvidia": {}}},
            "auto",
            "ok",
            "driver nvidia; the engine has runtime nvidia",
        ),
        (
            {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]},
            "auto",
            "ok",
            "driver cdi; the engine has CDI device nvidia.com/gpu=0",
        ),
    ],
)
def test_the_way_of_gpus_into_containers_is_named(
    said: dict[str, Any], wanted: str, state: str, found: str
) -> None:
    finding = gpu_finding(VERSIONS, {**INFO, **said}, wanted)
    assert finding.state == state
    assert finding.found.startswith(found)


def test_podman_gives_no_gpus_to_containers() -> None:
    podman = {"Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}
    finding = gpu_finding({**VERSIONS, **podman}, INFO, "auto")
    assert (finding.state, finding.found) == ("absent", "Podman ignores requests for GPUs")
    assert finding.get == "only for GPUs in containers: run Docker on nodes with GPUs"


def process(folder: Path, groups: str, mounts: str) -> Path:
    """Make the folder of a process in /proc."""
    (folder / "cgroup").write_text(groups)
    (folder / "mountinfo").write_text(mounts)
    return folder


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"controllers": "cpu io", "procs": ""}, "without memory, pids"),
        (
            {"controllers": "cpu memory pids", "procs": f"1\n{os.getpid()}", "events": ""},
            "where other processes are",
        ),
        (
            {"controllers": "cpu memory pids", "procs": f"{os.getpid()}", "events": ""},
            "",
        ),
        ({"controllers": "cpu memory pids", "procs": "1"}, ""),
    ],
    ids=["controllers", "other processes", "delegated", "root"],
)
def test_version_2_limits_processes_in_a_group_of_the_agent_alone(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    (unit := tmp_path / "unit").mkdir()
    for name, content in files.items():
        (unit / f"cgroup.{name}").write_text(content)
    mounts = f"30 20 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    found = process_limits(process(tmp_path, "0::/unit\n", mounts))
    assert found.good == (words == "")
    assert found.found.startswith(f"cgroups version 2 in {unit}")
    assert words in found.found


def test_version_1_limits_processes_where_its_hierarchies_can_be_written(tmp_path: Path) -> None:
    groups, mounts = "", ""
    for name in ("memory", "cpu", "pids"):
        groups += f"4:{name}:/\n"
        mounts += f"30 20 0:26 / {tmp_path / name} rw - cgroup cgroup rw,{name}\n"
    machine = process(tmp_path, groups, mounts)
    for name in ("memory", "cpu"):
        (tmp_path / name).mkdir()
    found = process_limits(machine)
    assert (found.state, found.found) == ("absent", "cgroups version 1: memory, cpu")
    (tmp_path / "pids").mkdir()
    assert process_limits(machine).good


def test_a_machine_without_cgroups_is_named(tmp_path: Path) -> None:
    assert process_limits(process(tmp_path, "", "")).found == "no cgroups are mounted"
