"""The filters of `ls`, `cancel`, `pause` and `resume`."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.session import Session
from yardmaster_cli.times import now_ms, parse_time, past_ms
from yardmaster_schemas.phases import ENDED, Phase

_OPTIONS = (
    click.option("-A", "--all-projects", "everything", is_flag=True, help="Tasks of all projects."),
    click.option("-p", "--project", metavar="NAME", help="Tasks of this project."),
    click.option(
        "--phase",
        metavar="A,B",
        help="Tasks in these phases; or active (not ended), or ended.",
    ),
    click.option("--pool", metavar="NAME", help="Tasks in this pool."),
    click.option("--node", metavar="NAME", help="Tasks on this node."),
    click.option("--user", metavar="NAME", help="Tasks of this user."),
    click.option("--kind", metavar="A,B", help="Tasks of kind training, interactive, inference."),
    click.option("--name", metavar="NAME", help="Tasks of jobs with this name."),
    click.option("--label", multiple=True, metavar="KEY=VALUE", help="Tasks with this label."),
    click.option("--since", metavar="TIME", help="Submitted since: 2h (ago), a date, or a time."),
)


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the filter options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def filters(session: Session, given: Mapping[str, Any]) -> dict[str, Any]:
    """The query of `GET /v1/tasks` for the given filters.

    Raises:
        BadUsage: an unknown phase or kind, a label without `=`, an invalid time.
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
    """Whether any filter was given."""
    named = ("project", "phase", "pool", "node", "user", "kind", "name", "label", "since")
    return any(given[key] for key in named)


def names_tasks(given: Mapping[str, Any]) -> bool:
    """Whether a filter other than project, user and pool is given."""
    return any(given[key] for key in ("phase", "node", "name", "label", "since"))


def matches(task: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    """Whether a task matches a query of `filters`, by the rules of the server."""
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
    """Check the kinds of `--kind`.

    Raises:
        BadUsage: an unknown kind.
    """
    if text is None:
        return None
    # Imported here: the models of requests are slow to import, and few commands filter by kind.
    from yardmaster_schemas.events.requests import Kind

    known = [kind.value for kind in Kind]
    for kind in text.split(","):
        if kind not in known:
            raise BadUsage(f"--kind: unknown kind {kind}", hint=f"kinds: {', '.join(known)}")
    return text


def phases(text: str | None) -> Sequence[str] | None:
    """Return the phases that `--phase` names, also as `active` or `ended`; None without it.

    Raises: BadUsage for an unknown phase.
    """
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
            raise BadUsage(f"--phase: unknown phase {phase}", hint=f"phases: {', '.join(known)}")
    return named


def since(text: str | None) -> str | None:
    """The RFC 3339 time of `--since`."""
    return None if text is None else at_time(past_ms(text, now_ms(), "--since"))


def at_time(at_ms: int) -> str:
    """RFC 3339 of milliseconds since the epoch."""
    return (
        datetime.fromtimestamp(at_ms / 1000, tz=UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
