"""What every call of a gateway shares: how often it is tried, and how its query is written.

Imports no models and no httpx, so that commands that only read start fast.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from yardmaster.client.errors import ApiError

#: Tries of one call, the first included.
MAX_TRIES: Final = 5
#: Seconds before the second try; doubled for each one after, up to the longest.
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
#: Longest wait for an answer that the gateway itself does not delay, in seconds.
ANSWER_S: Final = 15.0
#: Statuses after which the same call may succeed; 0: no answer came.
_MAY_PASS: Final = (0, 429, 503, 504)

Params = Mapping[str, str | int | bool | Sequence[str] | None]
T = TypeVar("T")


def tried(call: Callable[[], T], *, sleep: Callable[[float], None], max_tries: int) -> T:
    """What `call` returns, tried again while its failure may pass.

    Raises: ApiError of the last try.
    """
    pause_s = FIRST_PAUSE_S
    for left in range(max_tries - 1, -1, -1):
        try:
            return call()
        except ApiError as error:
            if left == 0 or error.status not in _MAY_PASS:
                raise
            pause_s = max(pause_s, error.retry_after_s)
        sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    raise AssertionError("the last try returns or raises")


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
