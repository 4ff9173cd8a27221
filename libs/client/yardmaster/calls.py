"""What every call of a gateway shares: how often it is tried, and how its query is written.

Imports no models and no httpx, so that commands that only read start fast.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from yardmaster.errors import ApiError
from yardmaster_schemas.backoff import Backoff

#: Tries of one call, the first included.
MAX_TRIES: Final = 5
#: Seconds before the second try; doubled for each one after, up to the longest.
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
#: Longest wait for an answer that the gateway itself does not delay, in seconds.
ANSWER_S: Final = 15.0

Params = Mapping[str, str | int | bool | Sequence[str] | None]
T = TypeVar("T")


class Outages(Protocol):
    """Is notified while reads outlast an outage of the gateway; called from any thread."""

    def lost(self, error: ApiError) -> None:
        """Take note that a try failed."""

    def back(self) -> None:
        """Take note that the gateway answered."""


class Endurance:
    """Whether reads of one connection wait for the end of an outage, and what they cover then.

    They do once `outages` is set and the gateway has answered; one that was never there fails.
    """

    def __init__(self) -> None:
        self.outages: Outages | None = None
        #: The newest position that an answer covered.
        self._seen: str | None = None

    def answered(self, position: str | None) -> None:
        """Take note of an answer and of the position that it covers."""
        self._seen = position or self._seen
        if self.outages is not None:
            self.outages.back()

    def headers(self, params: Params) -> dict[str, str]:
        """What makes a gateway that was started again answer only what covers earlier answers."""
        if self.outages is None or self._seen is None or params.get("min_position"):
            return {}
        return {"Yard-Min-Position": self._seen}

    def outlasts(self, error: ApiError) -> bool:
        """Whether to try again, however often that was done; who waits is notified then."""
        if self.outages is None or self._seen is None or not error.passing:
            return False
        self.outages.lost(error)
        return True


def backoff() -> Backoff:
    """Return the pauses between the attempts of one call."""
    return Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)


def tried(
    call: Callable[[], T],
    *,
    sleep: Callable[[float], None],
    max_tries: int,
    endurance: Endurance | None = None,
) -> T:
    """What `call` returns, tried again while its failure may pass.

    Up to `max_tries` times, with an `endurance` as often as that says.

    Raises: ApiError of the last try.
    """
    pauses = backoff()
    left = max_tries
    while True:
        left -= 1
        try:
            return call()
        except ApiError as error:
            if not error.passing:
                raise
            if left <= 0 and (endurance is None or not endurance.outlasts(error)):
                raise
            asked_s = error.retry_after_s
        sleep(pauses.next_s(asked_s))


def query(params: Params) -> dict[str, str]:
    """Query parameters as the gateway reads them: lists joined by commas, each label by itself."""
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
