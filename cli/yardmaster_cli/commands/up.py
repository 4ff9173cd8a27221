"""`yard up` and `yard down`: a cluster on this machine, in containers or as processes."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import click

from yardmaster.errors import ApiError
from yardmaster.local_cluster import default_up_dir, read_dev
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.hints import down_for, up_with, yard_for
from yardmaster_cli.isolation import not_isolated, why_not_isolated
from yardmaster_cli.output.formats import Output
from yardmaster_cli.server.reader import Reader
from yardmaster_cli.session import Session, command
from yardmaster_localcluster.background import (
    REPORT_S,
    TERMINAL_REPORT_S,
    BackgroundCluster,
    ProcessStatus,
)
from yardmaster_localcluster.compose import ComposeCluster, project_name, why_unavailable
from yardmaster_localcluster.errors import PortsInUse
from yardmaster_localcluster.layout import (
    CONTROLLER_PORT,
    GATEWAY_PORT,
    HEALTH_PORT,
    KAFKA_PORT,
    REDIS_PORT,
    DataLayout,
)
from yardmaster_localcluster.plan import MOST, Counts, Wanted
from yardmaster_localcluster.request import requested, requested_ports
from yardmaster_schemas.counts import count_of

_PORTS: Final = {
    "gateway": GATEWAY_PORT,
    "health": HEALTH_PORT,
    "kafka": KAFKA_PORT,
    "controller": CONTROLLER_PORT,
    "redis": REDIS_PORT,
}
_LISTENERS: Final = {
    "gateway": "the first gateway",
    "health": "the first health check",
    "kafka": "Kafka",
    "controller": "Kafka's controller",
    "redis": "Redis",
}
_F = TypeVar("_F", bound=Callable[..., Any])


class _Decorator(Protocol):
    def __call__(self, function: _F, /) -> _F: ...


def _count(service: str, plural: str) -> _Decorator:
    default = getattr(Counts(), service)
    return click.option(
        f"--{plural}",
        service,
        type=click.IntRange(1, MOST[service]),
        metavar="N",
        help=f"Number of {service} processes (default: {default}).",
    )


def _port(name: str) -> _Decorator:
    default = _PORTS[name]
    return click.option(
        f"--{name}-port",
        f"{name}_port",
        type=click.IntRange(1, 65_000),
        metavar="PORT",
        help=f"Port of {_LISTENERS[name]} (default: as before, else {default}).",
    )


class _Clusters:
    """Both forms of the cluster in the data directory of a command."""

    def __init__(self, session: Session) -> None:
        config = session.config
        usual = default_up_dir(os.environ).absolute()
        path = usual if config.data.source == "default" else config.data_dir.absolute()
        note = session.out.note
        self.data = DataLayout(path)
        report_s = TERMINAL_REPORT_S if session.out.terminal else REPORT_S
        self.background = BackgroundCluster(self.data, note, report_s=report_s)
        self.compose = ComposeCluster(self.data, project_name(path, usual), note)


@command("up")
@click.option(
    "--local", "form", flag_value="local", help="Start background processes on this machine."
)
@click.option("--compose", "form", flag_value="compose", help="Start containers with Docker.")
@_count("gateway", "gateways")
@_count("quota", "quotas")
@_count("scheduler", "schedulers")
@_count("views", "views")
@_count("agent", "agents")
@click.option("--slots", type=click.IntRange(0, 64), metavar="N", help="Slots (GPUs) per node.")
@click.option("--cells", metavar="A[,B]", help="Cells of the log (default: main; --local only).")
@_port("gateway")
@_port("health")
@_port("kafka")
@_port("controller")
@_port("redis")
def up(
    session: Session, form: str | None, slots: int | None, cells: str | None, **given: Any
) -> int:
    """Start Kafka, Redis, gateway, quota, scheduler, views and agents as separate processes.

    They run in containers if Docker answers, else as background processes. If the cluster runs, the
    command scales it to the new numbers. `yard down` stops it.
    """
    began_s = time.monotonic()
    out = session.out
    clusters = _Clusters(session)
    data = clusters.data
    before, ports_before = requested(data), requested_ports(data)
    counts = Counts(
        **{
            service: given[service] or getattr(before.counts, service)
            for service in ("gateway", "quota", "scheduler", "views", "agent")
        }
    )
    names = _cells(cells, data, before, ports_before)
    wanted = Wanted(counts=counts, cells=names, slots=slots if slots is not None else before.slots)
    ports = _ports(given, ports_before)
    if _form(form, clusters, out) == "compose":
        if names != ("main",):
            raise BadUsage("--compose runs one cell", hint="use --local for several cells")
        containers, port = clusters.compose.up(wanted, ports)
        out.say(f"yard up --compose: {count_of(len(containers), 'container')}, data in {data.path}")
        for name in sorted(containers):
            out.say(f"  {name}: {containers[name]}")
        out.note(f"all healthy after {time.monotonic() - began_s:.0f} s: http://127.0.0.1:{port}")
    else:
        processes = _up_local(clusters.background, wanted, ports)
        out.say(f"yard up: {len(processes)} processes, data in {data.path}")
        for each in processes:
            place = f"{each.serves}, health {each.address}" if each.serves else each.address
            restarts = f", restarted {count_of(each.restarts, 'time')}" if each.restarts else ""
            out.say(f"  {each.name:<12} pid {each.pid:<8} {place}{restarts}")
        out.note(f"all healthy after {time.monotonic() - began_s:.0f} s; logs are in {data.logs}")
    yard, down_command = yard_for(data.path, os.environ), down_for(data.path, os.environ)
    if (pending := _pending_upgrade(data)) is not None:
        out.note(f"hint: {pending}: {yard} upgrade finish")
    out.note(f"hint: {yard} submit -- COMMAND; {down_command} stops the cluster and its tasks")
    server = read_dev(data.path)
    if server is not None and (said := not_isolated(data.path, server, counts.agent)) is not None:
        out.note(f"warning: {said}; {why_not_isolated(data.path)}")
    return int(Exit.DONE)


def _pending_upgrade(data: DataLayout) -> str | None:
    """A note if the started cluster's rules are older than its version's rules; None if not."""
    server = read_dev(data.path)
    if server is None:
        return None
    try:
        rules = Reader(server.server, server.token, sleep=time.sleep).get("/v1/rules")
    except ApiError:
        return None  # the cluster runs, so `yard up` does not fail; see `yard upgrade show`
    # The number of the rules is 0 while the views do not have a cycle yet.
    if not 0 < rules["rules"] < rules["newest"]:
        return None
    return (
        f"rules {rules['rules']} are in force, this version has {rules['newest']}; "
        "when you no longer want to go back"
    )


def _up_local(
    cluster: BackgroundCluster, wanted: Wanted, ports: dict[str, int]
) -> list[ProcessStatus]:
    try:
        return cluster.up(wanted, ports)
    except PortsInUse as error:
        hint = error.hint or ""
        if error.free:
            flags = " ".join(f"--{name}-port {port}" for name, port in error.free.items())
            hint += f": {up_with(flags, os.environ)}"
        raise CliError(str(error), exit_code=Exit.CONFLICT, hint=hint) from None


def _ports(given: Mapping[str, Any], before: Mapping[str, int]) -> dict[str, int]:
    """The port of each listener: the given one, else the cluster's port, else the default."""
    return {
        name: given[f"{name}_port"] or before.get(name) or default
        for name, default in _PORTS.items()
    }


def _cells(
    given: str | None, data: DataLayout, before: Wanted, ports: Mapping[str, int]
) -> tuple[str, ...]:
    """The given cells, or else the cells of the cluster; an existing log keeps its cells.

    Raises:
        BadUsage: the names are not unique, or differ from the log's cells.
    """
    if given is None:
        return before.cells
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise BadUsage(f"--cells {given}: expected different names")
    if names != before.cells and ports:
        raise BadUsage(
            f"the cluster in {data.path} has the cells {', '.join(before.cells)}",
            hint="a log keeps its cells: run yard down --purge, or start another with --data DIR",
        )
    return names


def _form(given: str | None, clusters: _Clusters, out: Output) -> str:
    """Choose containers or processes: the given form, else the running one, else an available one.

    If no option chose the form, print the form and the reason.

    Raises:
        CliError: the cluster runs in the other form.
    """
    running = "local" if clusters.background.supervisor() else None
    running = running or ("compose" if clusters.compose.started else None)
    if running is not None and given not in (None, running):
        raise CliError(
            f"a cluster already runs in {clusters.data.path}, started with --{running}",
            exit_code=Exit.CONFLICT,
            hint="stop it with yard down, or choose another directory with --data DIR",
        )
    if given or running:
        return given or str(running)
    if (why := why_unavailable()) is None:
        out.note("starting containers, as Docker answers; --local chooses processes")
        return "compose"
    out.note(f"starting processes in the background: {why}")
    return "local"


@command("down")
@click.option("--purge", is_flag=True, help="Also delete the data directory with the log.")
def down(session: Session, purge: bool) -> int:
    """Stop the cluster of `yard up` and its tasks, and leave no process behind.

    Tasks are killed at once, without a grace period. Without --purge the log stays, and the next
    `yard up` continues with it.
    """
    began_s = time.monotonic()
    out = session.out
    clusters = _Clusters(session)
    path = clusters.data.path
    stopped = True
    if clusters.compose.started:
        clusters.compose.down()
        out.say("yard down: all containers are stopped and removed")
    elif (tasks := clusters.background.down()) is None:
        stopped = False
        out.note(f"no cluster ran in {path}")
    else:
        ended = f", {count_of(tasks, 'process', 'processes')} of tasks among them" if tasks else ""
        took_s = time.monotonic() - began_s
        out.say(f"yard down: all processes have ended{ended}, in {took_s:.0f} s")
    if purge:
        shutil.rmtree(path, ignore_errors=True)
        out.note(f"deleted: {path}")
    elif stopped:
        out.note(f"the log is kept in {path}; yard up continues with it, --purge deletes it")
    return int(Exit.DONE)
