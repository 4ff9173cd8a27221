"""The ports of an agent, their adapters, and the context that the agent's parts share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from yardmaster_eventlog.port import EventLog
from yardmaster_node_agent.agent_state import AgentState, Entry, Replica
from yardmaster_node_agent.artifacts import Artifacts, KeptArtifacts, NoArtifacts
from yardmaster_node_agent.code_folders import CodeFolders, NoCode, UnpackedCode
from yardmaster_node_agent.devices import (
    Devices,
    MpsControl,
    cpu_milli,
    detect_gpus,
    free_port,
    gpu_memory_mib,
    memory_mib,
    own_variables,
)
from yardmaster_node_agent.environment import NodeFacts
from yardmaster_node_agent.executors.by_image import ExecutorByImage
from yardmaster_node_agent.executors.cgroups import find_cgroups
from yardmaster_node_agent.executors.docker import DockerExecutor
from yardmaster_node_agent.executors.engine import Engine
from yardmaster_node_agent.executors.guarding import Guarding
from yardmaster_node_agent.executors.port import Executor
from yardmaster_node_agent.executors.private_data import check_private
from yardmaster_node_agent.executors.process import ProcessExecutor
from yardmaster_node_agent.executors.procfs import boot_id, machine_id
from yardmaster_node_agent.executors.secrets import NoSecrets, SecretFiles, Secrets
from yardmaster_node_agent.executors.simulated import BOOT_ID, SimulatedExecutor
from yardmaster_node_agent.executors.task_user import (
    SAME,
    TaskUsers,
    blocked_part,
    choose_users,
    open_way,
)
from yardmaster_node_agent.fraction_limits import (
    FractionLimiter,
    MpsLimiter,
    NoLimits,
    choose_limiter,
)
from yardmaster_node_agent.git_commits import GitCommits
from yardmaster_node_agent.lease import Lease
from yardmaster_node_agent.ledger import FileLedger, Ledger, MemoryLedger
from yardmaster_node_agent.renewals import MemoryRenewals, RenewalFile, Renewals
from yardmaster_node_agent.reports import Reporter, Writer
from yardmaster_node_agent.settings import ExecutorName, Settings
from yardmaster_node_agent.start_turns import StartTurns
from yardmaster_node_agent.user_pool import UserPool
from yardmaster_packages.artifact_store import ArtifactStore
from yardmaster_packages.limits import ArtifactLimits
from yardmaster_packages.store import PackageStore
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The identity and the resources of the agent's machine."""

    boot_id: str
    machine_id: str
    devices: Devices
    cpu_milli: int
    memory_mib: int
    passed: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All inputs and outputs of an agent."""

    log: EventLog
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    ledger: Ledger
    renewals: Renewals
    executor: Executor
    secrets: Secrets
    machine: Machine
    #: The users of replicas; None: replicas run as the agent's own user.
    users: TaskUsers | None = None
    #: Returns a free port, for the rendezvous of a task that has one replica.
    free_port: Callable[[], int]
    #: Enforces fractions of GPUs.
    limiter: FractionLimiter = field(default_factory=NoLimits)
    #: Provides the working folders of replicas with a context.
    code: CodeFolders = field(default_factory=NoCode)
    #: Keeps the artifacts of ended replicas.
    artifacts: Artifacts = field(default_factory=NoArtifacts)
    #: Where the API of tasks listens for containers; None: nowhere.
    api_socket: Path | None = None
    #: Where the agent's parts report whether they are ready.
    health: Health = field(default_factory=Health)


#: Variables that describe the agent's user. They are not passed to tasks of another user.
_OF_USER: Final = ("HOME", "USER", "LOGNAME", "SHELL")


@dataclass(frozen=True, slots=True)
class Host:
    """An executor, the ledger and the renewals that fit it, and the boot of its processes.

    `users` run the replicas (None: the agent's own user does). `api_socket`: see `Ports`.
    `simulated`: there are no processes.
    """

    executor: Executor
    ledger: Ledger
    boot_id: str
    renewals: Renewals
    users: TaskUsers | None = None
    api_socket: Path | None = None
    simulated: bool = False


def _process_host(
    settings: Settings, clock: Clock, telemetry: Telemetry, *, new_containers: bool = False
) -> Host:
    """Return the host of real processes and containers; they survive the agent process.

    Without `new_containers`, it starts processes only. It finds and ends containers in any case: an
    earlier agent with other settings may have started them.

    Raises:
        TaskUsersUnusable: tasks cannot run as the users that the settings name.
        CgroupsUnusable: tasks cannot be limited in the group that the settings name.
        DataWritable: other users may have written the ledger.
    """
    check_private(settings.data_dir, settings.secrets_dir, telemetry)
    users, reason = choose_users(
        settings.task_users,
        settings.data_dir,
        node=settings.node,
        at_once=settings.max_replicas + settings.kept_directories,
        group=settings.task_group,
    )
    if users is not None:
        telemetry.info("task_users", first=users.first, last=users.last)
    elif settings.task_users != SAME:
        telemetry.warn("tasks_not_isolated", found=f"tasks run as the agent's user: {reason}")
    open_way(settings.data_dir, others=users is not None)
    # The file is next to the replicas, where a sweep does not remove it.
    renewed = settings.data_dir / "replicas.renewed"
    root = settings.data_dir / "replicas"
    cgroups, reason = find_cgroups(settings.cgroups, f"{settings.node} {root}")
    if cgroups is None:
        telemetry.info("processes_not_limited", found=reason)
    else:
        telemetry.info("processes_limited", found=str(cgroups))
    processes = ProcessExecutor(root, clock, users, renewed=renewed, cgroups=cgroups)
    # Containers mount its folder, so nothing else may be in it.
    api_socket = settings.data_dir / "api" / "agent.sock" if new_containers else None
    containers = DockerExecutor(
        settings.data_dir / "containers",
        clock,
        Engine(settings.engine_socket),
        telemetry,
        gpus=new_containers and (settings.container_gpus != "auto" or bool(detect_gpus().names)),
        gpu_choice=settings.container_gpus,
        network=settings.container_network,
        guarding=Guarding(settings.data_dir / "containers.guard", settings.engine_socket, renewed),
        api_socket=api_socket,
        pull_idle_s=settings.pull_idle_s,
        registry_auths=settings.registry_auths,
        folders=settings.mounts,
    )
    return Host(
        ExecutorByImage(processes, containers, new_containers=new_containers),
        FileLedger(settings.data_dir / "ledger"),
        boot_id(),
        RenewalFile(renewed),
        users,
        api_socket,
    )


def _simulated_host(_: Settings, clock: Clock, __: Telemetry) -> Host:
    """Return the host of simulated replicas; they and the ledger end with the agent process."""
    return Host(SimulatedExecutor(clock), MemoryLedger(), BOOT_ID, MemoryRenewals(), simulated=True)


#: The executors by their name in `YARD_AGENT_EXECUTOR`. To add one, add a file to `executors/`, a
#: row here, and its name to `settings.ExecutorName`.
EXECUTORS: Final[Mapping[ExecutorName, Callable[[Settings, Clock, Telemetry], Host]]] = {
    "process": _process_host,
    "auto": partial(_process_host, new_containers=True),
    "simulated": _simulated_host,
}


def host_ports(
    settings: Settings,
    *,
    log: EventLog,
    clock: Clock,
    chance: Chance,
    telemetry: Telemetry,
    health: Health | None = None,
) -> Ports:
    """Return the ports of this machine with the executor that `settings.executor` names.

    The ledger and the replicas' directories are under `settings.data_dir`.

    Raises:
        DataWritable: other users may have written the ledger.
        TaskUsersUnusable, CgroupsUnusable, MpsUnusable: the settings demand something that this
            machine cannot do.
        PackagesUnavailable, ArtifactsUnavailable: a setting names no store.
    """
    host = EXECUTORS[settings.executor](settings, clock, telemetry)
    declared = settings.devices
    if declared is None and settings.gpus is not None:
        declared = tuple(str(index) for index in range(settings.gpus))
    found = detect_gpus() if declared is None else Devices(declared)
    passed = own_variables(settings.passed)
    if host.users is not None:
        # These variables describe the agent's user; programs of another user cannot use them.
        passed = {name: value for name, value in passed.items() if name not in _OF_USER}
        passed |= dict.fromkeys(("USER", "LOGNAME"), "task")
    memory = found.memory_mib if settings.gpu_memory_mib is None else settings.gpu_memory_mib
    limiter = _limiter(settings, host, Devices(found.names, memory), telemetry)
    if isinstance(limiter, MpsLimiter):
        memory = limiter.gpu_memory_mib
    return Ports(
        log=log,
        clock=clock,
        chance=chance,
        telemetry=telemetry,
        ledger=host.ledger,
        renewals=host.renewals,
        executor=host.executor,
        secrets=SecretFiles(settings.secrets_dir),
        users=host.users,
        machine=Machine(
            boot_id=host.boot_id,
            machine_id=machine_id(),
            devices=Devices(found.names, memory),
            cpu_milli=_cpu_milli(settings, 0 if declared is None else len(declared)),
            memory_mib=_memory_mib(settings),
            passed=passed,
        ),
        free_port=free_port,
        limiter=limiter,
        code=_code(settings, host, telemetry),
        artifacts=_artifacts(settings, host, clock, telemetry),
        api_socket=host.api_socket,
        health=health or Health(),
    )


def _code(settings: Settings, host: Host, telemetry: Telemetry) -> CodeFolders:
    if host.simulated:
        return NoCode()
    limits = settings.package_limits
    store = PackageStore(settings.packages, limits=limits) if settings.packages else None
    secrets = SecretFiles(settings.secrets_dir)
    return UnpackedCode(
        settings.data_dir / "code",
        store,
        limits=limits,
        git=GitCommits(settings.git_hosts, limits, secrets),
        cache_bytes=settings.code_cache_bytes,
        isolated=host.users is not None,
        telemetry=telemetry,
    )


def _artifacts(settings: Settings, host: Host, clock: Clock, telemetry: Telemetry) -> Artifacts:
    if host.simulated or not settings.artifacts:
        return NoArtifacts()
    return KeptArtifacts(
        ArtifactStore(settings.artifacts),
        limits=ArtifactLimits(
            total_bytes=settings.max_artifact_bytes, files=settings.max_artifact_files
        ),
        wait_s=settings.artifacts_wait_s,
        clock=clock,
        telemetry=telemetry,
    )


def _limiter(
    settings: Settings, host: Host, devices: Devices, telemetry: Telemetry
) -> FractionLimiter:
    """Return the limiter of the node; log the reason if a node with GPUs enforces no fractions."""
    if host.simulated:
        return NoLimits()
    user = None if host.users is None else host.users.common
    limiter, reason = choose_limiter(
        settings.mps,
        daemon=MpsControl(settings.mps_pipe_directory),
        log_directory=settings.mps_log_directory,
        devices=devices,
        memory_of=gpu_memory_mib,
        blocked=lambda path: None if user is None else blocked_part(user, path),
    )
    if reason and devices.names:
        telemetry.info("fractions_not_enforced", found=reason)
    return limiter


def _cpu_milli(settings: Settings, declared: int) -> int:
    """Return the CPUs of the node in thousandths.

    If none are configured: this agent's part of the machine's CPUs, at least one per declared slot.
    """
    if settings.cpu_milli is not None:
        return settings.cpu_milli
    return max(cpu_milli() // settings.machine_agents, 1000 * declared)


def _memory_mib(settings: Settings) -> int:
    if settings.memory_mib is not None:
        return settings.memory_mib
    return memory_mib() // settings.machine_agents


def simulated_ports(
    settings: Settings,
    *,
    log: EventLog,
    clock: Clock,
    chance: Chance,
    telemetry: Telemetry,
    ledger: Ledger | None = None,
    renewals: Renewals | None = None,
    executor: Executor | None = None,
    health: Health | None = None,
) -> Ports:
    """Return ports that use no disk and no process.

    Agents of one node, one after another, share ledger, renewals and executor.
    """
    gpus = settings.gpus or 0
    declared = settings.devices or tuple(str(index) for index in range(gpus))
    return Ports(
        log=log,
        clock=clock,
        chance=chance,
        telemetry=telemetry,
        ledger=ledger or MemoryLedger(),
        renewals=renewals or MemoryRenewals(),
        executor=executor or SimulatedExecutor(clock),
        secrets=NoSecrets(),
        machine=Machine(
            boot_id=BOOT_ID,
            machine_id="simulated",
            devices=Devices(declared, settings.gpu_memory_mib or 0),
            cpu_milli=1000 * len(declared) if settings.cpu_milli is None else settings.cpu_milli,
            memory_mib=settings.memory_mib or 0,
            passed={},
        ),
        free_port=lambda: 29_500,
        health=health or Health(),
    )


@dataclass(slots=True, kw_only=True)
class AgentContext:
    """The dependencies and the state that the parts of an agent process share."""

    ports: Ports
    settings: Settings
    state: AgentState
    writer: Writer
    reporter: Reporter
    lease: Lease
    facts: NodeFacts
    start_turns: StartTurns
    users: UserPool

    def save(self, *entries: Entry, durable: bool = True) -> None:
        """Append entries to the ledger."""
        self.ports.ledger.write(entries, durable=durable)

    def add(self, replicas: list[Replica]) -> None:
        """Add new replicas to the ledger and the state; call this before you start one."""
        self.save(*replicas)
        for replica in replicas:
            self.state.apply(replica)
