"""Durations as people write them (`90s`, `1h30m`). Imports nothing slow, so commands start fast."""

import re
from typing import Final

DURATION_PATTERN: Final = r"^([0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d|w)){1,6}$"
_MILLIS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


def duration_s(text: str) -> int:
    """Return the seconds, rounded up, of `90s`, `20m`, `12h`, `1h30m`, `7d` or `500ms`.

    Raises: ValueError with what to write instead.
    """
    if re.fullmatch(DURATION_PATTERN, text) is None:
        raise ValueError(f"{text[:32]!r} is not a duration; write 90s, 20m, 12h, 1h30m or 7d")
    micros = 0
    for number, unit in re.findall(r"([0-9.]+)([a-z]+)", text):
        whole, _, fraction = number.partition(".")
        micros += int(whole + fraction.ljust(3, "0")) * _MILLIS[unit]
    seconds = -(-micros // 1_000_000)
    if seconds > 10 * 365 * 86_400:
        raise ValueError(f"{text[:32]!r} is more than ten years")
    return seconds
