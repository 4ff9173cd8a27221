"""Processes of a cluster: started without waiting, then awaited, stopped or killed."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Protocol, Self

from yardmaster_localcluster.errors import ProcessFailed, ServiceFailed
from yardmaster_localcluster.plan import Plan
from yardmaster_localcluster.ports import HOST

#: The longest wait for the answer of a health endpoint, in seconds.
ANSWER_S: Final = 2.0
LOOK_S: Final = 0.05
#: The number of tries on other ports if another process took the chosen port.
PORT_TRIES: Final = 3


class Running(Protocol):
    """A process that was started; `subprocess.Popen` is one."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises: subprocess.TimeoutExpired.
        """

    def send_signal(self, number: int, /) -> None:
        """Send a signal, if the process runs."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Launch(Protocol):
    """Starts `python -m MODULE WORDS` in a session of its own."""

    def __call__(
        self, module: str, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: Path
    ) -> Running:
        """Start the module without waiting; its output is appended to `stdout`."""


def launch(
    module: str, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: Path
) -> Running:
    """Start a module with the Python of this process."""
    with stdout.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )


def for_services(name: str) -> bool:
    """Whether a service inherits the environment variable `name`.

    Of the variables that start with YARD_, a service inherits only the log levels.
    """
    return not name.startswith("YARD_") or name.endswith("LOG_LEVEL")


def path_with_python(env: Mapping[str, str]) -> str:
    """PATH with the folder of this Python first, so that a task's `python3` has the task SDK."""
    here = str(Path(sys.executable).parent)
    known = env.get("PATH", os.defpath)
    return known if known.split(os.pathsep)[0] == here else here + os.pathsep + known


class LocalProcess(ABC):
    """A process with a log file that restarts append to."""

    #: The longest orderly stop, in seconds; a process that takes longer is killed.
    stop_limit_s: ClassVar[float] = 20.0

    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file
        self._process: Running | None = None

    @property
    def process(self) -> Running | None:
        """The process of the last start, until `stop` or `kill`; it may have ended by itself."""
        return self._process

    @property
    def running(self) -> bool:
        """Whether the process runs (or is suspended)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._started().pid

    @abstractmethod
    def begin(self) -> None:
        """Start without waiting; does nothing while the process runs."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether the process serves.

        Raises:
            ProcessFailed: it ended.
        """

    def why_not(self) -> str | None:
        """Why the process is not ready, in its own words; None: ready, or it gives no reason."""
        return None

    def ask(self) -> None:
        """Ask the process to stop, without waiting."""
        if self.running:
            self.signal(signal.SIGTERM)

    def stop(self) -> int | None:
        """Stop the process in order, or kill it after the limit.

        Return the exit code; None: the process did not run.
        """
        self.ask()
        return self.wait()

    def wait(self) -> int | None:
        """Wait for the end, kill the process at the limit, and return the exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return process.wait(self.stop_limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._started().send_signal(number)

    def tail(self) -> str:
        """The end of the log file, for errors."""
        try:
            return self.log_file.read_text(errors="replace")[-4000:]
        except FileNotFoundError:
            return ""

    def _started(self) -> Running:
        assert self._process is not None, f"the process of {self.log_file} was not started"
        return self._process


class Server(LocalProcess):
    """Kafka or Redis: a context manager that starts the server and kills it at the end."""

    start_limit_s: ClassVar[float] = 60.0
    #: The error when the server ends, or does not become ready.
    failed: ClassVar[type[ProcessFailed]] = ProcessFailed

    @property
    @abstractmethod
    def address(self) -> str:
        """The address for clients."""

    def start(self) -> str:
        """Start, wait until the server is ready, and return its address.

        Raises:
            ProcessFailed: as `until_ready`.
        """
        self.begin()
        self.until_ready()
        return self.address

    def restart(self) -> str:
        """Kill the server and start it at the same address."""
        self.kill()
        return self.start()

    def until_ready(self) -> None:
        """Wait until the server is ready; try other ports if another process took the chosen ones.

        Raises:
            ProcessFailed: the server ended, or was not ready within `start_limit_s` seconds.
        """
        for left in reversed(range(PORT_TRIES)):
            try:
                self._await()
                return
            except ProcessFailed:
                # Another process may have taken a port after it was found free.
                if not left or not self._can_move():
                    raise
                self._move()

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

    @abstractmethod
    def _can_move(self) -> bool:
        """Whether a start failed on a taken port that this object chose itself."""

    @abstractmethod
    def _move(self) -> None:
        """Start on other ports."""

    def _await(self) -> None:
        deadline = time.monotonic() + self.start_limit_s
        while not self.ready():
            if time.monotonic() > deadline:
                self.kill()
                raise self.failed(
                    f"was not ready within {self.start_limit_s:.0f} s:\n{self.tail()}"
                )
            time.sleep(LOOK_S)


class ServiceProcess(LocalProcess):
    """The process of a service, which a `Plan` describes."""

    def __init__(
        self,
        plan: Plan,
        log_file: Path,
        env: Mapping[str, str] | None = None,
        launch: Launch = launch,
    ) -> None:
        super().__init__(log_file)
        self.plan = plan
        #: Overrides the plan's environment.
        self.env = dict(env or {})
        self._launch = launch

    def begin(self) -> None:
        """Start without waiting; does nothing while the process runs."""
        if self.running:
            return
        clean = {name: value for name, value in os.environ.items() if for_services(name)}
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._process = self._launch(
            self.plan.module,
            (),
            env={**clean, **self.plan.env, **self.env},
            cwd=self.log_file.parent,
            stdout=self.log_file,
        )

    def ready(self) -> bool:
        """Whether the service reports that it is ready.

        Raises:
            ServiceFailed: it ended.
        """
        if not self.running:
            code = None if self._process is None else self._process.returncode
            raise ServiceFailed(f"{self.plan.name} ended ({code}):\n{self.tail()}")
        return self.why_not() is None

    def why_not(self) -> str | None:
        """Why the service is not ready, in its own words; None when it is ready."""
        return why_not_ready(self.plan.health_url)

    def until_ready(self, limit_s: float) -> None:
        """Wait until the service is ready.

        Raises:
            ServiceFailed: it ended, or is not ready within the limit.
        """
        deadline = time.monotonic() + limit_s
        while not self.ready():
            if time.monotonic() > deadline:
                raise ServiceFailed(
                    f"{self.plan.name} is not ready after {limit_s:.0f} s ({self.why_not()}):\n"
                    f"{self.tail()}"
                )
            time.sleep(LOOK_S)


def why_not_ready(url: str) -> str | None:
    """Why the process at a health URL is not ready, in its own words; None when it is ready."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host or HOST, int(port), timeout=ANSWER_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read()
        if answer.status == http.HTTPStatus.OK:
            return None
        reasons = json.loads(body).get("reasons") or {"process": f"HTTP {answer.status}"}
        return "; ".join(f"{part}: {reason}" for part, reason in sorted(reasons.items()))
    except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
        return f"no answer: {error}"
    finally:
        connection.close()
