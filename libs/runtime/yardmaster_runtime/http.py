"""A small HTTP/1.1 server: the health endpoint of every service and an agent's API for its tasks.

h11 parses and asyncio serves, so that a node's host needs no web framework; the gateway uses
uvicorn. A connection carries one request. Sizes, times and the number of connections are limited.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

import h11

from yardmaster_runtime.clock import Clock
from yardmaster_runtime.errors import MachineError
from yardmaster_runtime.waiting import within

#: Open connections of one server; more are closed at once.
MAX_CONNECTIONS: Final = 512
MAX_HEAD_BYTES: Final = 8192
MAX_BODY_BYTES: Final = 8192
#: Seconds for a whole request to arrive, and again for its response to be sent.
REQUEST_S: Final = 10.0

_CODES: Final = {
    400: "malformed",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    422: "invalid",
}


class CannotListen(MachineError):
    """Cannot listen on {host}:{port}: {found}. Choose another port."""

    code = "cannot_listen"


class HttpError(Exception):
    """The request is answered with `status` and a problem document."""

    def __init__(self, status: int, detail: str, code: str | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or _CODES[status]


@dataclass(frozen=True, slots=True)
class Request:
    """One request; the names of `headers` are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """A status and a body."""

    status: int
    body: bytes
    content_type: str = "application/json"


#: Answers a request. Raises: HttpError.
Handler = Callable[[Request], Awaitable[Response]]


def json_response(status: int, content: object, content_type: str = "application/json") -> Response:
    """A response with a JSON body."""
    return Response(status, json.dumps(content).encode(), content_type)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 lets the system choose a port.

    Raises:
        CannotListen.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # Accepted sockets inherit TCP_NODELAY. asyncio sets the option only if the listener names
        # its protocol; without the option, each response on a reused connection waits 40 ms for
        # the client's ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise CannotListen(host=host, port=port, found=error.strerror or error) from error


def listen_at(path: Path) -> socket.socket:
    """A listening Unix socket that every user may connect to who reaches its folder.

    The file of an earlier socket is replaced.

    Raises: OSError: the folder cannot be made, or has no sockets.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX)
    try:
        # A path of more than 107 bytes is no address of a socket, and folders may have longer ones.
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o666)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


class HttpServer:
    """Serves `handler` on one socket or several."""

    def __init__(
        self,
        handler: Handler,
        clock: Clock,
        *,
        on_response: Callable[[int], object] = lambda status: None,
        on_connection_refused: Callable[[], object] = lambda: None,
    ) -> None:
        self._handler = handler
        self._clock = clock
        self._on_response = on_response
        self._on_connection_refused = on_connection_refused
        self._connections = 0

    async def run(self, listener: socket.socket) -> NoReturn:
        """Serve until cancelled; `listener` is closed then."""
        with listener:
            async with asyncio.TaskGroup() as group:
                # This callback is not a coroutine function, because asyncio would run the coroutine
                # in a task that has no owner.
                def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    if self._connections >= MAX_CONNECTIONS:
                        self._on_connection_refused()
                        writer.close()
                        return
                    self._connections += 1
                    group.create_task(self._serve(reader, writer))

                server = await asyncio.start_server(connected, sock=listener, limit=MAX_HEAD_BYTES)
                try:
                    await asyncio.Event().wait()
                finally:
                    server.close()
        raise AssertionError("it ends only by cancellation")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        try:
            response = await self._respond(connection, reader, writer)
            self._on_response(response.status)
            await within(self._clock, REQUEST_S, _send(connection, writer, response))
        except (OSError, TimeoutError, h11.LocalProtocolError):
            pass  # the client went away, or did not finish its request in time
        finally:
            self._connections -= 1
            writer.close()

    async def _respond(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Response:
        """The response to the connection's request; an error in the request has a response too."""
        try:
            request = await within(self._clock, REQUEST_S, _receive(connection, reader, writer))
            response = await self._handler(request)
            return replace(response, body=b"") if request.method == "HEAD" else response
        except HttpError as error:
            problem = {
                "title": error.code.replace("_", " "),
                "code": error.code,
                "status": error.status,
                "detail": error.detail,
            }
            return json_response(error.status, problem, "application/problem+json")


async def _receive(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request:
    """Receive one whole request.

    Raises:
        HttpError: the request is malformed or too large.
        ConnectionResetError: the connection ended before the request was complete.
    """
    head: h11.Request | None = None
    body = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise HttpError(400, str(error)) from None
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                proceed = connection.send(h11.InformationalResponse(status_code=100, headers=[]))
                writer.write(proceed or b"")
            connection.receive_data(await reader.read(4096))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise HttpError(413, f"at most {MAX_BODY_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            try:
                target = urlsplit(head.target.decode("latin-1"))
            except ValueError:  # such as `//[`, an incomplete IPv6 address
                raise HttpError(400, "the target of the request is not a URL") from None
            headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
            return Request(head.method.decode(), target.path, target.query, headers, body)
        else:
            raise ConnectionResetError("no request")


async def _send(
    connection: h11.Connection, writer: asyncio.StreamWriter, response: Response
) -> None:
    head = h11.Response(
        status_code=response.status,
        headers=[
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
        ],
    )
    for event in (head, h11.Data(data=response.body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()
