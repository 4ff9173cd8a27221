"""Errors as problem documents (RFC 9457). Only this module assigns HTTP status codes."""

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
    LogCorrupt,
    LogError,
    LogTruncated,
    LogUnavailable,
)
from yardmaster_gateway import errors
from yardmaster_projections.errors import ViewsAhead, ViewsError
from yardmaster_schemas.api import PROBLEM_JSON, FieldError, Problem
from yardmaster_schemas.errors import YardmasterError


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """The HTTP status of an error code, and a hint: what the caller can do."""

    status: int
    hint: str | None = None


#: The detail of every answer that failed because the views cannot be read.
VIEWS_UNAVAILABLE: Final = "The views are unavailable at the moment."
_TRY_LATER: Final = "nothing was recorded; try again with the same Idempotency-Key"
KINDS: Final[Mapping[str, ProblemKind]] = {
    "malformed": ProblemKind(400),
    "bad_cursor": ProblemKind(400, "list again without a cursor"),
    "unauthenticated": ProblemKind(401, "send Authorization: Bearer TOKEN; see `yard login`"),
    "forbidden": ProblemKind(403, "ask an operator for a role"),
    "not_found": ProblemKind(404),
    "method_not_allowed": ProblemKind(405, "see /openapi.json"),
    "wrong_phase": ProblemKind(409),
    "in_use": ProblemKind(409, "remove or end what uses it, then delete it"),
    "position_unknown": ProblemKind(410, "start without a position; the server may use a new log"),
    "position_expired": ProblemKind(
        410, "continue after the position in the detail; the records before it are lost"
    ),
    "version_mismatch": ProblemKind(412, "review it and try again"),
    "already_exists": ProblemKind(
        412, "choose another name, or change it by sending its ETag as If-Match"
    ),
    "too_large": ProblemKind(413),
    "unsupported_media_type": ProblemKind(415, "send Content-Type: application/json"),
    "invalid_spec": ProblemKind(422),
    "invalid_package": ProblemKind(422, "pack the folder again, and upload it under its digest"),
    "idempotency_mismatch": ProblemKind(422, "use a new Idempotency-Key for a different job"),
    "precondition_required": ProblemKind(
        428, "read the object first, then send its ETag as If-Match"
    ),
    "rate_limited": ProblemKind(429, "wait for the seconds given in Retry-After"),
    "internal": ProblemKind(500, "this is a bug; report it with the trace id"),
    "no_packages": ProblemKind(
        501, "ask an operator to set YARD_PACKAGES of the gateways, or submit without a context"
    ),
    "no_artifacts": ProblemKind(
        501, "ask an operator to set YARD_ARTIFACTS of the gateways, or submit without artifacts"
    ),
    "view_behind": ProblemKind(503, "try again, or read without min_position"),
    "views_unavailable": ProblemKind(
        503, "jobs can still be submitted; retry reads after Retry-After"
    ),
    "packages_unavailable": ProblemKind(503, "nothing was stored; try again"),
    "artifacts_unavailable": ProblemKind(503, "try again"),
    "busy": ProblemKind(503, _TRY_LATER),
    "not_ready": ProblemKind(503, "try again"),
    "log_unavailable": ProblemKind(503, _TRY_LATER),
    "outcome_unknown": ProblemKind(504, "send the request again with the same Idempotency-Key"),
}
#: Codes that every endpoint under /v1 may return.
ANYWHERE: Final = (
    "malformed",
    "unauthenticated",
    "rate_limited",
    "position_unknown",
    "view_behind",
    "views_unavailable",
    "log_unavailable",
    "not_ready",
)


def problem_responses(*codes: str, anywhere: bool = True) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of an endpoint that may fail with these error codes.

    With `anywhere`, the codes that every endpoint may return are added.
    """
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
    """A problem document as a response."""
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
    """The problem code of an error of the gateway, the log or the views."""
    if isinstance(error, AppendOutcomeUnknown):
        return "outcome_unknown"
    if isinstance(error, BatchTooLarge):
        return "too_large"
    if isinstance(error, LogUnavailable | LogClosed | LogTruncated | LogCorrupt | ViewsAhead):
        return "log_unavailable"
    if isinstance(error, ViewsError):
        return "views_unavailable"
    known = isinstance(error, errors.GatewayError) and error.code in KINDS
    return error.code if known else "internal"


def fields_of(error: ValidationError) -> list[FieldError]:
    """The errors of a body, one per field.

    A field that allows several forms yields one error, not one per form.
    """
    found: dict[str, FieldError] = {}
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        pointer = "".join(f"/{_escaped(part)}" for part in one["loc"] if part not in _BRANCHES)
        detail = one["msg"].removeprefix("Value error, ")
        found.setdefault(pointer, FieldError(pointer=pointer, code=one["type"], detail=detail))
    return list(found.values())


#: The parts that pydantic adds to an error's location where several forms are allowed.
_BRANCHES: Final = frozenset({"number", "shares", "range", "int", "float"})


def _methods_at(request: Request) -> list[str]:
    """The methods of all operations at the request's path.

    Starlette's `Allow` header names only the methods of the first route with this path.
    """
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
    """Make `app` answer every error with a problem document."""

    def trace(request: Request) -> str | None:
        found = getattr(request.state, "trace_id", None)
        return found if isinstance(found, str) else None

    async def refused(request: Request, error: Exception) -> Response:
        if not isinstance(error, YardmasterError):
            raise error
        code = code_of(error)
        if code == "internal":
            return await broken(request, error)
        if isinstance(error, ViewsError) and not isinstance(error, ViewsAhead):
            return without_views(request, error)
        headers: dict[str, str] = {}
        if isinstance(error, errors.RateLimited):
            headers["Retry-After"] = str(error.retry_s)
        if isinstance(error, errors.Unauthenticated):
            headers["WWW-Authenticate"] = 'Bearer realm="yardmaster"'
        fields = error.errors if isinstance(error, errors.InvalidBody) else ()
        return answer(code, str(error), trace(request), fields=fields, headers=headers)

    def without_views(request: Request, error: ViewsError) -> Response:
        # The address of Redis and the cause go to the operator's log, not to the caller.
        gateway = request.app.state.gateway
        gateway.without_views.inc()
        gateway.ports.telemetry.warn(
            "views_unavailable", code=error.code, found=str(error)[:500], trace_id=trace(request)
        )
        return answer("views_unavailable", VIEWS_UNAVAILABLE, trace(request))

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
            where = f"There is no endpoint {request.method} {path}."
            return answer(code, where, trace(request))
        allow = ", ".join(_methods_at(request)) or (error.headers or {}).get("Allow", "")
        detail = f"{path} does not support {request.method[:32]}; it supports {allow}."
        return answer(code, detail, trace(request), headers={"Allow": allow})

    async def broken(request: Request, error: Exception) -> Response:
        telemetry = request.app.state.gateway.ports.telemetry
        telemetry.error(
            "request_failed",
            error=type(error).__name__,
            found=str(error)[:500],
            trace_id=trace(request),
        )
        return answer("internal", "The gateway failed to handle the request.", trace(request))

    app.add_exception_handler(errors.GatewayError, refused)
    app.add_exception_handler(LogError, refused)
    app.add_exception_handler(ViewsError, refused)
    app.add_exception_handler(RequestValidationError, misread)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(Exception, broken)
