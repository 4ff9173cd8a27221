"""The parts that all commands share: options, settings, output and connection.

A command is a `YardCommand`. It accepts its own options and the shared options that `catalog` lists
for it. Its first argument is a `Session`, which creates settings, output and connection on first
use. Most shared options may also precede the command: `yard --server URL ls`.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from yardmaster import configuration
from yardmaster_cli.catalog import CATALOG, FORMATS, Entry, path_of
from yardmaster_cli.completion import Completed, sort_of
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.output.formats import Output, is_terminal
from yardmaster_cli.times import now_ms

if TYPE_CHECKING:
    from yardmaster_cli.server.remote import Remote

_SHARED: Final = "Output and connection"
_EXPORTED: Final = {"server": "YARD_SERVER", "context": "YARD_CONTEXT", "data": "YARD_DATA"}


class Session:
    """The settings, output and connection of one command."""

    def __init__(self, shared: dict[str, Any], formats: Sequence[str] = ()) -> None:
        self._shared = shared
        self._formats = formats
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

    def command(self, *words: str) -> str:
        """`yard WORDS` with the connection options of this command, for users to copy."""
        given = [
            word
            for flag in _EXPORTED
            if self._shared.get(flag) is not None
            for word in (f"--{flag}", str(self._shared[flag]))
        ]
        return shlex.join(["yard", *words, *given])

    def again(self) -> str:
        """The command line of this command, for users to copy."""
        return shlex.join(["yard", *sys.argv[1:]])

    def export(self) -> None:
        """Pass the connection options to further commands that this process runs."""
        for flag, variable in _EXPORTED.items():
            if self._shared.get(flag) is not None:
                os.environ[variable] = str(self._shared[flag])

    @cached_property
    def out(self) -> Output:
        """The output, in the format that the options and settings choose.

        Raises: BadUsage for an unknown format.
        """
        terminal = is_terminal()
        chosen = self.config.output
        if chosen.value not in FORMATS:
            raise BadUsage(
                f"{chosen.source}: there is no output format {chosen.value}",
                hint=f"formats: {', '.join(FORMATS)}",
            )
        # A setting applies where the command supports it; a flag was validated by click.
        supported = chosen.value in self._formats or not self._formats
        columns = self._shared.get("columns") or ""
        found = Output(
            format=chosen.value if supported else self._formats[0],
            columns=tuple(filter(None, columns.split(","))),
            headers=not self._shared.get("no_headers"),
            sort=self._shared.get("sort"),
            limit=self._shared.get("limit"),
            color=terminal and not self._shared.get("no_color") and colors_wanted(os.environ),
            terminal=terminal,
            progress=sys.stderr.isatty(),
            quiet=bool(self._shared.get("quiet")),
            verbose=bool(self._shared.get("verbose")),
            now_ms=now_ms,
        )
        found.measure()
        return found

    @cached_property
    def remote(self) -> "Remote":
        """The connection to the server.

        Raises:
            CliError: the settings name no server.
        """
        from yardmaster_cli.server.remote import connect

        return connect(self.config, self.out)

    def log_file(self, given: str | None) -> Path:
        """The log file to read: the given file, else the file of the cluster on this machine.

        Raises:
            BadUsage: the file does not exist.
        """
        path = Path(given) if given else self.config.cluster_dir / "log.db"
        if not path.is_file():
            raise BadUsage(
                f"there is no log at {path}",
                hint="name one with --log FILE, or a data directory with --data DIR",
            )
        return path


def colors_wanted(env: Mapping[str, str]) -> bool:
    """Whether the terminal supports colors and the user did not turn colors off."""
    return not env.get("NO_COLOR") and env.get("TERM") != "dumb"


#: The options that may also precede the command.
_GLOBAL: Final = ("output", "no_color", "quiet", "verbose", "server", "context", "data")


def global_options(formats: Sequence[str] = FORMATS) -> list[click.Option]:
    """The options that may also precede the command; `formats`: the values of `-o`."""
    return [option for option in _shared_options(formats) if option.name in _GLOBAL]


def _shared_options(formats: Sequence[str]) -> list[click.Option]:
    return [
        click.Option(
            ["-o", "--output"],
            type=click.Choice(formats),
            metavar="FORMAT",
            help=f"Output format: {', '.join(formats)}.",
        ),
        click.Option(["--columns"], metavar="A,B", help="Show these columns, in this order."),
        click.Option(["--no-headers"], is_flag=True, help="Omit the header row."),
        click.Option(
            ["--sort"], metavar="COLUMN", help="Sort by COLUMN; prefix it with - to reverse."
        ),
        click.Option(["--limit"], type=click.IntRange(min=0), metavar="N", help="Show at most N."),
        click.Option(["--no-color"], is_flag=True, help="Print no colors (also: NO_COLOR)."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print no hints and no progress."),
        click.Option(["-v", "--verbose"], is_flag=True, help="Print details and tracebacks."),
        click.Option(["--server"], metavar="URL", help="Address of the gateway."),
        click.Option(
            ["--context"],
            type=Completed("contexts"),
            metavar="NAME",
            help="Context of the configuration file to use.",
        ),
        click.Option(["--data"], metavar="DIR", help="Data directory of the local cluster."),
    ]


class YardCommand(click.Command):
    """A command with shared options; the first argument of its callback is the `Session`."""

    _shared: list[click.Option] | None = None

    def shared(self, ctx: click.Context) -> list[click.Option]:
        """The shared options of the command, without those that it defines itself."""
        if self._shared is None:
            entry = _entry(ctx)
            own = {option for param in self.params for option in param.opts}
            taken = entry.shared | {"quiet", "verbose", *(["output"] if entry.formats else [])}
            self._shared = [
                option
                for option in _shared_options(entry.formats)
                if option.name in taken and not own & set(option.opts)
            ]
            group = path_of(ctx.command_path).partition(" ")[0]
            for param in self.params:
                if (sort := sort_of(param, group)) is not None:
                    param.type = Completed(sort)
        return self._shared

    def preceding(self, ctx: click.Context) -> list[click.Option]:
        """The shared options that can only precede the command.

        Their name means something else after it: `yard --context SERVER submit --context DIR`.
        """
        entry = _entry(ctx)
        arguments = {param.name for param in self.params}
        own = {option for param in self.params for option in param.opts}
        return [
            option
            for option in _shared_options(entry.formats)
            if option.name in entry.shared and own & set(option.opts)
            if option.name not in arguments
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; every error, also of a missing value, names this command."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The own parameters of the command, then the shared options, then `--help`."""
        shared = self.shared(ctx)
        own = super().get_params(ctx)
        return [*own[: len(self.params)], *shared, *own[len(self.params) :]]

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command with its session."""
        shared = {str(option.name): option for option in self.shared(ctx)}
        values = {name: ctx.params.pop(name) for name in shared}
        for option in self.preceding(ctx):
            shared[str(option.name)] = option
            values[str(option.name)] = None
        for name, value in ctx.find_root().params.items():
            if not value:
                continue
            flag = "-o" if name == "output" else f"--{name.replace('_', '-')}"
            if name not in shared:
                if name != "no_color":
                    raise click.UsageError(f"{flag} has no effect on {ctx.command_path}.", ctx)
            elif not values[name]:
                values[name] = shared[name].type_cast_value(ctx, value)
        session = Session(values, _entry(ctx).formats)
        session.project_flag = ctx.params.get("project")
        ctx.obj = session
        if self.callback is None:
            return None
        return ctx.invoke(self.callback, session, **ctx.params)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the own options of the command, then the shared ones."""
        shared = set(map(id, self.shared(ctx)))
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

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the examples."""
        write_examples(ctx, formatter)


def _entry(ctx: click.Context) -> Entry:
    return CATALOG[path_of(ctx.command_path)]


def write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Print the examples of a command or group."""
    with formatter.section("Examples"):
        for words in _entry(ctx).examples:
            formatter.write(f"{'':>{formatter.current_indent}}yard {words}\n")


class YardGroup(click.Group):
    """A group of commands."""

    command_class = YardCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; the error suggests the nearest name."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-"):
            known = self.list_commands(ctx)
            if name not in known:
                like = _nearest_command(name, known)
                hint = f" Did you mean {like}?" if like else ""
                ctx.fail(f"There is no command {name}.{hint}")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the examples."""
        write_examples(ctx, formatter)


#: The names of commands in other tools -> the command of `yard` to suggest.
_SYNONYMS: Final = {
    "describe": ("show",),
    "enrol": ("enroll",),
    "get": ("show", "ls"),
    "kill": ("cancel",),
    "list": ("ls",),
    "ps": ("ls",),
    "remove": ("delete",),
    "rm": ("delete",),
    "run": ("submit",),
    "stat": ("show",),
    "status": ("show",),
    "stop": ("cancel",),
}


def _nearest_command(name: str, known: Sequence[str]) -> str | None:
    for synonym in _SYNONYMS.get(name, ()):
        if synonym in known:
            return synonym
    from yardmaster.yaml_tree import nearest

    return nearest(name, known)


class NounGroup(YardGroup):
    """A noun with verbs; without a verb it lists, or shows if there is only one object."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `yard nodes -o json` as `yard nodes ls -o json`, `yard cell` as `yard cell show`."""
        bare = not args or (args[0].startswith("-") and args[0] not in ("--help", "-h"))
        if bare and not ctx.resilient_parsing:
            args = ["ls" if "ls" in self.commands else "show", *args]
        return super().parse_args(ctx, args)


def command(name: str, **attrs: Any) -> Callable[[Callable[..., Any]], YardCommand]:
    """A top-level command `yard NAME`."""
    return click.command(name, cls=YardCommand, **attrs)


#: The end of the help of `show` for nodes, pools, projects and departments.
FIELDS: Final = (
    "-o json and yaml print the fields of the REST API, with GPUs in thousandths (..._milli)."
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def if_match_option(verb: str, noun: str) -> Callable[[_Command], _Command]:
    """Add `--if-match ETAG` to a command that changes or deletes a `noun`."""
    return click.option(
        "--if-match", metavar="ETAG", help=f"{verb} the {noun} only if its current ETag is ETAG."
    )


class Detached(CliError):
    """Ctrl-C while waiting: nothing was cancelled, and the hint continues the wait."""

    def __init__(self, command: str, *, message: str = "detached") -> None:
        super().__init__(
            f"{message}; nothing was cancelled",
            exit_code=Exit.INTERRUPTED,
            hint=f"continue with: {command}",
        )

    def lines(self) -> list[str]:
        """The lines for stderr, without `error:`: Ctrl-C is not an error."""
        return ["", self.message, f"hint: {self.hint}"]


@contextmanager
def detaching(command: str) -> Iterator[None]:
    """Turn Ctrl-C into `Detached`; `command` continues the wait."""
    try:
        yield
    except KeyboardInterrupt:
        raise Detached(command) from None
