"""The settings of `yard` and of `Client.from_env`.

A setting comes from a flag, else from the environment, else from the config file, else it has its
default. The config file is `$XDG_CONFIG_HOME/yardmaster/config.yaml`:

```yaml
current: prod
contexts:
  prod: {server: "https://yard.example.org", project: nlp, ca: /etc/ssl/site.pem,
         token_command: [pass, show, yard]}
```

The context `dev` always exists and names the cluster that runs on this machine. The cluster
announces itself in its data directory. A cluster of `yard dev` is preferred to one of `yard up`.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from yardmaster.errors import InputError, NoServer, TokenCommandFailed
from yardmaster.local_cluster import DevServer, default_data_dir, default_up_dir, read_dev

if TYPE_CHECKING:
    import yaml

DEV: Final = "dev"
#: The longest run of a token command, in seconds.
TOKEN_COMMAND_S: Final = 30

_TOP_KEYS: Final = frozenset({"current", "contexts", "project", "output"})
_CONTEXT_KEYS: Final = frozenset({"server", "project", "ca", "token_command"})


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of a setting and its source; a `secret` value is never printed."""

    value: str | None
    source: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Flags:
    """The options of the command line; None: not given."""

    server: str | None = None
    context: str | None = None
    project: str | None = None
    output: str | None = None
    data: str | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """The resolved settings of one command."""

    context: Setting
    server: Setting
    project: Setting
    output: Setting
    data: Setting
    ca: Setting
    token: Setting
    path: Path
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    token_command: tuple[str, ...] = ()
    #: The cluster on this machine, if the context `dev` names it.
    dev: "DevServer | None" = None
    #: The cluster on this machine that serves `server`, under any context.
    here: "DevServer | None" = None

    @property
    def data_dir(self) -> Path:
        """The data directory of the cluster on this machine."""
        return Path(self.data.value or "").expanduser()

    @property
    def cluster_dir(self) -> Path:
        """The folder of the cluster on this machine that serves `server`, else `data_dir`."""
        return self.data_dir if self.here is None else self.here.folder

    @property
    def default_project(self) -> str | None:
        """The project of a job that names none; for a cluster on this machine, it is `default`."""
        return self.project.value or ("default" if self.context.value == DEV else None)

    @property
    def shares_files(self) -> bool:
        """Whether the tasks of the server see the files of this machine."""
        return self.dev is not None and self.dev.programs is None

    @property
    def server_named(self) -> bool:
        """Whether a flag, the environment or a context names the server."""
        return self.server.value is not None and (
            self.dev is None or self.server.source != self.dev.running
        )

    def settings(self) -> list[tuple[str, Setting]]:
        """All settings by name, for `yard config`."""
        names = ("context", "server", "project", "output", "data", "ca", "token")
        found = {name: getattr(self, name) for name in names}
        if self.here is not None and self.here.folder != self.data_dir:
            # Commands read the files of the server's cluster in the cluster's own folder, so the
            # list shows this folder.
            found["data"] = Setting(str(self.here.folder), self.here.running)
        return list(found.items())

    def address(self) -> str:
        """The URL of the server.

        Raises:
            NoServer: the settings name no server, and no cluster runs on this machine.
            InputError: the server is not a valid URL.
        """
        if self.server.value is not None:
            return server_url(self.server.value)
        hint = f"name a server with YARD_SERVER, or in the context {self.context.value}"
        if self.context.value == DEV:
            hint = f"start one with yard dev (data directory {self.data_dir}), or set YARD_SERVER"
        raise NoServer("no server is running here", hint=hint)

    def bearer(self) -> str | None:
        """The token to send; None: the settings have no token. May run the token command.

        Raises:
            TokenCommandFailed: the command of the context fails or takes too long.
            InputError: an HTTP header cannot contain the token.
        """
        if self.token.value is not None:
            return sendable(self.token.value, self.token.source)
        return token_of(self.token_command, self.path) if self.token_command else None


def sendable(token: str, source: str) -> str:
    """Return `token` if an HTTP header can contain it.

    Raises: InputError.
    """
    if not (token.isascii() and token.isprintable()):
        raise InputError(f"{source}: a token may only contain printable ASCII characters")
    return token


def server_url(url: str) -> str:
    """Return `url` if it can be the URL of a server.

    Raises: InputError.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InputError(
            f"{url!r}: not a valid server URL", hint="write it like https://yard.example.org"
        )
    return url


def command_words(command: str) -> tuple[str, ...]:
    """Split a token command into words.

    Raises: InputError.
    """
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"token_command: {command}: {error}") from None


def token_of(command: Sequence[str], path: Path) -> str:
    """Run a token command and return the token that it prints; `path` is the config file.

    Raises:
        TokenCommandFailed: the command fails, or takes longer than `TOKEN_COMMAND_S` seconds.
        InputError: an HTTP header cannot contain the token.
    """
    import subprocess

    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=TOKEN_COMMAND_S, check=True, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        why = str(error)
        if isinstance(error, subprocess.CalledProcessError):
            why = f"exit {error.returncode}"
        elif isinstance(error, subprocess.TimeoutExpired):
            why = f"no answer after {TOKEN_COMMAND_S} s"
        raise TokenCommandFailed(
            f"token_command failed: {' '.join(command)}: {why}",
            hint=f"correct token_command in {path}",
        ) from None
    return sendable(done.stdout.strip(), f"token_command in {path}")


def config_path(env: Mapping[str, str]) -> Path:
    """The config file's path."""
    base = env.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "yardmaster" / "config.yaml"


def load_file(path: Path) -> dict[str, Any]:
    """The content of the config file; empty without a file.

    Raises:
        InputError: the file cannot be read, or has an unknown key.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: {_first_line(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping")
    _only(path, "", content, _TOP_KEYS)
    contexts = content.get("contexts") or {}
    if not isinstance(contexts, dict):
        raise InputError(f"{path}: contexts: expected a mapping")
    for name, context in contexts.items():
        if not isinstance(context, dict):
            raise InputError(f"{path}: contexts.{name}: expected a mapping")
        _only(path, f"contexts.{name}.", context, _CONTEXT_KEYS)
    return content


def _only(path: Path, where: str, content: Mapping[str, Any], known: frozenset[str]) -> None:
    for key in content:
        if key not in known:
            raise InputError(
                f"{path}: unknown setting {where}{key}",
                hint=f"known: {', '.join(sorted(known))}",
            )


def _first_line(error: "yaml.YAMLError") -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {what}" if mark is not None else what


def save_current(path: Path, name: str) -> None:
    """Make `name` the current context in the config file; keep its other content."""
    content = load_file(path)
    import yaml

    content["current"] = name
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(yaml.safe_dump(content, sort_keys=False))
    part.replace(path)


def resolve(flags: Flags | None = None, env: Mapping[str, str] | None = None) -> Config:
    """Resolve the settings of a command or client; `env` is by default this process's environment.

    Raises:
        InputError: the config file is wrong, or names an unknown context.
    """
    flags = Flags() if flags is None else flags
    env = os.environ if env is None else env
    path = config_path(env)
    file = load_file(path)
    contexts: dict[str, Mapping[str, Any]] = {DEV: {}, **(file.get("contexts") or {})}

    def pick(flag: str | None, option: str, variable: str, *later: Setting) -> Setting:
        if flag is not None:
            return Setting(flag, f"flag {option}")
        if env.get(variable):
            return Setting(env[variable], f"environment {variable}")
        for setting in later:
            if setting.value is not None:
                return setting
        return Setting(None, "not set")

    def of_file(key: str) -> Setting:
        value = file.get(key)
        return Setting(None if value is None else str(value), str(path))

    context = pick(
        flags.context, "--context", "YARD_CONTEXT", of_file("current"), Setting(DEV, "default")
    )
    name = context.value or DEV
    if name not in contexts:
        raise InputError(f"there is no context {name}", hint=f"contexts: {', '.join(contexts)}")
    chosen = contexts[name]

    def of_context(key: str) -> Setting:
        value = chosen.get(key)
        return Setting(None if value is None else str(value), f"context {name} in {path}")

    data = pick(flags.data, "--data", "YARD_DATA", Setting(str(default_data_dir(env)), "default"))
    folders = [Path(data.value or "").expanduser()]
    if data.source == "default":
        folders.append(default_up_dir(env))
    clusters = [found for folder in folders if (found := read_dev(folder)) is not None]
    dev = clusters[0] if clusters and name == DEV else None
    server = pick(
        flags.server,
        "--server",
        "YARD_SERVER",
        of_context("server"),
        Setting(dev.server, dev.running) if dev else Setting(None, ""),
    )
    token = Setting(None, "not set", secret=True)
    command = chosen.get("token_command")
    words = command_words(command) if isinstance(command, str) else tuple(command or ())
    if env.get("YARD_TOKEN"):
        token = Setting(env["YARD_TOKEN"], "environment YARD_TOKEN", secret=True)
    elif words:
        token = Setting(None, f"token_command of context {name}", secret=True)
    elif dev is not None and server.value == dev.server:
        token = Setting(dev.token, dev.running, secret=True)
    return Config(
        context=context,
        server=server,
        project=pick(
            flags.project, "--project", "YARD_PROJECT", of_context("project"), of_file("project")
        ),
        output=pick(
            flags.output, "-o", "YARD_OUTPUT", of_file("output"), Setting("table", "default")
        ),
        data=data,
        ca=of_context("ca") if chosen.get("ca") else Setting(None, "not set"),
        token=token,
        path=path,
        contexts=contexts,
        token_command=words,
        dev=dev if dev is not None and server.value == dev.server else None,
        here=next((found for found in clusters if found.serves(server.value)), None),
    )
