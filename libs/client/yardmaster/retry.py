"""Retry calls, wait for the end of an outage, and encode query parameters.

This module imports neither models nor httpx, so that commands which only read start fast.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Final, Protocol, TypeVar

from yardmaster.errors import ApiError
from yardmaster_schemas.backoff import Backoff

#: The number of attempts of one call, including the first.
MAX_TRIES: Final = 5
#: The pause before the second attempt, and the longest pause, in seconds. Each pause is twice the
#: one before.
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
#: The longest outage that a wait or a stream survives, in seconds.
LONGEST_OUTAGE_S: Final = 300.0
#: A call without an answer after this time is reported as slow, in seconds.
SLOW_S: Final = 2.0
#: The longest wait for an answer, in seconds, in addition to the wait that the request asks for.
ANSWER_S: Final = 15.0

Params = Mapping[str, str | int | bool | Sequence[str] | None]
T = TypeVar("T")


class OutageListener(Protocol):
    """Receives notifications, from any thread, about outages whose end reads wait for."""

    def lost(self, error: ApiError) -> None:
        """Handle a failed attempt."""

    def back(self) -> None:
        """Handle an answer of the gateway."""


class OutageTolerance:
    """Decides whether the reads of one connection wait for the end of an outage.

    Reads wait if `listener` is set and the gateway has answered at least once. After an outage,
    reads require at least the highest log position that an earlier answer covered.
    """

    def __init__(self) -> None:
        self.listener: OutageListener | None = None
        #: The position of the newest answer; None: the gateway has not answered yet.
        self.position: str | None = None
        #: A function that is called once, from another thread, when a call has no answer after
        #: `SLOW_S` seconds. It receives the name of the call, such as `GET /v1/tasks`.
        self.on_slow: Callable[[str], None] | None = None
        self._slow = False

    @contextmanager
    def reporting_slowness(self, call: str, wait_s: float) -> Iterator[None]:
        """Report `call` if this context lasts longer than `wait_s` + `SLOW_S` seconds."""
        if self.on_slow is None:
            yield
            return
        timer = threading.Timer(SLOW_S + wait_s, self._report_slow, (call,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _report_slow(self, call: str) -> None:
        if not self._slow and self.on_slow is not None:
            self._slow = True
            self.on_slow(call)

    def record_answer(self, position: str | None) -> None:
        """Remember the position of an answer, and notify the listener."""
        self._slow = False
        self.position = position or self.position
        if self.listener is not None:
            self.listener.back()

    def headers(self, params: Params) -> dict[str, str]:
        """The header that makes a gateway answer only with views as new as earlier answers."""
        if self.listener is None or self.position is None or params.get("min_position"):
            return {}
        return {"Yard-Min-Position": self.position}

    def should_retry(self, error: ApiError) -> bool:
        """Whether to retry although all attempts failed; notifies the listener if so."""
        if self.listener is None or self.position is None or not error.transient:
            return False
        self.listener.lost(error)
        return True


def backoff() -> Backoff:
    """Return the pauses between the attempts of one call."""
    return Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)


class Deadline:
    """The end of a wait: `timeout_s` seconds from now; None: no end."""

    def __init__(self, timeout_s: float | None, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._at_s = None if timeout_s is None else monotonic_s() + timeout_s

    def left_s(self) -> float:
        """The seconds until the end: infinite if there is no end, 0 after the end."""
        return inf if self._at_s is None else max(0.0, self._at_s - self._monotonic_s())


class Reconnection:
    """Pauses between the attempts of one wait or stream, and decides when to give up.

    The wait gives up after a permanent error, after an outage of `longest_outage_s` seconds, and
    if the gateway has never answered this client. With a listener, an outage has no limit.
    """

    def __init__(
        self,
        tolerance: OutageTolerance,
        deadline: Deadline,
        *,
        sleep: Callable[[float], None],
        monotonic_s: Callable[[], float],
        longest_outage_s: float,
    ) -> None:
        self._tolerance = tolerance
        self._deadline = deadline
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self._longest_outage_s = longest_outage_s
        self._pauses = backoff()
        self._lost_at_s: float | None = None

    def record_answer(self) -> None:
        """Record that the gateway answers: the next pause is short again."""
        self._pauses.reset()
        self._lost_at_s = None

    def pause(self, error: ApiError | None = None) -> None:
        """Pause before the next attempt, at most until the deadline.

        `error` ended the last attempt; None: the gateway closed the stream.

        Raises: `error`, when giving up.
        """
        if error is not None and not self._tolerance.should_retry(error):
            now_s = self._monotonic_s()
            self._lost_at_s = now_s if self._lost_at_s is None else self._lost_at_s
            lost_s = now_s - self._lost_at_s
            answered = self._tolerance.position is not None
            if not (error.transient and answered and lost_s < self._longest_outage_s):
                raise error
        pause_s = self._pauses.next_s(0.0 if error is None else error.retry_after_s)
        self._sleep(min(pause_s, self._deadline.left_s()))


def retry(
    call: Callable[[], T],
    *,
    sleep: Callable[[float], None],
    max_tries: int,
    tolerance: OutageTolerance | None = None,
) -> T:
    """Return the result of `call`; repeat it while it fails with a transient error.

    `call` is attempted `max_tries` times, and after that as long as `tolerance` allows.

    Raises: ApiError of the last attempt.
    """
    pauses = backoff()
    left = max_tries
    while True:
        left -= 1
        try:
            return call()
        except ApiError as error:
            if not error.transient:
                raise
            if left <= 0 and (tolerance is None or not tolerance.should_retry(error)):
                raise
            retry_after_s = error.retry_after_s
        sleep(pauses.next_s(retry_after_s))


def encode_query(params: Params) -> dict[str, str]:
    """Encode query parameters: lists are joined by commas, each label is its own parameter."""
    query: dict[str, str] = {}
    for name, value in params.items():
        if value is None:
            continue
        if name == "label":
            for pair in [value] if isinstance(value, str) else value:  # type: ignore[union-attr]
                key, _, wanted = str(pair).partition("=")
                query[f"label.{key}"] = wanted
        elif isinstance(value, bool):
            query[name] = "true" if value else "false"
        elif isinstance(value, str | int):
            query[name] = str(value)
        else:
            query[name] = ",".join(value)
    return query
