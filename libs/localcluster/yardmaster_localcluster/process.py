"""One service as a process of its own: started, asked how it is, stopped, killed."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from yardmaster_localcluster.plan import Plan
from yardmaster_localcluster.ports import HOST

STOP_LIMIT_S: Final = 20.0
ANSWER_S: Final = 2.0
LOOK_S: Final = 0.1


class ServiceFailed(Exception):
    """A service ended, or did not become ready; the message ends with the tail of its log."""


class Running(Protocol):
    """A process that was started, as `subprocess.Popen` holds one."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Its exit code; None while it lives."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it ended; subprocess.TimeoutExpired when it does not."""

    def send_signal(self, number: int, /) -> None:
        """Signal it, if it lives."""

    def kill(self) -> None:
        """SIGKILL."""


class Launch(Protocol):
    """A way to start `python -m MODULE WORDS` in a session of its own."""

    def __call__(
        self, module: str, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: Path
    ) -> Running:
        """Start it, and do not wait; what it says is appended to `stdout`."""


def launch(
    module: str, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: Path
) -> Running:
    """The usual way."""
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


class ServiceProcess:
    """The process of a plan; its log is appended to over its restarts."""

    def __init__(
        self,
        plan: Plan,
        log_file: Path,
        env: Mapping[str, str] | None = None,
        launch: Launch = launch,
    ) -> None:
        self.plan = plan
        self.log_file = log_file
        #: On top of the plan's environment.
        self.env = dict(env or {})
        self._launch = launch
        self._process: Running | None = None

    @property
    def process(self) -> Running | None:
        """The process of the last start that was not ended here; it may have ended by itself."""
        return self._process

    @property
    def running(self) -> bool:
        """The process is there (or is stopped)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, f"{self.plan.name} does not run"
        return self._process.pid

    def begin(self) -> None:
        """Start and do not wait."""
        if self.running:
            return
        # What the caller set for its own `yard` is not for services.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("YARD_")}
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._process = self._launch(
            self.plan.module,
            (),
            env={**clean, **self.plan.env, **self.env},
            cwd=self.log_file.parent,
            stdout=self.log_file,
        )

    def ready(self) -> bool:
        """Whether it says that it is ready.

        Raises: ServiceFailed when it ended instead.
        """
        if not self.running:
            code = None if self._process is None else self._process.returncode
            raise ServiceFailed(f"{self.plan.name} ended ({code}):\n{self.tail()}")
        return self.why_not() is None

    def why_not(self) -> str | None:
        """Why it is not ready, in its own words; None when it is."""
        connection = http.client.HTTPConnection(HOST, self.plan.health_port, timeout=ANSWER_S)
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

    def until_ready(self, limit_s: float) -> None:
        """Wait until it is ready.

        Raises: ServiceFailed when it ended, or is not ready within the limit.
        """
        deadline = time.monotonic() + limit_s
        while not self.ready():
            if time.monotonic() > deadline:
                raise ServiceFailed(
                    f"{self.plan.name} is not ready after {limit_s:.0f} s ({self.why_not()}):\n"
                    f"{self.tail()}"
                )
            time.sleep(LOOK_S)

    def ask(self) -> None:
        """Ask it to stop, and do not wait."""
        if self.running:
            self.signal(signal.SIGTERM)

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int | None:
        """Stop in order, kill when that takes longer; its exit code, None when it was not there."""
        self.ask()
        return self.wait(limit_s)

    def wait(self, limit_s: float = STOP_LIMIT_S) -> int | None:
        """Wait for its end, and kill it at the limit; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self._process is not None, f"{self.plan.name} does not run"
        self._process.send_signal(number)

    def tail(self) -> str:
        """The last it said, for errors."""
        try:
            return self.log_file.read_text(errors="replace")[-4000:]
        except FileNotFoundError:
            return ""
