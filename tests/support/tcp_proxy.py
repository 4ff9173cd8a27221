"""A TCP proxy that breaks one link like a network: a partition without root, for any protocol.

Clients of Kafka follow the address that the broker advertises, so the broker needs a listener of
its own for the link, whose advertised port is the proxy's (`KafkaBroker(proxied=...)`). The proxy
runs in a thread of its own, so it keeps running while the test waits.
"""

import asyncio
import socket
import struct
import threading
from enum import Enum, auto
from typing import Self

HOST = "127.0.0.1"


class Mode(Enum):
    """The state of the link."""

    PASS = auto()
    #: All connections are reset, also new ones.
    CUT = auto()
    #: Connections are accepted and bytes are read, and no byte passes in either direction.
    BLACKHOLE = auto()
    #: Only bytes from clients pass; or only bytes to clients.
    UP_ONLY = auto()
    DOWN_ONLY = auto()
    #: No byte passes now; all bytes pass later.
    HOLD = auto()


PASSING = {Mode.PASS: (True, False), Mode.UP_ONLY: (True,), Mode.DOWN_ONLY: (False,)}


class _End(asyncio.Protocol):
    """One end of a link; `up`: the client's, whose bytes go to the server."""

    def __init__(self, link: "_Link", *, up: bool) -> None:
        self.link = link
        self.up = up
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.link.proxy.open += 1
        if self.up:
            self.link.proxy.group.create_task(self.link.begin())

    def data_received(self, data: bytes) -> None:
        self.link.carry(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.proxy.open -= 1
        self.link.carry(self, None)


class _Link:
    """A client's connection and the one to the server; once bytes were lost, it is `torn`."""

    def __init__(self, proxy: "TcpProxy") -> None:
        self.proxy = proxy
        self.client = _End(self, up=True)
        self.server = _End(self, up=False)
        self.waiting: list[tuple[_End, bytes | None]] = []
        self.torn = False

    async def begin(self) -> None:
        try:
            if self.proxy.mode is Mode.CUT:
                raise ConnectionRefusedError
            self.proxy.links[self] = None
            await self.proxy.loop.create_connection(lambda: self.server, HOST, self.proxy.upstream)
            self.release()
        except OSError:
            self.reset()

    def carry(self, source: _End, data: bytes | None) -> None:
        """Pass on bytes, or (None) that an end has closed."""
        mode = self.proxy.mode
        to = (self.server if source.up else self.client).transport
        if mode is Mode.HOLD or to is None:
            self.waiting.append((source, data))
        elif source.up not in PASSING.get(mode, ()):
            self.torn = True
        elif data is not None:
            to.write(data)
        else:
            to.close()
            self.proxy.links.pop(self, None)

    def release(self) -> None:
        waiting, self.waiting = self.waiting, []
        for source, data in waiting:
            self.carry(source, data)

    def reset(self) -> None:
        self.proxy.links.pop(self, None)
        for end in (self.client, self.server):
            if end.transport is not None and not end.transport.is_closing():
                found = end.transport.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.transport.abort()


class TcpProxy:
    """Listens on `port` of the loopback interface and forwards to port `upstream`; a context."""

    def __init__(self, upstream: int, port: int = 0) -> None:
        self.upstream = upstream
        self._listening = socket.create_server((HOST, port))
        self.port: int = self._listening.getsockname()[1]
        self.mode = Mode.PASS
        self.open = 0
        self.links: dict[_Link, None] = {}
        self.group = asyncio.TaskGroup()
        self._over = asyncio.Event()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_until_complete, args=(self._run(),))

    def set(self, mode: Mode) -> None:
        """Break the link, or heal it; effective when this returns."""
        asyncio.run_coroutine_threadsafe(self._set(mode), self.loop).result(10)

    async def _set(self, mode: Mode) -> None:
        self.mode = mode
        for link in list(self.links):
            if mode is Mode.CUT or (mode is Mode.PASS and link.torn):
                link.reset()
            elif mode is not Mode.HOLD:
                link.release()

    async def _run(self) -> None:
        server = await self.loop.create_server(lambda: _Link(self).client, sock=self._listening)
        async with self.group:
            await self._over.wait()
        server.close()
        await self._set(Mode.CUT)
        while self.open:  # noqa: ASYNC110 a round or two
            await asyncio.sleep(0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)
        self.loop.close()
