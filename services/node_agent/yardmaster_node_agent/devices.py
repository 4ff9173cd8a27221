"""Detect the node's hardware: GPUs from the NVIDIA driver, CPU and memory from the kernel.

If the configuration declares slots, GPUs are not detected. A machine without a driver has no GPUs;
missing hardware is not an error.
"""

import os
import socket
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

_NVIDIA: Final = Path("/proc/driver/nvidia/gpus")
#: nvidia-smi answers in about a second; if it hangs, the driver has a fault.
_SMI_TIMEOUT_S: Final = 20


@dataclass(frozen=True, slots=True)
class Devices:
    """The CUDA name of each slot's GPU, and the smallest memory of these GPUs (0: unknown)."""

    names: tuple[str, ...] = ()
    memory_mib: int = 0


def detect_gpus(driver: Path = _NVIDIA, command: str = "nvidia-smi") -> Devices:
    """Return the node's GPUs in PCI order, named by index; none without a driver.

    If `nvidia-smi` is missing or fails, the GPUs are counted in /proc and their memory is unknown.
    """
    try:
        answer = subprocess.run(
            [command, "--query-gpu=index,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT_S,
            check=True,
        ).stdout
        return parse_smi(answer)
    except (OSError, subprocess.SubprocessError, ValueError):
        count = len(list(driver.iterdir())) if driver.is_dir() else 0
        return Devices(tuple(str(index) for index in range(count)))


def parse_smi(answer: str) -> Devices:
    """Parse lines of `index, memory in MiB`.

    Raises:
        ValueError: a line has another format.
    """
    rows = [[part.strip() for part in row.split(",")] for row in answer.splitlines() if row.strip()]
    names = tuple(str(int(index)) for index, _ in rows)
    memories = [int(memory) for _, memory in rows if memory.isdecimal()]
    return Devices(names, min(memories, default=0) if len(memories) == len(rows) else 0)


def cpu_milli() -> int:
    """Return the number of CPUs that this process may use, in thousandths."""
    return len(os.sched_getaffinity(0)) * 1000


def memory_mib() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


def own_variables(patterns: tuple[str, ...]) -> dict[str, str]:
    """Return the variables of the agent's own environment that its tasks get, by name.

    A pattern is a name, or the prefix of names followed by `*`. `YARD_` names are the agent's
    settings, which may contain credentials: no pattern passes them to tasks.
    """
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if not name.startswith("YARD_") and any(fnmatchcase(name, p) for p in patterns)
    }


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
