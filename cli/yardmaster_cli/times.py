"""Times on a command line, for every option that takes one.

`2h`, `-2h` and `1h30m` are relative to now. `2026-01-31T12:00:00Z` and `2026-01-31` are absolute,
in UTC unless they have an offset; a date without a time is its midnight.
"""

import re
import time
from datetime import UTC, datetime
from typing import Final

from yardmaster_cli.errors import BadUsage
from yardmaster_schemas.durations import duration_s

#: The accepted forms of a time, as text for help and errors.
FORMS: Final = "2h, -2h, 2026-01-31 or 2026-01-31T12:00:00Z"
#: The forms of a moment in a log (see `log.moments`), for help that must not import the log.
MOMENT_FORMS: Final = "a time, 2h (ago), a log position (main@d3021) or a cycle (cycle:88121)"

_CLOCK: Final = re.compile(
    r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d([.,]\d+)?)?([Zz]|[+-]\d\d:\d\d)?)?"
)
_RELATIVE: Final = re.compile(r"-?[0-9.]+[a-z].*")


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def parse_time(at: str) -> int | None:
    """Milliseconds since the epoch of an RFC 3339 time; None: `at` is not an RFC 3339 time."""
    try:
        moment = datetime.fromisoformat(at.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def is_relative(text: str) -> bool:
    """Whether `text` is written as a duration: `2h`, `-30d`."""
    return _RELATIVE.fullmatch(text) is not None


def past_ms(text: str, now_ms: int, option: str) -> int:
    """Milliseconds since the epoch of the value of `option`; `2h` and `-2h` mean 2 hours ago.

    Raises: BadUsage.
    """
    if is_relative(text):
        return max(0, now_ms - _milliseconds(text.removeprefix("-"), option))
    return clock_ms(text, option)


def future_ms(text: str, now_ms: int, option: str) -> int:
    """Milliseconds since the epoch of the value of `option`; `2h` means in 2 hours.

    Raises: BadUsage, also for a time that has passed.
    """
    if is_relative(text) and not text.startswith("-"):
        return now_ms + _milliseconds(text, option)
    at_ms = past_ms(text, now_ms, option)
    if at_ms <= now_ms:
        raise BadUsage(f"{option}: {text} is in the past", hint="give a future time, such as 2h")
    return at_ms


def clock_ms(text: str, option: str) -> int:
    """Milliseconds since the epoch of a date, with or without a time.

    Raises: BadUsage.
    """
    at_ms = parse_time(text.upper().replace(",", ".")) if _CLOCK.fullmatch(text) else None
    if at_ms is None or at_ms < 0:
        raise BadUsage(f"{option}: {text} is not a valid time", hint=f"write {FORMS}")
    return at_ms


def _milliseconds(text: str, option: str) -> int:
    try:
        return 1000 * duration_s(text)
    except ValueError as error:
        raise BadUsage(f"{option}: {error}", hint=f"write {FORMS}") from None
