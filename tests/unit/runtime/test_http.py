"""The small HTTP server of health endpoints and of agents; its listening socket serves all."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from tests.support.garbage import GARBAGE, noise
from yardmaster_runtime import http
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.http import (
    CannotListen,
    HttpServer,
    Request,
    Response,
    json_response,
    listen,
)


@dataclass
class Served:
    """A running server and what it was called with."""

    port: int
    clock: ManualClock
    statuses: list[int] = field(default_factory=list)
    refused: int = 0

    def count_refusal(self) -> None:
        self.refused += 1

    async def send(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        response = await reader.read()
        writer.close()
        return response


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    async def respond(request: Request) -> Response:
        return json_response(200, {"path": request.path, "query": request.query})

    listener = listen("127.0.0.1", 0)
    served = Served(listener.getsockname()[1], ManualClock())
    server = HttpServer(
        respond,
        served.clock,
        on_response=served.statuses.append,
        on_connection_refused=served.count_refusal,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.run(listener))
        yield served
        task.cancel()


async def test_a_request_is_answered_and_the_connection_is_closed() -> None:
    async with serving() as served:
        head, _, body = (await served.send(b"GET /a?b=1 HTTP/1.1\r\nHost: x\r\n\r\n")).partition(
            b"\r\n\r\n"
        )
    assert b" 200 " in head
    assert b"Connection: close" in head
    assert body == b'{"path": "/a", "query": "b=1"}'
    assert served.statuses == [200]


async def test_the_response_to_head_has_no_body() -> None:
    async with serving() as served:
        response = await served.send(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b" 200 " in response
    assert response.endswith(b"\r\n\r\n")


async def test_a_request_that_does_not_arrive_in_time_ends_its_connection() -> None:
    async with serving() as served, asyncio.TaskGroup() as group:
        sending = group.create_task(served.send(b"GET /a HTTP/1.1\r\n"))
        while not sending.done():
            await asyncio.sleep(0.01)
            served.clock.advance(http.REQUEST_S)
        assert await sending == b""
    assert served.statuses == []


async def test_garbage_from_anyone_ends_its_own_connection_and_no_service() -> None:
    async with serving() as served:
        for sent in (*GARBAGE, *noise(7, 200)):
            with suppress(ConnectionError):
                reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
                writer.write(sent)
                writer.write_eof()
                await reader.read()
                writer.close()
        assert b" 200 " in await served.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for target in (b"//[", b"http://[::1/livez"):
            answer = await served.send(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 400 " in answer
            assert b"not a URL" in answer


async def test_connections_above_the_limit_are_closed_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    async with serving() as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        await asyncio.sleep(0.05)  # the server accepts it, which nothing shows
        assert await served.send(b"") == b""
        assert served.refused == 1
        writer.close()
        await asyncio.sleep(0.05)  # the server notices the end, which nothing shows either
        assert b" 200 " in await served.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def test_an_accepted_connection_sends_at_once() -> None:
    """Otherwise each answer on a reused connection waits for the client's delayed ACK."""
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()[:2]),
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_named() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(CannotListen, match=str(port)):
            listen("127.0.0.1", port)
