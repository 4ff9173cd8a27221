"""What every write has in common: on whose behalf, under which key, on which condition."""

import re
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import Depends, Header, Request, Response

from yardmaster_gateway import errors
from yardmaster_gateway.context import CurrentCaller, Gateway, gateway_of
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
    """On whose behalf the request's records are written, in the caller's trace if it names one."""
    context: str | None = request.state.traceparent
    if context is None:
        # Nobody follows it: the flag says so, and the id is that of log lines and problems.
        span = gateway_of(request).ports.chance.hex("span", 16)
        context = f"00-{request.state.trace_id}-{span}-00"
    return RequestOrigin(caller, context)


def trace_of(header: str | None, chance: Chance) -> str:
    """The trace id of a `traceparent` header, or a new one (32 hex digits)."""
    return trace_id_of(header) or chance.hex("trace", 32)


Origin = Annotated[RequestOrigin, Depends(request_origin)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", pattern=r"^[\x21-\x7e]{1,255}$")]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=1000)]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match", max_length=1000)]


def ensure_key(gateway: Gateway, given: str | None, response: Response) -> str:
    """The request's idempotency key, made up where none was given; the answer names it."""
    key = given if given is not None else gateway.ports.chance.hex("idempotency key", 32)
    response.headers["Idempotency-Key"] = key
    return key


async def note(
    gateway: Gateway, reason: str | None, subject: str, origin: RequestOrigin
) -> DetailsRef | None:
    """Record a reason in words where it can be erased; None when there is none."""
    if not reason:
        return None
    salt = gateway.ports.chance.hex("details salt", 32)
    noted = RequestNotedV1(salt=salt, subject=subject, text=reason)
    return await gateway.writer.detail(noted, f"note.{salt}", subject, origin)


def etag(revision: int | str) -> str:
    """A revision as an ETag."""
    return f'"{revision}"'


def check_condition(
    what: str, current: int | str | None, if_match: str | None, if_none_match: str | None = None
) -> int | str | None:
    """Check a write's condition against what the views have (`current`; None: it does not exist).

    Returns the revision that quota is to find: 0 when it must not exist, None when any will do.

    Raises:
        PreconditionRequired: there is no condition.
        AlreadyExists: it must not exist.
        VersionMismatch: it does not hold.
        Malformed: it is none.
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


def as_revision(found: int | str | None) -> int | None:
    """The revision that a condition gave, as requests carry it."""
    return found if isinstance(found, int) else None


async def record_requests(
    gateway: Gateway, events: Sequence[tuple[Event, str]], origin: RequestOrigin, response: Response
) -> Accepted:
    """Record requests; returns the 202 answer, whose position is in the headers too."""
    offset = await gateway.writer.record(events, origin)
    position = str(Position(cell=gateway.cell, requests=offset + len(events)))
    response.headers["Yard-Position"] = position
    ids = [f"{gateway.cell}.{offset + index}" for index in range(len(events))]
    return Accepted(request_ids=ids, position=position)
