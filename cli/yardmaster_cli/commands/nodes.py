"""`yard nodes`: list, show, enroll, revoke, cordon, uncordon, drain, slots."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from pydantic import TypeAdapter, ValidationError

from yardmaster.errors import ApiError
from yardmaster_cli.errors import BadUsage, CliError, Exit, first_error
from yardmaster_cli.listing.filters import at_time
from yardmaster_cli.node_keys import key_digest
from yardmaster_cli.output.cells import Gpus
from yardmaster_cli.output.columns import NODES
from yardmaster_cli.output.formats import Column
from yardmaster_cli.server.remote import Refused, plain, rows
from yardmaster_cli.session import NounGroup, Session, detaching, if_match_option
from yardmaster_cli.times import future_ms, now_ms
from yardmaster_core.scheduling.state.enrollment import covers
from yardmaster_schemas.api import (
    Enrollment,
    Node,
    NodePatch,
    NodeSlots,
    NodeState,
    RequestedNodeState,
)
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.fields import MAX_SLOTS

_ENROLLMENT: Final[TypeAdapter[Enrollment]] = TypeAdapter(Enrollment)
#: The default deadline of a drain, for tasks that may not be preempted.
DRAIN_DEADLINE: Final = "1h"
#: The interval of `drain --wait`, in seconds.
LOOK_S: Final = 1.0
#: The states of nodes that have not joined.
_ABSENT: Final = (NodeState.ENROLLED, NodeState.REVOKED, NodeState.GONE, NodeState.LOST)


@click.group("nodes", cls=NounGroup)
def nodes() -> None:
    """List nodes; enroll, revoke, cordon, uncordon, drain."""


@nodes.command("ls")
@click.option("--pool", metavar="NAME", help="List nodes of this pool.")
@click.option(
    "--state",
    metavar="STATE",
    help="List nodes in this state: enrolled, ready, cordoned, draining, drained, ...",
)
def ls(session: Session, pool: str | None, state: str | None) -> None:
    """List nodes with their resources, usage and last heartbeat."""
    page = session.remote.client.nodes(pool=pool, state=state, limit=1000)
    session.out.items(rows(page.items), NODES, name="name", document=plain(page))


@nodes.command("show")
@click.argument("name")
def show(session: Session, name: str) -> None:
    """Show a node with its reservations.

    -o json and yaml print the fields of the REST API, with GPUs in thousandths (..._milli).
    """
    session.out.whole(plain(session.remote.client.node(name)), "name")


@nodes.command("slots")
@click.argument("name")
@click.option("--disable", metavar="N,...", help="Start no new tasks on these GPUs.")
@click.option("--enable", metavar="N,...|all", help="Allow new tasks on these GPUs.")
@click.option("--stop", is_flag=True, help="Stop tasks on the disabled GPUs, with grace.")
@click.option("--reason", metavar="TEXT", help="Reason, shown to all users.")
@if_match_option("Change", "node")
def slots(
    session: Session,
    name: str,
    disable: str | None,
    enable: str | None,
    stop: bool,
    reason: str | None,
    if_match: str | None,
) -> None:
    """List, disable or enable the GPUs of a node.

    Without --disable and --enable: list the GPUs with their tasks, and with the pending tasks for
    which they are reserved. A disabled GPU gets no new tasks; its tasks keep running unless --stop
    is given.
    """
    client = session.remote.client
    if disable is None and (stop or reason):
        # Without --disable, the two options would apply to every slot that is already disabled.
        raise BadUsage("--stop and --reason need --disable")
    if disable is None and enable is None:
        _list_slots(session, name)
        return
    # The ETag is read before the slots: the server then refuses this write if another change came
    # in between.
    tag = if_match or client.etag(f"/v1/nodes/{name}")
    known = set(client.node(name).disabled_slots)
    back = known if enable == "all" else _indexes("--enable", enable)
    more = _indexes("--disable", disable)
    if both := sorted(back & more):
        raise BadUsage(f"slot {both[0]} is in both --disable and --enable")
    change = NodeSlots(disabled=sorted((known - back) | more), stop=stop, reason=reason)
    session.remote.await_verdict(client.put_slots(name, change, if_match=tag), name, session.out)
    session.out.say(name)


def _indexes(flag: str, text: str | None) -> set[int]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    for part in parts:
        if not part.isdecimal() or int(part) >= MAX_SLOTS:
            raise BadUsage(f"{flag}: expected numbers of slots, not {part}")
    return {int(part) for part in parts}


def _list_slots(session: Session, name: str) -> None:
    columns = (
        Column("SLOT", lambda row: row["index"], right=True),
        Column("STATE", lambda row: "disabled" if row["disabled"] else "enabled"),
        Column("USED", lambda row: Gpus(row["gpu_milli_used"], 1), right=True),
        Column("TASKS", lambda row: ",".join(row["tasks"]) or None),
        Column("RESERVED", lambda row: ",".join(row["reserved_for"]) or None),
    )
    node = plain(session.remote.client.node(name))
    session.out.items(node["slots"], columns, name="index")


@nodes.command("enroll")
@click.argument("name")
@click.option("--pool", required=True, metavar="NAME", help="Pool that the node may join.")
@click.option(
    *("--gpus", "gpus"),
    required=True,
    type=click.IntRange(0, MAX_SLOTS),
    metavar="N",
    help="Most GPUs that the node may have.",
)
@click.option(
    *("--type", "node_type"), metavar="TYPE", help="Type that the node must have; default: any."
)
@click.option(
    *("--label", "labels"),
    multiple=True,
    metavar="KEY=VALUE",
    help="Label that the node may have; repeat for several.",
)
@click.option("--address", metavar="HOST", help="Address that the node must have; default: any.")
@click.option(
    *("--key", "keys"),
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Ed25519 public key of the node (stored, not checked yet); two during a key rotation.",
)
@click.option(
    "--all-present",
    is_flag=True,
    help="Enroll all other nodes that have joined too, with their resources.",
)
@click.option("--yes", is_flag=True, help="Bar nodes that are not enrolled, without asking.")
@if_match_option("Change", "enrollment")
def enroll(
    session: Session,
    name: str,
    pool: str,
    gpus: int,
    node_type: str | None,
    labels: tuple[str, ...],
    address: str | None,
    keys: tuple[Path, ...],
    all_present: bool,
    yes: bool,
    if_match: str | None,
) -> None:
    """Enroll a node, so that it may join.

    After the first enrollment, only enrolled nodes may join. The first enrollment bars every node
    that has joined and is not enrolled: it keeps its tasks and gets no new ones. The command names
    these nodes and asks first.
    """
    body = {
        **{"pool": pool, "gpus": gpus, "node_type": node_type, "address": address},
        **{"labels": _labels(labels), "keys": [key_digest(path) for path in keys]},
    }
    try:
        enrollment = _ENROLLMENT.validate_json(json.dumps(body))
    except ValidationError as error:
        raise BadUsage(first_error(error)) from None
    remote = session.remote
    nodes = list(remote.client.all_nodes())
    present = [node for node in nodes if node.state not in _ABSENT]
    others = [n for n in present if n.enrollment is None and n.name != name] if all_present else []
    barred = [node for node in _barred_by(name, enrollment, nodes, present) if node not in others]
    if barred and not yes:
        _confirm_barring(session, name, barred)
    known = if_match or _enrollment_tag(session, name)
    accepted = remote.client.put_enrollment(name, enrollment, if_match=known, create=known is None)
    remote.await_verdict(accepted, name, session.out)
    session.out.say(name)
    for other in others:
        as_joined = Enrollment(pool=other.pool, gpus=other.gpus, labels=other.labels)
        accepted = remote.client.put_enrollment(other.name, as_joined, create=True)
        remote.await_verdict(accepted, other.name, session.out)
        session.out.say(other.name)
    if known is None and name not in [node.name for node in present]:
        session.out.note(f"{name} may join now: start or restart its agent")


def _barred_by(
    name: str, enrollment: Enrollment, nodes: Sequence[Node], present: Sequence[Node]
) -> list[Node]:
    """The present nodes that get no new tasks once `name` is enrolled as the cell's first node.

    The list is empty if any node is enrolled already.
    """
    if any(node.enrollment is not None for node in nodes):
        return []
    return [
        node
        for node in present
        # If every enrollment was revoked, the other nodes are barred already.
        if node.state is not NodeState.BARRED and (node.name != name or not _fits(node, enrollment))
    ]


def _fits(node: Node, enrollment: Enrollment) -> bool:
    """Whether the enrollment allows what the node claims: pool, GPUs, type, labels, address."""
    return covers(
        *(enrollment, node.pool, node.gpus, node.node_type or "", node.labels, node.address or "")
    )


def _confirm_barring(session: Session, name: str, barred: Sequence[Node]) -> None:
    """Ask whether the first enrollment may bar these nodes.

    Raises: BadUsage without a terminal; click.Abort if the user answers no.
    """
    named = ", ".join(
        f"{node.name} ({count_of(len(node.tasks), 'task')})" if node.tasks else node.name
        for node in barred
    )
    message = (
        f"{name} would be the cell's first enrolled node: from then on only enrolled nodes may "
        f"join, and these get no new tasks until they are enrolled: {named}"
    )
    if not session.out.terminal or not click.get_text_stream("stdin").isatty():
        raise BadUsage(message, hint="add --all-present to enroll them too, or --yes to bar them")
    click.echo(message, err=True)
    click.confirm(f"enroll {name} and bar {count_of(len(barred), 'node')}?", abort=True, err=True)


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadUsage(f"--label {pair}: expected KEY=VALUE")
        found[key] = value
    return found


def _enrollment_tag(session: Session, name: str) -> str | None:
    """The ETag of a node's enrollment; None when the node is not enrolled."""
    client = session.remote.client
    try:
        return f'"{client.enrollment(name).revision}"'
    except ApiError as error:
        if error.status == 404:
            return None
        raise


@nodes.command("revoke")
@click.argument("name")
@if_match_option("Revoke", "enrollment")
def revoke(session: Session, name: str, if_match: str | None) -> None:
    """Kill a node's tasks at once and refuse the node.

    It may join again after it is enrolled again. To let its tasks save their work, drain it first.
    """
    remote = session.remote
    remote.await_verdict(
        remote.client.delete_enrollment(name, if_match=if_match), name, session.out
    )
    session.out.say(name)


def _patch(session: Session, name: str, patch: NodePatch) -> None:
    remote = session.remote
    remote.await_verdict(remote.client.patch_node(name, patch), name, session.out)
    session.out.say(name)


@nodes.command("cordon")
@click.argument("name")
@click.option("--reason", metavar="TEXT", help="Reason, shown to all users.")
def cordon(session: Session, name: str, reason: str | None) -> None:
    """Start no new tasks on a node."""
    _patch(session, name, NodePatch(state=RequestedNodeState.CORDONED, reason=reason))


@nodes.command("uncordon")
@click.argument("name")
def uncordon(session: Session, name: str) -> None:
    """Allow new tasks on a node."""
    try:
        _patch(session, name, NodePatch(state=RequestedNodeState.READY))
    except Refused as refused:
        if refused.code == "wrong_phase":
            refused.hint = "it is neither cordoned nor drained; list nodes with: yard nodes"
        raise


@nodes.command("drain")
@click.argument("name")
@click.option(
    "--deadline",
    default=DRAIN_DEADLINE,
    metavar="TIME",
    show_default=True,
    help="When the remaining tasks stop: 2h (from now), or a time.",
)
@click.option("--reason", metavar="TEXT", help="Reason, shown to all users.")
@click.option("--wait", is_flag=True, help="Wait until the node is drained: no task is left on it.")
def drain(session: Session, name: str, deadline: str, reason: str | None, wait: bool) -> None:
    """Cordon a node and stop its tasks.

    Preemptible tasks stop now, with their grace period; the others at the deadline, with theirs.
    All of them are requeued.
    """
    until_ms = future_ms(deadline, now_ms(), "--deadline")
    _patch(
        session,
        name,
        NodePatch(state=RequestedNodeState.DRAINING, reason=reason, deadline_at=at_time(until_ms)),
    )
    if not wait:
        return
    with detaching(f"yard nodes show {name}"):
        while (node := session.remote.client.node(name)).tasks or node.state is NodeState.DRAINING:
            # Tasks get their grace period after the deadline. A drain that is not complete one hour
            # later hangs.
            if now_ms() > until_ms + 3_600_000:
                held = node.tasks
                raise CliError(
                    f"{name} still runs {count_of(len(held), 'task')}: {', '.join(held)}",
                    exit_code=Exit.TIMEOUT,
                    hint="end them with: yard cancel --now ID",
                )
            time.sleep(LOOK_S)
    session.out.note(f"{name}: {node.state}, no task is left on it")
