"""Which tasks a command means: the filters of `ls`, shared with cancel, pause and resume."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.session import Session
from yardmaster_cli.times import now_ms, parse_time, past_ms
from yardmaster_schemas.phases import ENDED, Phase

_OPTIONS = (
    click.option("-A", "--all-projects", "everything", is_flag=True, help="Of every project."),
    click.option("-p", "--project", metavar="NAME", help="Of this project."),
    click.option(
        "--phase",
        metavar="A,B",
        help="In these phases; active: not ended; ended: ended.",
    ),
    click.option("--pool", metavar="NAME", help="In this pool."),
    click.option("--node", metavar="NAME", help="On this node."),
    click.option("--user", metavar="NAME", help="Of this user."),
    click.option("--kind", metavar="A,B", help="Of these kinds: training, interactive, inference."),
    click.option("--name", metavar="NAME", help="Of jobs with this name."),
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
        "kind": kinds(given["kind"]),
        "name": given["name"],
        "phase": phases(given["phase"]),
        "since": since(given["since"]),
    }
    for label in given["label"]:
        if "=" not in label:
            raise BadUsage(f"--label {label}: expected KEY=VALUE")
    found["label"] = list(given["label"]) or None
    return {key: value for key, value in found.items() if value is not None}


def narrowed(given: Mapping[str, Any]) -> bool:
    """Whether any filter was given at all."""
    named = ("project", "phase", "pool", "node", "user", "kind", "name", "label", "since")
    return any(given[key] for key in named)


def matches(task: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    """Whether a task as the server shows it matches a query of `filters`, as the server decides."""
    pools = [task["pool"]] if task["pool"] is not None else task["pools"]
    found = {
        "project": [task["project"]],
        "pool": pools,
        "node": task["nodes"],
        "user": [task["user"]],
        "kind": [task["kind"]],
        "phase": [task["phase"]],
    }
    for key, values in found.items():
        wanted = query.get(key)
        if wanted is not None:
            some = wanted.split(",") if isinstance(wanted, str) else wanted
            if not set(values) & set(some):
                return False
    labels: dict[str, set[str]] = {}
    for pair in query.get("label", ()):
        key, _, value = pair.partition("=")
        labels.setdefault(key, set()).add(value)
    if any(task["labels"].get(key) not in some for key, some in labels.items()):
        return False
    if query.get("name") not in (None, task["name"]):
        return False
    start = parse_time(query["since"]) if "since" in query else None
    submitted = parse_time(task["submitted_at"])
    return start is None or submitted is None or submitted >= start


def kinds(text: str | None) -> str | None:
    """The kinds that `--kind` names.

    Raises:
        BadUsage: there is no such kind.
    """
    if text is None:
        return None
    # Imported here: few lists are narrowed by kind, and the requests' models take long to import.
    from yardmaster_schemas.events.requests import Kind

    known = [kind.value for kind in Kind]
    for kind in text.split(","):
        if kind not in known:
            raise BadUsage(f"--kind {kind}: no such kind", hint=f"kinds: {', '.join(known)}")
    return text


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
