"""The values of table cells, each with two forms: short for a terminal, exact for a pipe."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from yardmaster.control_characters import CONTROL, plain
from yardmaster_cli.times import parse_time

#: ANSI colors, the only escape sequences of task output that reach a terminal.
_COLOR: Final = re.compile(r"\x1b\[[0-9;]{0,32}m")
#: The sequence that ends all colors.
RESET: Final = "\x1b[0m"

NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class When:
    """An RFC 3339 time; on a terminal, the time that has passed since it, or is left until it."""

    at: str | None


@dataclass(frozen=True, slots=True)
class Age:
    """An age: the time since an RFC 3339 time. In a pipe it is the RFC 3339 time itself.

    The shortest age sorts first.
    """

    at: str | None


@dataclass(frozen=True, slots=True)
class Percent:
    """A share in thousandths, printed as a percentage; in a pipe without the percent sign."""

    permille: int


@dataclass(frozen=True, slots=True)
class Span:
    """A duration in seconds; on a terminal in the largest unit that fits."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """Thousandths of GPUs, printed as GPUs."""

    milli: int | None
    digits: int | None = None


Cell = str | int | bool | When | Age | Percent | Span | Gpus | None


def colored(text: str) -> str:
    """Task output for a terminal: line ends, tabs and colors stay, other controls are removed."""
    parts: list[str] = []
    last = 0
    for found in _COLOR.finditer(text):
        parts += [_lines(text[last : found.start()]), found.group()]
        last = found.end()
    parts.append(_lines(text[last:]))
    return "".join(parts)


def _lines(text: str) -> str:
    return "\n".join(CONTROL.sub("", line) for line in text.replace("\r\n", "\n").split("\n"))


def clock_time(at: str | None) -> str:
    """The time of day, such as `09:42:10`, of an RFC 3339 time in UTC; `-` for None."""
    if not at or len(at) < 19:
        return NOTHING
    return at[11:19]


def span(seconds: float) -> str:
    """Format a duration in the largest unit that fits in it: `41s`, `12m`, `2h` or `5d`."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def gpus(milli: int | None, digits: int | None = None) -> str:
    """Format thousandths of GPUs as GPUs: `8`, `0.5`; with `digits`, always that many decimals."""
    if milli is None:
        return NOTHING
    if digits is not None:
        return f"{milli / 1000:.{digits}f}"
    return f"{milli // 1000}" if milli % 1000 == 0 else f"{milli / 1000:g}"


def mebibytes(mib: int) -> str:
    """Format an amount of memory: `256 GiB` or `512 MiB`."""
    return f"{mib // 1024} GiB" if mib and mib % 1024 == 0 else f"{mib} MiB"


def duration(seconds: int) -> str:
    """Format a duration exactly: `1h30m`, `90d`, `0s`."""
    parts = []
    left = seconds
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        whole, left = divmod(left, size)
        parts.append(f"{whole}{unit}" if whole else "")
    return "".join(parts) or "0s"


def _thousandths(milli: int | None) -> float | int | None:
    return milli if milli is None else milli / 1000 if milli % 1000 else milli // 1000


#: Mappings whose keys users choose.
_USER_KEYS: Final = ("labels", "options")


def readable(value: Any) -> Any:
    """A document of the API with readable units: `memory_mib: 2048` becomes `memory: 2 GiB`."""
    if isinstance(value, list):
        return [readable(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if key in _USER_KEYS:
            found[key] = inner
        elif inner is not None and (isinstance(inner, bool) or not isinstance(inner, int)):
            found[key] = readable(inner)
        elif "_milli" in key:
            found[key.replace("_milli", "")] = _thousandths(inner)
        elif "_mib" in key:
            found[key.replace("_mib", "")] = None if inner is None else mebibytes(inner)
        elif key.endswith("_s"):
            found[key.removesuffix("_s")] = None if inner is None else duration(inner)
        else:
            found[key] = inner
    return found


def render(cell: Cell, *, relative: bool, now_ms: int) -> str:
    """The text of a cell; `relative`: short, for a terminal."""
    if cell is None or cell == "":
        return NOTHING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Percent):
        return f"{cell.permille / 10:g}{'%' if relative else ''}"
    if isinstance(cell, When | Age):
        if cell.at is None:
            return NOTHING
        at_ms = parse_time(cell.at) if relative else None
        return cell.at if at_ms is None else span(abs(now_ms - at_ms) / 1000)
    if isinstance(cell, Span):
        if cell.seconds is None:
            return NOTHING
        return span(cell.seconds) if relative else f"{cell.seconds:g}"
    if isinstance(cell, Gpus):
        return gpus(cell.milli, cell.digits)
    return plain(str(cell)) or NOTHING


def sort_key(cell: Cell) -> tuple[int, float, str]:
    """Sort numbers first, then times, then texts; empty cells last."""
    if cell is None:
        return (3, 0.0, "")
    if isinstance(cell, Gpus):
        return (3, 0.0, "") if cell.milli is None else (0, float(cell.milli), "")
    if isinstance(cell, Span):
        return (3, 0.0, "") if cell.seconds is None else (0, cell.seconds, "")
    if isinstance(cell, bool | int):
        return (0, float(cell), "")
    if isinstance(cell, When):
        at_ms = parse_time(cell.at) if cell.at else None
        return (3, 0.0, "") if at_ms is None else (1, float(at_ms), "")
    if isinstance(cell, Age):
        at_ms = parse_time(cell.at) if cell.at else None
        return (3, 0.0, "") if at_ms is None else (1, -float(at_ms), "")
    if isinstance(cell, Percent):
        return (0, float(cell.permille), "")
    return (2, 0.0, cell)
