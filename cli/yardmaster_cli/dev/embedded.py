"""The embedded mode: every service in one process over one SQLite file.

No other module wires several services. This module contains no decisions: it opens the log, or sets
up a new one, passes each service its ports, and runs all services as one group. When a service
ends, for any reason, the process ends with the error of that service, so a part of a cluster never
runs. Ctrl-C and SIGTERM are handled like a crash: services are cancelled, tasks keep running, and
the next start continues from the log.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import httpx
from prometheus_client import CollectorRegistry

from yardmaster_cli.dev.data_directory import Cluster, DataDirectory
from yardmaster_cli.dev.policy import check_policy_of_log
from yardmaster_cli.dev.watched_log import WatchedLog
from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.log.first_records import Site, set_up
from yardmaster_cli.policy_spec import PolicySpec
from yardmaster_eventlog.port import EventLog
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_gateway import main as gateway
from yardmaster_gateway.context import GatewayPorts
from yardmaster_gateway.identity.authentication import FileUser, digest_of, read_token_file
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_localcluster.layout import GATEWAY_PORT
from yardmaster_localcluster.ports import GangPorts
from yardmaster_node_agent import agent
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_quota import main as quota
from yardmaster_runtime.chance import Chance, SystemChance
from yardmaster_runtime.clock import Clock, SystemClock
from yardmaster_runtime.garbage_collection import tune_gc
from yardmaster_runtime.service import Ports, on_stop_signal
from yardmaster_runtime.settings import ArtifactSettings, PackageSettings, RuntimeSettings
from yardmaster_runtime.telemetry.level import LogLevel
from yardmaster_runtime.telemetry.library_logs import LibraryLogs
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_scheduler import main as scheduler
from yardmaster_schemas.errors import YardmasterError
from yardmaster_schemas.events.requests import LogMode
from yardmaster_schemas.events.users import NewToken, RoleInScope, RoleName, Scope
from yardmaster_views import main as views
from yardmaster_views.follower import Views

CELL: Final = "main"
HOST: Final = "127.0.0.1"
#: The longest time from the start of the gateway to its first good answer, in seconds.
READY_S: Final = 30.0
LOOK_S: Final = 0.05
#: The number of ports from GATEWAY_PORT on that are tried before the start fails.
PORTS_TRIED: Final = 50


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a start.

    Attributes:
        port: the port of the gateway; 0: any free port; None: the last port of the folder, or the
            first free port from GATEWAY_PORT on.
        policy: the policy that the log must have; None: any.
        log_level: the lowest level of the log lines of services.
        token_file: users to record in the log (see `yardmaster_gateway.identity.authentication`).
    """

    cluster: Cluster
    port: int | None = None
    policy: PolicySpec | None = None
    log_level: LogLevel = "warning"
    token_file: Path | None = None


class ServiceEnded(YardmasterError):
    """The service {service} failed: {found}. All others were stopped with it."""

    code = "service_ended"


class _StopRequested(Exception):
    """A signal requested the stop of the process."""


def serve(folder: DataDirectory, options: Options, ready: Callable[[str], None]) -> int:
    """Run all services until Ctrl-C or SIGTERM; `ready` is called with the address once they serve.

    Returns: the exit code: 0 after a requested stop.
    Raises: CliError with the error of the service that failed.
    """
    try:
        asyncio.run(_serve(folder, options, ready))
    except BaseExceptionGroup as group:
        causes = list(_leaves(group))
        failed = [error for error in causes if not isinstance(error, _StopRequested)]
        if len(failed) == len(causes):
            raise _failure(failed[0]) from None
        for error in failed:
            click.echo(f"warning: while stopping: {_shown(error)}", err=True)
    finally:
        folder.withdraw()
    return int(Exit.DONE)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _failure(error: BaseException) -> CliError:
    return CliError(_shown(error), exit_code=Exit.INTERNAL, hint="all services were stopped")


def _shown(error: BaseException) -> str:
    return f"{getattr(error, 'code', type(error).__name__)}: {error}"


def site_of(cluster: Cluster) -> Site:
    """The site of the embedded mode's log."""
    return Site(
        mode=LogMode.EMBEDDED,
        cells=(CELL,),
        actor="dev",
        nodes=tuple(node.name for node in cluster.nodes),
        policy=cluster.policy,
    )


async def _serve(folder: DataDirectory, options: Options, ready: Callable[[str], None]) -> None:
    clock, chance = SystemClock(), SystemChance()
    token = folder.token()
    # The port is taken first, so that a start that fails because of the port has written nothing.
    with _listen(folder, options.port) as listener:
        log = await SqliteLog.open(folder.log, clock)
        # Log lines of libraries, such as a line about a malformed request, get the format of the
        # services' log lines.
        telemetry = Telemetry("dev", now_ms=clock.now_ms, level=options.log_level)
        library_logs = LibraryLogs(telemetry, clock.monotonic_s)
        library_logs.install()
        try:
            await set_up(log, clock, chance, site_of(options.cluster))
            if options.policy is not None:
                await check_policy_of_log(log, CELL, options.policy)
            port = listener.getsockname()[1]
            folder.keep_cluster(options.cluster)
            folder.keep_port(port)
            server = f"http://{HOST}:{port}"
            services = _services(folder, options, log, clock, chance, token, listener)
            async with asyncio.TaskGroup() as group:
                _stop_on_signals(group)
                for name, run in services.items():
                    group.create_task(_named(name, run))
                await _until_ready(server, clock)
                folder.announce(port, token)
                ready(server)
        finally:
            library_logs.remove()
            await log.close()


def _listen(folder: DataDirectory, requested: int | None) -> socket.socket:
    """Listen on the port that `Options.port` describes.

    Raises:
        CliError: the requested port, or every port that was tried, is in use.
    """
    if requested is not None:
        tried = [requested]
    else:
        last = folder.port()
        tried = [] if last is None else [last]
        tried += range(GATEWAY_PORT, GATEWAY_PORT + PORTS_TRIED)
    for port in tried:
        with suppress(gateway.CannotListen):
            return gateway.listen(HOST, port)
    ports = f"port {tried[0]}" if len(tried) == 1 else f"all ports from {GATEWAY_PORT} on"
    raise CliError(
        f"cannot listen on {HOST}: {ports} already in use",
        exit_code=Exit.CONFLICT,
        hint="choose another port with --port PORT, or any free port with --port 0",
    )


def _stop_on_signals(group: asyncio.TaskGroup) -> None:
    requested = asyncio.Event()

    async def stop() -> None:
        await requested.wait()
        raise _StopRequested

    group.create_task(stop())
    on_stop_signal(requested.set)


async def _named(name: str, run: Callable[[], Awaitable[object]]) -> None:
    """Run a service, and raise its end, for whatever reason, as an error."""
    try:
        await run()
    except YardmasterError:
        click.echo(f"error: service {name} failed", err=True)
        raise
    except Exception as error:
        raise ServiceEnded(service=name, found=f"{type(error).__name__}: {error}") from error
    raise ServiceEnded(service=name, found="it returned")


async def _until_ready(server: str, clock: Clock) -> None:
    """Wait until the gateway reports that it is ready."""
    try:
        async with asyncio.timeout(READY_S), httpx.AsyncClient(trust_env=False) as client:
            while not await _answers(client, server):
                await clock.sleep(LOOK_S)
    except TimeoutError:
        raise ServiceEnded(service="gateway", found=f"not ready in {READY_S:.0f} s") from None


async def _answers(client: httpx.AsyncClient, server: str) -> bool:
    try:
        return (await client.get(f"{server}/readyz")).is_success
    except httpx.TransportError:
        return False  # not listening yet


def _services(
    folder: DataDirectory,
    options: Options,
    log: EventLog,
    clock: Clock,
    chance: Chance,
    token: str,
    listener: socket.socket,
) -> dict[str, Callable[[], Awaitable[object]]]:
    """All services by name, each with its own ports."""

    # One registry, so that the gateway serves the metrics of all services.
    registry = CollectorRegistry()

    def telemetry(service: str) -> Telemetry:
        return Telemetry(service, now_ms=clock.now_ms, registry=registry, level=options.log_level)

    log = watched = WatchedLog(log, telemetry("log"))
    agents = telemetry("node_agent")

    def snapshots() -> SnapshotStore:
        return SnapshotStore(str(folder.path / "snapshots"))

    def machine_ports(service: str) -> Ports:
        return Ports(
            log=log,
            clock=clock,
            chance=chance,
            telemetry=telemetry(service),
            snapshots=snapshots(),
            on_restored=tune_gc,
        )

    others = () if options.token_file is None else read_token_file(options.token_file)
    runtime = RuntimeSettings(data=folder.path, cell=CELL)
    gateway_settings = GatewaySettings(
        cell=CELL,
        instance="dev",
        packages=packages_url(folder),
        artifacts=artifacts_url(folder),
        # This mode has few streams, so each can send bookmarks more often than in production.
        bookmark_s=1.0,
        details_tick_s=None,
    )
    store = MemoryViewStore(CELL, clock)
    usage = MemoryViewStore(CELL, clock)
    found: dict[str, Callable[[], Awaitable[object]]] = {
        "quota": lambda: quota.run(machine_ports("quota"), runtime),
        "scheduler": lambda: scheduler.run(machine_ports("scheduler"), runtime),
        "views": lambda: views.run(
            views.ViewsPorts(
                log, Views(store, store), clock, telemetry("views"), Views(usage, usage)
            ),
            views.ViewsSettings(cell=CELL, usage_interval_s=0.0),
        ),
        "gateway": lambda: gateway.run(
            GatewayPorts(
                log=log,
                views=store,
                clock=clock,
                chance=chance,
                telemetry=telemetry("gateway"),
                usage=usage,
                log_fault=lambda: watched.fault,
                file_users=(owner(token), *others),
                snapshots=snapshots(),
                packages=gateway.open_packages(gateway_settings),
                artifacts=gateway.open_artifacts(gateway_settings),
            ),
            gateway_settings,
            listener=listener,
        ),
    }
    gang_ports = GangPorts()
    for index, node in enumerate(options.cluster.nodes):
        settings = _agent_settings(folder, options, index, gang_ports.node(index))
        found[f"node agent {node.name}"] = _agent(settings, log, clock, chance, agents)
    return found


def packages_url(folder: DataDirectory) -> str:
    """Where code packages are stored: as YARD_PACKAGES says, else in the data directory."""
    return PackageSettings(cell=CELL).packages or str(folder.path / "packages")


def artifacts_url(folder: DataDirectory) -> str:
    """Where artifacts are kept: as YARD_ARTIFACTS says, else in the data directory."""
    return ArtifactSettings(cell=CELL).artifacts or str(folder.path / "artifacts")


def _agent_settings(
    folder: DataDirectory, options: Options, index: int, gang_ports: range
) -> agent.Settings:
    """The settings of the agent of the node at `index`."""
    node = options.cluster.nodes[index]
    return agent.Settings(
        # The log is a file of this process's user, so tasks run as the same user.
        task_users="same",
        node=node.name,
        cell=CELL,
        pool=node.pool,
        node_type=node.type,
        labels=node.labels,
        address=HOST,
        port_first=gang_ports[0],
        port_last=gang_ports[-1],
        data_dir=folder.node(node.name),
        packages=packages_url(folder),
        artifacts=artifacts_url(folder),
        gpus=node.slots,
        cpu_milli=None if node.cpus is None else node.cpus * 1000,
        memory_mib=node.memory_mib,
        machine_agents=len(options.cluster.nodes),
        gpu_memory_mib=node.gpu_memory_mib,
    )


def _agent(
    settings: agent.Settings,
    log: EventLog,
    clock: Clock,
    chance: Chance,
    agents: Telemetry,
) -> Callable[[], Awaitable[object]]:
    async def run() -> None:
        ports = agent.host_ports(
            settings,
            log=log,
            clock=clock,
            chance=chance,
            telemetry=agents.for_node(settings.node),
        )
        await agent.run(ports, settings)

    return run


def owner(token: str) -> FileUser:
    """The user of the token of the data directory: the first operator of the cell."""
    role = RoleInScope(role=RoleName.OPERATOR, scope=Scope.CELL, name=CELL)
    return FileUser("dev", (role,), (NewToken(id="dev", digest=digest_of(token)),))
