"""`yard setup`: create the topics and the first records of a log."""

import asyncio
from pathlib import Path

import click

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.log.first_records import MAX_CELLS, Site, wait_and_set_up
from yardmaster_cli.session import Session, command
from yardmaster_eventlog.errors import NotOurLog
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.settings import LogSettings
from yardmaster_schemas.access import ADMIN, access_rules
from yardmaster_schemas.events.requests import LogMode
from yardmaster_schemas.quantities import duration_s


@command("setup")
@click.option(
    "--log",
    "url",
    metavar="URL",
    help="Log to set up: kafka://HOST:PORT[,...] (default: YARD_LOG).",
)
@click.option(
    "--cells",
    default="main",
    metavar="A[,B]",
    help="Cells of the log, in this order (default: main).",
)
@click.option(
    "--wait",
    default="60s",
    metavar="TIME",
    help="How long to retry an unreachable log (default: 60s).",
)
@click.option(
    "--users",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Also create the brokers' users: one for each file in DIR, which contains its password.",
)
def setup(session: Session, url: str | None, cells: str, wait: str, users: Path | None) -> None:
    """Create the topics and the first records of a log.

    A repeated setup changes nothing. YARD_KAFKA__... configures the connection to brokers (TLS,
    users, replication), as for services.

    With --users, the file names are the users: gateway, quota, scheduler, views, auditor,
    agent-NODE for the agent of a node, and agents for agents that share one user. Each user gets
    the rules that it needs, and no others; the administrator, admin, needs none.
    """
    names = tuple(name.strip() for name in cells.split(",") if name.strip())
    if not 1 <= len(names) <= MAX_CELLS or len(set(names)) < len(names):
        raise BadUsage(f"--cells {cells}: expected 1 to {MAX_CELLS} different names")
    settings = LogSettings() if url is None else LogSettings(log=url)
    if not settings.log:
        raise BadUsage("no log given", hint="name it with --log kafka://HOST:PORT or YARD_LOG")
    try:
        limit_s = duration_s(wait)
    except ValueError as error:
        raise BadUsage(f"--wait: {error}") from None
    mode = LogMode.KAFKA if settings.log.startswith("kafka:") else LogMode.EMBEDDED
    site = Site(mode=mode, cells=names, passwords=_passwords(users))
    try:
        found = asyncio.run(wait_and_set_up(settings, SystemClock(), SystemChance(), site, limit_s))
    except NotOurLog as error:
        raise BadUsage(str(error)) from None
    made = f"created: {', '.join(found.new_cells)}" if found.new_cells else "nothing to create"
    document = {"log_id": found.log_id, "cells": list(names), "new_cells": list(found.new_cells)}
    session.out.one(
        document, lambda: [f"log {found.log_id}, cells {', '.join(names)}; {made}"], "log_id"
    )


def _passwords(folder: Path | None) -> dict[str, str]:
    """The password of each user that a file in `folder` names.

    Raises:
        BadUsage: a file does not name a user, is empty or cannot be read.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.iterdir()) if folder is not None else ():
        user = path.name
        # Kubernetes keeps the versions of a Secret in hidden folders.
        if user.startswith("."):
            continue
        if user != ADMIN and not access_rules(user):
            raise BadUsage(
                f"--users: {path}: no service has the user {user}",
                hint="the files are named gateway, quota, scheduler, views, auditor, agents or "
                "agent-NODE",
            )
        try:
            found[user] = path.read_text().strip()
        except (OSError, ValueError) as error:
            raise BadUsage(f"--users: {path}: {error}") from None
        if not found[user]:
            raise BadUsage(f"--users: {path} is empty", hint="write the password of the user to it")
    return found
