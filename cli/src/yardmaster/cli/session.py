"""What every command shares: its options, its settings, its client, and how it ends.

A command is a `YardCommand`: it takes the output and connection options beside its own, and its
first argument is a `Session`, which makes what it needs when it is asked for.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from yardmaster.cli import config as configuration
from yardmaster.cli.errors import BadUsage, CliError, Exit
from yardmaster.cli.output import FORMATS, Output, is_terminal, terminal_width

if TYPE_CHECKING:
    from yardmaster.cli.remote import Remote

_SHARED: Final = "Output and connection"
_EXPORTED: Final = {"server": "YARD_SERVER", "context": "YARD_CONTEXT", "data": "YARD_DATA"}


class Session:
    """One command's settings, output and connection."""

    def __init__(self, shared: dict[str, Any]) -> None:
        self._shared = shared
        self.project_flag: str | None = None

    @cached_property
    def config(self) -> configuration.Config:
        """The resolved settings."""
        flags = configuration.Flags(
            server=self._shared.get("server"),
            context=self._shared.get("context"),
            project=self.project_flag,
            output=self._shared.get("output"),
            data=self._shared.get("data"),
        )
        return configuration.resolve(flags, os.environ)

    def export(self) -> None:
        """Let commands that this process runs have the connection that was asked of this one."""
        for flag, variable in _EXPORTED.items():
            if self._shared.get(flag) is not None:
                os.environ[variable] = str(self._shared[flag])

    @cached_property
    def out(self) -> Output:
        """Where results go."""
        terminal = is_terminal()
        chosen = self.config.output
        if chosen.value not in FORMATS:
            raise BadUsage(
                f"{chosen.source}: there is no output format {chosen.value}",
                hint=f"formats: {', '.join(FORMATS)}",
            )
        columns = self._shared.get("columns") or ""
        return Output(
            format=chosen.value,
            columns=tuple(filter(None, columns.split(","))),
            headers=not self._shared.get("no_headers"),
            sort=self._shared.get("sort"),
            limit=self._shared.get("limit"),
            colour=terminal and not self._shared.get("no_color") and "NO_COLOR" not in os.environ,
            terminal=terminal,
            width=terminal_width() if terminal else 0,
            quiet=bool(self._shared.get("quiet")),
            verbose=bool(self._shared.get("verbose")),
            now_ms=now_ms,
        )

    @cached_property
    def remote(self) -> "Remote":
        """The server.

        Raises:
            CliError: none is known.
        """
        from yardmaster.cli.remote import connect

        return connect(self.config)

    def log_file(self, given: str | None) -> Path:
        """The log to read: the file given, else the one of the embedded mode's data folder.

        Raises:
            BadUsage: there is no such file.
        """
        path = Path(given) if given else self.config.data_dir / "log.db"
        if not path.is_file():
            raise BadUsage(
                f"there is no log at {path}",
                hint="name one with --log FILE, or a data folder with --data DIR",
            )
        return path


def now_ms() -> int:
    """Milliseconds since the epoch, for relative times."""
    return time.time_ns() // 1_000_000


def _shared_options() -> list[click.Option]:
    return [
        click.Option(
            ["-o", "--output"],
            type=click.Choice(FORMATS),
            help="How to show the result (default: table).",
        ),
        click.Option(["--columns"], metavar="A,B", help="Show these columns, in this order."),
        click.Option(["--no-headers"], is_flag=True, help="Leave the titles out."),
        click.Option(
            ["--sort"], metavar="COLUMN", help="Sort by a column; -COLUMN turns it round."
        ),
        click.Option(["--limit"], type=click.IntRange(min=0), help="Show this many at most."),
        click.Option(["--no-color"], is_flag=True, help="No colours (also: NO_COLOR)."),
        click.Option(["-q", "--quiet"], is_flag=True, help="No hints and progress."),
        click.Option(["-v", "--verbose"], is_flag=True, help="Say more about what is done."),
        click.Option(["--server"], metavar="URL", help="The gateway's address."),
        click.Option(["--context"], metavar="NAME", help="Which of the config file's contexts."),
        click.Option(["--data"], metavar="DIR", help="Data folder of what runs here."),
    ]


class YardCommand(click.Command):
    """A command with the shared options; its callback gets the `Session` first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = {option for param in self.params for option in param.opts}
        self._shared = [o for o in _shared_options() if not own & set(o.opts)]
        self.params.extend(self._shared)

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command with its session."""
        names = [str(option.name) for option in self._shared]
        session = Session({name: ctx.params.pop(name) for name in names})
        session.project_flag = ctx.params.get("project")
        ctx.obj = session
        if self.callback is None:
            return None
        return ctx.invoke(self.callback, session, **ctx.params)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options first, then the shared ones."""
        shared = set(map(id, self._shared))
        for title, own in (("Options", True), (_SHARED, False)):
            rows = [
                record
                for param in self.get_params(ctx)
                if (id(param) not in shared) is own
                and (record := param.get_help_record(ctx)) is not None
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class NounGroup(click.Group):
    """A noun with verbs; bare, or with options alone, it lists."""

    command_class = YardCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `yard nodes -o json` as `yard nodes ls -o json`."""
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h")):
            args = ["ls", *args]
        return super().parse_args(ctx, args)


def command(name: str, **attrs: Any) -> Callable[[Callable[..., Any]], YardCommand]:
    """A top-level command `yard NAME`."""
    return click.command(name, cls=YardCommand, **attrs)


class Detached(CliError):
    """Ctrl-C while waiting: nothing was cancelled, and here is how to come back."""

    def __init__(self, come_back: str) -> None:
        super().__init__(
            "detached; nothing was cancelled",
            exit_code=Exit.INTERRUPTED,
            hint=f"come back with: {come_back}",
        )

    def lines(self) -> list[str]:
        """Ctrl-C is no error: two plain lines."""
        return ["", self.message, f"hint: {self.hint}"]


@contextmanager
def detaching(come_back: str) -> Iterator[None]:
    """Turn Ctrl-C into `Detached`."""
    try:
        yield
    except KeyboardInterrupt:
        raise Detached(come_back) from None
