"""A proxy in front of a container engine that refuses the requests that a test names."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

REFUSAL = b'{"message": "not today"}'


@asynccontextmanager
async def refusing(request: str, engine: Path, socket: Path) -> AsyncIterator[None]:
    """Listen at `socket` and refuse requests that match a pattern, such as `DELETE .*`."""
    opened: list[asyncio.StreamWriter] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(size[1])) if size else b""
        if re.match(request.encode(), head):
            writer.write(b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n" % len(REFUSAL) + REFUSAL)
        else:
            from_engine, to_engine = await asyncio.open_unix_connection(engine)
            opened.append(to_engine)
            to_engine.write(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
            while data := await from_engine.read(65_536):
                writer.write(data)
        writer.close()

    async with await asyncio.start_unix_server(pass_on, socket):
        yield
    for writer in opened:
        writer.close()
