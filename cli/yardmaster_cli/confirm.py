"""The question before a command that affects many tasks or deletes data."""

import sys

import click

from yardmaster_cli.errors import BadUsage
from yardmaster_cli.output.formats import Output


def confirm(what: str, out: Output) -> None:
    """Ask whether to continue; `what` is a sentence that states the effect.

    Raises:
        BadUsage: there is no terminal to ask on.
        click.Abort: the answer is no.
    """
    if not (out.terminal and sys.stdin.isatty()):
        raise BadUsage(what, hint="repeat the command with --yes to confirm")
    click.confirm(f"{what} Continue?", abort=True, err=True)
