"""`/livez`, `/readyz`, `/metrics`: open to all, and without anything of anybody's."""

from typing import Final, Literal, NoReturn

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.requests import Request

from yardmaster_eventlog.errors import LogError
from yardmaster_gateway.context import CurrentGateway, Gateway
from yardmaster_gateway.problems import VIEWS_UNAVAILABLE, answer, problem_responses
from yardmaster_projections import queries
from yardmaster_projections.errors import ViewsError
from yardmaster_runtime.telemetry.health import Health as ProcessHealth
from yardmaster_schemas.topics import REQUESTS

router = APIRouter(tags=["health"])

_METRICS: Final = CONTENT_TYPE_LATEST
#: How often a process looks how it goes.
LOOK_S: Final = 2.0


class Health(BaseModel):
    """How it goes; `degraded` is ready, but for what `found` says."""

    status: Literal["ok", "ready", "degraded", "not_ready"]
    found: str | None = None


async def health_of(gateway: Gateway) -> Health:
    """How it goes, asked of the log and of the views."""
    if gateway.failed is not None:
        return Health(status="not_ready", found=gateway.failed)
    try:
        await gateway.end(REQUESTS.name)
    except LogError as error:
        return Health(status="not_ready", found=str(error))
    try:
        seen = await queries.log(gateway.views.store, gateway.cell)
        if seen is None:
            # Views that were there and are not were lost, and are being filled again.
            found = "the views have not seen the log's first record"
            return Health(status="degraded" if gateway.seen_views else "not_ready", found=found)
        gateway.seen_views = True
        await gateway.views.position()
    except ViewsError:
        return Health(status="degraded", found=VIEWS_UNAVAILABLE)
    return Health(status="ready")


async def tell(gateway: Gateway, process: ProcessHealth) -> NoReturn:
    """Say it on the process's own port too, until cancelled."""
    while True:
        health = await health_of(gateway)
        process.report("gateway", health.found if health.status == "not_ready" else None)
        await gateway.ports.clock.sleep(LOOK_S)


@router.get("/livez", operation_id="live", response_model=Health)
async def live() -> Health:
    """Whether the process answers."""
    return Health(status="ok")


@router.get(
    "/readyz",
    operation_id="ready",
    response_model=Health,
    response_model_exclude_none=True,
    responses=problem_responses("not_ready", anywhere=False),
)
async def ready(request: Request, gateway: CurrentGateway) -> Health | Response:
    """Whether the log can be reached and the views have begun to follow it.

    Without the views' store the gateway is ready, `degraded`: it takes submits, reads answer 503.
    (Were it not, a Redis that is away would take every gateway out of service at once.) So it is
    while views that were lost are filled again.
    """
    health = await health_of(gateway)
    if health.status == "not_ready":
        return answer("not_ready", health.found or "", request.state.trace_id)
    return health


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Metrics in Prometheus' text format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
async def metrics(gateway: CurrentGateway) -> Response:
    """The gateway's metrics."""
    return Response(gateway.ports.telemetry.exposition(), media_type=_METRICS)
