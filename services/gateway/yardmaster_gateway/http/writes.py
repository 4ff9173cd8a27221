"""The common part of all writes: origin, requests, idempotency key, and conditional headers."""

import re
from typing import Annotated, Final

from fastapi import Depends, Header, Request, Response

from yardmaster_gateway import errors
from yardmaster_gateway.context import (
    CurrentCaller,
    CurrentGateway,
    Gateway,
    Read,
    ReadContext,
    gateway_of,
)
from yardmaster_gateway.request_writer import RequestOrigin
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.telemetry.tracing import trace_id_of
from yardmaster_schemas.api import Accepted
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.details import RequestNotedV1
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.position import Position

_ETAG: Final = re.compile(r'\s*"([\x21\x23-\x7e]{1,100})"\s*')


async def request_origin(request: Request, caller: CurrentCaller) -> RequestOrigin:
    """The origin of the request's records: the caller and the trace context."""
    traceparent: str | None = request.state.traceparent
    if traceparent is None:
        # The trace is not sampled (flag 00). Log lines and problem documents have its id too.
        span = gateway_of(request).ports.chance.hex("span", 16)
        traceparent = f"00-{request.state.trace_id}-{span}-00"
    return RequestOrigin(caller, traceparent)


def trace_of(header: str | None, chance: Chance) -> str:
    """The trace id of a `traceparent` header, or a new one (32 hex digits)."""
    return trace_id_of(header) or chance.hex("trace", 32)


Origin = Annotated[RequestOrigin, Depends(request_origin)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", pattern=r"^[\x21-\x7e]{1,255}$")]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=1000)]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match", max_length=1000)]


class WriteContext:
    """Records the requests of one call; the answer names their position."""

    def __init__(self, gateway: CurrentGateway, response: Response, origin: Origin) -> None:
        self.gateway = gateway
        self.caller = origin.caller
        self._response = response
        self._origin = origin

    async def record(self, subject: str, *events: Event) -> Accepted:
        """Append requests about a subject to the log; return the body of the answer 202.

        The header `Yard-Position` of the answer is set to the position after the requests.
        """
        gateway = self.gateway
        offset = await gateway.writer.record([(event, subject) for event in events], self._origin)
        position = str(Position(cell=gateway.cell, requests=offset + len(events)))
        self._response.headers["Yard-Position"] = position
        ids = [f"{gateway.cell}.{offset + index}" for index in range(len(events))]
        return Accepted(request_ids=ids, position=position)

    async def note(self, subject: str, reason: str | None) -> DetailsRef | None:
        """Record the user's reason in `details`, where it can be erased; None without a reason."""
        if not reason:
            return None
        gateway = self.gateway
        salt = gateway.ports.chance.hex("details salt", 32)
        noted = RequestNotedV1(salt=salt, subject=subject, text=reason)
        return await gateway.writer.record_detail(noted, f"note.{salt}", subject, self._origin)


Write = Annotated[WriteContext, Depends()]


def ensure_key(gateway: Gateway, key: str | None, response: Response) -> str:
    """Return the idempotency key, generated if None, and put it into the response's headers."""
    if key is None:
        key = gateway.ports.chance.hex("idempotency key", 32)
    response.headers["Idempotency-Key"] = key
    return key


async def _repeatable(read: Read, response: Response, idempotency_key: Key = None) -> ReadContext:
    """Return the context of the read, after the idempotency key was put into the answer."""
    ensure_key(read.gateway, idempotency_key, response)
    return read


#: The context of a request that a client may repeat under the same key.
Repeatable = Annotated[ReadContext, Depends(_repeatable)]


def etag(revision: int | str) -> str:
    """Return the ETag of a revision: the revision in double quotes."""
    return f'"{revision}"'


def check_condition(
    what: str, current: int | str | None, if_match: str | None, if_none_match: str | None = None
) -> int | str | None:
    """Check a write's conditional headers against the revision in the views.

    `current` is None if the object does not exist. Returns the revision that quota must find: 0 if
    the object must not exist, None if any revision will do.

    Raises:
        PreconditionRequired: the request has no condition.
        AlreadyExists: `If-None-Match: *` was sent, and the object exists.
        VersionMismatch: `If-Match` does not name the current revision.
        Malformed: a header is malformed.
    """
    if if_none_match is not None and if_match is None:
        if if_none_match.strip() != "*":
            raise errors.Malformed(found="If-None-Match must be *")
        if current is not None:
            raise errors.AlreadyExists(what=what)
        return 0
    if if_match is None:
        raise errors.PreconditionRequired(what=what)
    if if_match.strip() == "*":
        if current is None:
            raise errors.VersionMismatch(what=what, found="it does not exist")
        return None
    tags = []
    for part in if_match.split(","):
        match = _ETAG.fullmatch(part)
        if match is None:
            raise errors.Malformed(found="If-Match must be a list of quoted ETags, or *")
        tags.append(match[1])
    if current is None or str(current) not in tags:
        found = "it does not exist" if current is None else f"its ETag is now {etag(current)}"
        raise errors.VersionMismatch(what=what, found=found)
    return current


def as_revision(checked: int | str | None) -> int | None:
    """Return the result of `check_condition` as a number, for `if_revision` of a request."""
    return checked if isinstance(checked, int) else None
