"""Read scenarios, find their format, and compare them with the core.

A scenario is one JSON object; its keys determine its format.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from yardmaster_schemas.errors import YardmasterError

Scenario = Mapping[str, Any]
T = TypeVar("T")


class UnreadableScenario(YardmasterError):
    """{found}; each line must be one JSON object in one of the known formats."""


class Outcome(StrEnum):
    """The outcome of checking a scenario."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a scenario.

    `why`: the difference if it failed, the reason if it was skipped.
    """

    scenario: str
    outcome: Outcome
    why: str = ""


class Skip(Exception):
    """A scenario cannot be expressed in the core's events; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of scenarios: the keys that identify it, and its check against the core.

    `check` returns the difference from the scenario (empty: no difference), and raises `Skip` or
    `UnreadableScenario`.
    """

    name: str
    keys: frozenset[str]
    check: Callable[[Scenario], str]


def read(text: str) -> Iterator[Scenario]:
    """The scenarios of a file, one per line; empty lines are skipped.

    Raises:
        UnreadableScenario: names the line.
    """
    for number, line in lines(text):
        yield read_line(number, line)


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not empty, with their numbers."""
    # Split at line feeds only: other line separators may be part of a JSON string.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def read_line(number: int, line: str) -> Scenario:
    """Parse one line as a scenario.

    Raises:
        UnreadableScenario: names the line.
    """
    try:
        scenario = json.loads(line)
    except ValueError as error:
        raise UnreadableScenario(found=f"line {number}: {error}") from None
    except RecursionError:
        raise UnreadableScenario(found=f"line {number}: it is nested too deeply") from None
    if not isinstance(scenario, dict) or not isinstance(scenario.get("id"), str):
        raise UnreadableScenario(found=f"line {number}: it has no id")
    return cast(Scenario, scenario)


def parsed(cls: type[T], scenario: Scenario) -> T:
    """Parse a scenario into its format's model; unknown keys are ignored.

    Raises:
        UnreadableScenario: names the invalid field.
    """
    try:
        return cast(T, _adapter(cast(Any, cls)).validate_python(scenario))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or cls.__name__
        found = f"{scenario['id']}: {where}: {first['msg']}"
        raise UnreadableScenario(found=found) from None


@cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def check(scenario: Scenario, formats: tuple[Format, ...]) -> Verdict:
    """Compare a scenario with the core.

    Raises:
        UnreadableScenario: the scenario's format is unknown, or the scenario does not match it.
    """
    name = str(scenario["id"])
    for one in formats:
        if one.keys <= scenario.keys():
            try:
                difference = one.check(scenario)
            except Skip as reason:
                return Verdict(name, Outcome.SKIPPED, str(reason))
            except UnreadableScenario:
                raise
            except Exception as error:  # noqa: BLE001 the other scenarios must still be checked
                difference = f"the core raised {type(error).__name__}: {error}"
            return Verdict(name, Outcome.FAILED if difference else Outcome.PASSED, difference)
    known = ", ".join(one.name for one in formats)
    raise UnreadableScenario(found=f"{name} has none of the formats {known}")
