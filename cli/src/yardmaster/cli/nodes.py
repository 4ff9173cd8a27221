"""`yard nodes`: list, show, cordon, uncordon, drain, slots."""

import time
from typing import Final

import click

from yardmaster.cli.cells import Gpus
from yardmaster.cli.errors import BadUsage, CliError, Exit
from yardmaster.cli.output import Column
from yardmaster.cli.remote import plain, rows
from yardmaster.cli.selection import at_time
from yardmaster.cli.session import NounGroup, Session, detaching, now_ms
from yardmaster.cli.tables import NODES
from yardmaster.schemas.api import NodePatch, NodeWish
from yardmaster.schemas.quantities import duration_s

#: Time that tasks which may not be preempted are left by a drain without --deadline.
DRAIN_DEADLINE: Final = "1h"
#: Pause between two looks of `drain --wait`, in seconds.
LOOK_S: Final = 1.0


@click.group("nodes", cls=NounGroup)
def nodes() -> None:
    """List nodes; cordon, uncordon, drain."""


@nodes.command("ls")
@click.option("--pool", metavar="NAME", help="Of this pool.")
@click.option("--state", metavar="STATE", help="ready, cordoned, draining, gone or lost.")
def ls(session: Session, pool: str | None, state: str | None) -> None:
    """List nodes: what they have, what is used, when they were last heard."""
    page = session.remote.client.nodes(pool=pool, state=state, limit=1000)
    session.out.items(rows(page.items), NODES, name="name", document=plain(page))


@nodes.command("show")
@click.argument("name")
def show(session: Session, name: str) -> None:
    """Show all of one node."""
    out = session.out
    if out.for_people:
        out.format = "yaml"
    out.one(plain(session.remote.client.node(name)), list, "name")


@nodes.command("slots")
@click.argument("name")
def slots(session: Session, name: str) -> None:
    """List a node's GPUs and who holds them."""
    columns = (
        Column("SLOT", lambda row: row["index"], right=True),
        Column("USED", lambda row: Gpus(row["gpu_milli_used"], 1), right=True),
        Column("TASKS", lambda row: ",".join(row["tasks"]) or None),
    )
    node = plain(session.remote.client.node(name))
    session.out.items(node["slots"], columns, name="index")


def _wish(session: Session, name: str, wish: NodePatch) -> None:
    remote = session.remote
    remote.settle(remote.client.patch_node(name, wish), name, session.out)
    session.out.say(name)


@nodes.command("cordon")
@click.argument("name")
@click.option("--reason", metavar="TEXT", help="Why; shown to everybody.")
def cordon(session: Session, name: str, reason: str | None) -> None:
    """Start nothing new on a node."""
    _wish(session, name, NodePatch(state=NodeWish.CORDONED, reason=reason))


@nodes.command("uncordon")
@click.argument("name")
def uncordon(session: Session, name: str) -> None:
    """Let a node take tasks again."""
    _wish(session, name, NodePatch(state=NodeWish.READY))


@nodes.command("drain")
@click.argument("name")
@click.option(
    "--deadline",
    default=DRAIN_DEADLINE,
    metavar="TIME",
    show_default=True,
    help="When the rest is stopped.",
)
@click.option("--reason", metavar="TEXT", help="Why; shown to everybody.")
@click.option("--wait", is_flag=True, help="Wait until nothing runs on it.")
def drain(session: Session, name: str, deadline: str, reason: str | None, wait: bool) -> None:
    """Cordon a node, stop preemptible tasks with grace now and the rest at the deadline."""
    try:
        until_ms = now_ms() + duration_s(deadline) * 1000
    except ValueError as error:
        raise BadUsage(f"--deadline: {error}") from None
    _wish(
        session,
        name,
        NodePatch(state=NodeWish.DRAINING, reason=reason, deadline_at=at_time(until_ms)),
    )
    if not wait:
        return
    with detaching(f"yard nodes show {name}"):
        while held := session.remote.client.node(name).tasks:
            # Grace comes on top of the deadline; an hour more is taken for a hang.
            if now_ms() > until_ms + 3_600_000:
                raise CliError(
                    f"{name}: {len(held)} tasks still run: {', '.join(held)}",
                    exit_code=Exit.TIMEOUT,
                    hint="end them with: yard cancel --now ID",
                )
            time.sleep(LOOK_S)
    session.out.note(f"{name}: nothing runs on it")
