"""The gateway as an ASGI application: its routers, what surrounds each request, its OpenAPI."""

import asyncio
from functools import cache
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from yardmaster_gateway import (
    about,
    departments,
    enrollment,
    erasure,
    events,
    health,
    jobs,
    logs,
    nodes,
    pools,
    problems,
    projects,
    tasks,
    usage,
    watch,
)
from yardmaster_gateway.context import (
    Gateway,
    GatewayPorts,
    current_caller,
    reject_unknown_parameters,
)
from yardmaster_gateway.openapi import document_of
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_gateway.writes import trace_of
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.telemetry.tracing import NO_SPAN, Span, trace_id_of

PREFIX: Final = "/v1"


class RequestMiddleware:
    """What every request gets: a trace id, a count, its time, and headers against guessing."""

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
        span: Span = NO_SPAN
        if scope["path"].startswith(f"{PREFIX}/"):
            above = None if trace_id_of(given) is None else given
            span = telemetry.tracer.span(scope["method"], parent=above, kind="server")
        trace = span.trace_id or trace_of(given, gateway.ports.chance)
        state = scope.setdefault("state", {})
        state["trace_id"] = trace
        # What the request's records carry: the span, or what the caller said.
        state["traceparent"] = span.traceparent or (given if trace_id_of(given) else None)
        started = gateway.ports.clock.monotonic_s()
        # Only methods that exist are counted by name: a label is kept for ever.
        method = scope["method"] if scope["method"] in _METHODS else "other"

        begun = False

        async def sending(part: Message) -> None:
            nonlocal begun
            if part["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=part)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Trace-Id"] = trace
                headers.setdefault("Cache-Control", "no-store")
                gateway.requests.labels(method, str(part["status"])).inc()
                took = gateway.ports.clock.monotonic_s() - started
                gateway.seconds.labels(method).observe(took)
                _say(telemetry, span, scope, method, part["status"], took, trace)
            await send(part)

        # It ends when the answer begins: a watch goes on for hours.
        with span:
            try:
                await self._app(scope, receive, sending)
            except asyncio.CancelledError:
                if begun:
                    raise
                # The gateway stops in the middle of a long read: the caller asks again. A write may
                # be in the log. Cancelled once more it would end, but the answer is written without
                # waiting.
                code = "not_ready" if scope["method"] in ("GET", "HEAD") else "outcome_unknown"
                stopping = problems.answer(code, "the gateway is stopping", trace)
                await stopping(scope, receive, sending)


def _say(
    telemetry: Telemetry,
    span: Span,
    scope: Scope,
    method: str,
    status: int,
    took_s: float,
    trace: str,
) -> None:
    """The request's line and the end of its span; of the path only the route, without names."""
    if not scope["path"].startswith(f"{PREFIX}/"):
        return
    route = scope.get("route")
    path = f"{PREFIX}{route.path}" if isinstance(route, APIRoute) else "unknown"
    span.rename(f"{method} {path}")
    span.set(
        {
            "http.request.method": method,
            "http.route": path,
            "http.response.status_code": status,
        }
    )
    if status >= 500:
        span.fail(str(status))
    span.end()
    telemetry.info(
        "request",
        method=method,
        route=path,
        status=status,
        took_ms=round(took_s * 1000, 1),
        trace_id=trace,
    )


_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


def create_app(ports: GatewayPorts, settings: GatewaySettings) -> FastAPI:
    """A gateway on these ports; keeps no state but caches, so several may serve one cell."""
    gateway = Gateway(ports, settings)
    app = FastAPI(
        title="Yardmaster",
        version=about.software_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    app.include_router(_api())
    app.include_router(health.router)
    problems.install(app)
    app.add_middleware(RequestMiddleware, gateway=gateway)
    app.openapi = lambda: document()  # type: ignore[method-assign]
    return app


@cache
def _api() -> APIRouter:
    """All under `/v1`; routes hold no state, so apps share them."""
    # Known first, then read: nobody unknown learns what an endpoint takes.
    api = APIRouter(
        prefix=PREFIX, dependencies=[Depends(current_caller), Depends(reject_unknown_parameters)]
    )
    for module in (
        *(jobs, erasure, tasks, logs, nodes, enrollment, pools, projects, departments),
        *(usage, events, watch, about),
    ):
        api.include_router(module.router)
    return api


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of every gateway of this version."""
    app = FastAPI()
    app.include_router(_api())
    app.include_router(health.router)
    return document_of(app)
