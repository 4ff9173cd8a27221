"""The options of commands that read the log itself."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

#: Adds `--snapshots` to a command that can begin a log at a snapshot.
snapshots_option = click.option(
    "--snapshots",
    metavar="URL",
    help="Snapshots to begin at if the start of the log has expired (also: YARD_SNAPSHOTS; "
    "default: those of the log's cluster on this machine).",
)

#: Adds `--type` and `--raw` to a command that prints records.
types_option = click.option(
    "--type",
    "types",
    multiple=True,
    metavar="A[,B]",
    help="Print only these types, such as TaskStarted,TaskExited.",
)
raw_option = click.option(
    "--raw", is_flag=True, help="Add the record's bytes: key, headers and value in base64."
)


def log_options(command: F) -> F:
    """Add `--log` and `--cell` to a command, as the arguments `file` and `cell`."""
    cell = click.option("--cell", metavar="CELL", help="Cell of the log (also: YARD_CELL).")
    log = click.option(
        "--log",
        "file",
        metavar="FILE|URL",
        help="File of the log, or kafka://HOST:PORT,... (also: YARD_LOG).",
    )
    return log(cell(command))
