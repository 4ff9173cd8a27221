"""`yard snapshots`: list the stored states of quota and the scheduler, which are only a cache."""

import asyncio
from typing import Any

import click

from yardmaster.configuration import Config
from yardmaster_cli.errors import BadUsage
from yardmaster_cli.output.formats import Column
from yardmaster_cli.session import Session, command
from yardmaster_eventlog.errors import SnapshotCorrupt
from yardmaster_eventlog.snapshots import SnapshotStore

#: The state machines that take snapshots.
MACHINES = ("quota", "scheduler")


@command("snapshots")
@click.option("--url", metavar="URL", help="Location of the snapshots (default: in --data).")
@click.option("--cell", default="main", metavar="NAME", help="Cell of the snapshots.")
def snapshots(session: Session, url: str | None, cell: str) -> None:
    """List the stored snapshots and check each.

    A snapshot is the stored state of quota or of the scheduler. Without it, a restart replays the
    whole log. Without --url and --data, the snapshots are those of the cluster on this machine that
    serves the context's server.
    """
    place = url or _place(session.config)
    columns = (
        Column("MACHINE", lambda row: row["machine"]),
        Column("CYCLE", lambda row: row["cycle"], right=True),
        Column("BYTES", lambda row: row["bytes"], right=True),
        Column("STATE", lambda row: row["state_digest"]),
        Column("CHECK", lambda row: row["check"]),
    )
    session.out.note(f"reading {place}, cell {cell}")
    found = asyncio.run(_listed(SnapshotStore(place), cell))
    session.out.items(found, columns, name="cycle", document={"url": place})
    if not found:
        session.out.note(f"no snapshots at {place}: a restart replays the whole log")


def _place(config: Config) -> str:
    """The folder of the snapshots.

    Raises: BadUsage: the server that the settings name is not of a cluster on this machine.
    """
    if config.here is None and config.server_named and config.data.source == "default":
        raise BadUsage(
            f"the snapshots of {config.server.value} are not known here: no cluster on this "
            "machine serves it",
            hint="name them with --url URL; yard contexts use dev selects the cluster of this "
            "machine, YARD_DATA=DIR the folder of another",
        )
    return str(config.cluster_dir / "snapshots")


async def _listed(store: SnapshotStore, cell: str) -> list[dict[str, Any]]:
    found = []
    for machine in MACHINES:
        for cycle in await store.cycles(machine, cell):
            row = {"machine": machine, "cycle": cycle, "bytes": None, "state_digest": None}
            try:
                snapshot = await store.load(machine, cell, cycle)
            except SnapshotCorrupt as error:
                found.append({**row, "check": str(error)})
                continue
            row |= {"bytes": len(snapshot.payload), "state_digest": snapshot.state_digest}
            found.append({**row, "check": "ok"})
    return found
