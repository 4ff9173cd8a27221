"""Containers: each replica in a container of its own, which outlives the agent.

A replica is prepared when its container is created, and starts at most once, because an engine
starts a container at most once and the agent never starts one again. The container's name follows
from the replica, and a label names the agent's data directory, so that a later agent process finds
its containers, and touches no others.

The replica's directory is mounted at `/yard`, read-only except `work` and `task`: it has the stop
file, the script and the checkpoint file. The agent copies the output from the engine to the same
directory (see `spool`). `container_spec` describes a container to the engine, and `container`
follows one that was started.

While the engine does not answer, nothing is known of the containers, so calls wait for it; only
`prepare` fails, and `find` says that it is unknown. A guard, which is a process of its own, kills
containers of pools with `fence: kill` whose lease was not renewed (see `container_guard`).
"""

import math
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors.container import (
    ContainerExecution,
    Patience,
    RunningContainers,
    has_ended,
    is_over,
)
from yardmaster_node_agent.executors.container_spec import INSIDE, ContainerSpec, Network
from yardmaster_node_agent.executors.directory import ReplicaDirectory
from yardmaster_node_agent.executors.engine import PROBE_S, Engine, EngineAway, EngineRefused
from yardmaster_node_agent.executors.guarding import Guarding
from yardmaster_node_agent.executors.host_folders import HostFolder
from yardmaster_node_agent.executors.images import Images, PullFailed
from yardmaster_node_agent.executors.port import (
    Capabilities,
    Launch,
    OnProgress,
    Paths,
    Phase,
    ReplicaFound,
)
from yardmaster_node_agent.executors.registries import RegistryAuths
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.engine_api import FOLDER_LABEL, OWNER_LABEL
from yardmaster_runtime.engine_gpus import GpuChoice
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import PullPolicy, Run
from yardmaster_schemas.events.node_events import ExecutorKind, Isolation, RunIdentity, RunKind

#: The label with the key of the replica.
KEY_LABEL: Final = "dev.yardmaster.key"
OWNER_BYTES: Final = 6
#: Seconds between two searches for containers that the engine created for a killed agent.
ORPHANS_S: Final = 60.0
#: Seconds without any bytes after which a pull counts as failed.
PULL_IDLE_S: Final = 120.0


class DockerExecutor:
    """Runs replicas in containers of an engine, with one directory per replica under `root`."""

    def __init__(
        self,
        root: Path,
        clock: Clock,
        engine: Engine,
        telemetry: Telemetry,
        *,
        gpus: bool = True,
        gpu_choice: GpuChoice = "auto",
        network: Network = "bridge",
        guarding: Guarding,
        api_socket: Path | None = None,
        pull_idle_s: float = PULL_IDLE_S,
        registry_auths: Path | None = None,
        folders: Mapping[str, HostFolder] | None = None,
    ) -> None:
        """Use the engine for replicas below `root`.

        Args:
            gpus: whether the machine has the GPUs that its slots name; without them, the slots are
                only counted, and nothing is requested from the engine.
            gpu_choice: see the setting `container_gpus`.
            guarding: the guard of containers with a fence.
            pull_idle_s, registry_auths: see the settings of these names.
            network, api_socket, folders: see `ContainerSpec`.
        """
        self._spec = ContainerSpec(network, api_socket, {} if folders is None else folders)
        self._gpus = gpus
        self._gpu_choice: GpuChoice = gpu_choice
        self._root = root.absolute()
        self._engine = engine
        self._patience = Patience(clock, telemetry)
        self._running = RunningContainers(engine, self._patience, self._owner_label)
        self._guarding = guarding
        self._images = Images(
            *(engine, clock, telemetry), idle_s=pull_idle_s, auths=RegistryAuths(registry_auths)
        )
        self._telemetry = telemetry
        self._unguarded = telemetry.gauge(
            "containers_unguarded",
            "Fenced containers that nothing kills if the agent ends: the guard cannot read a file",
        )
        #: The files of these containers that were logged already.
        self._reported: set[str] = set()
        self._host = ""
        self._known_owner = ""
        #: When containers without a directory are searched for again.
        self._orphans_at_s = -math.inf

    async def capabilities(self) -> Capabilities:
        """Return that it runs containers, if its engine answers."""
        missing = await self._engine.missing()
        with suppress(OSError):  # a start of a fenced container says so
            self._guarding.watch()
        self._report_unguarded(self._guarding.damaged())
        kinds = (ExecutorKind.CONTAINER,) if missing is None else ()
        return Capabilities(kinds, Isolation.CONTAINER, missing)

    def paths(self, key: ReplicaKey, run: Run) -> Paths:
        """Return the paths in the container."""
        return Paths(f"{INSIDE}/stop.json", f"{INSIDE}/task/checkpoint.json")

    async def fetch(self, launch: Launch, on_progress: OnProgress) -> Launch:
        """Pull the image, as `run.pull` says; of a pinned one, the digest."""
        run = launch.run
        if (refused := self._spec.refused(launch)) is not None:
            raise ExecutorFailed(replica=launch.key, found=refused)
        try:
            policy = run.pull or PullPolicy.MISSING
            image = await self._images.get(str(run.image), policy, on_progress, launch.pinned)
        except PullFailed as error:
            found, failure = str(error), error.failure
            if launch.pinned is not None:
                found += f"; the task ran this digest of {run.image} first, so all its attempts do"
            raise ExecutorFailed(replica=launch.key, found=found, failure=failure) from None
        except (EngineAway, EngineRefused) as error:
            raise ExecutorFailed(replica=launch.key, found=error) from None
        return replace(launch, image=image)

    async def prepare(self, launch: Launch) -> None:
        """Create the container."""
        key, directory = launch.key, self._directory(launch.key)
        if (refused := self._spec.refused(launch)) is not None:
            raise ExecutorFailed(replica=key, found=refused)
        try:
            name = self._name(key)
            if await self._engine.inspect(name) is not None:
                await self._own(key)
                return
            image = launch.image or await self._engine.image(str(launch.run.image))
            if image is None:
                raise EngineRefused(f"the engine has no image {launch.run.image}")
            gpus: list[dict[str, object]] = []
            if launch.devices and self._gpus:
                gpus = [await self._engine.gpu_request(launch.devices, self._gpu_choice)]
            await self._remove_orphans()
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not directory.exists:
                directory.create(launch.run.script, launch.user)
            labels = {
                OWNER_LABEL: self._owner(),
                FOLDER_LABEL: str(self._root),
                KEY_LABEL: str(key),
            }
            container = self._spec.of(launch, directory.path, image.id, labels, gpus)
            if not await self._engine.create(name, container):
                await self._own(key)
        except (EngineAway, EngineRefused, OSError, ValueError) as error:
            raise ExecutorFailed(replica=key, found=error) from None

    async def start(self, launch: Launch) -> ContainerExecution:
        """Start the container, if it was not started before.

        An engine starts a container that has ended again. So a request without an answer is not
        repeated before the engine has said that the container was not started.
        """
        key = launch.key
        while (found := await self._inspect(key)) is not None:
            if found["State"]["Status"] != "created":
                return await self._execution(key, found["Id"])
            if self._directory(key).has("start"):
                break
            try:
                self._guarding.protect(launch, self._directory(key), found["Id"])
                await self._engine.start(found["Id"])
            except EngineAway:
                await self._patience.pause()
            except (EngineRefused, OSError) as error:
                await self.withdraw(key)
                raise ExecutorFailed(replica=key, found=error) from None
        raise ExecutorFailed(replica=key, found="its container is gone, or withdrawn")

    async def find(self, key: ReplicaKey, known: RunIdentity | None = None) -> ReplicaFound:
        """Find the container of a replica by its name; the directory was created before it."""
        if known is None and not self._directory(key).exists:
            return ReplicaFound(Phase.ABSENT)
        if known is not None and known.kind is not RunKind.CONTAINER:
            return ReplicaFound(Phase.UNKNOWN)
        try:
            found = self._ours(await self._engine.inspect(self._name(key), idle_s=PROBE_S))
            if found is None or (known is not None and found["Id"] != known.id):
                if known is None:
                    return ReplicaFound(Phase.ABSENT)
                execution = await self._execution(key, known.id, known.host)
                return ReplicaFound(Phase.ENDED, execution, exit_lost=True)
            state = found["State"]
            if state["Status"] == "created":
                return ReplicaFound(Phase.PREPARED)
            host = await self._engine.identity() if known is None else known.host
        except EngineAway:
            return ReplicaFound(Phase.UNKNOWN)
        execution = await self._execution(key, found["Id"], host)
        return ReplicaFound(Phase.ENDED if has_ended(state) else Phase.RUNNING, execution)

    async def withdraw(self, key: ReplicaKey) -> ContainerExecution | None:
        """Remove the container, unless it was started.

        A request of an earlier agent process may start it, and it may end, before it is removed.
        The engine's events show that. If the engine refuses to remove it, the file `start` in the
        replica's directory prevents the start, and the next sweep removes it.
        """
        directory = self._directory(key)
        found = await self._inspect(key) if directory.exists else None
        if found is None:
            return None
        if found["State"]["Status"] == "created":
            try:
                removed = await self._patience.answer(lambda: self._engine.remove(found["Id"]))
            except EngineRefused as error:
                self._patience.refused("remove", error)
                directory.prevent_start()
                after = await self._inspect(key)
                removed = after is None or after["State"]["Status"] == "created"
            if removed and not await self._patience.answer(
                lambda: self._engine.was_started(found["Id"], found["Created"])
            ):
                return None
        return await self._execution(key, found["Id"])

    async def sweep(self) -> int:
        """Remove all containers of this agent's data directory, then the directories.

        A copy of the directory leaves the containers of the original.
        """
        paths = sorted(self._root.iterdir()) if self._root.is_dir() else []
        if not paths:
            return 0  # a container's directory is removed last
        try:
            ids = await self._patience.answer(lambda: self._engine.labelled(*self._labels()))
            running = 0
            for each in ids:
                inspect = partial(self._engine.inspect, each)
                found = await self._patience.answer(inspect)
                running += found is not None and not is_over(found["State"])
                await self._patience.answer(partial(self._engine.remove, each, force=True))
        except EngineRefused as error:
            raise ExecutorFailed(replica=self._root, found=error) from None
        for path in paths:
            self._guarding.release(ReplicaDirectory(path))
            ReplicaDirectory(path).remove()
        return running

    async def forget(self, key: ReplicaKey) -> bool:
        """Remove the container and the directory; if the engine refuses, both stay."""
        found = await self._inspect(key) if self._directory(key).exists else None
        try:
            if found is not None:
                await self._patience.answer(lambda: self._engine.remove(found["Id"], force=True))
        except EngineRefused as error:
            self._patience.refused("remove", error)
            return False
        self._guarding.release(self._directory(key))
        try:
            await self._remove_orphans()
        except EngineRefused as error:
            self._patience.refused("remove", error)
        except EngineAway:
            pass  # a later call tries again
        return self._directory(key).remove()

    def _report_unguarded(self, damaged: Mapping[str, str]) -> None:
        """Count the containers that nothing guards, and log each of them once."""
        self._unguarded.set(len(damaged))
        for name in damaged.keys() - self._reported:
            self._telemetry.error("container_unguarded", file=name, found=damaged[name])
        self._reported = set(damaged)

    def _labels(self) -> list[str]:
        """Return the labels of all containers of this agent's data directory."""
        return [self._owner_label(), f"{FOLDER_LABEL}={self._root}"]

    def _owner_label(self) -> str:
        return f"{OWNER_LABEL}={self._owner()}"

    async def _remove_orphans(self) -> None:
        """Remove containers without a directory that never started, at most every `ORPHANS_S`.

        An engine may still create a container for an agent that was killed, after the next agent
        has found none and has removed the directory.

        Raises: EngineAway, EngineRefused.
        """
        now_s = self._patience.clock.monotonic_s()
        if now_s < self._orphans_at_s:
            return
        self._orphans_at_s = now_s + ORPHANS_S
        for each in await self._engine.labelled(*self._labels(), statuses=["created"]):
            found = await self._engine.inspect(each)
            if found is None:
                continue
            if not (self._root / found["Config"]["Labels"][KEY_LABEL]).exists():
                await self._engine.remove(each)

    async def _own(self, key: ReplicaKey) -> None:
        """Check that a container of the replica's name is this agent's.

        Raises: EngineRefused.
        """
        found = await self._engine.inspect(self._name(key))
        owner = ((found or {}).get("Config") or {}).get("Labels", {}).get(OWNER_LABEL)
        if found is not None and owner != self._owner():
            raise EngineRefused(f"there is a container {self._name(key)} of someone else")

    async def _inspect(self, key: ReplicaKey) -> dict[str, Any] | None:
        return self._ours(
            await self._patience.answer(lambda: self._engine.inspect(self._name(key)))
        )

    def _ours(self, found: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return a container if this agent made it, else None."""
        if found is not None and found["Config"]["Labels"].get(OWNER_LABEL) != self._owner():
            return None
        return found

    async def _execution(
        self, key: ReplicaKey, container_id: str, host: str = ""
    ) -> ContainerExecution:
        """Return the execution of a container of the engine `host`, which is asked if not given."""
        if not host:
            self._host = self._host or await self._patience.answer(self._engine.identity)
        identity = RunIdentity(kind=RunKind.CONTAINER, id=container_id, host=host or self._host)
        directory = self._directory(key)
        return ContainerExecution(
            self._engine, self._patience, directory, identity, self._guarding, self._running
        )

    def _directory(self, key: ReplicaKey) -> ReplicaDirectory:
        return ReplicaDirectory(self._root / str(key), apart=True)

    def _name(self, key: ReplicaKey) -> str:
        return f"yard-{self._owner()}-{key}"

    def _owner(self) -> str:
        """Return the random id of the agent's data directory, which a copy shares."""
        if not self._known_owner:
            path = self._root.with_name(self._root.name + ".owner")
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                draft = path.with_name(path.name + ".new")
                draft.write_text(secrets.token_hex(OWNER_BYTES), encoding="ascii")
                draft.rename(path)
            self._known_owner = path.read_text(encoding="ascii")
        return self._known_owner
