"""The `yard` command: which module holds which command, and how errors end.

A command's module is imported when the command is called: `yard --help` and completion stay fast.
"""

import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

try:
    from yardmaster.errors import InputError
except ImportError as error:
    # The package `yardmaster` of another distribution hides this project's package, so no command
    # can run.
    from yardmaster_runtime.distribution import other_version, repair

    if other_version() is None:
        raise
    sys.exit(
        f"error: the Python package yardmaster is that of another project, yardmaster "
        f"{other_version()}: {error}\nhint: {repair()}"
    )
from yardmaster_cli.errors import BadUsage, CliError, Exit, input_error
from yardmaster_cli.session import YardGroup, colors_wanted, global_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Command -> (module in `commands`, attribute, one line for the list), in the order of the help.
COMMANDS: Final = {
    "submit": ("submit", "submit", "Submit a job: a YAML file, or -- COMMAND."),
    "ls": ("ls", "ls", "List tasks or jobs."),
    "show": ("tasks", "show", "Show a job or task: resources, wait reason and attempts."),
    "explain": ("explain", "explain", "Show why a task is pending, was stopped or was refused."),
    "logs": ("logs", "logs", "Print the output of tasks."),
    "artifacts": ("artifacts", "artifacts", "List and get files that tasks left."),
    "wait": ("wait", "wait", "Wait for tasks to end, and exit with their exit code."),
    "cancel": ("tasks", "cancel", "Cancel jobs or tasks."),
    "pause": ("tasks", "pause", "Stop tasks until they are resumed; each may save a checkpoint."),
    "resume": ("tasks", "resume", "Resume paused tasks."),
    "set": ("set", "set_group", "Change a job's priority, weight or limit of slots."),
    "erase": (
        "erase",
        "erase",
        "Delete texts and artifacts of jobs.",
    ),
    "shares": ("shares", "shares", "Show how a pool is divided among departments and projects."),
    "usage": ("usage", "usage", "Show GPU-hours by project, user or pool."),
    "nodes": ("nodes", "nodes", "List nodes; enroll, revoke, cordon, uncordon, drain."),
    "cell": ("configured", "cell", "Show or set what applies to the whole cell."),
    "pools": ("configured", "pools", "List pools; show, create, set, delete."),
    "projects": ("configured", "projects", "List projects; show, create, set, delete."),
    "departments": ("configured", "departments", "List departments; show, create, set, delete."),
    "quotas": ("quotas", "quotas", "List quotas of projects and departments; set, delete."),
    "users": ("users", "users", "List users; add, grant, revoke, rotate, remove."),
    "apply": ("apply", "apply", "Configure the cell, pools, departments and projects by a file."),
    "diff": ("apply", "diff", "Show how a file of apply differs from the cell."),
    "log": ("log", "log", "Read the event log: dump, tail, stat."),
    "replay": ("replay", "replay", "Show the cluster at any time; verify every decision."),
    "simulate": ("simulate", "simulate", "Compare policies on a simulated cluster."),
    "conformance": (
        "conformance",
        "conformance",
        "Compare with recorded decisions of other schedulers.",
    ),
    "upgrade": (
        "upgrade",
        "upgrade",
        "Show the rules in force; switch to newer ones after an upgrade.",
    ),
    "views": ("views", "views", "Rebuild the views that gateways read."),
    "snapshots": ("snapshots", "snapshots", "List and check the stored snapshots."),
    "dev": ("dev", "dev", "Run everything in one process on this machine."),
    "up": ("up", "up", "Start a cluster with Kafka, Redis and all services."),
    "down": ("up", "down", "Stop the cluster of yard up."),
    "setup": ("setup", "setup", "Create the topics and first records of a log."),
    "demo": ("demo", "demo", "Watch a small cluster at work for half a minute."),
    "doctor": ("doctor", "doctor", "Check this machine and its running clusters."),
    "login": ("contexts", "login", "Save a server as a context and switch to it."),
    "whoami": ("contexts", "whoami", "Show your identity and roles on the server."),
    "contexts": ("contexts", "contexts", "List contexts (saved servers); switch to one."),
    "config": ("contexts", "config", "Show every setting and its source."),
    "completion": ("contexts", "completion", "Print the completion script for a shell."),
    "version": ("contexts", "version", "Print the version of yard and of the server."),
}


#: The exit code of a program that SIGPIPE terminates.
CLOSED_PIPE: Final = 128 + 13


class _ClosedPipe(Exception):
    """The reader of this command's output closed the pipe."""


class _Unwritable(Exception):
    """The system refuses the output of this command, for example because the disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))


class _Stdout(io.TextIOWrapper):
    """Standard output whose errors differ from those of other files and of connections."""

    @classmethod
    def install(cls) -> None:
        """Replace `sys.stdout`, unless it is no file."""
        old = sys.stdout
        if isinstance(old, io.TextIOWrapper):
            sys.stdout = cls(
                old.buffer,
                encoding=old.encoding,
                errors=old.errors,
                line_buffering=old.line_buffering,
                write_through=old.write_through,
            )

    def write(self, text: str) -> int:
        """Raises: BrokenPipeError, _Unwritable."""
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _Unwritable(error) from None

    def flush(self) -> None:
        """Raises: BrokenPipeError, _Unwritable."""
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _Unwritable(error) from None


@contextmanager
def _closed_pipe_raised() -> Iterator[None]:
    """Turn a closed pipe into `_ClosedPipe`, because click would exit with code 1."""
    try:
        yield
    except BrokenPipeError:
        raise _ClosedPipe from None


class Yard(YardGroup):
    """The root command; imports the module of a command when it is named."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the command line, or print help."""
        with _closed_pipe_raised():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _closed_pipe_raised():
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        found = getattr(importlib.import_module(f"yardmaster_cli.commands.{module}"), attribute)
        if not isinstance(found, click.Command):
            raise TypeError(f"{module}.{attribute} is no command")
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Commands by name, without importing any, and options."""
        from click.shell_completion import CompletionItem

        found = click.Command.shell_complete(self, ctx, incomplete)
        return [
            *(
                CompletionItem(name, help=about)
                for name, (_, _, about) in COMMANDS.items()
                if name.startswith(incomplete)
            ),
            *found,
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, _, about) in COMMANDS.items()])


def _version(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if not given or ctx.resilient_parsing:
        return
    from yardmaster_runtime.distribution import installed_version

    click.echo(f"yard {installed_version()}")
    ctx.exit()


@click.command(
    cls=Yard,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Print the version of yard and exit.",
        ),
        *global_options(),
    ],
)
def yard(**_: object) -> None:
    """Schedule tasks on shared GPU clusters; every decision can be replayed.

    Start with `yard demo`, or `yard dev` in one terminal and `yard submit -- COMMAND` in another.
    """


def run(args: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    verbose = "-v" in args or "--verbose" in args
    say = partial(_say, color="--no-color" not in args and colors_wanted(os.environ))
    try:
        result = yard.main(list(args), prog_name="yard", standalone_mode=False)
    except CliError as error:
        say(error.lines())
        return error.exit_code
    except InputError as error:
        shown = input_error(error)
        say(shown.lines())
        return shown.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        say([error.format_message()])
        return int(Exit.USAGE)
    except click.ClickException as error:
        where = getattr(error, "ctx", None)
        command = where.command_path if isinstance(where, click.Context) else "yard"
        say([f"error: {error.format_message()}", f"hint: {command} --help"])
        return int(Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return int(Exit.INTERRUPTED)
    except _ClosedPipe:
        _discard_output()
        return CLOSED_PIPE
    except _Unwritable as error:
        _discard_output()
        say([f"error: the output could not be written: {error}"])
        return int(Exit.CHECK_FAILED)
    except ModuleNotFoundError as error:
        if verbose:
            _print_traceback()
        missing = _missing_extra(error)
        say(missing.lines())
        return missing.exit_code
    except Exception as error:  # noqa: BLE001 the last handler: users see no traceback
        if verbose:
            _print_traceback()
        known = _known(error)
        say(known.lines())
        return known.exit_code
    return result if isinstance(result, int) else int(Exit.DONE)


def _discard_output() -> None:
    """Discard buffered output, which would otherwise fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_traceback() -> None:
    import traceback

    traceback.print_exc()


def _missing_extra(error: ModuleNotFoundError) -> CliError:
    """The error for a command that needs a third-party library which is not installed.

    The missing module is never one of Yardmaster's, because the distribution contains all of them.
    """
    if (error.name or "yardmaster").startswith("yardmaster"):
        return CliError(
            f"internal: {error}",
            exit_code=Exit.INTERNAL,
            hint="the installation is incomplete; see yard doctor",
        )
    return BadUsage(
        f"this command needs the extra `all`: the module {error.name} is not installed",
        hint="pip install 'yardmaster-scheduler[all]'",
    )


def _known(error: Exception) -> CliError:
    """The error to show for an exception of the libraries, or for an unexpected one."""
    from yardmaster.transport import ApiError
    from yardmaster_cli.hints import empty_log
    from yardmaster_cli.server.remote import api_error
    from yardmaster_eventlog.errors import (
        LogCorrupt,
        LogTruncated,
        LogUnavailable,
        NotOurLog,
        OtherLogFormat,
    )
    from yardmaster_localcluster import errors as local
    from yardmaster_projections.errors import ViewsUnavailable
    from yardmaster_runtime.errors import BeforeFirstCycle, LogBeginsLater, UnknownTask
    from yardmaster_schemas.errors import YardmasterError

    if isinstance(error, ApiError):
        return api_error(error)
    codes: list[tuple[type[Exception], Exit]] = [
        (NotOurLog, Exit.USAGE),
        (OtherLogFormat, Exit.USAGE),
        (LogCorrupt, Exit.CHECK_FAILED),
        (LogTruncated, Exit.CHECK_FAILED),
        (LogUnavailable, Exit.UNREACHABLE),
        (ViewsUnavailable, Exit.UNREACHABLE),
        (LogBeginsLater, Exit.CHECK_FAILED),
        (BeforeFirstCycle, Exit.NOT_FOUND),
        (UnknownTask, Exit.NOT_FOUND),
        (local.DataDirInUse, Exit.CONFLICT),
        (local.PortsInUse, Exit.CONFLICT),
        (local.NoGangPorts, Exit.CONFLICT),
        (local.DataDirUnusable, Exit.USAGE),
        (local.OtherDataFormat, Exit.USAGE),
        (local.PackageMissing, Exit.USAGE),
        (local.ClusterFixed, Exit.USAGE),
        (local.TooManyNodes, Exit.USAGE),
        (local.ComposeFileMissing, Exit.USAGE),
        (local.DownloadFailed, Exit.UNREACHABLE),
        (local.DockerMissing, Exit.UNREACHABLE),
        (local.NotHealthy, Exit.TIMEOUT),
        (YardmasterError, Exit.INTERNAL),
    ]
    for kind, code in codes:
        if isinstance(error, kind):
            hint = None
            if isinstance(error, local.LocalClusterError):
                hint = error.hint
            elif isinstance(error, OtherLogFormat):
                hint = empty_log(str(error.fields["path"]))
            return CliError(str(error), exit_code=code, hint=hint)
    return CliError(
        f"internal: {type(error).__name__}: {error}",
        exit_code=Exit.INTERNAL,
        hint="repeat the command with -v for the traceback, and report it",
    )


#: The start of a line that says what is wrong; it is red on a terminal.
_ERROR: Final = "error:"


def _say(lines: Sequence[str], *, color: bool) -> None:
    color = color and sys.stderr.isatty()
    with suppress(OSError):  # the exit code must reach the caller even without stderr
        for line in lines:
            if color and line.startswith(_ERROR):
                line = click.style(_ERROR, fg="red") + line.removeprefix(_ERROR)
            click.echo(line, err=True, color=color)


def main() -> None:
    """The console script."""
    _Stdout.install()
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # The user pressed Ctrl-C again while the first interrupt was reported.
        code = int(Exit.INTERRUPTED)
    sys.exit(code)


if __name__ == "__main__":
    main()
