"""What a scenario is, which formats there are, and what came of holding one against the core.

A scenario is one JSON object; its keys say which format it is of. A format that no policy covers
yet is recognised, and skipped with that reason.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from yardmaster_schemas.errors import YardmasterError

Scenario = Mapping[str, Any]
T = TypeVar("T")


class UnreadableScenario(YardmasterError):
    """{found}; a scenario is one JSON object a line, of one of the known formats."""


class Outcome(StrEnum):
    """What came of a scenario."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to say of a scenario.

    `why`: the difference of one that failed, the reason of one that was skipped.
    """

    scenario: str
    outcome: Outcome
    why: str = ""


class Skip(Exception):
    """A scenario says something that cannot be told to the core; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of scenario: the keys that only it has, and what holds one against the core.

    `check` returns the difference, empty if there is none, and raises `Skip` or
    `UnreadableScenario`.
    """

    name: str
    keys: frozenset[str]
    check: Callable[[Scenario], str]


def read(text: str) -> Iterator[Scenario]:
    """The scenarios of a file, one a line; empty lines are passed over.

    Raises:
        UnreadableScenario: naming the line.
    """
    for number, line in lines(text):
        yield read_line(number, line)


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not empty, with their numbers."""
    # Only line feeds: what else ends a line of text may be part of a JSON string.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def read_line(number: int, line: str) -> Scenario:
    """The scenario that a line holds.

    Raises:
        UnreadableScenario: naming the line.
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
    """The scenario as its format's model reads it; what the model does not know is left out.

    Raises:
        UnreadableScenario: naming the field at fault.
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


def _not_built(policy: str) -> Callable[[Scenario], str]:
    def check(_: Scenario) -> str:
        raise Skip(f"policy {policy} is not built yet")

    return check


#: Of other schedulers, whose rules wait for their policy.
LATER: Final = (
    Format("kai", frozenset({"mode", "actions", "queues", "jobs"}), _not_built("quota")),
    Format("kai_fairshare", frozenset({"op", "resource", "queues"}), _not_built("quota")),
    Format("runai_doc", frozenset({"steps", "nodes", "queues"}), _not_built("quota")),
)


def check(scenario: Scenario, formats: tuple[Format, ...]) -> Verdict:
    """Hold a scenario against the core.

    Raises:
        UnreadableScenario: it is of no known format, or not as its format says.
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
            except Exception as error:  # noqa: BLE001 the others can be tried all the same
                difference = f"the core broke: {type(error).__name__}: {error}"
            return Verdict(name, Outcome.FAILED if difference else Outcome.PASSED, difference)
    known = ", ".join(one.name for one in formats)
    raise UnreadableScenario(found=f"{name} is of no format of {known}")
