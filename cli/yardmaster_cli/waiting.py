"""How a command waits: until a timeout or Ctrl-C, and across restarts of the gateway."""

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

#: A timer of zero seconds would be none.
_LEAST_S: Final = 0.001


class _TimeUp(BaseException):
    """The timeout passed; no `except Exception` on the way may catch it."""


class Reconnecting:
    """Says on stderr that the gateway is away, once, and that it is back."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._away = False

    def lost(self, error: ApiError) -> None:
        """Take note that a try failed."""
        with self._lock:
            if not self._away:
                self._away = True
                self._out.note(f"{error}; reconnecting")

    def back(self) -> None:
        """Take note that the gateway answered."""
        with self._lock:
            if self._away:
                self._away = False
                self._out.note("connected again")


def timeout_s(text: str | None) -> int | None:
    """The seconds that `--timeout` means.

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
def lasting(session: Session, come_back: str, limit_s: int | None) -> Iterator[None]:
    """Wait for as long as the user wants: reads outlast a gateway's restart.

    Ctrl-C, and the end of `limit_s` seconds (None: there is none), leave all tasks as they are and
    say which command continues. Main thread only.

    Raises:
        CliError: 124 after `limit_s`, 130 after Ctrl-C.
    """
    session.remote.outlast(Reconnecting(session.out))
    try:
        with detaching(come_back), _alarm(limit_s):
            yield
    except _TimeUp:
        raise CliError(
            f"not finished after {limit_s} s",
            exit_code=Exit.TIMEOUT,
            hint=f"nothing was cancelled; come back with: {come_back}",
        ) from None
    finally:
        session.remote.outlast(None)


@contextmanager
def _alarm(limit_s: int | None) -> Iterator[None]:
    if limit_s is None:
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(_LEAST_S, limit_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
