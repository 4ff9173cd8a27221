"""The gateway as an ASGI application: its routers, its middleware and its OpenAPI document."""

import asyncio
from functools import cache
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yardmaster_gateway.context import (
    Gateway,
    GatewayPorts,
    current_caller,
    reject_unknown_parameters,
    reject_writes_to_a_short_log,
)
from yardmaster_gateway.http import problems
from yardmaster_gateway.http.writes import trace_of
from yardmaster_gateway.reference import api_page
from yardmaster_gateway.reference.openapi import document_of
from yardmaster_gateway.routes import (
    about,
    artifacts,
    cell,
    client_wheel,
    departments,
    enrollment,
    erasure,
    events,
    health,
    jobs,
    logs,
    nodes,
    packages,
    pools,
    projects,
    rules,
    shares,
    tasks,
    usage,
    users,
    watch,
)
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_runtime.distribution import installed_version
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.telemetry.tracing import (
    ending,
    fail,
    start_span,
    trace_id_of,
    traceparent_of,
)

PREFIX: Final = "/v1"


class RequestMiddleware:
    """Adds to every request a trace span, metrics, a log line, and security headers."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        gateway = self._gateway
        telemetry = gateway.ports.telemetry
        given = Headers(scope=scope).get("traceparent")
        valid = None if trace_id_of(given) is None else given
        span: Span = INVALID_SPAN
        if scope["path"].startswith(f"{PREFIX}/"):
            span = start_span(telemetry.tracer, scope["method"], parent=valid, kind=SpanKind.SERVER)
        # The request's records carry the span's trace context, or else the caller's.
        traceparent = traceparent_of(span) or valid
        trace = trace_id_of(traceparent) or trace_of(given, gateway.ports.chance)
        state = scope.setdefault("state", {})
        state["trace_id"] = trace
        state["traceparent"] = traceparent
        started = gateway.ports.clock.monotonic_s()
        # Unknown methods share one label value, because a metric keeps every value for ever.
        method = scope["method"] if scope["method"] in _METHODS else "other"

        response_started = False
        # Every GET has a HEAD (RFC 9110, section 9.3.2), with the same answer without the content.
        # `send_part` drops the content, and ends the response of a stream, which has no end.
        head = scope["method"] == "HEAD"
        served = {**scope, "method": "GET"} if head else scope
        head_ended = False

        async def send_part(part: Message) -> None:
            nonlocal response_started, head_ended
            if head and part["type"] == "http.response.body":
                if head_ended:
                    return
                head_ended, part = True, {"type": "http.response.body", "body": b""}
            if part["type"] == "http.response.start":
                response_started = True
                headers = MutableHeaders(scope=part)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Trace-Id"] = trace
                headers.setdefault("Cache-Control", "no-store")
                gateway.requests.labels(method, str(part["status"])).inc()
                duration_s = gateway.ports.clock.monotonic_s() - started
                gateway.seconds.labels(method).observe(duration_s)
                _log_request(telemetry, span, served, method, part["status"], duration_s, trace)
            await send(part)

        # The span ends when the response starts, because a watch lasts for hours.
        with ending(span):
            try:
                await self._app(served, receive, send_part)
            except ClientDisconnect:
                # The client's body ended early: nothing was recorded, and no answer reaches it.
                gateway.disconnected.inc()
                telemetry.info("client_disconnected", method=method, trace_id=trace)
            except asyncio.CancelledError:
                if response_started:
                    raise
                # The gateway stops while the request waits. A read can be repeated; a write may be
                # in the log already. The answer is written without waiting, so it is sent even if
                # the request is cancelled again.
                code = "not_ready" if scope["method"] in ("GET", "HEAD") else "outcome_unknown"
                stopping = problems.answer(code, "The gateway is stopping.", trace)
                await stopping(scope, receive, send_part)


def _log_request(
    telemetry: Telemetry,
    span: Span,
    scope: Scope,
    method: str,
    status: int,
    duration_s: float,
    trace: str,
) -> None:
    """Log the request and end its span. The log line has the route, not the names in the path."""
    if not scope["path"].startswith(f"{PREFIX}/"):
        return
    route = scope.get("route")
    path = f"{PREFIX}{route.path}" if isinstance(route, APIRoute) else "unknown"
    span.update_name(f"{method} {path}")
    span.set_attributes(
        {
            "http.request.method": method,
            "http.route": path,
            "http.response.status_code": status,
        }
    )
    if status >= 500:
        fail(span, str(status))
    span.end()
    telemetry.info(
        "request",
        method=method,
        route=path,
        status=status,
        took_ms=round(duration_s * 1000, 1),
        trace_id=trace,
    )


_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


def create_app(ports: GatewayPorts, settings: GatewaySettings) -> FastAPI:
    """Return a gateway on `ports`. It keeps only caches, so several gateways can serve one cell."""
    gateway = Gateway(ports, settings)
    app = FastAPI(
        title="Yardmaster",
        version=installed_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    app.state.health = health.HealthCheck(gateway)
    app.include_router(_api())
    app.include_router(client_wheel.router)
    app.include_router(health.router)
    app.include_router(api_page.router_of(_page))
    problems.install(app)
    app.add_middleware(RequestMiddleware, gateway=gateway)
    app.openapi = lambda: document()  # type: ignore[method-assign]
    return app


@cache
def _api() -> APIRouter:
    """The router of all endpoints under `/v1`. Routes have no state, so apps share them."""
    # The caller is authenticated before anything of the request is validated.
    api = APIRouter(
        prefix=PREFIX,
        dependencies=[
            Depends(current_caller),
            Depends(reject_unknown_parameters),
            Depends(reject_writes_to_a_short_log),
        ],
    )
    for module in (
        *(jobs, erasure, tasks, logs, nodes, enrollment, pools, projects, departments, cell),
        *(packages, artifacts, shares, usage, events, watch, about, rules, users),
    ):
        api.include_router(module.router)
    return api


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of every gateway of this version."""
    app = FastAPI()
    app.include_router(_api())
    app.include_router(client_wheel.router)
    app.include_router(health.router)
    return document_of(app)


@cache
def _page() -> str:
    """Return the OpenAPI document as a page. It is built once, because it is served to anyone."""
    return api_page.html_of(document())
