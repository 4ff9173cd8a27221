"""`/livez`, `/readyz`, `/metrics`: open to all, and without anything of anybody's."""

from typing import Final

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.requests import Request

from yardmaster.eventlog.errors import LogError
from yardmaster.gateway.context import Gate
from yardmaster.gateway.problems import answer, documented
from yardmaster.projections import queries
from yardmaster.schemas.topics import REQUESTS

router = APIRouter(tags=["health"])

_METRICS: Final = CONTENT_TYPE_LATEST


class Health(BaseModel):
    """How it goes."""

    status: str


@router.get("/livez", operation_id="live", response_model=Health)
async def live() -> Health:
    """Whether the process answers."""
    return Health(status="ok")


@router.get(
    "/readyz",
    operation_id="ready",
    response_model=Health,
    responses=documented("not_ready", anywhere=False),
)
async def ready(request: Request, gateway: Gate) -> Health | Response:
    """Whether the log can be reached and the views have begun to follow it."""
    try:
        await gateway.end(REQUESTS.name)
    except LogError as error:
        return answer("not_ready", str(error), request.state.trace_id)
    if await queries.log(gateway.ports.views, gateway.cell) is None:
        found = "the views have not seen the log's first record"
        return answer("not_ready", found, request.state.trace_id)
    return Health(status="ready")


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
async def metrics(gateway: Gate) -> Response:
    """The gateway's metrics."""
    return Response(gateway.ports.telemetry.exposition(), media_type=_METRICS)
