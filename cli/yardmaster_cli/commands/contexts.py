"""`yard contexts`, `config`, `whoami`, `version`, `login` and `completion`."""

import os
import sys
import time
from pathlib import Path
from typing import Final

import click
import yaml
from click.shell_completion import get_completion_class

from yardmaster.configuration import (
    command_words,
    load_file,
    save_current,
    sendable,
    server_url,
    token_of,
)
from yardmaster.errors import ApiError
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.output.formats import Column
from yardmaster_cli.server.reader import Reader
from yardmaster_cli.server.remote import api_error, plain
from yardmaster_cli.session import NounGroup, Session, command
from yardmaster_runtime.distribution import installed_version

#: The number of tries of `login` to reach the server.
CHECK_TRIES: Final = 2

_COMPLETION = """Print the completion script for a shell.

The script completes commands, options and contexts. It also completes ids, nodes, pools, projects
and departments if the server answers within 1.5 s.

\b
bash  yard completion bash > ~/.local/share/bash-completion/completions/yard
zsh   yard completion zsh > "${fpath[1]}/_yard"
fish  yard completion fish > ~/.config/fish/completions/yard.fish

For the current shell only:

\b
bash  source <(yard completion bash)
zsh   source <(yard completion zsh)
fish  yard completion fish | source
"""


@click.group("contexts", cls=NounGroup)
def contexts() -> None:
    """List contexts (saved servers); switch to one."""


@contexts.command("ls")
def list_contexts(session: Session) -> None:
    """List contexts; * marks the current one."""
    config = session.config
    columns = (
        Column("CURRENT", lambda row: "*" if row["name"] == config.context.value else None),
        Column("NAME", lambda row: row["name"]),
        Column("SERVER", lambda row: row["server"]),
        Column("PROJECT", lambda row: row["project"]),
    )
    found = [
        {
            "name": name,
            "server": context.get("server")
            or (config.server.value if name == config.context.value else None),
            "project": context.get("project"),
        }
        for name, context in config.contexts.items()
    ]
    session.out.items(found, columns, name="name")


@contexts.command("use")
@click.argument("name")
def use(session: Session, name: str) -> None:
    """Switch to a context."""
    config = session.config
    if name not in config.contexts:
        raise BadUsage(
            f"there is no context {name}", hint=f"contexts: {', '.join(config.contexts)}"
        )
    save_current(config.path, name)
    session.out.note(f"{config.path}: current: {name}")


@command("config")
def config(session: Session) -> None:
    """Show every setting and its source, without secrets."""
    columns = (
        Column("SETTING", lambda row: row["setting"]),
        Column("VALUE", lambda row: row["value"]),
        Column("SOURCE", lambda row: row["source"]),
    )
    found = []
    for name, setting in session.config.settings():
        value = setting.value
        if setting.secret:
            value = "(set, not shown)" if setting.source != "not set" else None
        found.append({"setting": name, "value": value, "source": setting.source})
    session.out.items(found, columns, name="setting")


@command("whoami")
def whoami(session: Session) -> None:
    """Show your identity and roles on the server."""
    answer = plain(session.remote.client.whoami())

    def text() -> list[str]:
        roles = [f"{role['role']} of {role['scope']} {role['name']}" for role in answer["roles"]]
        return [
            f"{answer['user']} ({answer['method']}, {answer['issuer']})",
            *(f"  {role}" for role in roles),
        ]

    session.out.one(answer, text, "user")


@command("version")
@click.option("--client", is_flag=True, help="Print only the version of yard.")
def version(session: Session, client: bool) -> None:
    """Print the version of yard and of the server."""
    out = session.out
    mine = installed_version()
    answer: dict[str, object] = {"client": mine, "server": None}
    lines = [f"yard {mine}"]
    if not client and session.config.server.value is not None:
        server = plain(session.remote.client.version())
        answer["server"] = server
        lines.append(f"server {server['version']}, cell {server['cell']}, log {server['log_id']}")
    out.one(answer, lambda: lines, "client")


@command("login")
@click.argument("name")
@click.argument("url")
@click.option(
    "--token-command",
    metavar="COMMAND",
    help="Command that prints the token; every yard command runs it.",
)
@click.option("--ca", metavar="FILE", help="File of certificates to trust.")
@click.option("-p", "--project", metavar="NAME", help="Default project of this context.")
@click.option("--no-check", is_flag=True, help="Save the context without a request to the server.")
def login(
    session: Session,
    name: str,
    url: str,
    token_command: str | None,
    ca: str | None,
    project: str | None,
    no_check: bool,
) -> None:
    """Save a server as a context and switch to it.

    The server at URL must answer and accept the token of COMMAND or YARD_TOKEN; otherwise nothing
    is saved. The token itself is never saved.
    """
    if not name:
        raise BadUsage("the name of the context is empty", hint=f"name it: yard login prod {url}")
    server_url(url)
    path = session.config.path
    content = load_file(path)
    given = {"server": url, "project": project, "ca": ca, "token_command": token_command}
    kept = {key: value for key, value in given.items() if value is not None}
    answered = "" if no_check else f", {_checked(url, token_command, ca, path)}"
    content["contexts"] = {**(content.get("contexts") or {}), name: kept}
    content["current"] = name
    _write(path, yaml.safe_dump(content, sort_keys=False))
    session.out.note(f"{path}: context {name}: {url}{answered}")


def _checked(url: str, token_command: str | None, ca: str | None, path: Path) -> str:
    """Call the server with the new context and return the result as text.

    Raises: CliError when the server does not answer, or does not accept the token.
    """
    token = os.environ.get("YARD_TOKEN")
    if token is not None:
        token = sendable(token, "environment YARD_TOKEN")
    elif token_command is not None:
        token = token_of(command_words(token_command), path)
    hint = "nothing was saved; --no-check saves the context without a request"
    try:
        reader = Reader(url, token, sleep=time.sleep, ca=ca, max_tries=CHECK_TRIES)
        return f"you are {reader.get('/v1/whoami')['user']}"
    except ApiError as error:
        if token is None and error.document["code"] == "unauthenticated":
            return "it requires a token: give --token-command, or set YARD_TOKEN"
        found = api_error(error)
        raise CliError(found.message, exit_code=found.exit_code, hint=hint) from None
    except (OSError, KeyError) as error:
        raise CliError(
            f"cannot reach {url}: {error}", exit_code=Exit.UNREACHABLE, hint=hint
        ) from None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


@command("completion", help=_COMPLETION)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(session: Session, shell: str) -> None:
    """Print the completion script for a shell."""
    from yardmaster_cli.main import yard

    found = get_completion_class(shell)
    if found is None:
        raise BadUsage(f"no completion for {shell}")
    sys.stdout.write(found(yard, {}, "yard", "_YARD_COMPLETE").source() + "\n")
