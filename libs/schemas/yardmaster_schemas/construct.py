"""Constructors of frozen dataclasses at the price of ordinary ones.

A cycle under load makes tens of thousands of events, and making them is a sixth of its time.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, TypeVar, get_type_hints

T = TypeVar("T")


#: Marks a field, one of the last of its class, that a published version got later. A record in
#: which all of these have their defaults, which keep the old meaning, is written without them: as
#: it always was.
LATER: Final = {"later": True}


def later_fields(cls: type[Any]) -> list[dict[str, Any]]:
    """The fields that a class, and the parts that it is made of, got later, with their defaults."""
    own = {f.name: f.default for f in fields(cls) if f.metadata.get("later")}
    parts = get_type_hints(cls)
    found = [
        each
        for f in fields(cls)
        if is_dataclass(parts[f.name])
        for each in later_fields(parts[f.name])
    ]
    return [*found, own] if own else found


def writes_slots(cls: type[T]) -> type[T]:
    """Give a frozen dataclass with slots a constructor that writes its slots.

    The one that `dataclass` generates calls `object.__setattr__`, which looks every field up by
    name, to get around its own guard; through the slots' descriptors it takes half the time. A
    class with default factories keeps what it has.
    """
    found = fields(cls)  # type: ignore[arg-type]
    if any(f.default_factory is not MISSING for f in found):
        return cls
    given: dict[str, Any] = {f"_write_{f.name}": getattr(cls, f.name).__set__ for f in found}
    given |= {f"_default_{f.name}": f.default for f in found if f.default is not MISSING}
    arguments = [_argument(f) for f in found if f.init and not f.kw_only]
    named = [_argument(f) for f in found if f.init and f.kw_only]
    if named:
        arguments += ["*", *named]
    body = [f"_write_{f.name}(self, {f.name if f.init else f'_default_{f.name}'})" for f in found]
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    # Written as text, as `dataclass` itself does it: only so has it the fields' names as arguments.
    text = (
        f"def make({', '.join(given)}):\n"
        f" def __init__({', '.join(['self', *arguments])}):\n"
        f"  {'; '.join(body) or 'pass'}\n"
        f" return __init__\n"
    )
    scope: dict[str, Callable[..., Any]] = {}
    exec(text, scope)  # only of the names of fields
    made, old = scope["make"](**given), vars(cls)["__init__"]
    for name in ("__module__", "__qualname__", "__annotations__", "__doc__"):
        setattr(made, name, getattr(old, name))
    type.__setattr__(cls, "__init__", made)
    return cls


def _argument(of: Field[Any]) -> str:
    return of.name if of.default is MISSING else f"{of.name}=_default_{of.name}"
