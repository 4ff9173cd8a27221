"""Errors as problem documents (RFC 9457); alone knows status codes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from yardmaster_eventlog.errors import (
    AppendOutcomeUnknown,
    BatchTooLarge,
    LogClosed,
    LogError,
    LogUnavailable,
)
from yardmaster_gateway import errors
from yardmaster_projections.errors import ViewsError
from yardmaster_schemas.api import PROBLEM_JSON, FieldError, Problem
from yardmaster_schemas.errors import YardmasterError


@dataclass(frozen=True, slots=True)
class Kind:
    """What an error is over HTTP: its status, and what the caller can do."""

    status: int
    hint: str | None = None


#: What is said of views that cannot be used.
AWAY: Final = "the views cannot be read now"
_TRY_LATER: Final = "nothing was recorded; try again with the same Idempotency-Key"
KINDS: Final[Mapping[str, Kind]] = {
    "malformed": Kind(400),
    "bad_cursor": Kind(400, "start again without the cursor"),
    "unauthenticated": Kind(401, "send Authorization: Bearer TOKEN; see `yard login`"),
    "forbidden": Kind(403, "ask an operator for a role"),
    "not_found": Kind(404),
    "method_not_allowed": Kind(405, "see /openapi.json"),
    "wrong_phase": Kind(409),
    "in_use": Kind(409, "empty it first"),
    "position_unknown": Kind(410, "start without a position; this may be another log"),
    "version_mismatch": Kind(412, "read it again, then decide again"),
    "already_exists": Kind(412, "choose another name, or change it with its ETag as If-Match"),
    "too_large": Kind(413),
    "unsupported_media_type": Kind(415, "send Content-Type: application/json"),
    "invalid_spec": Kind(422),
    "idempotency_mismatch": Kind(422, "use another key for another job"),
    "precondition_required": Kind(428, "read it first, then send its ETag as If-Match"),
    "rate_limited": Kind(429, "wait as long as Retry-After says"),
    "internal": Kind(500, "this is a defect; report the trace id"),
    "view_behind": Kind(503, "try again, or read without min_position"),
    "views_unavailable": Kind(503, "submits go on; try again as Retry-After says"),
    "busy": Kind(503, _TRY_LATER),
    "not_ready": Kind(503, "try again"),
    "log_unavailable": Kind(503, _TRY_LATER),
    "outcome_unknown": Kind(504, "send it again with the same Idempotency-Key"),
}
#: Codes that every endpoint under /v1 may answer with.
ANYWHERE: Final = (
    "malformed",
    "unauthenticated",
    "rate_limited",
    "position_unknown",
    "view_behind",
    "views_unavailable",
    "log_unavailable",
)


def problem_responses(*codes: str, anywhere: bool = True) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI responses of an endpoint that answers with these codes, beside its own."""
    by_status: dict[int, list[str]] = {}
    for code in (*codes, *(ANYWHERE if anywhere else ())):
        known = by_status.setdefault(KINDS[code].status, [])
        if code not in known:
            known.append(code)
    return {
        status: {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(found)}",
            "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, found in sorted(by_status.items())
    }


def answer(
    code: str,
    detail: str,
    trace_id: str | None,
    *,
    fields: Iterable[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer that says what is the matter."""
    kind = KINDS[code]
    problem = Problem(
        type=f"urn:yardmaster:problem:{code}",
        title=code.replace("_", " "),
        status=kind.status,
        detail=detail,
        code=code,
        hint=kind.hint,
        trace_id=trace_id,
        errors=list(fields),
    )
    sent = dict(headers or {})
    if kind.status == HTTPStatus.SERVICE_UNAVAILABLE:
        sent.setdefault("Retry-After", "1")
    return Response(
        problem.model_dump_json(), status_code=kind.status, headers=sent, media_type=PROBLEM_JSON
    )


def code_of(error: YardmasterError) -> str:
    """The code under which an error of the gateway or the log is answered."""
    if isinstance(error, AppendOutcomeUnknown):
        return "outcome_unknown"
    if isinstance(error, BatchTooLarge):
        return "too_large"
    if isinstance(error, LogUnavailable | LogClosed):
        return "log_unavailable"
    if isinstance(error, ViewsError):
        return "views_unavailable"
    known = isinstance(error, errors.GatewayError) and error.code in KINDS
    return error.code if known else "internal"


def fields_of(error: ValidationError) -> list[FieldError]:
    """What is wrong, place by place; a form that was not meant shows once, not once a branch."""
    found: dict[str, FieldError] = {}
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        pointer = "".join(f"/{_escaped(part)}" for part in one["loc"] if part not in _BRANCHES)
        detail = one["msg"].removeprefix("Value error, ")
        found.setdefault(pointer, FieldError(pointer=pointer, code=one["type"], detail=detail))
    return list(found.values())


#: What pydantic adds to a place where several forms are allowed.
_BRANCHES: Final = frozenset({"number", "shares", "range", "int", "float"})


def _methods_at(request: Request) -> list[str]:
    """The methods of all operations at a request's path; routing knows only the first route's."""
    return sorted(
        method.upper()
        for path, operations in request.app.openapi()["paths"].items()
        if _pattern(path).match(request.url.path)
        for method in operations
    )


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return compile_path(path)[0]


def _escaped(part: object) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")


def install(app: FastAPI) -> None:
    """Have `app` answer every error with a problem document."""

    def trace(request: Request) -> str | None:
        found = getattr(request.state, "trace_id", None)
        return found if isinstance(found, str) else None

    async def refused(request: Request, error: Exception) -> Response:
        if not isinstance(error, YardmasterError):
            raise error
        code = code_of(error)
        if code == "internal":
            return await broken(request, error)
        if isinstance(error, ViewsError):
            return without_views(request, error)
        headers: dict[str, str] = {}
        if isinstance(error, errors.RateLimited):
            headers["Retry-After"] = str(error.retry_s)
        if isinstance(error, errors.Unauthenticated):
            headers["WWW-Authenticate"] = 'Bearer realm="yardmaster"'
        fields = error.errors if isinstance(error, errors.InvalidBody) else ()
        return answer(code, str(error), trace(request), fields=fields, headers=headers)

    def without_views(request: Request, error: ViewsError) -> Response:
        # Where Redis is, and why it does not answer, is the operator's to know.
        gateway = request.app.state.gateway
        gateway.without_views.inc()
        gateway.ports.telemetry.warn(
            "views_unavailable", code=error.code, found=str(error)[:500], trace_id=trace(request)
        )
        return answer("views_unavailable", AWAY, trace(request))

    async def misread(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        found = [
            FieldError(
                pointer="/" + "/".join(str(part) for part in one["loc"][1:]),
                code=str(one["type"]),
                detail=str(one["msg"]),
            )
            for one in error.errors()
        ]
        detail = "; ".join(f"{one.pointer[1:]}: {one.detail}" for one in found[:3])
        return answer("malformed", detail, trace(request), fields=found)

    async def framework(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        known = {404: "not_found", 405: "method_not_allowed"}
        code = known.get(error.status_code, "malformed")
        path = request.url.path[:200]
        if code != "method_not_allowed":
            where = f"there is nothing at {request.method} {path}"
            return answer(code, where, trace(request))
        allow = ", ".join(_methods_at(request)) or (error.headers or {}).get("Allow", "")
        detail = f"{path} does not take {request.method[:32]}; it takes {allow}"
        return answer(code, detail, trace(request), headers={"Allow": allow})

    async def broken(request: Request, error: Exception) -> Response:
        telemetry = request.app.state.gateway.ports.telemetry
        telemetry.error(
            "request_failed",
            error=type(error).__name__,
            found=str(error)[:500],
            trace_id=trace(request),
        )
        return answer("internal", "the gateway failed", trace(request))

    app.add_exception_handler(errors.GatewayError, refused)
    app.add_exception_handler(LogError, refused)
    app.add_exception_handler(ViewsError, refused)
    app.add_exception_handler(RequestValidationError, misread)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(Exception, broken)
