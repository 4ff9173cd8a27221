"""Clients without a token cannot take all connections of a gateway, nor hold them for ever."""

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from tests.support.views import telemetry
from yardmaster_gateway.connections import ConnectionLimits, open_files_limit
from yardmaster_gateway.server import Server
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_runtime.http import listen

REQUEST = b"GET / HTTP/1.1\r\nhost: gateway\r\n\r\n"
LAST_REQUEST = b"GET / HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n"
HALF = REQUEST[:20]
SOON_S = 10.0


class App:
    """Answers each request once `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.asked = asyncio.Event()
        self.answers.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        await self.answers.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Clients:
    """Connections to a server, each from a given address."""

    def __init__(self, port: int, app: App) -> None:
        self.port = port
        self.app = app
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(
        self, sent: bytes, address: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(address, 0)
        )
        self._writers.append(writer)
        writer.write(sent)
        return reader, writer

    async def status(self, sent: bytes, address: str = "127.0.0.1") -> int:
        reader, _ = await self.connect(sent, address)
        return await status_of(reader)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()


async def status_of(reader: asyncio.StreamReader) -> int:
    line = await asyncio.wait_for(reader.readline(), SOON_S)
    return int(line.split()[1])


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that the server still sends before it closes the connection."""
    return await asyncio.wait_for(reader.read(), SOON_S)


@asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[Clients]:
    limits = ConnectionLimits(GatewaySettings(**settings), telemetry("gateway"))
    app = App()
    running = Server(app, limits)
    with listen("127.0.0.1", 0) as bound:
        serving = asyncio.create_task(running.serve(sockets=[bound]))
        clients = Clients(bound.getsockname()[1], app)
        try:
            yield clients
        finally:
            await clients.close()
            running.abort()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("sent", [b"", HALF])
async def test_a_connection_without_a_whole_head_is_closed(sent: bytes) -> None:
    async with server(head_s=0.2) as clients:
        reader, _ = await clients.connect(sent)
        assert await status_of(reader) == 408
        await ended(reader)


async def test_half_a_head_after_a_response_is_closed_too() -> None:
    async with server(head_s=0.2) as clients:
        reader, writer = await clients.connect(REQUEST)
        assert await status_of(reader) == 204
        writer.write(HALF)
        assert b" 408 " in await ended(reader)


async def test_the_deadline_of_the_head_does_not_end_a_request_in_progress() -> None:
    async with server(head_s=0.2) as clients:
        clients.app.answers.clear()
        waiting, _ = await clients.connect(REQUEST)
        await asyncio.wait_for(clients.app.asked.wait(), SOON_S)
        late, _ = await clients.connect(HALF)
        assert await status_of(late) == 408, "more than the deadline has passed"
        clients.app.answers.set()
        assert await status_of(waiting) == 204


async def test_one_address_takes_half_of_the_connections_at_most() -> None:
    async with server(max_connections=40, head_s=60) as clients:
        held = [await clients.connect(HALF) for _ in range(20)]
        assert await clients.status(REQUEST) == 503
        assert await clients.status(REQUEST, "127.0.0.2") == 204
        reader, writer = held[0]
        writer.write(LAST_REQUEST[len(HALF) :])
        assert b" 204 " in await ended(reader)
        assert await clients.status(REQUEST) == 204, "a closed connection frees its place"


async def test_all_addresses_together_take_no_more_than_all_connections() -> None:
    async with server(max_connections=10, head_s=60) as clients:
        for number in range(10):
            await clients.connect(HALF, f"127.0.0.{number + 2}")
        assert await clients.status(REQUEST) == 503


@contextmanager
def open_files(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_of_open_files_is_raised_for_the_connections() -> None:
    with open_files(512):
        assert open_files_limit(700) == 700
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 700
        assert open_files_limit(100) == 100, "it is never reduced"
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 700
