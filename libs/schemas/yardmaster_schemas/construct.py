"""Constructors of frozen dataclasses that are as fast as those of ordinary ones.

A cycle under load creates tens of thousands of events, which takes a sixth of its time.
"""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, TypeVar, get_args, get_type_hints

T = TypeVar("T")


#: Marks a field that was added to a published version later; it is one of the last of its class,
#: and its default keeps the old meaning. A record in which all such fields have their defaults is
#: written without them, with the same bytes as before.
LATER: Final = {"later": True}


def added_in(rules: int) -> dict[str, Any]:
    """Mark a field like `LATER`, for configurations: programs below those rules cannot read it.

    Each such field is left out by itself where it has its default.
    """
    return {**LATER, "rules": rules}


def sparse(value: Any) -> Any:
    """Return a value with dicts in place of dataclasses, without the fields of `added_in` that have
    their defaults.
    """
    if is_dataclass(value):
        return {
            f.name: sparse(getattr(value, f.name))
            for f in fields(value)
            if "rules" not in f.metadata or getattr(value, f.name) != _default(f)
        }
    if isinstance(value, dict):
        return {key: sparse(inner) for key, inner in value.items()}
    return [sparse(inner) for inner in value] if isinstance(value, tuple) else value


def rules_of(value: Any) -> int:
    """Return the rules below which programs cannot read a configuration; 0: all can."""
    return max((needed for _, needed in fields_above(value, 0)), default=0)


def fields_above(
    value: Any, rules: int, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path of each field that programs of `rules` cannot read, and the rules that it
    needs.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields_above(inner, rules, (*path, str(key)))
    elif is_dataclass(value):
        for f in fields(value):
            inner, needed = getattr(value, f.name), f.metadata.get("rules")
            if needed is None:
                yield from fields_above(inner, rules, (*path, f.name))
            elif needed > rules and inner != _default(f):
                yield (*path, f.name), needed


def is_sparse(cls: type[Any]) -> bool:
    """Whether a class, or a part of it, has a field of `added_in`."""
    parts = get_type_hints(cls)
    return any(
        "rules" in f.metadata or any(map(is_sparse, _dataclasses_in(parts[f.name])))
        for f in fields(cls)
    )


def _default(of: Field[Any]) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


def _dataclasses_in(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses_in(part)


def later_fields(cls: type[Any]) -> list[dict[str, Any]]:
    """Return the fields that were added later to a class and to its parts, with their defaults."""
    own = {f.name: f.default for f in fields(cls) if f.metadata.get("later")}
    parts = get_type_hints(cls)
    found = [
        each
        for f in fields(cls)
        for part in (parts[f.name], *get_args(parts[f.name]))
        if isinstance(part, type) and is_dataclass(part)
        for each in later_fields(part)
    ]
    return [*found, own] if own else found


def writes_slots(cls: type[T]) -> type[T]:
    """Give a frozen dataclass with slots a constructor that writes its slots.

    The constructor that `dataclass` generates calls `object.__setattr__`, which looks up every
    field by name; through the slots' descriptors it takes half the time. A class with default
    factories keeps its constructor.
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
    # Generated as text, like `dataclass` does, so that its arguments have the fields' names.
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
