"""`/livez`, `/readyz`, `/metrics`: public, without user data."""

import asyncio
from contextlib import suppress
from typing import Final, Literal, NoReturn

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.requests import Request

from yardmaster_eventlog.errors import LogError
from yardmaster_gateway.context import CurrentGateway, Gateway
from yardmaster_gateway.http.problems import VIEWS_UNAVAILABLE, answer, problem_responses
from yardmaster_projections import queries
from yardmaster_projections.errors import ViewsAhead, ViewsError
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.health import Health as ProcessHealth
from yardmaster_runtime.waiting import within
from yardmaster_schemas.topics import REQUESTS

router = APIRouter(tags=["health"])

_METRICS: Final = CONTENT_TYPE_LATEST
#: The interval between two reports to the health port, in seconds.
CHECK_S: Final = 1.0
#: The longest waits of a check for the log and for the views, in seconds. Their sum is less than a
#: second.
LOG_S: Final = 0.5
VIEWS_S: Final = 0.3
#: Seconds without an answer of the log, after which the gateway is not ready.
SILENT_S: Final = 15.0


class Health(BaseModel):
    """The health of the gateway. `degraded` is ready, with the restriction that `found` names."""

    status: Literal["ok", "ready", "degraded", "not_ready"]
    found: str | None = None


async def _log_fault(gateway: Gateway) -> str | None:
    """Why the gateway cannot serve from the log, or None."""
    fault = gateway.ports.log_fault()
    if fault is not None:
        return fault
    try:
        await gateway.end(REQUESTS.name)
    except LogError as error:
        return str(error)
    if gateway.ports.identity is None:
        if not gateway.access.complete:
            return "the users are not read from the log yet"
        if not gateway.imported:
            return "quota has not recorded the users of the token file yet"
    return None


async def _views_health(gateway: Gateway) -> Health:
    try:
        seen = await queries.log(gateway.views.store, gateway.cell)
        if seen is None:
            # If the views contained the record before, they were lost and are being rebuilt.
            found = "the views do not contain the log's first record yet"
            return Health(status="degraded" if gateway.seen_views else "not_ready", found=found)
        gateway.seen_views = True
        await gateway.views.position()
    except ViewsAhead as error:
        return Health(status="not_ready", found=str(error))
    except ViewsError:
        return Health(status="degraded", found=VIEWS_UNAVAILABLE)
    return Health(status="ready")


class HealthCheck:
    """Checks the health of a gateway; all callers, on the API port and the health port, share it.

    A check takes less than a second, and its result is used for `ready_age_s` seconds. If the store
    of the views does not answer within `VIEWS_S`, it counts as unavailable. If the log does not
    answer, its last result still counts for `SILENT_S`: a gateway without a log is taken out of
    service, which a short delay must not cause.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._lock = asyncio.Lock()
        self._checked: tuple[float, Health] | None = None
        #: When the log answered last (`monotonic_s`), and the fault that was found then, or None.
        self._log: tuple[float, str | None] | None = None

    async def result(self) -> Health:
        """The health, at most `ready_age_s` old."""
        async with self._lock:
            now_s = self._gateway.ports.clock.monotonic_s()
            max_age_s = self._gateway.settings.ready_age_s
            if self._checked is None or now_s - self._checked[0] >= max_age_s:
                self._checked = now_s, await self._check(now_s)
            return self._checked[1]

    async def _check(self, now_s: float) -> Health:
        gateway, clock = self._gateway, self._gateway.ports.clock
        if gateway.failed is not None:
            return Health(status="not_ready", found=gateway.failed)
        with suppress(TimeoutError):
            self._log = now_s, await within(clock, LOG_S, _log_fault(gateway))
        if self._log is None or now_s - self._log[0] >= SILENT_S:
            return Health(status="not_ready", found="the log does not answer")
        if self._log[1] is not None:
            return Health(status="not_ready", found=self._log[1])
        try:
            return await within(clock, VIEWS_S, _views_health(gateway))
        except TimeoutError:
            return Health(status="degraded", found=VIEWS_UNAVAILABLE)


async def report_health(check: HealthCheck, clock: Clock, process: ProcessHealth) -> NoReturn:
    """Report the health to the health port of the process too, until cancelled."""
    while True:
        health = await check.result()
        degraded = health.status == "degraded"
        process.report("gateway", None if health.status == "ready" else health.found, degraded)
        await clock.sleep(CHECK_S)


@router.get("/livez", operation_id="live", response_model=Health)
async def live() -> Health:
    """Check that the process is running."""
    return Health(status="ok")


@router.get(
    "/readyz",
    operation_id="ready",
    response_model=Health,
    response_model_exclude_none=True,
    responses=problem_responses("not_ready", anywhere=False),
)
async def ready(request: Request) -> Health | Response:
    """Check that the gateway can read the log, and that the views follow it.

    If the store of the views is unavailable, the gateway is ready but `degraded`: it accepts jobs,
    and reads return 503. Otherwise an outage of Redis would take every gateway out of service at
    once. The same applies while lost views are being rebuilt. Views that contain records that the
    log lost make the gateway not ready.
    """
    health: Health = await request.app.state.health.result()
    if health.status == "not_ready":
        return answer("not_ready", health.found or "", request.state.trace_id)
    return health


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Metrics in the Prometheus text format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
async def metrics(gateway: CurrentGateway) -> Response:
    """Show the gateway's metrics."""
    return Response(gateway.ports.telemetry.exposition(), media_type=_METRICS)
