"""Containers: each replica in a container of its own, which outlives the agent.

A replica is prepared when its container is created, and starts at most once, because an engine
starts a container at most once and the agent never starts one again. The container's name follows
from the replica, and a label names the agent's data directory, so that a later agent process finds
its containers, and touches no others.

The replica's directory is mounted at `/yard`, read-only except `work` and `task`: it has the stop
file, the script and the checkpoint file. The agent copies the output from the engine to the same
directory (see `spool`).

While the engine does not answer, nothing is known of the containers, so calls wait for it; only
`prepare` fails, and `find` says that it is unknown. A guard, which is a process of its own, kills
containers of pools with `fence: kill` whose lease was not renewed (see `container_guard`).
"""

import asyncio
import math
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.errors import ExecutorFailed
from yardmaster_node_agent.executors.directory import ReplicaDirectory
from yardmaster_node_agent.executors.engine import (
    ANSWER_S,
    PROBE_S,
    Engine,
    EngineAway,
    EngineRefused,
    LogUnreadable,
    OutputIdle,
    seconds_of,
)
from yardmaster_node_agent.executors.guarding import Guarding
from yardmaster_node_agent.executors.host_folders import HostFolder, MountRefused, mounts_of
from yardmaster_node_agent.executors.images import Images, PullFailed
from yardmaster_node_agent.executors.port import (
    MAX_PIDS,
    Capabilities,
    Launch,
    OnProgress,
    Paths,
    Phase,
    ReplicaFound,
    StreamName,
)
from yardmaster_node_agent.executors.registries import RegistryAuths
from yardmaster_node_agent.executors.spool import Spool
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.engine_api import FOLDER_LABEL, OWNER_LABEL
from yardmaster_runtime.engine_gpus import GpuChoice
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.waiting import first_of, together
from yardmaster_schemas.events.details import PullPolicy, Run
from yardmaster_schemas.events.node_events import ExecutorKind, Isolation, RunIdentity, RunKind

T = TypeVar("T")

#: Where a replica finds its directory, and the folder with the socket of the agent's API.
INSIDE: Final = "/yard"
API_INSIDE: Final = "/run/yardmaster"
#: The label with the id of the agent's data directory.
KEY_LABEL: Final = "dev.yardmaster.key"
OWNER_BYTES: Final = 6
#: Shared memory of a container without a memory limit; with one, the half of it, and at most this.
MAX_SHM_BYTES: Final = 8 * 2**30
#: The exit code that an engine gives to a container that it does not find when it starts.
ENGINE_LOST: Final = 255
#: Seconds within which an engine that stops has ended its containers.
ENGINE_STOP_S: Final = 15.0
#: Pauses (s) between two questions to an engine that does not answer.
PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
#: The engine's log keeps this much output of a container for an agent that is away.
_LOG: Final = {"Type": "local", "Config": {"max-size": "8m", "max-file": "16", "compress": "false"}}
_STREAMS: Final[tuple[StreamName, StreamName]] = ("stdout", "stderr")

#: How often the log of an ended container is read when the engine cannot; about 24 s in all.
LOG_TRIES: Final = 8
#: The longest seconds without output after which the engine is asked for a stream again.
LONGEST_IDLE_S: Final = 480.0
#: Seconds for which an answer about all running containers counts.
FRESH_S: Final = 5.0
#: Seconds between two searches for containers that the engine created for a killed agent.
ORPHANS_S: Final = 60.0

#: Seconds without any bytes after which a pull counts as failed.
PULL_IDLE_S: Final = 120.0

#: The network of containers: one of its own for each, that of the node, or that of the node for
#: gangs over several replicas alone.
Network = Literal["bridge", "host", "host_for_gangs"]


class _Patience:
    """Asks an engine until it answers."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self.clock = clock
        self._telemetry = telemetry
        self._away = False
        self._unanswered = telemetry.counter(
            "engine_unanswered", "Requests without an answer of the container engine, repeated."
        )
        self._refusals = telemetry.counter(
            "engine_refused",
            "Requests about started or withdrawn containers that the engine refused.",
            "request",
        )
        self._unreadable = telemetry.counter(
            "container_log_unreadable", "Logs of ended containers that the engine could not read."
        )

    async def answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer, however long the engine is away.

        Raises: LogUnreadable.
        """
        tries = 0
        while True:
            try:
                answer = await ask()
            except LogUnreadable:
                raise
            except EngineAway as error:
                self._unanswered.inc()
                if not self._away:
                    self._away = True
                    self._telemetry.warn("engine_away", found=str(error))
            else:
                if self._away:
                    self._away = False
                    self._telemetry.info("engine_back")
                return answer
            await self.pause(tries)
            tries += 1

    def refused(self, request: str, error: EngineRefused) -> None:
        """Count and log a refusal that ends nothing."""
        self._refusals.labels(request).inc()
        self._telemetry.warn("engine_refused", request=request, found=str(error))

    def unreadable(self, container_id: str, error: LogUnreadable) -> None:
        """Count and log that the engine could not read the log of an ended container."""
        self._unreadable.inc()
        self._telemetry.warn("container_log_unreadable", id=container_id, found=str(error))

    async def pause(self, tries: int = 0) -> None:
        """Wait before the engine is asked again; longer after more `tries`."""
        await self.clock.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])


class RunningContainers:
    """The containers of an agent that run, by one request for all of them."""

    def __init__(self, engine: Engine, patience: _Patience, label: Callable[[], str]) -> None:
        self._engine = engine
        self._patience = patience
        self._label = label
        self._lock = asyncio.Lock()
        self._read_s = -math.inf
        self._ids: frozenset[str] = frozenset()

    async def has(self, container_id: str) -> bool:
        """Return whether a container ran at some time in the last `FRESH_S` seconds."""
        clock = self._patience.clock
        async with self._lock:
            if clock.monotonic_s() - self._read_s > FRESH_S:
                ids = await self._patience.answer(lambda: self._engine.running(self._label()))
                self._read_s, self._ids = clock.monotonic_s(), frozenset(ids)
        return container_id in self._ids


class ContainerExecution:
    """A replica in its container."""

    def __init__(
        self,
        engine: Engine,
        patience: _Patience,
        directory: ReplicaDirectory,
        identity: RunIdentity,
        guarding: Guarding,
        running: RunningContainers,
    ) -> None:
        self.identity = identity
        self._guarding = guarding
        self._running = running
        self._engine = engine
        self._patience = patience
        self.files = directory

    async def exited(self) -> Exit:
        """Copy the output until the container has ended.

        The output ends where the engine cannot read its log in `LOG_TRIES` tries.
        """
        tries = 0
        while True:
            readable: dict[StreamName, bool] = {}
            copies = (self._copy(stream, readable) for stream in _STREAMS)
            await first_of(together(*copies), self._until_not_running())
            copied_ms = self._patience.clock.now_ms()
            found = await self._patience.answer(lambda: self._engine.inspect(self.identity.id))
            if found is None:
                self._guarding.release(self.files)
                return Exit(signal=signal.SIGKILL, lost=True)
            if _has_ended(found["State"]):
                # The engine may end a stream before it has sent the last output.
                rest = [await self._copy_rest(stream) for stream in _STREAMS]
                doubtful = not all((*readable.values(), *rest))
                exit_ = replace(_exit_of(found["State"]), output_doubtful=doubtful)
                by_engine = partial(self._by_engine, found, exit_, copied_ms)
                self._guarding.release(self.files)
                return replace(
                    exit_,
                    engine_restarted=await self._patience.answer(by_engine),
                    fenced=self.files.has("fenced"),
                )
            await self._patience.pause(tries)
            tries += 1

    async def _by_engine(self, found: Mapping[str, Any], exit_: Exit, copied_ms: int) -> bool:
        """Return whether the engine ended the container, and not its program or this agent.

        An engine that stops also stops its containers. One that starts stops those that still run,
        and gives exit code 255 to those that ended with the machine. A program may end with any
        code when it is stopped, also with 0.

        Args:
            copied_ms: when the engine ceased to send output, before it said that the container has
                ended.
        """
        if exit_.out_of_memory:
            return False
        remembered = await self._engine.remembered(found["Id"], found["Created"])
        if remembered:
            return "stop" in remembered
        ended_s = float(seconds_of(found["State"]["FinishedAt"]))
        if await self._engine.remembers_before(ended_s - ENGINE_STOP_S):
            return False  # it runs since before the end: it has forgotten the start
        if exit_.exit_code == ENGINE_LOST or exit_.signal in (signal.SIGTERM, signal.SIGKILL):
            return True
        return -2 < ended_s - copied_ms / 1000 < ENGINE_STOP_S

    async def gone(self) -> None:
        """Wait until the container has ended: then none of its processes is left."""
        while True:
            found = await self._patience.answer(lambda: self._engine.inspect(self.identity.id))
            if found is None or _has_ended(found["State"]):
                return
            await self._patience.pause()

    async def signal(self, number: int) -> None:
        """Send a signal to the main program, which the engine's init process forwards.

        A refusal changes nothing: the agent kills what still runs again and again.
        """
        try:
            await self._patience.answer(lambda: self._engine.signal(self.identity.id, number))
        except EngineRefused as error:
            self._patience.refused("signal", error)

    async def kill(self) -> None:
        """SIGKILL the container's init process, and with it all others."""
        await self.signal(signal.SIGKILL)

    async def _until_not_running(self) -> None:
        """Wait until the container does not run: an engine may leave a stream open then."""
        while True:
            await self._patience.clock.sleep(ANSWER_S)
            if not await self._running.has(self.identity.id):
                return

    async def _copy(self, stream: StreamName, readable: dict[StreamName, bool]) -> None:
        """Copy new output of a stream until the engine sends no more, or is away.

        Then say in `readable` whether the engine could read its log. A stream without output is
        asked for again, ever more rarely, in case the engine has ceased to send it; but not if the
        copy of the other stream has ended.
        """
        try:
            spool, idle_s = Spool(self.files.path / stream), ANSWER_S
            while self.files.exists:
                size = self.files.output_size(stream)
                try:
                    if await self._follow(stream, spool, idle_s):
                        break
                except OutputIdle:
                    if readable:
                        break
                    quiet = self.files.output_size(stream) == size
                    idle_s = min(2 * idle_s, LONGEST_IDLE_S) if quiet else ANSWER_S
                else:
                    await self._read(stream, spool)
        except LogUnreadable:
            readable[stream] = False
        except EngineAway:
            pass
        readable.setdefault(stream, True)

    async def _copy_rest(self, stream: StreamName) -> bool:
        """Copy the rest of a stream of the ended container; return False if a try failed.

        A later try may succeed, but Docker 20.10 often ends the output where it cannot read its
        log, without an error.
        """
        if not self.files.exists:
            return True
        for tries in range(LOG_TRIES):
            try:
                await self._patience.answer(
                    lambda: self._read(stream, Spool(self.files.path / stream))
                )
            except LogUnreadable as error:
                self._patience.unreadable(self.identity.id, error)
                await self._patience.pause(tries)
            else:
                return tries == 0
        return False

    async def _follow(self, stream: StreamName, spool: Spool, idle_s: float) -> bool:
        """Copy output as it comes; return False if the log must be read before more is copied.

        Raises:
            OutputIdle: nothing came for `idle_s`.
            EngineAway.
        """
        output = self._engine.output(
            self.identity.id, stream, spool.begin(), follow=True, idle_s=idle_s
        )
        async with aclosing(output):
            async for parts in output:
                if not spool.follow(parts):
                    return False
        return True

    async def _read(self, stream: StreamName, spool: Spool) -> None:
        """Copy the output that is in the engine's log now.

        Raises: EngineAway.
        """
        while True:
            output = self._engine.output(self.identity.id, stream, spool.begin(), follow=False)
            async with aclosing(output):
                async for parts in output:
                    spool.add(parts)
            if spool.complete():
                return


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
            network: see the setting `container_network`.
            guarding: the guard of containers with a fence.
            api_socket: the socket of the API of tasks, alone in its folder; containers with a
                network of their own use the API there, if it exists.
            pull_idle_s, registry_auths: see the settings of these names.
            folders: the folders that jobs may mount; see the setting `mounts`.
        """
        self._folders = {} if folders is None else folders
        self._gpus = gpus
        self._gpu_choice: GpuChoice = gpu_choice
        self._root = root.absolute()
        self._engine = engine
        self._patience = _Patience(clock, telemetry)
        self._running = RunningContainers(engine, self._patience, self._owner_label)
        self._network = network
        self._api_socket = api_socket
        self._guarding = guarding
        self._images = Images(
            *(engine, clock, telemetry), idle_s=pull_idle_s, auths=RegistryAuths(registry_auths)
        )
        self._host = ""
        self._known_owner = ""
        #: When containers without a directory are searched for again.
        self._orphans_at_s = -math.inf

    async def capabilities(self) -> Capabilities:
        """Return that it runs containers, if its engine answers."""
        missing = await self._engine.missing()
        with suppress(OSError):  # a start of a fenced container says so
            self._guarding.watch()
        kinds = (ExecutorKind.CONTAINER,) if missing is None else ()
        return Capabilities(kinds, Isolation.CONTAINER, missing)

    def paths(self, key: ReplicaKey, run: Run) -> Paths:
        """Return the paths in the container."""
        return Paths(f"{INSIDE}/stop.json", f"{INSIDE}/task/checkpoint.json")

    async def fetch(self, launch: Launch, on_progress: OnProgress) -> Launch:
        """Pull the image, as `run.pull` says; of a pinned one, the digest."""
        run = launch.run
        if (refused := self._refused(launch)) is not None:
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
        if (refused := self._refused(launch)) is not None:
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
            if not await self._engine.create(name, self._container(launch, image.id, gpus)):
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
        return ReplicaFound(Phase.ENDED if _has_ended(state) else Phase.RUNNING, execution)

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
                running += found is not None and not _is_over(found["State"])
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

    def _refused(self, launch: Launch) -> str | None:
        """Return why the executor cannot run a job; None if it can."""
        if launch.run.image is None:
            return "the job names no image, and this node runs containers only"
        if launch.replicas > 1 and self._network == "bridge":
            return (
                "a gang needs the network of its nodes: set "
                "YARD_AGENT_CONTAINER_NETWORK=host_for_gangs (or host) on them"
            )
        try:
            mounts_of(launch.run.mounts, self._folders)
        except MountRefused as error:
            return str(error)
        return None

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

    def _container(
        self, launch: Launch, image: str, gpus: Sequence[Mapping[str, object]]
    ) -> dict[str, Any]:
        """Return the engine's description of the container; `gpus`: its requests for GPUs."""
        run, directory, user = launch.run, self._directory(launch.key), launch.user
        env = {"HOME": f"{INSIDE}/work", **launch.env}
        mounts = [*_mounts(directory.path, launch.code), *mounts_of(run.mounts, self._folders)]
        of_node = self._network == "host" or launch.replicas > 1
        if not of_node and env.get("YARD_AGENT_URL"):
            # The API listens on the loopback interface of the node, which is not the container's.
            api = self._api_socket
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
            "Labels": {
                OWNER_LABEL: self._owner(),
                FOLDER_LABEL: str(self._root),
                KEY_LABEL: str(launch.key),
            },
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


def _has_ended(state: Mapping[str, Any]) -> bool:
    return state["Status"] in ("exited", "dead", "removing")


def _is_over(state: Mapping[str, Any]) -> bool:
    return _has_ended(state) or state["Status"] == "created"


def _exit_of(state: Mapping[str, Any]) -> Exit:
    """Return the exit of an ended container.

    The engine's init process reports the end by a signal as 128 and the signal's number, as a shell
    does.
    """
    code = int(state["ExitCode"])
    if state["OOMKilled"] and code != 0:
        return Exit(signal=signal.SIGKILL, out_of_memory=True)
    if 128 < code <= 128 + 64:
        return Exit(signal=code - 128)
    return Exit(exit_code=code & 255)
