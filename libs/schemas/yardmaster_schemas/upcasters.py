"""Converts bodies of old event versions to new ones before validation, one function per step.

A step takes the body (plain JSON) of version n of an event and returns the body of version n + 1.
Write a step for a change of form only. After a change of meaning both versions stay, each with its
own applier.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

Body = dict[str, Any]
Step = Callable[[Body], Body]

#: (type, from version) -> the step to the next version.
UPCASTERS: Final[Mapping[tuple[str, int], Step]] = {}


def upcast(
    type_: str, version: int, body: Body, steps: Mapping[tuple[str, int], Step] = UPCASTERS
) -> tuple[int, Body]:
    """Apply every step from `version` on; return the resulting version and its body."""
    while (step := steps.get((type_, version))) is not None:
        body = step(body)
        version += 1
    return version, body
