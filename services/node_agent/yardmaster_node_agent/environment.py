"""The environment variables of a task, as pure functions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from yardmaster_node_agent.agent_state import Assignment
from yardmaster_node_agent.errors import RunRefused
from yardmaster_node_agent.executors.port import Paths
from yardmaster_node_agent.fraction_limits import FractionLimiter
from yardmaster_schemas.events.details import JobDetailedV1
from yardmaster_schemas.reasons import StartFailure

#: Prefixes of the names that the agent, the GPU driver or the dynamic loader use. A job that sets
#: such a name is refused, so that it cannot change their behavior or that of a root process.
RESERVED: Final = ("YARD_", "CUDA_", "NVIDIA_", "LD_")
#: Further names that the agent sets. The agent would overwrite a job's value, so it refuses the
#: job.
GANG_NAMES: Final = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"}
    | {f"PET_{name}" for name in ("NNODES", "NODE_RANK", "NPROC_PER_NODE")}
    | {"PET_MASTER_ADDR", "PET_MASTER_PORT"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The node's part of the environment: its name, the URL of the tasks' API, its devices.

    `devices` has the CUDA name (an index or a UUID) of each slot; `passed` has the variables of the
    agent's own environment that every task gets; `limiter` enforces fractions of GPUs.
    """

    node: str
    agent_url: str
    devices: tuple[str, ...]
    gpu_memory_mib: int
    limiter: FractionLimiter
    passed: Mapping[str, str]


def refuse_reserved(assignment: Assignment, names: list[str]) -> None:
    """Refuse a job that sets a reserved variable.

    Raises:
        RunRefused: a name is reserved.
    """
    for name in sorted(names):
        if name.startswith(RESERVED) or name in GANG_NAMES:
            raise RunRefused(
                replica=assignment.key,
                found=f"its environment sets {name}, reserved",
                failure=StartFailure.RESERVED_VARIABLE,
            )


def task_environment(
    assignment: Assignment,
    details: JobDetailedV1,
    secrets: Mapping[str, str],
    *,
    token: str,
    paths: Paths,
    facts: NodeFacts,
    free_port: int,
) -> dict[str, str]:
    """Return the whole environment of one replica.

    `secrets` are resolved values by variable name. `free_port` is for the rendezvous of a task of
    one replica, for which the scheduler reserves no port.

    Raises:
        RunRefused: the job sets a reserved name.
    """
    refuse_reserved(assignment, [*details.run.env, *secrets])
    # Without this variable, Python buffers its output, and `yard logs -f` would show it late.
    env = {"PYTHONUNBUFFERED": "1", **facts.passed, **details.run.env, **secrets}
    env |= _own(assignment, details, token, paths, facts)
    env |= _devices(assignment, facts)
    env |= _rendezvous(assignment, free_port)
    return env


def _own(
    assignment: Assignment, details: JobDetailedV1, token: str, paths: Paths, facts: NodeFacts
) -> dict[str, str]:
    key = assignment.key
    index = assignment.task_index
    params = details.params[index] if index < len(details.params) else {}
    checkpoint = assignment.checkpoint
    grace = assignment.grace_s
    values = {
        "JOB_ID": key.task_id.partition(".")[0],
        "JOB_NAME": details.name,
        "USER": details.user,
        "TASK_ID": key.task_id,
        "TASK_INDEX": index,
        "TASK_COUNT": assignment.tasks,
        "ATTEMPT": key.attempt,
        "PROJECT": assignment.project,
        "POOL": assignment.pool,
        "NODE": facts.node,
        "REPLICA": key.replica,
        "REPLICAS": assignment.replicas,
        "PARAMS": json.dumps(params, separators=(",", ":"), sort_keys=True),
        "CHECKPOINT_URI": "" if checkpoint is None else checkpoint.uri,
        "CHECKPOINT_STEP": "" if checkpoint is None else checkpoint.step,
        "CHECKPOINT_FILE": paths.checkpoint_file,
        "STOP_FILE": paths.stop_file,
        "GRACE_S": "" if grace is None else grace,
        "AGENT_URL": facts.agent_url,
        "AGENT_SOCKET": "",
        "AGENT_TOKEN": token,
        "GPU_MILLI": assignment.gpu_milli,
        "GPU_MEMORY_MIB": assignment.gpu_memory_mib
        or facts.gpu_memory_mib * assignment.gpu_milli // 1000,
    }
    return {f"YARD_{name}": str(value) for name, value in values.items()}


def _devices(assignment: Assignment, facts: NodeFacts) -> dict[str, str]:
    env = {
        "CUDA_VISIBLE_DEVICES": ",".join(facts.devices[slot] for slot in assignment.slots),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    limits = facts.limiter.variables(
        assignment.gpu_milli, len(assignment.slots), memory_mib=assignment.gpu_memory_mib
    )
    return {**env, **limits}


def _rendezvous(assignment: Assignment, free_port: int) -> dict[str, str]:
    """Return the PET_ names for `torchrun`, and the plain names for programs without torchrun.

    A single replica gets them too, as a gang of one, so that `init_process_group("env://")` works
    in it. A replica with at most one GPU has one process, with LOCAL_RANK 0. A replica with more
    GPUs has more processes, and torchrun sets their ranks.
    """
    replica, replicas, slots = assignment.key.replica, assignment.replicas, len(assignment.slots)
    gang = replicas > 1
    address = assignment.master_addr if gang else "127.0.0.1"
    port = assignment.master_port if gang and assignment.master_port is not None else free_port
    values: dict[str, int | str] = {
        "PET_NNODES": replicas,
        "PET_NODE_RANK": replica,
        "PET_NPROC_PER_NODE": max(slots, 1),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "RANK": replica,
        "WORLD_SIZE": replicas,
    }
    if slots <= 1:
        values["LOCAL_RANK"] = 0
    return {name: str(value) for name, value in values.items()}
