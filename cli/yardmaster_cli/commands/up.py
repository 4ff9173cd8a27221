"""`yard up` and `yard down`: a cluster on this machine, in containers or as plain processes."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import click

from yardmaster_cli.config import default_up_dir
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.session import Session, command
from yardmaster_cli.up import background, compose
from yardmaster_localcluster.layout import (
    CONTROLLER_PORT,
    GATEWAY_PORT,
    HEALTH_PORT,
    KAFKA_PORT,
    REDIS_PORT,
    DataLayout,
)
from yardmaster_localcluster.plan import MOST, Counts, Wanted

#: Slots of each node when nothing says how many: they are declared, no GPU needs to be there.
DEFAULT_SLOTS: Final = 4
_PORTS: Final = {
    "gateway": GATEWAY_PORT,
    "health": HEALTH_PORT,
    "kafka": KAFKA_PORT,
    "controller": CONTROLLER_PORT,
    "redis": REDIS_PORT,
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
        help=f"How many (default: {default}).",
    )


def _port(name: str) -> _Decorator:
    default = _PORTS[name]
    return click.option(
        f"--{name}-port",
        f"{name}_port",
        type=click.IntRange(1, 65_000),
        metavar="PORT",
        help=f"Default: the cluster's port; {default} for a new cluster.",
    )


def _folder(session: Session) -> Path:
    config = session.config
    if config.data.source == "default":
        return default_up_dir(os.environ).absolute()
    return config.data_dir.absolute()


@command("up")
@click.option("--local", "form", flag_value="local", help="As processes of this machine.")
@click.option("--compose", "form", flag_value="compose", help="In containers, by Docker compose.")
@_count("gateway", "gateways")
@_count("quota", "quotas")
@_count("scheduler", "schedulers")
@_count("views", "views")
@_count("agent", "agents")
@click.option("--slots", type=click.IntRange(0, 64), metavar="N", help="Slots (GPUs) a node.")
@click.option("--cells", metavar="A[,B]", help="The log's cells (default: main; --local only).")
@_port("gateway")
@_port("health")
@_port("kafka")
@_port("controller")
@_port("redis")
def up(
    session: Session, form: str | None, slots: int | None, cells: str | None, **given: Any
) -> int:
    """Start Kafka, Redis, gateway, quota, scheduler, views and agents, each by itself.

    In containers where Docker answers, else as processes in the background. Again with other
    numbers it scales; what runs is left as it is. `yard down` ends it.
    """
    data = DataLayout(_folder(session))
    before = background.wanted(data)
    counts = Counts(
        **{
            service: given[service] or getattr(before.counts, service)
            for service in ("gateway", "quota", "scheduler", "views", "agent")
        }
    )
    names = _cells(cells, data, before)
    wanted = Wanted(counts=counts, cells=names, slots=slots if slots is not None else before.slots)
    ports = _ports(given, background.ports(data))
    if _form(form, data) == "compose":
        if names != ("main",):
            raise BadUsage("--compose runs one cell; several need --local")
        compose.up(session.out, data, wanted, ports)
    else:
        background.up(session.out, data, wanted, ports)
    return int(Exit.DONE)


def _ports(given: Mapping[str, Any], before: Mapping[str, int]) -> dict[str, int]:
    """The port of each listener: as given, else the cluster's as before, else the default."""
    return {
        name: given[f"{name}_port"] or before.get(name) or default
        for name, default in _PORTS.items()
    }


def _cells(asked: str | None, data: DataLayout, before: Wanted) -> tuple[str, ...]:
    """The cells: those asked for, which can be no others than those that are there."""
    if asked is None:
        return before.cells
    names = tuple(name.strip() for name in asked.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise BadUsage(f"--cells {asked}: expected different names")
    if names != before.cells and background.ports(data):
        raise BadUsage(
            f"the cluster in {data.path} has the cells {', '.join(before.cells)}",
            hint="a log keeps the cells it was made with: yard down --purge, or --data DIR",
        )
    return names


def _form(asked: str | None, data: DataLayout) -> str:
    """Containers or processes: what was asked for, what runs, what there is."""
    running = "local" if background.runs(data) else None
    running = running or ("compose" if compose.was_started(data) else None)
    if running is not None and asked not in (None, running):
        raise CliError(
            f"a cluster runs on {data.path} already, by --{running}",
            exit_code=Exit.CONFLICT,
            hint="yard down ends it; or choose another folder: --data DIR",
        )
    if asked or running:
        return str(asked or running)
    return "compose" if compose.is_there() else "local"


@command("down")
@click.option("--purge", is_flag=True, help="Remove the data folder too: log, ledgers, everything.")
def down(session: Session, purge: bool) -> int:
    """Stop the cluster of `yard up`, its tasks included, and leave no process behind.

    Tasks are ended as by a machine that loses power. Without --purge the log stays: after the next
    `yard up` the cluster goes on with it.
    """
    data = DataLayout(_folder(session))
    if compose.was_started(data):
        compose.down(session.out, data, purge=purge)
    else:
        background.down(session.out, data, purge=purge)
    return int(Exit.DONE)
