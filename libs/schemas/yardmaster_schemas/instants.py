"""Moments as people and REST bodies write them (RFC 3339, UTC), and as the log holds them (ms)."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

#: The last moment that RFC 3339 can write (year 9999), in milliseconds since the epoch.
LAST_MS: Final = 253_402_300_799_999


def rfc3339(time_ms: int) -> str:
    """`2026-01-31T12:00:00.123Z` for milliseconds since the epoch, `LAST_MS` at most."""
    minute, left = divmod(min(time_ms, LAST_MS), 60_000)
    return f"{_minute(minute)}{left // 1000:02d}.{left % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _minute(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, tz=UTC):%Y-%m-%dT%H:%M:}"


def parse_rfc3339(text: str) -> int:
    """Milliseconds since the epoch of `2026-01-31T12:00:00Z`; the offset from UTC must be named.

    Raises: ValueError when it is no such moment.
    """
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:40]!r} is no RFC 3339 time; one is 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None or len(text) < len("2026-01-31T12:00Z"):
        raise ValueError(f"{text[:40]!r} lacks its offset from UTC; append Z")
    try:
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text[:40]!r} is out of range") from None
    ms = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if ms < 0:
        raise ValueError(f"{text[:40]!r} is before 1970")
    return ms
