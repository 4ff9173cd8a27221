"""Bodies of requests: read up to a limit, parse_position strictly, and described for OpenAPI."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from yardmaster_gateway import errors, problems
from yardmaster_gateway.authorization import Caller
from yardmaster_gateway.context import CurrentCaller, gateway_of
from yardmaster_schemas.api import FieldError

T = TypeVar("T")
#: Schemas of bodies are named apart from those of answers.
BODY_PREFIX: Final = "Given"


async def _content(request: Request) -> bytes:
    gateway = gateway_of(request)
    most = gateway.settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 16 and int(declared) > most:
        raise errors.TooLarge(found=f"{declared} bytes, {most} are taken")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise errors.TooLarge(found=f"more than {most} bytes")
        parts.append(part)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise errors.WrongMediaType(found=f"of type {kind[:64]!r}" if kind else "of no type")
    return b"".join(parts)


def body_of(model: type[T]) -> Callable[[Request, Caller], Awaitable[T]]:
    """A dependency that reads the request's body as `model`, strictly.

    The body is read only after the caller is known, so that nobody else makes the gateway work.
    """
    adapter = TypeAdapter(model)

    async def read(request: Request, caller: CurrentCaller) -> T:
        content = await _content(request)
        try:
            return adapter.validate_json(content)
        except ValidationError as error:
            fields = problems.fields_of(error)
            if error.errors(include_url=False)[0]["type"] == "json_invalid":
                raise errors.Malformed(found=f"the body is no JSON: {fields[0].detail}") from None
            raise invalid_body(fields) from None

    return read


def invalid_body(fields: Sequence[FieldError]) -> errors.InvalidBody:
    """The refusal of a body, naming the places."""
    shown = [f"{one.pointer[1:].replace('/', '.') or 'body'}: {one.detail}" for one in fields[:3]]
    return errors.InvalidBody(fields, found="; ".join(shown))


def request_body(model: Any, *, required: bool = True) -> dict[str, Any]:
    """The OpenAPI description of an endpoint whose body is `model`."""
    name = model.__name__
    schema = {"$ref": f"#/components/schemas/{BODY_PREFIX}{name}"}
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }
