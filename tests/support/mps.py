"""An MPS daemon that answers if a test lets it, and programs in place of NVIDIA's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yardmaster_node_agent.fraction_limits import MpsLimiter
from yardmaster_node_agent.settings import MPS_PIPES

LOGS = Path("/var/log/nvidia-mps")


@dataclass
class FakeDaemon:
    """A daemon that answers while `running`."""

    running: bool = True
    pipe_directory: Path = MPS_PIPES

    def answers(self) -> bool:
        return self.running

    async def ask(self) -> bool:
        return self.running


def mps_limiter(daemon: FakeDaemon | None = None, gpu_memory_mib: int = 80_000) -> MpsLimiter:
    """A limiter of GPUs of this memory."""
    return MpsLimiter(
        daemon=daemon or FakeDaemon(), log_directory=LOGS, gpu_memory_mib=gpu_memory_mib
    )


def programs(folder: Path, bodies: Mapping[str, str]) -> Path:
    """Write shell scripts by name; return their folder."""
    folder.mkdir(exist_ok=True)
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o700)
    return folder
