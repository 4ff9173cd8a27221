"""What a command does before it acts on much, or for ever: it asks, and without an answer stops."""

import sys

import click

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.output.formats import Output


def confirm(what: str, out: Output) -> None:
    """Ask whether to continue; `what` is a sentence that says what would happen.

    Raises:
        BadUsage: no user can answer; click.Abort: the answer is no.
    """
    if not (out.terminal and sys.stdin.isatty()):
        raise BadUsage(what, hint="add --yes to confirm")
    click.confirm(f"{what} Continue?", abort=True, err=True)
