"""How a process says that it lives, that it is ready, and what it counts.

`/livez` answers while the event loop turns. `/readyz` answers 200 when no part of the service has a
reason not to be ready, else 503 with the reasons. `/metrics` is Prometheus' text format. Nothing in
them is anybody's secret, but they are for the operator's network, on a port of their own.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from yardmaster_runtime.telemetry.port import Telemetry

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Health:
    """What the parts of one process say of themselves."""

    def __init__(self) -> None:
        self._reasons: dict[str, str | None] = {}

    def say(self, part: str, reason: str | None = None) -> None:
        """`part` is ready, or is not for this reason."""
        self._reasons[part] = reason

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why the process is not ready, by part; a process of which nothing was said is not."""
        if not self._reasons:
            return {"process": "starting"}
        return {part: reason for part, reason in self._reasons.items() if reason is not None}


def health_app(health: Health, telemetry: Telemetry) -> Callable[..., Awaitable[None]]:
    """The ASGI app of `/livez`, `/readyz` and `/metrics`."""

    async def app(scope: Mapping[str, Any], receive: object, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, {"error": "only GET is answered here"})
            return
        match scope["path"]:
            case "/livez":
                await _answer(send, 200, {"status": "ok"})
            case "/readyz":
                reasons = health.reasons
                if reasons:
                    await _answer(send, 503, {"status": "not_ready", "reasons": dict(reasons)})
                else:
                    await _answer(send, 200, {"status": "ready"})
            case "/metrics":
                await _send(send, 200, CONTENT_TYPE_LATEST, telemetry.exposition())
            case _:
                await _answer(send, 404, {"error": "there are /livez, /readyz and /metrics"})

    return app


async def _answer(send: Send, status: int, body: object) -> None:
    await _send(send, status, "application/json", json.dumps(body).encode())


async def _send(send: Send, status: int, kind: str, body: bytes) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
