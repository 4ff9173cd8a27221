"""`yard contexts`, `config`, `whoami`, `version`, `login`, `completion`: the command itself."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

import click
import yaml
from click.shell_completion import get_completion_class

from yardmaster.cli.config import load_file, save_current
from yardmaster.cli.errors import BadUsage
from yardmaster.cli.output import Column
from yardmaster.cli.remote import plain
from yardmaster.cli.session import NounGroup, Session, command

_COMPLETION = """Print the completion script of a shell.

It completes commands and options, and, by asking the server (for 1.5 s at most), the ids of
jobs and tasks, nodes, pools, projects, departments, phases, kinds and contexts.

\b
bash  yard completion bash > ~/.local/share/bash-completion/completions/yard
zsh   yard completion zsh > "${fpath[1]}/_yard"
fish  yard completion fish > ~/.config/fish/completions/yard.fish

For the running shell alone: source <(yard completion bash), or the same with zsh; in fish
yard completion fish | source.
"""


@click.group("contexts", cls=NounGroup)
def contexts() -> None:
    """List the servers you know; use one."""


@contexts.command("ls")
def list_contexts(session: Session) -> None:
    """List contexts; the one in use is marked."""
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
    """Use a context from now on."""
    config = session.config
    if name not in config.contexts:
        raise BadUsage(
            f"there is no context {name}", hint=f"contexts: {', '.join(config.contexts)}"
        )
    save_current(config.path, name)
    session.out.note(f"{config.path}: current: {name}")


@command("config")
def config(session: Session) -> None:
    """Show every setting and where it is from; never a secret."""
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
    """Show who the server takes you for."""
    answer = plain(session.remote.client.whoami())

    def text() -> list[str]:
        roles = [f"{role['role']} of {role['scope']} {role['name']}" for role in answer["roles"]]
        return [
            f"{answer['user']} ({answer['method']}, {answer['issuer']})",
            *(f"  {role}" for role in roles),
        ]

    session.out.one(answer, text, "user")


@command("version")
@click.option("--client", is_flag=True, help="Do not ask the server.")
def version(session: Session, client: bool) -> None:
    """Print the version of yard, and of the server where one answers."""
    out = session.out
    mine = installed("yardmaster")
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
@click.option("--token-command", metavar="COMMAND", help="Prints the token; run for each command.")
@click.option("--ca", metavar="FILE", help="Certificates to trust.")
@click.option("-p", "--project", metavar="NAME", help="Project of this context.")
def login(
    session: Session,
    name: str,
    url: str,
    token_command: str | None,
    ca: str | None,
    project: str | None,
) -> None:
    """Keep a server's address as a context, and use it. Tokens stay with COMMAND or YARD_TOKEN."""
    if not url.startswith(("http://", "https://")):
        raise BadUsage(f"{url} is no address of a server", hint="like https://yard.example.org")
    path = session.config.path
    content = load_file(path)
    given = {"server": url, "project": project, "ca": ca, "token_command": token_command}
    kept = {key: value for key, value in given.items() if value is not None}
    content.setdefault("contexts", {})[name] = kept
    content["current"] = name
    _write(path, yaml.safe_dump(content, sort_keys=False))
    session.out.note(f"{path}: context {name}; check it with: yard whoami")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


@command("completion", help=_COMPLETION)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(session: Session, shell: str) -> None:
    """Print the completion script of a shell."""
    from yardmaster.cli.main import yard

    found = get_completion_class(shell)
    if found is None:
        raise BadUsage(f"no completion for {shell}")
    sys.stdout.write(found(yard, {}, "yard", "_YARD_COMPLETE").source() + "\n")
