"""The gateway service: serves the REST API of one cell over HTTP."""

import asyncio
import re
import socket
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from yardmaster_eventlog.errors import SnapshotsUnavailable
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_gateway.app import create_app
from yardmaster_gateway.background.artifact_upkeep import ArtifactUpkeep
from yardmaster_gateway.background.details_ticker import DetailsTicker
from yardmaster_gateway.background.own_records import watch_own_records
from yardmaster_gateway.background.package_upkeep import PackageUpkeep
from yardmaster_gateway.background.token_import import import_users
from yardmaster_gateway.code_context import is_needed
from yardmaster_gateway.context import Gateway, GatewayPorts
from yardmaster_gateway.http.connections import ConnectionLimits
from yardmaster_gateway.http.server import Server
from yardmaster_gateway.identity.authentication import read_token_file
from yardmaster_gateway.routes.health import report_health
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_packages.artifact_store import ArtifactStore
from yardmaster_packages.store import PackageStore
from yardmaster_projections.fold import USAGE, VIEWS
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_runtime.http import CannotListen, listen
from yardmaster_runtime.service import Process, run_process
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.waiting import Work, first_of

__all__ = ["CannotListen", "listen", "main", "run"]

#: The interval at which a stopping gateway checks for open requests, in seconds.
CHECK_S: Final = 0.02
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9-]+")


async def run(
    ports: GatewayPorts,
    settings: GatewaySettings,
    *,
    listener: socket.socket | None = None,
    health: Health | None = None,
) -> None:
    """Serve until cancelled, on `listener` or on the address in the settings.

    When cancelled, it stops listening, closes streams, and finishes other requests for up to
    `stop_s` seconds.

    Raises:
        CannotListen: the address is taken.
        OwnRecordRefused: quota refuses this gateway's records.
        LogBeginsLater: the log has lost its first records, and no snapshot is usable.
    """
    with listener if listener is not None else listen(settings.host, settings.port) as bound:
        host, port = bound.getsockname()[:2]
        app = create_app(ports, settings)
        server = Server(app, ConnectionLimits(settings, ports.telemetry))
        ports.telemetry.info("listening", host=host, port=port)
        work: list[Work] = [
            server.serve(sockets=[bound]),
            watch_own_records(app.state.gateway),
            _keep_users(app.state.gateway),
            app.state.gateway.sizes.run(),
        ]
        if health is not None:
            work.append(report_health(app.state.health, ports.clock, health))
        if settings.details_tick_s is not None:
            ticker = DetailsTicker(
                *(ports.log, ports.clock, ports.telemetry),
                partition=settings.partition,
                every_s=settings.details_tick_s,
            )
            work.append(ticker.run())
        if ports.packages is not None:
            upkeep = PackageUpkeep(
                *(ports.packages, ports.clock, ports.telemetry),
                is_needed=partial(is_needed, app.state.gateway),
                every_s=settings.packages_tick_s,
                kept_s=settings.packages_kept_s,
                # The clock of the store may be a little behind.
                unfinished_s=2 * settings.upload_s,
            )
            work.append(upkeep.run())
        if ports.artifacts is not None:
            kept = ArtifactUpkeep(
                *(ports.artifacts, ports.clock, ports.telemetry),
                every_s=settings.artifacts_tick_s,
                kept_s=settings.artifacts_kept_s,
            )
            work.append(kept.run())
        try:
            await first_of(*work)
        finally:
            await _finish(server, app.state.gateway)


async def _keep_users(gateway: Gateway) -> None:
    """Record the users of the token file, and follow the users of the log."""
    async with asyncio.TaskGroup() as group:
        group.create_task(import_users(gateway))
        await gateway.access.follow()


async def _finish(server: Server, gateway: Gateway) -> None:
    """Stop listening, wait up to `stop_s` seconds for open requests, then cancel the rest."""
    server.close()
    gateway.end_streams()
    clock = gateway.ports.clock
    stop = clock.monotonic_s() + gateway.settings.stop_s
    try:
        while server.responding and clock.monotonic_s() < stop:
            await clock.sleep(CHECK_S)
    finally:
        server.abort()


def instance_of(host: str, port: int) -> str:
    """The default instance name: unique among the gateways that run at the same time."""
    name = _NOT_IN_NAMES.sub("-", host.lower()).strip("-")[:40] or "gateway"
    return f"gw-{name}-{port}"


async def serve(process: Process, settings: GatewaySettings) -> None:
    """Run the gateway in a process until cancelled.

    Raises: TokenFileRefused, CannotListen, PackagesUnavailable, ArtifactsUnavailable, and the
    errors of opening the log.
    """
    instance = settings.instance or instance_of(socket.gethostname(), settings.port)
    # Read the file first: if it is refused, nothing must have been started.
    file_users = () if settings.token_file is None else read_token_file(settings.token_file)
    async with AsyncExitStack() as stack:
        log = await process.open_log(settings)
        stack.push_async_callback(log.close)
        stores = {
            fold: RedisViewStore(settings.redis, settings.cell, process.clock, space=fold.name)
            for fold in (VIEWS, USAGE)
        }
        for store in stores.values():
            stack.push_async_callback(store.close)
        ports = GatewayPorts(
            log=log,
            views=stores[VIEWS],
            clock=process.clock,
            chance=process.chance,
            telemetry=process.telemetry,
            usage=stores[USAGE],
            file_users=file_users,
            snapshots=_open_snapshots(process, settings),
            packages=open_packages(settings),
            artifacts=open_artifacts(settings),
        )
        named = settings.model_copy(update={"instance": instance})
        await run(ports, named, health=process.health)


def _open_snapshots(process: Process, settings: GatewaySettings) -> SnapshotStore | None:
    """Return quota's snapshots; None if their URL names no store.

    Without snapshots, the gateway reads the log from its start.
    """
    try:
        return SnapshotStore(settings.snapshots_url)
    except SnapshotsUnavailable as error:
        process.telemetry.warn("snapshots_unavailable", code=error.code, found=str(error))
        return None


def open_packages(settings: GatewaySettings) -> PackageStore | None:
    """Return the store of packages; None if the setting is empty.

    Raises:
        PackagesUnavailable: the URL names no store.
    """
    if not settings.packages:
        return None
    return PackageStore(settings.packages, limits=settings.package_limits)


def open_artifacts(settings: GatewaySettings) -> ArtifactStore | None:
    """Return the store of artifacts; None if the setting is empty.

    Raises:
        ArtifactsUnavailable: the URL names no store.
    """
    return ArtifactStore(settings.artifacts) if settings.artifacts else None


def main() -> int:
    """Run the service as a process; its settings are `YARD_GATEWAY_*` and `YARD_*`."""
    return run_process(GatewaySettings, "gateway", serve)


if __name__ == "__main__":
    sys.exit(main())
