"""The options of commands that read the log itself."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


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
