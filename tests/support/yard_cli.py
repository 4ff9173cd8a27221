"""The real `yard` command on a real embedded process, each in its own process.

Both are forked (`forks`), so that a kill soon after a start hits the service and not its imports.
Commands that run until a test stops them are started as by a user.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.support.forks import Forked, fork

T = TypeVar("T")

YARD = (sys.executable, "-m", "yardmaster_cli.main")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEP_S = 45.0


@dataclass
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def run_yard(
    args: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: str = ""
) -> CommandResult:
    """Run a command to its end."""
    with tempfile.TemporaryDirectory() as name:
        given, out, err = (Path(name) / stream for stream in ("in", "out", "err"))
        given.write_text(stdin)
        running = fork(
            "yardmaster_cli.main", args, env=env, cwd=cwd, stdin=given, stdout=out, stderr=err
        )
        return CommandResult(running.wait(), out.read_text(), err.read_text())


def user_env(folder: Path, data: Path, *, keep: str = "") -> dict[str, str]:
    """The environment of a user whose home is `folder`, with those of our variables that start with
    `keep` (empty: none).
    """
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("YARD_") or (keep and name.startswith(keep))
    }
    return {
        **clean,
        "YARD_DATA": str(data),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "NO_COLOR": "1",
    }


@dataclass
class Dev:
    """An embedded process on a data directory, and the commands that use it.

    `port` 0: another port at each start. `kills` are the moments (ms) at which it was killed.
    """

    folder: Path
    nodes: int = 1
    slots: int = 2
    port: int = 0
    process: Forked | None = None
    starts: int = 0
    kills: list[int] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env = user_env(self.folder, self.data)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.data / "log.db"

    def words(self) -> str:
        """The output of the process, for failure messages."""
        return (self.folder / "dev.out").read_text(errors="replace")

    @property
    def server(self) -> str:
        """The URL at which it serves on its `port`."""
        return f"http://127.0.0.1:{self.port}"

    def token(self) -> str:
        """The bearer token of callers; empty until the first start creates it."""
        with suppress(OSError):
            return (self.data / "token").read_text().strip()
        return ""

    def launch(self, *extra: str) -> None:
        """Start it without waiting until it serves."""
        assert self.process is None
        self.folder.mkdir(parents=True, exist_ok=True)
        plain = not self.starts and "--cluster" not in extra
        flags = ["--nodes", str(self.nodes), "--slots", str(self.slots)] if plain else []
        # Not the default port: tests run at the same time.
        flags += [] if "--port" in extra else ["--port", str(self.port)]
        self.process = fork(
            "yardmaster_cli.main",
            ["dev", *flags, *extra],
            env=self.env,
            cwd=self.folder,
            stdout=self.folder / "dev.out",
        )
        self.starts += 1

    def start(self, *extra: str) -> None:
        """Start it and wait until it serves and its nodes have joined."""
        self.launch(*extra)
        until(self.serves, "yard dev serves", self.words)
        until(lambda: self._ready() >= self.nodes, "all nodes are ready", self.words)

    def serves(self) -> bool:
        """Whether the process answers since this start; fails if it has ended."""
        assert self.process is not None
        assert self.process.poll() is None, f"yard dev ended: {self.words()}"
        with suppress(OSError, ValueError):
            return bool(json.loads((self.data / "dev.json").read_text())["pid"] == self.process.pid)
        return False

    def let_live(self, seconds: float) -> None:
        """Let it run for `seconds`; fail if it ends by itself."""
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(seconds)
            raise AssertionError(f"yard dev ended with code {code}: {self.words()}")

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone."""
        assert self.process is not None
        self.kills.append(time.time_ns() // 1_000_000)
        self.process.kill()
        self.process.wait(30)
        self.process = None

    def close(self) -> None:
        """Kill it if it runs."""
        if self.process is not None:
            self.kill()

    def _ready(self) -> int:
        return sum(n["state"] == "ready" for n in self.yard("nodes", "-o", "json").json["items"])

    def stop(self, number: int = signal.SIGINT) -> int:
        """Stop it; return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=20)
        self.process = None
        return code

    def yard(self, *args: str, code: int | None = 0, stdin: str | None = None) -> CommandResult:
        """Run a command; `code` is the exit code it must have (None: any)."""
        said = run_yard(args, self.env, self.folder, stdin or "")
        assert code is None or said.code == code, (
            f"yard {' '.join(args)}: exit {said.code}, expected {code}\n{said.out}\n{said.err}\n"
            f"--- yard dev ---\n{self.words()[-4000:]}"
        )
        return said

    def begin(self, *args: str) -> subprocess.Popen[str]:
        """Start a command that runs until it is stopped."""
        return subprocess.Popen(
            [*YARD, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Lets `next_line` print the stacks of a command that prints nothing.
            env={**self.env, "PYTHONFAULTHANDLER": "1"},
            cwd=self.folder,
        )

    def submit(self, *args: str) -> str:
        """Submit a job; return its id."""
        return self.yard("submit", *args).out.strip()

    def task(self, task_id: str) -> dict[str, Any]:
        """A task as `yard show` prints it."""
        found = self.yard("show", task_id, "-o", "json").json
        assert isinstance(found, dict)
        return found

    def reach(self, task_id: str, phase: str) -> dict[str, Any]:
        """Wait for a task's phase."""
        self.yard("wait", task_id, "--for", phase, "--timeout", f"{STEP_S:.0f}s", code=None)
        found = self.task(task_id)
        assert found["phase"] == phase, f"{task_id} is {found['phase']}, not {phase}: {found}"
        return found

    def prove(self) -> None:
        """Every recorded decision is reproduced, and the audit finds nothing."""
        self.yard("replay", "verify", "--log", str(self.log))


def next_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a running command.

    Fails with the stderr of the command when it has ended or prints no line in time; in the second
    case a signal makes it print its stacks there.
    """

    def end() -> None:
        process.send_signal(signal.SIGABRT)
        process.send_signal(signal.SIGCONT)

    assert process.stdout is not None
    alarm = threading.Timer(STEP_S, end)
    alarm.start()
    line = process.stdout.readline()
    alarm.cancel()
    if not line:
        _, err = process.communicate(timeout=STEP_S)
        raise AssertionError(f"no more output, exit code {process.returncode}:\n{err}")
    return line


def until(
    there: Callable[[], T],
    what: str,
    words: Callable[[], str] = lambda: "",
    *,
    limit_s: float = STEP_S,
    look_s: float = 0.1,
) -> T:
    """Wait until `there` returns a true value; return it."""
    deadline = time.monotonic() + limit_s
    while True:
        found = there()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for this: {what}\n{words()}"
        time.sleep(look_s)


@contextmanager
def running_dev(
    folder: Path,
    *,
    nodes: int = 1,
    slots: int = 2,
    prove: bool = True,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Dev]:
    """Run an embedded process; then check that no process is left, and verify its log.

    `env` has further variables of the process and of the commands.
    """
    dev = Dev(folder, nodes=nodes, slots=slots)
    dev.env |= env or {}
    dev.start(*extra)
    try:
        yield dev
        if dev.process is not None:
            dev.yard("cancel", "-A", "--phase", "active", "--now", "--yes", code=None)
            until(
                lambda: not dev.yard("ls", "-A", "--phase", "active", "-o", "name").out,
                "all tasks have ended",
            )
    finally:
        if dev.process is not None:
            dev.stop(signal.SIGTERM)
    if prove:
        dev.prove()
