"""The kinds of value a table shows, each in two ways: short for a terminal, exact for a pipe."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from yardmaster_cli.times import parse_time

#: Control characters except tab; what users wrote must not move the cursor of who reads it.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
#: ANSI colours, the only escape sequences that output of tasks may carry to a terminal.
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,32}m")

NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class When:
    """A moment, RFC 3339; on a terminal how long ago (or, in the future, how long until)."""

    at: str | None


@dataclass(frozen=True, slots=True)
class Age:
    """How long ago a moment was; exact, the moment itself (RFC 3339). The youngest sorts first."""

    at: str | None


@dataclass(frozen=True, slots=True)
class Percent:
    """A share, kept in thousandths; exact, a number of percent without its sign."""

    permille: int


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds; on a terminal in the largest unit that fits."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs, kept in gpu_milli; shown as a number of GPUs."""

    milli: int | None
    digits: int | None = None


Cell = str | int | bool | When | Age | Percent | Span | Gpus | None


def plain(text: str) -> str:
    """`text` without control characters, safe to print."""
    return _CONTROL.sub("", text).replace("\t", " ")


def coloured(text: str) -> str:
    """Output of a task for a terminal: line ends, tabs and colours stay, other controls go."""
    parts: list[str] = []
    last = 0
    for found in _COLOUR.finditer(text):
        parts += [_lines(text[last : found.start()]), found.group()]
        last = found.end()
    parts.append(_lines(text[last:]))
    return "".join(parts)


def _lines(text: str) -> str:
    return "\n".join(_CONTROL.sub("", line) for line in text.replace("\r\n", "\n").split("\n"))


def clock_time(at: str | None) -> str:
    """`09:42:10` of an RFC 3339 time, UTC as written; `-` for none."""
    if not at or len(at) < 19:
        return NOTHING
    return at[11:19]


def span(seconds: float) -> str:
    """`41s`, `12m`, `2h`, `5d`: the largest unit in which it is at least one."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def gpus(milli: int | None, digits: int | None = None) -> str:
    """`8`, `0.5`; with `digits` always that many decimals."""
    if milli is None:
        return NOTHING
    if digits is not None:
        return f"{milli / 1000:.{digits}f}"
    return f"{milli // 1000}" if milli % 1000 == 0 else f"{milli / 1000:g}"


def mebibytes(mib: int) -> str:
    """`256 GiB` or `512 MiB`."""
    return f"{mib // 1024} GiB" if mib and mib % 1024 == 0 else f"{mib} MiB"


def duration(seconds: int) -> str:
    """`1h30m`, `90d`, `0s`: exact, as people write it."""
    parts = []
    left = seconds
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        whole, left = divmod(left, size)
        parts.append(f"{whole}{unit}" if whole else "")
    return "".join(parts) or "0s"


def _thousandths(milli: int | None) -> float | int | None:
    return milli if milli is None else milli / 1000 if milli % 1000 else milli // 1000


#: Keys of mappings whose keys are their users' own.
_AS_GIVEN: Final = ("labels", "options")


def readable(value: Any) -> Any:
    """A document of the API with units for people: `memory_mib: 2048` is `memory: 2 GiB`."""
    if isinstance(value, list):
        return [readable(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if key in _AS_GIVEN:
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


def show(cell: Cell, *, relative: bool, now_ms: int) -> str:
    """The text of a cell; `relative` is for people at a terminal."""
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
    """Numbers by size, then moments by time, then texts; nothing last."""
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
