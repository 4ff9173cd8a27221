"""Which tasks a command means: the filters of `ls`, shared with cancel, pause and resume."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from yardmaster.cli.errors import BadUsage
from yardmaster.cli.session import Session, now_ms
from yardmaster.cli.times import past_ms
from yardmaster.schemas.phases import ENDED, Phase

_OPTIONS = (
    click.option("-A", "--all", "everything", is_flag=True, help="Of every project."),
    click.option("-p", "--project", metavar="NAME", help="Of this project."),
    click.option(
        "--phase",
        metavar="A,B",
        help="In these phases; active: not ended; ended: ended.",
    ),
    click.option("--pool", metavar="NAME", help="In this pool."),
    click.option("--node", metavar="NAME", help="On this node."),
    click.option("--user", metavar="NAME", help="Of this user."),
    click.option("--label", multiple=True, metavar="KEY=VALUE", help="With this label."),
    click.option("--since", metavar="TIME", help="Submitted since: 2h, a date, or a time."),
)


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the filters."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def filters(session: Session, given: Mapping[str, Any]) -> dict[str, Any]:
    """The query of `GET /v1/tasks` for the filters given.

    Raises:
        BadUsage: an unknown phase, a label without `=`, a time that is none.
    """
    project = None if given["everything"] else session.config.project.value
    found: dict[str, Any] = {
        "project": project,
        "pool": given["pool"],
        "node": given["node"],
        "user": given["user"],
        "phase": phases(given["phase"]),
        "since": since(given["since"]),
    }
    for label in given["label"]:
        if "=" not in label:
            raise BadUsage(f"--label {label}: KEY=VALUE was expected")
    found["label"] = list(given["label"]) or None
    return {key: value for key, value in found.items() if value is not None}


def narrowed(given: Mapping[str, Any]) -> bool:
    """Whether any filter was given at all."""
    return any(given[key] for key in ("project", "phase", "pool", "node", "user", "label", "since"))


def phases(text: str | None) -> Sequence[str] | None:
    """The phases that `--phase` names."""
    if text is None:
        return None
    if text == "active":
        return [phase.value for phase in Phase if phase not in ENDED]
    if text == "ended":
        return [phase.value for phase in Phase if phase in ENDED]
    named = text.split(",")
    known = [phase.value for phase in Phase]
    for phase in named:
        if phase not in known:
            raise BadUsage(f"--phase {phase}: no such phase", hint=f"phases: {', '.join(known)}")
    return named


def since(text: str | None) -> str | None:
    """The RFC 3339 time that `--since` means."""
    return None if text is None else at_time(past_ms(text, now_ms(), "--since"))


def at_time(at_ms: int) -> str:
    """RFC 3339 of milliseconds since the epoch."""
    return (
        datetime.fromtimestamp(at_ms / 1000, tz=UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
