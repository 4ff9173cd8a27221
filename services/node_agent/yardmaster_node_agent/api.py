"""The agent's HTTP API for its own tasks: stop, checkpoint, progress, and nothing else.

Loopback only, one request a connection, a token for each attempt's replica that sees that replica
alone. A request whose Host is not this address, or that a browser's page sent, is refused: a name
that an attacker lets resolve to 127.0.0.1 gets nothing. h11 parses; every size and time has a
limit.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import h11

from yardmaster_node_agent.metrics import AgentMetrics
from yardmaster_node_agent.supervision import CheckpointRefused, StepNotRising, Supervision
from yardmaster_node_agent.waiting import within
from yardmaster_runtime.clock import Clock

HOST: Final = "127.0.0.1"
#: Connections at a time; more are closed at once, and the task tries again.
MAX_CONNECTIONS: Final = 512
MAX_HEAD_BYTES: Final = 8192
MAX_BODY_BYTES: Final = 8192
#: For a whole request to arrive.
REQUEST_S: Final = 10.0
#: The longest a task may wait for a stop in one request.
MAX_WAIT_S: Final = 60.0

_TITLES: Final = {
    400: "malformed",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "step_not_rising",
    413: "too_large",
    422: "invalid",
}

Answer = tuple[int, dict[str, Any]]


class Refused(Exception):
    """A request is answered with a status that says no."""

    def __init__(self, status: int, detail: str) -> None:
        self.status = status
        self.detail = detail


class TaskApi:
    """Serves the tasks; `listen`, then `run`."""

    def __init__(
        self, find: Callable[[str], Supervision | None], clock: Clock, metrics: AgentMetrics
    ) -> None:
        self._find = find
        self._clock = clock
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._group: asyncio.TaskGroup | None = None
        self._connections = 0
        self.port = 0

    async def listen(self, port: int) -> None:
        """Take a port (0: any); nothing is answered before `run`.

        Raises:
            OSError: it is taken.
        """
        self._server = await asyncio.start_server(
            self._connected, HOST, port, limit=MAX_HEAD_BYTES, start_serving=False
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def run(self) -> None:
        """Answer until cancelled."""
        assert self._server is not None, "listen first"
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._server.start_serving()
                await asyncio.Event().wait()
        finally:
            self.close()

    def close(self) -> None:
        """Give the port back."""
        if self._server is not None:
            self._server.close()

    # Not a coroutine: then asyncio would make a task that nobody owns.
    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._group is None or self._connections >= MAX_CONNECTIONS:
            self._metrics.connections_refused.inc()
            writer.close()
            return
        self._connections += 1
        self._group.create_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        try:
            answer = await self._heard(connection, reader, writer)
            self._metrics.requests.labels(str(answer[0])).inc()
            await within(self._clock, REQUEST_S, _send(connection, writer, answer))
        except (OSError, TimeoutError, h11.LocalProtocolError):
            pass  # the task went away, or never said what it wanted
        finally:
            self._connections -= 1
            writer.close()

    async def _heard(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Answer:
        """Hear one request out and answer it; what is wrong with it is an answer too."""
        try:
            request, body = await within(
                self._clock, REQUEST_S, _receive(connection, reader, writer)
            )
            return await self._answer(request, body)
        except Refused as refused:
            code = _TITLES[refused.status]
            return refused.status, {
                "title": code.replace("_", " "),
                "code": code,
                "status": refused.status,
                "detail": refused.detail,
            }

    async def _answer(self, request: h11.Request, body: bytes) -> Answer:
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        if headers.get("host") not in (f"{HOST}:{self.port}", f"localhost:{self.port}"):
            raise Refused(403, "the Host is not this agent's")
        if "origin" in headers:
            raise Refused(403, "not for web pages")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        supervision = self._find(token) if scheme.lower() == "bearer" and token else None
        if supervision is None:
            raise Refused(401, "give the attempt's token: Authorization: Bearer $YARD_AGENT_TOKEN")
        target = urlsplit(request.target.decode("latin-1"))
        route = (request.method.decode(), target.path)
        match route:
            case ("GET", "/v1/stop"):
                wait_s = _seconds(parse_qs(target.query).get("wait_s", ["0"])[0])
                if wait_s and supervision.stop_notice() is None:
                    await supervision.wait_stop(wait_s)
                return 200, {"stop": supervision.stop_notice()}
            case ("POST", "/v1/checkpoints"):
                self._checkpoint(supervision, _object(body))
                return 200, {}
            case ("POST", "/v1/progress"):
                permille = _object(body).get("permille")
                if not isinstance(permille, int) or not 0 <= permille <= 1000:
                    raise Refused(422, "permille: an integer from 0 to 1000")
                supervision.take_progress(permille)
                return 202, {}
            case ("POST", "/v1/done"):
                supervision.finish()
                return 200, {}
            case (_, "/v1/stop" | "/v1/checkpoints" | "/v1/progress" | "/v1/done"):
                raise Refused(405, "GET /v1/stop, POST the others")
            case _:
                raise Refused(404, "there are /v1/stop, /v1/checkpoints, /v1/progress, /v1/done")

    def _checkpoint(self, supervision: Supervision, content: dict[str, Any]) -> None:
        try:
            supervision.take_checkpoint(content)
        except StepNotRising as refused:
            raise Refused(409, str(refused)) from None
        except CheckpointRefused as refused:
            raise Refused(422, str(refused)) from None


async def _receive(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[h11.Request, bytes]:
    """One whole request."""
    request: h11.Request | None = None
    body = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise Refused(400, str(error)) from None
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = connection.send(h11.InformationalResponse(status_code=100, headers=[]))
                writer.write(go_on or b"")
            connection.receive_data(await reader.read(4096))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise Refused(413, f"at most {MAX_BODY_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            return request, body
        else:
            raise ConnectionResetError("no request")


async def _send(connection: h11.Connection, writer: asyncio.StreamWriter, answer: Answer) -> None:
    status, content = answer
    body = json.dumps(content).encode()
    kind = b"application/json" if status < 400 else b"application/problem+json"
    head = h11.Response(
        status_code=status,
        headers=[
            (b"Content-Type", kind),
            (b"Content-Length", str(len(body)).encode()),
            (b"Cache-Control", b"no-store"),
            (b"Connection", b"close"),
        ],
    )
    for event in (head, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()


def _object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    if not isinstance(content, dict):
        raise Refused(422, "the body is a JSON object")
    return content


def _seconds(text: str) -> float:
    if not text.isdecimal() or len(text) > 6:
        raise Refused(422, "wait_s: whole seconds")
    return min(float(text), MAX_WAIT_S)
