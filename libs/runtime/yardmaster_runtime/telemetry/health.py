"""The health endpoint of a process: whether it lives, whether it is ready, and its metrics.

`/livez` answers while the event loop runs. `/readyz` answers 200 when every part of the service is
ready, else 503 with the reasons. `/metrics` is Prometheus' text format. The responses hold no
secrets, but they are meant for the operator's network and have a port of their own.
"""

from collections.abc import Mapping

from prometheus_client import CONTENT_TYPE_LATEST

from yardmaster_runtime.http import Handler, HttpError, Request, Response, json_response
from yardmaster_runtime.telemetry.port import Telemetry


class Health:
    """Which parts of one process are ready."""

    def __init__(self) -> None:
        self._reasons: dict[str, str | None] = {}
        self._degraded: dict[str, str] = {}

    def report(self, part: str, reason: str | None = None, degraded: bool = False) -> None:
        """Report whether `part` is ready: without a `reason`, it is.

        `reason` says why the part is not ready or, with `degraded`, with which restriction it is.
        """
        self._reasons[part] = None if degraded else reason
        self._degraded.pop(part, None)
        if degraded and reason is not None:
            self._degraded[part] = reason

    @property
    def restrictions(self) -> Mapping[str, str]:
        """The restrictions under which the process is ready, by part."""
        return self._degraded

    @property
    def reasons(self) -> Mapping[str, str]:
        """The reasons why the process is not ready, by part; before any report it is not ready."""
        if not self._reasons:
            return {"process": "starting"}
        return {part: reason for part, reason in self._reasons.items() if reason is not None}


def health_handler(health: Health, telemetry: Telemetry) -> Handler:
    """Serve `/livez`, `/readyz` and `/metrics`."""

    async def respond(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "only GET is allowed")
        match request.path:
            case "/livez":
                return json_response(200, {"status": "ok"})
            case "/readyz" if reasons := health.reasons:
                return json_response(503, {"status": "not_ready", "reasons": dict(reasons)})
            case "/readyz" if restrictions := health.restrictions:
                content = {"status": "degraded", "reasons": dict(restrictions)}
                return json_response(200, content)
            case "/readyz":
                return json_response(200, {"status": "ready"})
            case "/metrics":
                return Response(200, telemetry.exposition(), CONTENT_TYPE_LATEST)
            case _:
                raise HttpError(404, "the paths are /livez, /readyz and /metrics")

    return respond
