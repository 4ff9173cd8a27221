"""Read the rows of CSV files and report invalid values with line and column.

A reader function interprets each row; it receives the values of the columns by field name.
"""

import csv
import gzip
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from yardmaster_schemas.fields import MAX_INT
from yardmaster_simulation.errors import BadWorkload

T = TypeVar("T")
_MOMENT: Final = "seconds, or a date and time as 2017-10-01T08:00:00"
#: The fields to which a column of a jobs file can be mapped, and the values that each accepts.
FIELDS: Final = {
    "submit": _MOMENT,
    "run": "seconds",
    "end": _MOMENT,
    "project": "a name of letters, digits, '.', '_' and '-'",
    "gpus": "a whole number of GPUs (half of one: gpus 1, and 500 in a column for gpu_milli)",
    "gpu_milli": "a whole number of thousandths of a GPU",
    "cpu": "a number of CPUs",
    "cpu_milli": "a number of thousandths of a CPU",
    "memory_gib": "a number of GiB",
    "memory_mib": "a number of MiB",
    "preemptible": "true or false",
}
#: The name of a schema's field -> the fields of the file that its value may come from, if the names
#: differ.
_FROM: Final = {
    "replicas_min": ("gpus",),
    "resources": ("gpu_milli",),
    "cpu_milli": ("cpu", "cpu_milli"),
    "memory_mib": ("memory_gib", "memory_mib"),
    "runtime_estimate_s": ("run", "end"),
}


class Wrong(ValueError):
    """A field has an invalid value."""

    def __init__(self, name: str, why: str = "") -> None:
        super().__init__(name)
        self.name = name
        self.why = why or f"wanted: {FIELDS[name]}"


def rows(
    path: Path,
    names: Mapping[str, str],
    read: Callable[[Mapping[str, str]], T],
    *,
    where: Mapping[str, str] | None = None,
    optional: Collection[str] = (),
) -> Iterator[T]:
    """Yield the result of `read` for each row whose columns have the values in `where`.

    `names` maps each field to its column; a missing column of an `optional` field counts as empty.
    `read` may raise Wrong or the ValidationError of a schema.

    Raises:
        BadWorkload: the file cannot be read, or a row is invalid; names line and column.
    """
    where = where or {}
    needed = {name for key, name in names.items() if key not in optional} | set(where)
    for line, row in _lines(path, needed):
        if any(row[name] != value for name, value in where.items()):
            continue
        values = {key: row.get(name, "") for key, name in names.items()}
        try:
            found = read(values)
        except (Wrong, ValidationError) as error:
            key, why = _wrong(values, error)
            problem = f"line {line}, column {names[key]}: {values[key][:40]!r}; {why}"
            raise BadWorkload(path=path, found=problem) from None
        yield found


def _wrong(values: Mapping[str, str], error: Wrong | ValidationError) -> tuple[str, str]:
    """The invalid field, and the reason."""
    if isinstance(error, Wrong):
        return error.name, error.why
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = str(first["loc"][-1])
    key = next((key for key in _FROM.get(place, (place,)) if key in values), next(iter(values)))
    return key, f"{place}: {first['msg']}"


def _lines(path: Path, needed: Collection[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a file, with line numbers; `.gz` files are decompressed.

    Raises: BadWorkload.
    """
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = sorted(set(needed) - set(reader.fieldnames or ()))
            if missing:
                has = ", ".join(reader.fieldnames or ()) or "nothing"
                raise BadWorkload(path=path, found=f"no column {missing[0]}; it has {has}")
            for row in reader:
                if None in row.values():
                    raise BadWorkload(path=path, found=f"line {reader.line_num} is cut short")
                yield reader.line_num, row
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise BadWorkload(path=path, found=str(error)) from None


def amount(values: Mapping[str, str], name: str, otherwise: str = "") -> Decimal:
    """The number in a field, or `otherwise` if the field is empty.

    Raises: Wrong.
    """
    try:
        return _bounded(values.get(name) or otherwise)
    except ArithmeticError:
        raise Wrong(name) from None


def whole(values: Mapping[str, str], name: str, otherwise: str = "") -> int:
    """The integer in a field, or `otherwise` if the field is empty.

    Raises: Wrong.
    """
    found = amount(values, name, otherwise)
    if found % 1:
        raise Wrong(name)
    return int(found)


def moment(values: Mapping[str, str], name: str) -> Decimal:
    """The time in a field, in seconds.

    Raises: Wrong.
    """
    try:
        return seconds(values[name])
    except ValueError:
        raise Wrong(name) from None


def seconds(text: str) -> Decimal:
    """Parse seconds, or a date and time as seconds since 1970.

    Raises: ValueError that states the accepted formats.
    """
    try:
        return _bounded(text)
    except ArithmeticError:
        pass
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r}; wanted: {_MOMENT}") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return Decimal(int(when.timestamp()))


@lru_cache(maxsize=65_536)
def _bounded(text: str) -> Decimal:
    """Raises: ArithmeticError: not a number, or too large."""
    found = Decimal(text)
    if -MAX_INT <= found <= MAX_INT:
        return found
    raise OverflowError
