"""Request bodies: reading with a size limit, strict parsing, and their OpenAPI description."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from yardmaster_gateway import errors
from yardmaster_gateway.context import CurrentCaller, gateway_of
from yardmaster_gateway.http import problems
from yardmaster_gateway.identity.authorization import Caller
from yardmaster_schemas.api import FieldError

T = TypeVar("T")
#: The prefix of body schemas, so that their names differ from those of answers.
BODY_PREFIX: Final = "Given"


async def _content(request: Request) -> bytes:
    gateway = gateway_of(request)
    limit = gateway.settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 16 and int(declared) > limit:
        raise errors.TooLarge(found=f"the body has {declared} bytes, the limit is {limit}")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise errors.TooLarge(found=f"the body exceeds the limit of {limit} bytes")
        parts.append(part)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise errors.WrongMediaType(found=repr(kind[:64]) if kind else "missing")
    return b"".join(parts)


def body_of(model: type[T]) -> Callable[[Request, Caller], Awaitable[T]]:
    """Return a FastAPI dependency that reads and validates the request's body as `model`.

    The dependency needs the caller, so the gateway reads no body of an unauthenticated request.
    """
    adapter = TypeAdapter(model)

    async def read(request: Request, caller: CurrentCaller) -> T:
        content = await _content(request)
        _check_json(content)
        try:
            return adapter.validate_json(content)
        except ValidationError as error:
            fields = problems.fields_of(error)
            if error.errors(include_url=False)[0]["type"] == "json_invalid":
                raise errors.Malformed(
                    found=f"the body is not valid JSON: {fields[0].detail}"
                ) from None
            raise invalid_body(fields) from None

    return read


def _check_json(content: bytes) -> None:
    """Refuse repeated keys, and NaN and Infinity, which the parser of models would accept.

    For a repeated key, that parser uses the last value; the reader of job files refuses it too.

    Raises: Malformed.
    """
    try:
        json.loads(content, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        # Not JSON, nested too deep, or a number with too many digits for `int`: the parser of
        # models has the same limits or lower ones, and reports the place.
        return


def _unique(pairs: Sequence[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return  # a Counter of each object would take ten times as long as parsing the body
    counts = Counter(key for key, _ in pairs)
    for key, count in counts.items():
        if count > 1:
            raise errors.Malformed(found=f"the key {key[:64]!r} of the body occurs {count} times")


def _no_constant(name: str) -> None:
    raise errors.Malformed(found=f"the body is not valid JSON: {name} is no number")


def invalid_body(fields: Sequence[FieldError]) -> errors.InvalidBody:
    """Return the error for an invalid body; its message names the first three invalid fields."""
    named = [f"{one.pointer[1:].replace('/', '.') or 'body'}: {one.detail}" for one in fields[:3]]
    return errors.InvalidBody(fields, found="; ".join(named))


def request_body(model: Any, *, required: bool = True) -> dict[str, Any]:
    """The `requestBody` entry of an endpoint in the OpenAPI document."""
    name = model.__name__
    schema = {"$ref": f"#/components/schemas/{BODY_PREFIX}{name}"}
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }
