"""The common part of waiting commands: timeout, Ctrl-C, and reconnecting to the gateway."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from yardmaster.errors import ApiError
from yardmaster_cli.errors import BadUsage, CliError, Exit
from yardmaster_cli.output.formats import Output
from yardmaster_cli.session import Session, detaching
from yardmaster_schemas.durations import duration_s

#: The shortest timer, in seconds: zero would disable it.
_LEAST_S: Final = 0.001


class _TimeUp(BaseException):
    """The timeout passed; a BaseException, so that no `except Exception` catches it."""


class Reconnecting:
    """Reports on stderr, once for each outage, that the gateway is lost and that it is back."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._away = False

    def lost(self, error: ApiError) -> None:
        """Record that a try failed."""
        with self._lock:
            if not self._away:
                self._away = True
                self._out.note(f"{error}; reconnecting")

    def back(self) -> None:
        """Record that the gateway answered."""
        with self._lock:
            if self._away:
                self._away = False
                self._out.note("reconnected")


def timeout_s(text: str | None) -> int | None:
    """The seconds of `--timeout`.

    Raises:
        BadUsage: it is not a duration.
    """
    if text is None:
        return None
    try:
        return duration_s(text)
    except ValueError as error:
        raise BadUsage(f"--timeout: {error}") from None


@contextmanager
def interruptible(session: Session, command: str, limit_s: int | None) -> Iterator[None]:
    """Make reads in this context wait for the end of an outage, and end the context in time.

    After Ctrl-C or `limit_s` seconds (None: no limit), the context ends with an error that names
    the command to continue the wait. No task is changed. Use it only in the main thread.

    Raises:
        CliError: 124 after `limit_s`, 130 after Ctrl-C.
    """
    session.remote.outlast(Reconnecting(session.out))
    try:
        with detaching(command), _alarm(limit_s):
            yield
    except _TimeUp:
        raise CliError(
            f"not finished after {limit_s} s",
            exit_code=Exit.TIMEOUT,
            hint=f"nothing was cancelled; continue with: {command}",
        ) from None
    finally:
        session.remote.outlast(None)


@contextmanager
def _alarm(limit_s: int | None) -> Iterator[None]:
    if limit_s is None:
        yield
        return

    def on_alarm(number: int, frame: Any) -> None:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, max(_LEAST_S, limit_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
