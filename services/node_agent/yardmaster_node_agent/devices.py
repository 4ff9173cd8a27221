"""What the node has: GPUs from the NVIDIA driver, CPU and memory from the kernel, a free port.

Slots that the configuration declares are never detected; a machine without a driver has none.
Nothing here fails for want of hardware.
"""

import os
import socket
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

_NVIDIA: Final = Path("/proc/driver/nvidia/gpus")
#: nvidia-smi answers in a second; one that hangs means a driver in trouble.
_SMI_TIMEOUT_S: Final = 20


@dataclass(frozen=True, slots=True)
class Devices:
    """GPUs by slot: each one's CUDA name; the smallest memory among them (0: not known)."""

    names: tuple[str, ...] = ()
    memory_mib: int = 0


def detect_gpus(driver: Path = _NVIDIA, command: str = "nvidia-smi") -> Devices:
    """The node's GPUs in PCI order, by index; none without a driver.

    `nvidia-smi` knows their memory; where it is missing or fails, /proc says how many there are.
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
    """GPUs of `index, memory in MiB` lines.

    Raises:
        ValueError: the lines are others.
    """
    rows = [[part.strip() for part in row.split(",")] for row in answer.splitlines() if row.strip()]
    names = tuple(str(int(index)) for index, _ in rows)
    memories = [int(memory) for _, memory in rows if memory.isdecimal()]
    return Devices(names, min(memories, default=0) if len(memories) == len(rows) else 0)


def cpu_milli() -> int:
    """The CPUs this process may use, in thousandths."""
    return len(os.sched_getaffinity(0)) * 1000


def memory_mib() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


def own_variables(patterns: tuple[str, ...]) -> dict[str, str]:
    """The variables of the agent's own environment that its tasks get, by name.

    A pattern is a name, or a name's beginning with `*` at its end. `YARD_` names are the agent's
    settings, which may hold credentials: no pattern passes them on.
    """
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if not name.startswith("YARD_") and any(fnmatchcase(name, p) for p in patterns)
    }


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
