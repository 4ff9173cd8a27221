"""A client that costs little: what a request of the benchmarks needs of HTTP/1.1, and no more.

Client and cluster share the processor. With 64 connections, httpx takes about a quarter of all
processor time, so the figures would be its own.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

#: The longest head of an answer, in bytes.
MAX_HEAD: Final = 64 * 1024

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class PlainClient:
    """Posts JSON on at most `connections` connections, which stay open."""

    def __init__(self, server: str, token: str, *, connections: int) -> None:
        address = urlsplit(server)
        self._host, self._port = address.hostname, address.port
        self._head = f"host: {address.netloc}\r\nauthorization: Bearer {token}\r\n"
        self._free = asyncio.Semaphore(connections)
        self._idle: list[Connection] = []

    async def post(self, path: str, body: object, headers: Mapping[str, str]) -> Any:
        """Post a body, again if the server closes an idle connection at this moment.

        The headers must make a repetition safe, as an idempotency key does.

        Raises:
            RuntimeError: the answer is an error.
        """
        data = json.dumps(body).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {path} HTTP/1.1\r\n{self._head}{lines}content-type: application/json\r\n"
        request = f"{head}content-length: {len(data)}\r\n\r\n".encode() + data
        async with self._free:
            while self._idle:
                try:
                    return await self._exchange(self._idle.pop(), request)
                except (ConnectionError, asyncio.IncompleteReadError):
                    continue
            opened = await asyncio.open_connection(self._host, self._port, limit=MAX_HEAD)
            return await self._exchange(opened, request)

    async def _exchange(self, connection: Connection, request: bytes) -> Any:
        reader, writer = connection
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            status, _, fields = head.partition("\r\n")
            lines = (line.partition(":") for line in fields.splitlines())
            length = next(int(value) for name, _, value in lines if name == "content-length")
            body = await reader.readexactly(length)
        except BaseException:
            writer.close()
            raise
        self._idle.append(connection)
        if not status.split()[1].startswith("2"):
            raise RuntimeError(f"{status}: {body.decode(errors='replace')}")
        return json.loads(body)

    def close(self) -> None:
        """Close all connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()
