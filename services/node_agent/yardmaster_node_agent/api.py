"""The agent's HTTP API for its own tasks: stop, checkpoint, progress, done.

It listens on the loopback interface and, for containers with a network of their own, on a Unix
socket. The token of an attempt's replica gives access to that replica only. A request with another
Host header, or from a web page, is refused, so that an attacker gets no access by a name that
resolves to 127.0.0.1.
"""

import json
import socket
from asyncio import TaskGroup
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_node_agent.supervision import CheckpointRefused, StepNotRising, Supervision
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.http import (
    HttpError,
    HttpServer,
    Request,
    Response,
    json_response,
    listen,
    listen_at,
)

HOST: Final = "127.0.0.1"
#: The most seconds that one request may wait for a stop.
MAX_WAIT_S: Final = 60.0


class TaskApi:
    """Serves the API; call `listen`, then `run`."""

    def __init__(
        self, find: Callable[[str], Supervision | None], clock: Clock, metrics: AgentMetrics
    ) -> None:
        self._find = find
        self._server = HttpServer(
            self._respond,
            clock,
            on_response=lambda status: metrics.requests.labels(str(status)).inc(),
            on_connection_refused=metrics.connections_refused.inc,
        )
        self._listeners: list[socket.socket] = []
        self.port = 0

    def listen(self, port: int) -> None:
        """Reserve a port (0: any); requests are served by `run`.

        Raises:
            CannotListen.
        """
        listener = listen(HOST, port)
        self._listeners.append(listener)
        self.port = listener.getsockname()[1]

    def listen_at(self, path: Path) -> None:
        """Create a Unix socket for containers; requests are served by `run`.

        Raises: OSError.
        """
        self._listeners.append(listen_at(path))

    async def run(self) -> None:
        """Serve until cancelled."""
        assert self._listeners, "listen first"
        async with TaskGroup() as group:
            for listener in self._listeners:
                group.create_task(self._server.run(listener))

    def close(self) -> None:
        """Release the port and the socket."""
        for listener in self._listeners:
            listener.close()

    async def _respond(self, request: Request) -> Response:
        names = ("localhost", f"localhost:{self.port}", f"{HOST}:{self.port}")
        if request.headers.get("host") not in names:
            raise HttpError(403, "the Host header is not this agent's")
        if "origin" in request.headers:
            raise HttpError(403, "web pages may not use this API")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        supervision = self._find(token) if scheme.lower() == "bearer" and token else None
        if supervision is None:
            raise HttpError(
                401, "send the attempt's token: Authorization: Bearer $YARD_AGENT_TOKEN"
            )
        status, content = await self._route(request, supervision)
        return json_response(status, content)

    async def _route(
        self, request: Request, supervision: Supervision
    ) -> tuple[int, dict[str, Any]]:
        """Execute a request of a task; return the HTTP status and the content of the answer."""
        body = request.body
        match (request.method, request.path):
            case ("GET", "/v1/stop"):
                wait_s = _seconds(parse_qs(request.query).get("wait_s", ["0"])[0])
                if wait_s and supervision.stop_notice() is None:
                    await supervision.wait_stop(wait_s)
                return 200, {"stop": supervision.stop_notice()}
            case ("POST", "/v1/checkpoints"):
                self._checkpoint(supervision, _object(body))
                return 200, {}
            case ("POST", "/v1/progress"):
                permille = _object(body).get("permille")
                # `true` is an int for Python, and makes a record that no reader accepts.
                if type(permille) is not int or not 0 <= permille <= 1000:
                    raise HttpError(422, "permille: an integer from 0 to 1000")
                supervision.record_progress(permille)
                return 202, {}
            case ("POST", "/v1/done"):
                supervision.finish()
                return 200, {}
            case (_, "/v1/stop" | "/v1/checkpoints" | "/v1/progress" | "/v1/done"):
                raise HttpError(405, "GET /v1/stop, POST the others")
            case _:
                raise HttpError(404, "there are /v1/stop, /v1/checkpoints, /v1/progress, /v1/done")

    def _checkpoint(self, supervision: Supervision, content: dict[str, Any]) -> None:
        try:
            supervision.record_checkpoint(content)
        except StepNotRising as refused:
            raise HttpError(409, str(refused), "step_not_rising") from None
        except CheckpointRefused as refused:
            raise HttpError(422, str(refused)) from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise HttpError(400, "the body is not JSON") from None
    if not isinstance(content, dict):
        raise HttpError(422, "the body must be a JSON object")
    return content


def _seconds(text: str) -> float:
    if not text.isdecimal() or len(text) > 6:
        raise HttpError(422, "wait_s: whole seconds")
    return min(float(text), MAX_WAIT_S)
