"""Limit replicas to their fractions of GPUs, through NVIDIA's Multi-Process Service (MPS).

The scheduler counts fractions; only something on the node can enforce them. Where an MPS control
daemon runs, the variables of a replica tell CUDA how much memory and which part of the
multiprocessors each of its processes may use. The operator starts the daemon; the agent never does,
because a daemon concerns all programs of the machine and must outlive the agent.

If a CUDA program cannot reach a daemon, it runs without one and without limits, and says nothing.
Therefore the agent asks the daemon before it says that it enforces fractions, and again before it
starts a replica with a fraction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from yardmaster_node_agent.devices import Devices
from yardmaster_node_agent.errors import MpsUnusable
from yardmaster_schemas.events.node_events import FractionLimits
from yardmaster_schemas.resources import is_fraction


class FractionLimiter(Protocol):
    """Limits replicas to their fractions of the node's GPUs."""

    @property
    def limits(self) -> FractionLimits:
        """The means of enforcement, which the node reports when it joins."""

    async def missing(self) -> str | None:
        """Return why fractions cannot be enforced at present; None if they can."""

    def variables(self, gpu_milli: int, gpus: int, *, memory_mib: int = 0) -> Mapping[str, str]:
        """Return the variables of a replica that holds `gpu_milli` of each of `gpus` GPUs.

        `memory_mib` is the memory of each GPU that the replica requested; 0: the part of the memory
        that corresponds to `gpu_milli`. For whole GPUs, no variables are returned.
        """


class NoLimits:
    """Enforces nothing: the scheduler counts fractions, but a replica may exceed them."""

    limits: Final = FractionLimits.NONE

    async def missing(self) -> str | None:
        """Return None, because the node does not report that it enforces fractions."""
        return None

    def variables(self, gpu_milli: int, gpus: int, *, memory_mib: int = 0) -> Mapping[str, str]:
        """Return no variables."""
        return {}


class MpsDaemon(Protocol):
    """The MPS control daemon of the machine, which may not run."""

    @property
    def pipe_directory(self) -> Path:
        """The directory of its pipes."""

    def answers(self) -> bool:
        """Return whether the daemon runs and answers; this may take seconds."""

    async def ask(self) -> bool:
        """Return the same as `answers`, without blocking the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsLimiter:
    """Limits replicas through an MPS daemon; `gpu_memory_mib` is the smallest GPU's, above 0."""

    daemon: MpsDaemon
    log_directory: Path
    gpu_memory_mib: int

    @property
    def limits(self) -> FractionLimits:
        """MPS."""
        return FractionLimits.MPS

    async def missing(self) -> str | None:
        """Return why the daemon cannot be used; None if it answers."""
        return None if await self.daemon.ask() else _no_answer(self.daemon)

    def variables(self, gpu_milli: int, gpus: int, *, memory_mib: int = 0) -> Mapping[str, str]:
        """Return the variables for CUDA; both limits are rounded down, and at least 1.

        The memory limit names GPUs by their number in CUDA_VISIBLE_DEVICES.
        Source: "Multi-Process Service", NVIDIA, appendix "Environment Variables".
        """
        if not is_fraction(gpu_milli):
            return {}
        memory_mib = memory_mib or max(self.gpu_memory_mib * gpu_milli // 1000, 1)
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.daemon.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(gpu_milli // 10, 1)),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{n}={memory_mib}M" for n in range(gpus)),
        }


def _no_answer(daemon: MpsDaemon) -> str:
    return f"no MPS control daemon answers at {daemon.pipe_directory}"


def choose_limiter(
    setting: bool | None,
    *,
    daemon: MpsDaemon,
    log_directory: Path,
    devices: Devices,
    memory_of: Callable[[Sequence[str]], int],
    blocked: Callable[[Path], Path | None],
) -> tuple[FractionLimiter, str]:
    """Return the limiter of a node, and the reason if it enforces nothing (else an empty text).

    Args:
        setting: whether fractions are limited through MPS; None: if that is possible.
        memory_of: returns the memory in MiB of the smallest of the named GPUs, 0 if unknown. It
            asks the driver, and is called if `devices` does not have the memory.
        blocked: returns the first part of a path that is closed to the tasks' user; None if the
            user can reach the path.

    Raises:
        MpsUnusable: the setting is true, and MPS cannot be used on a node with GPUs.
    """
    if not devices.names:
        return NoLimits(), "the node has no GPUs"
    if setting is False:
        return NoLimits(), "the setting mps is false"
    reason = None
    memory_mib = devices.memory_mib
    if not daemon.answers():
        reason = _no_answer(daemon)
    elif (closed := blocked(daemon.pipe_directory)) is not None:
        reason = f"tasks cannot reach {daemon.pipe_directory}: {closed} is closed to their user"
    else:
        memory_mib = memory_mib or memory_of(devices.names)
        if not memory_mib:
            reason = "the memory of its GPUs is unknown (YARD_AGENT_GPU_MEMORY_MIB sets it)"
    if reason is None:
        limiter = MpsLimiter(daemon=daemon, log_directory=log_directory, gpu_memory_mib=memory_mib)
        return limiter, ""
    if setting:
        raise MpsUnusable(found=reason)
    return NoLimits(), reason
