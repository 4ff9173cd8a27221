"""A text for the first difference between a log and the recomputed records."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from yardmaster_eventlog.port import Record


def difference(found: Record, expected: Record) -> str:
    """Name the first difference of two records: the key, a field of the value, or the headers."""
    if found.key != expected.key:
        return "its key differs from the key that is decided again"
    one, other = from_json(found.value or b"null"), from_json(expected.value or b"null")
    path, a, b = _first_unequal(one, other, "")
    if path is None:
        return "its headers or the encoding of its value differ from those decided again"
    return f"{path} is {_short(a)}, decided again it is {_short(b)}"


def _first_unequal(one: Any, other: Any, path: str) -> tuple[str | None, Any, Any]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in (*one, *(key for key in other if key not in one)):
            found = _first_unequal(one.get(key), other.get(key), f"{path}.{key}" if path else key)
            if found[0] is not None:
                return found
        return None, None, None
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            found = _first_unequal(a, b, f"{path}[{index}]")
            if found[0] is not None:
                return found
        return None, None, None
    return (None if one == other else path or "it"), one, other


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def first_difference(found: Sequence[object], again: Sequence[object]) -> str:
    """Name the first difference of two sequences of refused ranges."""
    for one, other in zip(found, again, strict=False):
        if one != other:
            return f"the log has {one}, checked again it is {other}"
    return f"the log has {len(found)} ranges, checked again there are {len(again)}"
