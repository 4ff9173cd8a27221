"""Converts schema values to plain JSON and back, for snapshots and policy options."""

from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from yardmaster_schemas.errors import MalformedRecord

T = TypeVar("T")


@cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def dump(value: object) -> Any:
    """Return an instance of a schema dataclass as JSON-ready dicts, lists and scalars."""
    return _adapter(cast(Any, type(value))).dump_python(value, mode="json")


def encode(value: object) -> bytes:
    """Return dicts, lists, scalars and schema dataclasses as JSON; bytes in URL-safe base64."""
    return to_json(value, bytes_mode="base64")


def load(cls: type[T], plain: Any) -> T:
    """Return the instance of `cls` that `plain` describes, checked as strictly as a record.

    Raises:
        MalformedRecord: `plain` does not describe a `cls`; the error names the wrong field.
    """
    adapter: TypeAdapter[T] = _adapter(cast(Any, cls))
    try:
        return adapter.validate_json(TypeAdapter(Any).dump_json(plain))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or cls.__name__
        raise MalformedRecord(found=f"{where}: {first['msg']}") from None
