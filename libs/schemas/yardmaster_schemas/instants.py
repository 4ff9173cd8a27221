"""Times as people and REST bodies write them (RFC 3339, UTC), and as the log stores them (ms)."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

#: The last time that RFC 3339 can express (year 9999), in milliseconds since the epoch.
LAST_MS: Final = 253_402_300_799_999


def rfc3339(time_ms: int) -> str:
    """Return `2026-01-31T12:00:00.123Z` for milliseconds since the epoch, at most `LAST_MS`."""
    minute, left = divmod(min(time_ms, LAST_MS), 60_000)
    return f"{_minute(minute)}{left // 1000:02d}.{left % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _minute(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, tz=UTC):%Y-%m-%dT%H:%M:}"


def parse_rfc3339(text: str) -> int:
    """Return milliseconds since the epoch of `2026-01-31T12:00:00Z`, with any offset from UTC.

    Raises: ValueError when `text` is not such a time, or lacks its offset.
    """
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:40]!r} is not an RFC 3339 time; write 2026-01-31T12:00:00Z"
        ) from None
    # Python also reads shorter forms of ISO 8601, such as `2026-01-31T12Z`.
    if len(text) < len("2026-01-31T12:00Z"):
        raise ValueError(f"{text[:40]!r} is not an RFC 3339 time; write 2026-01-31T12:00:00Z")
    if moment.tzinfo is None:
        raise ValueError(f"{text[:40]!r} lacks its offset from UTC; append Z")
    try:
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text[:40]!r} is out of range") from None
    ms = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if ms < 0:
        raise ValueError(f"{text[:40]!r} is before 1970")
    return ms
