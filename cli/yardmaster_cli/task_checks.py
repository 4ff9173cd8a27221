"""Checks of this machine as a node: its container engine, and the limits of tasks."""

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast, get_args

import httpx

from yardmaster_cli.findings import Finding
from yardmaster_runtime.cgroup_mounts import UNIFIED, hierarchies
from yardmaster_runtime.engine_api import NoCommonVersion, agreed_version, text_of
from yardmaster_runtime.engine_gpus import (
    SETTING,
    GpuChoice,
    NoGpus,
    cdi_devices,
    gpu_driver,
    runtimes,
)

ENGINE_SOCKET: Final = "/var/run/docker.sock"
ANSWER_S: Final = 10.0
#: The limits in an engine's `/info`, and the names of what they limit.
_LIMITS: Final = {
    "MemoryLimit": "memory",
    "SwapLimit": "swap",
    "CpuCfsQuota": "cpu",
    "PidsLimit": "pids",
}
_CONTROLLERS: Final = ("memory", "cpu", "pids")
_ENGINE: Final = "container engine"
_BASE: Final = "http://engine"


def engine_findings(env: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether agents can use the container engine of this machine."""
    path = env.get("YARD_AGENT_ENGINE_SOCKET", ENGINE_SOCKET)
    get = "only for jobs with an image: start Docker, and let this user open its socket"
    try:
        # httpx does not close the socket of a connection that is refused.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(transport=transport, base_url=_BASE, timeout=ANSWER_S) as engine:
            said = engine.get("/version").raise_for_status().json()
            version = text_of(agreed_version(said))
            info = engine.get(f"/v{version}/info").raise_for_status().json()
    except NoCommonVersion as error:
        yield Finding(_ENGINE, False, f"{path}: {error}", get=get, lacking="unusable")
        return
    except (OSError, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        yield Finding(_ENGINE, False, f"{path}: {error}", get=get)
        return
    versions = f"API {said['MinAPIVersion']} to {said['ApiVersion']}, of which agents use {version}"
    yield Finding(_ENGINE, True, f"{said.get('Version')} at {path}: {versions}")
    yield gpu_finding(said, info, env.get(SETTING, "auto"))
    yield from info_findings(info)


def gpu_finding(version: Mapping[str, Any], info: Mapping[str, Any], wanted: str) -> Finding:
    """Check how agents request GPUs from an engine; `wanted` is their setting."""
    what, get = "GPUs in containers", "only for GPUs in containers"
    if wanted not in get_args(GpuChoice):
        return Finding(what, False, f"{SETTING}={wanted}", get=f"set {SETTING} to auto")
    try:
        driver = gpu_driver(version, info, cast("GpuChoice", wanted))
    except NoGpus as error:
        found, _, advice = str(error).partition(": ")
        return Finding(what, False, found, get=f"{get}: {advice}")
    has = [f"runtime {name}" for name in runtimes(info)]
    has += [f"CDI device {name}" for name in cdi_devices(info)]
    return Finding(what, True, f"driver {driver}; the engine has {', '.join(has) or 'neither'}")


def info_findings(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Check what an engine says of itself: storage and limits."""
    driver = str(info.get("Driver"))
    get = "vfs copies each layer for each container: configure the driver overlay2"
    yield Finding("container storage", driver != "vfs", driver, get=get, lacking="slow")
    lacking = [name for key, name in _LIMITS.items() if not info.get(key)]
    said = f"cgroups version {info.get('CgroupVersion', '1')}"
    said += (
        f" without limits of {', '.join(lacking)}"
        if lacking
        else f": {', '.join(_LIMITS.values())}"
    )
    get = "boot the kernel with cgroup_enable=memory swapaccount=1, or with version 2 of cgroups"
    yield Finding("limits of containers", not lacking, said, get=get, lacking="partial")


def process_limits(process: Path = Path("/proc/self")) -> Finding:
    """Check whether an agent that is started like this command can limit processes by cgroups."""
    what = "limits of processes"
    mounted = hierarchies(process)
    folders = {name: each.own for name, each in mounted.items()}
    first = [name for name in _CONTROLLERS if name in folders]
    if first:
        writable = [name for name in first if os.access(folders[name], os.W_OK)]
        found = f"cgroups version 1: {', '.join(writable) or 'none'}"
        get = "let the agent write to its groups of memory, cpu and pids, as root can"
        return Finding(what, len(writable) == len(_CONTROLLERS), found, get=get)
    if UNIFIED not in folders:
        return Finding(what, False, "no cgroups are mounted", get="mount cgroups of version 2")
    folder = folders[UNIFIED]
    get = "run the agent as a service of systemd with Delegate=yes and DelegateSubgroup=agent"
    try:
        held = (folder / "cgroup.controllers").read_text().split()
        alone = not (folder / "cgroup.events").exists()
        alone = alone or (folder / "cgroup.procs").read_text().split() == [str(os.getpid())]
    except OSError as error:
        return Finding(what, False, f"cgroups version 2: {error}", get=get)
    lacking = [name for name in _CONTROLLERS if name not in held]
    found = f"cgroups version 2 in {folder}"
    if lacking:
        found += f" without {', '.join(lacking)}"
    elif not os.access(folder, os.W_OK):
        found += ", which this user cannot write"
    elif not alone:
        found += ", where other processes are"
    else:
        return Finding(what, True, found)
    return Finding(what, False, found, get=get)
