"""Shell completion of ids, nodes, pools, projects, departments, phases, kinds and contexts.

Most names come from the server. The shell waits at most `LIMIT_S` seconds for the names. After an
error or a timeout there are no completions, and nothing is printed.
"""

import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from yardmaster import configuration
from yardmaster_schemas.phases import Phase

if TYPE_CHECKING:
    from yardmaster_cli.server.reader import Reader

#: The longest time of a completion, in seconds: settings, token command and server together.
LIMIT_S: Final = 1.5
#: The most ids in one completion, the newest first.
MOST_IDS: Final = 100
MOST_NAMES: Final = 1000

Found = list[CompletionItem]


class Completed(click.ParamType):
    """The click type of a parameter whose value is a name of one sort, such as `nodes`."""

    name = "text"

    def __init__(self, sort: str) -> None:
        self.sort = sort

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that start with `incomplete`; in a comma-separated list, its last item."""
        before, comma, last = incomplete.rpartition(",")
        if param.nargs != 1 or not comma:
            before, comma, last = "", "", incomplete
        found = [item for item in _names(self.sort, ctx, last) if item.value.startswith(last)]
        return [CompletionItem(f"{before}{comma}{item.value}", help=item.help) for item in found]


def sort_of(param: click.Parameter, group: str) -> str | None:
    """The sort of names that a parameter takes, such as `nodes`; `group` is the command's noun."""
    if not isinstance(param.type, click.types.StringParamType):
        return None
    if param.name == "name" and isinstance(param, click.Argument):
        return group if group in _LISTS or group == "contexts" else None
    return _BY_NAME.get(str(param.name))


_BY_NAME: Final = {
    "ref": "ids",
    "refs": "ids",
    "task": "ids",
    "project": "projects",
    "department": "departments",
    "pool": "pools",
    "queue": "pools",
    "node": "nodes",
    "avoid_node": "nodes",
    "phase": "phases",
    "kind": "kinds",
}
_LISTS: Final = ("nodes", "pools", "projects", "departments")


def _names(sort: str, ctx: click.Context, incomplete: str) -> Found:
    if sort == "phases":
        return _items([*(phase.value for phase in Phase), "active", "ended"])
    if sort == "kinds":
        from yardmaster_schemas.events.requests import Kind

        return _items(kind.value for kind in Kind)
    found: list[Found] = []

    def request() -> None:
        # The shell cannot show an error: a failure results in no names.
        try:
            found.append(_requested(sort, ctx, incomplete))
        except Exception:  # noqa: BLE001 see above
            return

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return found[0] if found else []


def _requested(sort: str, ctx: click.Context, incomplete: str) -> Found:
    given: dict[str, Any] = {**ctx.find_root().params}
    given |= {key: value for key, value in ctx.params.items() if value is not None}
    flags = configuration.Flags(
        server=given.get("server"), context=given.get("context"), data=given.get("data")
    )
    config = configuration.resolve(flags, os.environ)
    if sort == "contexts":
        return _items(config.contexts)
    if config.server.value is None:
        return []
    from yardmaster_cli.server.reader import Reader

    reader = Reader(
        config.server.value,
        config.bearer(),
        sleep=_no_pause,
        ca=config.ca.value,
        max_tries=1,
        answer_s=LIMIT_S,
    )
    if sort == "ids":
        return _ids(reader, incomplete)
    listed = reader.get(f"/v1/{sort}", {"limit": MOST_NAMES})
    return _items(row["name"] for row in listed["items"])


def _ids(reader: "Reader", incomplete: str) -> Found:
    job, dot, _ = incomplete.partition(".")
    query: dict[str, str | int] = {"limit": MOST_IDS, "sort": "-submitted_at"}
    if job:
        query["ref"] = job
    if dot:
        rows = reader.get("/v1/tasks", query)["items"]
        return [
            CompletionItem(row["task_id"], help=f"{row['name']} {row['phase']}") for row in rows
        ]
    rows = reader.get("/v1/jobs", query)["items"]
    return [CompletionItem(row["job_id"], help=row["name"]) for row in rows]


def _items(names: Iterable[str]) -> Found:
    return [CompletionItem(name) for name in names]


def _no_pause(_: float) -> None:
    """Replace the pause between tries: a completion has only one try."""
