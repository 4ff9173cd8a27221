"""The description of a replica's container, from which the engine creates it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from yardmaster_node_agent.executors.host_folders import HostFolder, MountRefused, mounts_of
from yardmaster_node_agent.executors.port import MAX_PIDS, Launch

#: Where a replica finds its directory, and the folder with the socket of the agent's API.
INSIDE: Final = "/yard"
API_INSIDE: Final = "/run/yardmaster"
#: Shared memory of a container without a memory limit; with one, the half of it, and at most this.
MAX_SHM_BYTES: Final = 8 * 2**30
#: The engine's log keeps this much output of a container for an agent that is away.
_LOG: Final = {"Type": "local", "Config": {"max-size": "8m", "max-file": "16", "compress": "false"}}

#: The network of containers: one of its own for each, that of the node, or that of the node for
#: gangs over several replicas alone.
Network = Literal["bridge", "host", "host_for_gangs"]


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The settings that all containers of an agent have in common.

    Attributes:
        network: see the setting `container_network`.
        api_socket: the socket of the API of tasks, alone in its folder; containers with a network
            of their own use the API there, if it exists.
        folders: the folders that jobs may mount; see the setting `mounts`.
    """

    network: Network
    api_socket: Path | None
    folders: Mapping[str, HostFolder]

    def refused(self, launch: Launch) -> str | None:
        """Return why no container can run a job; None if one can."""
        if launch.run.image is None:
            return "the job names no image, and this node runs containers only"
        if launch.replicas > 1 and self.network == "bridge":
            return (
                "a gang needs the network of its nodes: set "
                "YARD_AGENT_CONTAINER_NETWORK=host_for_gangs (or host) on them"
            )
        try:
            mounts_of(launch.run.mounts, self.folders)
        except MountRefused as error:
            return str(error)
        return None

    def of(
        self,
        launch: Launch,
        directory: Path,
        image: str,
        labels: Mapping[str, str],
        gpus: Sequence[Mapping[str, object]],
    ) -> dict[str, Any]:
        """Return the engine's description of a replica's container.

        `directory`: the replica's, `image`: the id of the image, `gpus`: the requests for GPUs.
        """
        run, user = launch.run, launch.user
        env = {"HOME": f"{INSIDE}/work", **launch.env}
        mounts = [*_mounts(directory, launch.code), *mounts_of(run.mounts, self.folders)]
        of_node = self.network == "host" or launch.replicas > 1
        if not of_node and env.get("YARD_AGENT_URL"):
            # The API listens on the loopback interface of the node, which is not the container's.
            api = self.api_socket
            if api is not None and api.is_socket():
                env |= {
                    "YARD_AGENT_URL": "http://localhost",
                    "YARD_AGENT_SOCKET": f"{API_INSIDE}/{api.name}",
                }
                mounts.append(_mount(api.parent.absolute(), API_INSIDE, read_only=True))
            else:
                env |= {"YARD_AGENT_URL": "", "YARD_AGENT_TOKEN": ""}
        if not any(each["Driver"] == "nvidia" for each in gpus):
            # A default runtime of NVIDIA's would show all GPUs.
            env["NVIDIA_VISIBLE_DEVICES"] = "void"
        container: dict[str, Any] = {
            "Image": image,
            "Env": [f"{name}={value}" for name, value in env.items()],
            "Labels": dict(labels),
            "HostConfig": {
                "Init": True,
                "RestartPolicy": {"Name": "no"},
                "NetworkMode": "host" if of_node else "bridge",
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "LogConfig": _LOG,
                "Mounts": mounts,
                "DeviceRequests": list(gpus),
                **_limits(launch),
            },
        }
        if run.script is not None:
            container |= {"Entrypoint": ["sh", "-eu", f"{INSIDE}/script"], "Cmd": []}
        else:
            container["Cmd"] = list(run.command)
        if run.working_dir is not None:
            named = Path(run.working_dir)
            below = named if launch.code is None else named.relative_to(launch.code)
            container["WorkingDir"] = str(Path(INSIDE, "work") / below)
        if user is not None:
            container["User"] = f"{user.uid}:{user.gid}"
            container["HostConfig"]["GroupAdd"] = [str(group) for group in user.groups]
        return container


def _mounts(directory: Path, code: Path | None) -> list[dict[str, object]]:
    """Return the mounts: the directory, and in it the two folders that the replica may change.

    The working folder is the replica's copy of the job's context, if the job has one.
    """

    return [
        _mount(directory, INSIDE, read_only=True),
        _mount(code or directory / "work", f"{INSIDE}/work"),
        _mount(directory / "task", f"{INSIDE}/task"),
    ]


def _mount(source: Path, target: str, *, read_only: bool = False) -> dict[str, object]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": read_only}


def _limits(launch: Launch) -> dict[str, object]:
    """Return the limits of a container; without a number, CPUs or memory are not limited."""
    memory = launch.memory_mib * 2**20
    limits: dict[str, object] = {
        "PidsLimit": MAX_PIDS,
        "ShmSize": min(memory // 2, MAX_SHM_BYTES) if memory else MAX_SHM_BYTES,
    }
    if launch.run.shm_mib is not None:
        limits["ShmSize"] = launch.run.shm_mib * 2**20
    if memory:
        limits |= {"Memory": memory, "MemorySwap": memory}
    if launch.cpu_milli:
        limits["NanoCpus"] = launch.cpu_milli * 1_000_000
    return limits
