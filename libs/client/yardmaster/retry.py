"""Retries of calls, waiting for the end of an outage, and the encoding of query parameters.

Imports neither models nor httpx, so that commands which only read start fast.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from yardmaster.errors import ApiError
from yardmaster_schemas.backoff import Backoff

#: Attempts of one call, including the first.
MAX_TRIES: Final = 5
#: The pause before the second attempt, and the longest pause, in seconds; it doubles in between.
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
#: The longest wait for an answer, in seconds, in addition to the wait that the request asks for.
ANSWER_S: Final = 15.0

Params = Mapping[str, str | int | bool | Sequence[str] | None]
T = TypeVar("T")


class OutageListener(Protocol):
    """Is notified of an outage of the gateway while reads wait for its end, from any thread."""

    def lost(self, error: ApiError) -> None:
        """Handle a failed attempt."""

    def back(self) -> None:
        """Handle an answer of the gateway."""


class OutageTolerance:
    """Decides whether the reads of one connection wait for the end of an outage.

    They do if `listener` is set and the gateway has answered at least once. After an outage, reads
    require at least the highest position that an earlier answer covered.
    """

    def __init__(self) -> None:
        self.listener: OutageListener | None = None
        #: The position of the newest answer.
        self._position: str | None = None

    def record_answer(self, position: str | None) -> None:
        """Remember the position of an answer, and notify the listener."""
        self._position = position or self._position
        if self.listener is not None:
            self.listener.back()

    def headers(self, params: Params) -> dict[str, str]:
        """The header that makes a gateway answer with views that cover earlier answers."""
        if self.listener is None or self._position is None or params.get("min_position"):
            return {}
        return {"Yard-Min-Position": self._position}

    def should_retry(self, error: ApiError) -> bool:
        """Whether to retry although all attempts failed; notifies the listener if so."""
        if self.listener is None or self._position is None or not error.transient:
            return False
        self.listener.lost(error)
        return True


def backoff() -> Backoff:
    """Return the pauses between the attempts of one call."""
    return Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)


def retry(
    call: Callable[[], T],
    *,
    sleep: Callable[[float], None],
    max_tries: int,
    tolerance: OutageTolerance | None = None,
) -> T:
    """Return the result of `call`; repeat it while it fails with a transient error.

    It is attempted `max_tries` times, and after that as long as `tolerance` allows.

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
