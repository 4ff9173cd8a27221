"""Clients without a token cannot take all connections of a gateway, nor hold them for ever."""

import asyncio
import io
import json
import resource
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from tests.support.garbage import GARBAGE, noise
from tests.support.gateway import GatewayCell
from tests.support.views import telemetry
from yardmaster_gateway.http.connections import ConnectionLimits, open_files_limit
from yardmaster_gateway.http.server import Server
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.http import listen
from yardmaster_runtime.telemetry.library_logs import LibraryLogs
from yardmaster_runtime.telemetry.port import Telemetry

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


async def open_requests(clients: Clients, addresses: Sequence[str]) -> list[asyncio.StreamReader]:
    """Connections with a request in progress."""
    clients.app.answers.clear()
    held = []
    for address in addresses:
        clients.app.asked.clear()
        held.append((await clients.connect(REQUEST, address))[0])
        await asyncio.wait_for(clients.app.asked.wait(), SOON_S)
    return held


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
        held = await open_requests(clients, ["127.0.0.1"] * 20)
        assert await clients.status(REQUEST) == 503
        reader, _ = await clients.connect(REQUEST, "127.0.0.2")
        clients.app.answers.set()
        assert await status_of(reader) == 204
        for each in held:
            assert await status_of(each) == 204


async def test_all_addresses_together_take_no_more_than_all_connections() -> None:
    async with server(max_connections=10, head_s=60) as clients:
        await open_requests(clients, [f"127.0.0.{number + 2}" for number in range(10)])
        assert await clients.status(REQUEST) == 503


async def test_half_open_connections_stop_no_other_of_any_address() -> None:
    async with server(max_connections=40, head_s=60) as clients:
        half_open = [await clients.connect(HALF) for _ in range(60)]
        half_open += [await clients.connect(HALF, f"127.0.1.{n + 1}") for n in range(60)]
        for address in ("127.0.0.1", "127.0.0.2", "127.0.1.1"):
            assert await clients.status(REQUEST, address) == 204
        with suppress(ConnectionError):
            assert await ended(half_open[0][0]) == b"", "the oldest one was closed"
        reader, writer = half_open[-1]
        writer.write(LAST_REQUEST[len(HALF) :])
        assert b" 204 " in await ended(reader), "the newest one may still become a request"


async def test_a_body_that_does_not_end_is_closed_and_others_go_on() -> None:
    async with server(body_s=0.2) as clients:
        clients.app.answers.clear()
        head = b"POST / HTTP/1.1\r\nhost: gateway\r\ncontent-length: 50\r\n\r\n{"
        slow, writer = await clients.connect(head)
        whole, _ = await clients.connect(head + b" " * 49)
        writer.write(b" ")
        assert await status_of(slow) == 408
        await ended(slow)
        clients.app.answers.set()
        assert await status_of(whole) == 204, "a whole body has no deadline"


async def test_an_upload_has_a_deadline_of_its_own() -> None:
    async with server(body_s=0.1, upload_s=0.6) as clients:
        clients.app.answers.clear()
        started = asyncio.get_running_loop().time()
        head = b" HTTP/1.1\r\nhost: gateway\r\ncontent-length: 50\r\n\r\n{"
        upload, _ = await clients.connect(b"PUT /v1/packages/nlp/abc" + head)
        for request in (b"POST /v1/packages/nlp/abc", b"PUT /v1/projects/nlp"):
            other, _ = await clients.connect(request + head)
            assert await status_of(other) == 408
        assert asyncio.get_running_loop().time() - started < 0.5, "the others had less time"
        assert await status_of(upload) == 408
        assert asyncio.get_running_loop().time() - started > 0.5


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


async def test_a_malformed_request_is_one_line_of_the_service() -> None:
    lines = io.StringIO()
    said = Telemetry("gateway", now_ms=SystemClock().now_ms, stream=lines)
    library_logs = LibraryLogs(said, SystemClock().monotonic_s)
    library_logs.install()
    try:
        async with server() as clients:
            assert await clients.status(b"NOT HTTP\r\n\r\n") == 400
    finally:
        library_logs.remove()
    (line,) = [json.loads(each) for each in lines.getvalue().splitlines()]
    assert (line["event"], line["found"]) == ("library", "Invalid HTTP request received.")


async def test_garbage_from_anyone_ends_its_own_connection_and_is_no_error_of_the_gateway() -> None:
    cell = await GatewayCell().start()
    limits = ConnectionLimits(GatewaySettings(head_s=0.1), telemetry("gateway"))
    with listen("127.0.0.1", 0) as bound:
        running = Server(cell.app, limits)
        serving = asyncio.create_task(running.serve(sockets=[bound]))
        clients = Clients(bound.getsockname()[1], App())
        try:
            for sent in (*GARBAGE, *noise(11, 100)):
                with suppress(ConnectionError):
                    reader, writer = await clients.connect(sent)
                    writer.write_eof()
                    answer = await ended(reader)
                    assert not answer or not answer.split()[1].startswith(b"5"), (sent, answer)
            assert await clients.status(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n") == 200
        finally:
            await clients.close()
            running.abort()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
