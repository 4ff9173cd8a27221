"""A container engine that answers a few requests, as a test says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


class FakeEngine:
    """Answers `/version` with two numbers, and other requests in the versions between them.

    It has any image, and the containers in `containers`, by their names and ids. `created` has the
    descriptions of those that it was asked to create. `log`: what it sends as the output of any
    container, each chunk by itself. `open`: it leaves followed output open then; then a
    line follows every 10 ms in the streams of `steady`. `running`: the ids that it lists.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.oldest, self.newest = "1.24", "1.41"
        self.body: bytes | None = None
        self.asked: list[str] = []
        self.log: list[bytes] = []
        self.open = False
        self.steady: frozenset[str] = frozenset()
        self.running: list[str] = []
        #: Further fields of its answers to `/version` and `/info`.
        self.version: dict[str, Any] = {}
        self.info: dict[str, Any] = {}
        self.created: list[dict[str, Any]] = []
        self.containers: dict[str, dict[str, Any]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readline()
        if head:  # else it was only tried whether anything listens
            path = head.split()[1].decode()
            self.asked.append(path)
            size = 0
            while (line := await reader.readline()).strip():
                name, _, value = line.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            status, body = self.answer(path, await reader.readexactly(size))
            if "/logs" in path:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                async for chunk in self.output(path, reader):
                    writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            else:
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
                writer.write(body)
        writer.close()

    async def output(self, path: str, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """Yield the chunks of an answer for output; the last one is empty."""
        for chunk in self.log:
            yield chunk
        if self.open and "follow=true" in path:
            at = 0
            while not reader.at_eof():  # the agent has closed the connection
                if any(f"{stream}=true" in path for stream in self.steady):
                    at += 1
                    yield frame(b"2026-11-27T22:00:00.%09dZ line\n" % at)
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.01)
        yield b""

    def answer(self, path: str, sent: bytes) -> tuple[int, bytes]:
        """Return the status and the body for a path with its query, and the body of the request."""
        if path == "/version":
            said = {"ApiVersion": self.newest, "MinAPIVersion": self.oldest, **self.version}
            return 200, json.dumps(said).encode() if self.body is None else self.body
        if not self.knows(path.split("/")[1]):
            return 400, b'{"message": "client version is too old"}'
        if "/images/create" in path:
            return 200, b'{"errorDetail": {"message": "no such image"}}'
        if "/containers/create" in path:
            self.created.append(json.loads(sent))
            return 201, b'{"Id": "c1"}'
        if "/logs" in path:
            return 200, b""
        if "/containers/json" in path:
            return 200, json.dumps([{"Id": each} for each in self.running]).encode()
        if "/events" in path:
            return 200, b""
        if "/containers/" in path and (found := self.containers.get(path.split("/")[3])):
            return 200, json.dumps(found).encode()
        if "/containers/" in path:
            return 404, b'{"message": "no such container"}'
        if "/images/" in path:
            return 200, b'{"Id": "sha256:1"}'
        return 200, json.dumps({"ID": "an engine", **self.info}).encode()

    def knows(self, version: str) -> bool:
        """Whether it has a version of the API, such as `v1.41`."""
        minor = int(version.partition(".")[2])
        return int(self.oldest[2:]) <= minor <= int(self.newest[2:])


def frame(data: bytes, stream: int = 1) -> bytes:
    """Return a frame of output; the stream is 1 or 2, or 3 for an error of the engine."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@asynccontextmanager
async def fake_engine() -> AsyncIterator[FakeEngine]:
    """Let an engine listen at a socket of its own."""
    with TemporaryDirectory() as folder:
        fake = FakeEngine(Path(folder) / "e.sock")
        async with await asyncio.start_unix_server(fake.serve, fake.socket):
            yield fake
