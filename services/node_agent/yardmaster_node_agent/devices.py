"""Detect the node's hardware: GPUs from the NVIDIA driver, CPU and memory from the kernel; and the
MPS control daemon.

If the configuration declares slots, GPUs are not detected. A machine without a driver has no GPUs;
missing hardware is not an error.
"""

import asyncio
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

_NVIDIA: Final = Path("/proc/driver/nvidia/gpus")
#: nvidia-smi answers in about a second; if it hangs, the driver has a fault.
_SMI_TIMEOUT_S: Final = 20
#: The MPS control daemon answers at once; a daemon that hangs counts as none.
_MPS_TIMEOUT_S: Final = 10


@dataclass(frozen=True, slots=True)
class Devices:
    """The CUDA name of each slot's GPU; the smallest memory of these GPUs in MiB (0: unknown)."""

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


def gpu_memory_mib(names: Sequence[str], command: str = "nvidia-smi") -> int:
    """Return the memory in MiB of the smallest of the GPUs `names` (indexes or UUIDs); 0: unknown.

    It is unknown for parts of a GPU (MIG), for which `nvidia-smi` reports no memory.
    """
    try:
        answer = subprocess.run(
            [
                *(command, "-i", ",".join(names)),
                *("--query-gpu=index,memory.total", "--format=csv,noheader,nounits"),
            ],
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT_S,
            check=True,
        ).stdout
        found = parse_smi(answer)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0
    return found.memory_mib if len(found.names) == len(set(names)) else 0


def parse_smi(answer: str) -> Devices:
    """Parse lines of `index, memory in MiB`.

    Raises:
        ValueError: a line has another format.
    """
    rows = [[part.strip() for part in row.split(",")] for row in answer.splitlines() if row.strip()]
    names = tuple(str(int(index)) for index, _ in rows)
    memories = [int(memory) for _, memory in rows if memory.isdecimal()]
    return Devices(names, min(memories, default=0) if len(memories) == len(rows) else 0)


@dataclass(frozen=True, slots=True)
class MpsControl:
    """The MPS control daemon of a pipe directory, queried through NVIDIA's control program."""

    pipe_directory: Path
    command: str = "nvidia-cuda-mps-control"

    def answers(self) -> bool:
        """Return whether the daemon runs and answers; this may take seconds."""
        try:
            answer = subprocess.run(
                [self.command],
                input="get_default_active_thread_percentage\n",
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory)},
                capture_output=True,
                text=True,
                timeout=_MPS_TIMEOUT_S,
                check=True,
            ).stdout
            return float(answer) > 0
        except (OSError, subprocess.SubprocessError, ValueError):
            return False

    async def ask(self) -> bool:
        """Return the same as `answers`, without blocking the event loop."""
        return await asyncio.to_thread(self.answers)


def cpu_milli() -> int:
    """Return the number of CPUs that this process may use, in thousandths."""
    return len(os.sched_getaffinity(0)) * 1000


def memory_mib() -> int:
    """Return the memory of the machine in MiB."""
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
