"""`yard shares`: how a pool was divided among departments and projects."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from yardmaster_cli.output.cells import clock_time
from yardmaster_cli.output.columns import share_columns
from yardmaster_cli.server.remote import plain
from yardmaster_cli.session import Session, command


@command("shares")
@click.option("--pool", required=True, metavar="NAME", help="Pool whose division is shown.")
def shares(session: Session, pool: str) -> None:
    """Show what departments and projects deserve, get, hold and request in a pool.

    The numbers are GPUs; -o wide adds CPUs and memory. They are those that the policy quota last
    recorded, which it does 5 s after the last record, or later while changes continue, at most 60
    s. USAGE is what tasks held in the past, where recent time counts more; "-" without the option
    usage_half_life_s.
    """
    found = plain(session.remote.client.shares(pool))
    if found["divided_at"] is None:
        session.out.note(f"pool {pool} was not divided: its policy is not quota, or it is unused")
    items = found["items"]
    depths = _depths(items) if session.out.for_people else {}
    session.out.items(items, share_columns(depths), name="name", document=found)
    if found["divided_at"] is not None and session.out.for_people:
        at = clock_time(found["divided_at"])
        session.out.note(f"as of {at}Z, a change is recorded after 60 s at the latest")


def _depths(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """The number of departments above each queue, by level and name.

    In `rows`, a department comes before the queues below it.
    """
    depths: dict[tuple[str, str], int] = {}
    for row in rows:
        above = depths.get(("department", row["parent"]), -1)
        depths[row["level"], row["name"]] = above + 1
    return depths
