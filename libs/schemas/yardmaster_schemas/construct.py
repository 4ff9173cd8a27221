"""Constructors of frozen dataclasses that are as fast as those of ordinary ones.

A cycle under load creates tens of thousands of events, which takes a sixth of its time.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def writes_slots(cls: type[T]) -> type[T]:
    """Give a frozen dataclass with slots a constructor that writes its slots.

    The constructor that `dataclass` generates calls `object.__setattr__`, which looks up every
    field by name. A constructor that uses the descriptors of the slots takes half the time. A class
    with default factories keeps the generated constructor.
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
    # The constructor is generated as text, as `dataclass` does it, so that its arguments have the
    # names of the fields.
    text = (
        f"def make({', '.join(given)}):\n"
        f" def __init__({', '.join(['self', *arguments])}):\n"
        f"  {'; '.join(body) or 'pass'}\n"
        f" return __init__\n"
    )
    scope: dict[str, Callable[..., Any]] = {}
    exec(text, scope)  # contains only names of fields
    made, old = scope["make"](**given), vars(cls)["__init__"]
    for name in ("__module__", "__qualname__", "__annotations__", "__doc__"):
        setattr(made, name, getattr(old, name))
    type.__setattr__(cls, "__init__", made)
    return cls


def _argument(of: Field[Any]) -> str:
    return of.name if of.default is MISSING else f"{of.name}=_default_{of.name}"
