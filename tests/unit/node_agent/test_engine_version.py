"""Versions of the API and errors of a container engine, on a fake one."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from yardmaster_node_agent.executors.engine import Engine, EngineAway, EngineRefused


class FakeEngine:
    """Answers `/version` with two numbers, and `/info` in the versions between them."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.oldest, self.newest = "1.24", "1.41"
        self.body: bytes | None = None
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.read(65_536)
        if head:  # else it was only tried whether anything listens
            path = head.split()[1].decode()
            self.asked.append(path)
            status, body = self.answer(path)
            head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
            writer.write(head + body)
        writer.close()

    def answer(self, path: str) -> tuple[int, bytes]:
        if path == "/version":
            said = {"ApiVersion": self.newest, "MinAPIVersion": self.oldest}
            return 200, json.dumps(said).encode() if self.body is None else self.body
        if not self.knows(path.split("/")[1]):
            return 400, b'{"message": "client version is too old"}'
        if "/logs" in path:
            error = b"Error grabbing logs: unexpected EOF"
            return 200, b"\x03\0\0\0" + len(error).to_bytes(4, "big") + error
        if "/images/create" in path:
            return 200, b'{"errorDetail": {"message": "no such image"}}'
        return 200, b'{"ID": "an engine"}'

    def knows(self, version: str) -> bool:
        minor = int(version.partition(".")[2])
        return int(self.oldest[2:]) <= minor <= int(self.newest[2:])


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    with TemporaryDirectory() as folder:
        fake = FakeEngine(Path(folder) / "e.sock")
        async with await asyncio.start_unix_server(fake.serve, fake.socket):
            yield fake


@pytest.mark.parametrize(
    ("oldest", "newest", "used"),
    [
        ("1.12", "1.41", "v1.41"),
        ("1.24", "1.47", "v1.47"),
        ("1.44", "1.51", "v1.51"),
        ("1.44", "1.52", "v1.51"),
        ("1.40", "1.56", "v1.51"),
        ("1.51", "1.100", "v1.51"),
    ],
)
async def test_the_newest_version_that_both_have_is_used(
    fake: FakeEngine, oldest: str, newest: str, used: str
) -> None:
    fake.oldest, fake.newest = oldest, newest
    engine = Engine(fake.socket)
    assert await engine.missing() is None
    assert await engine.identity() == "an engine"
    assert fake.asked == ["/version", f"/{used}/info"]


@pytest.mark.parametrize(
    ("oldest", "newest", "change"),
    [("1.12", "1.40", "Docker"), ("1.52", "1.60", "Yardmaster on this node")],
)
async def test_an_engine_without_a_common_version_is_refused_with_the_versions_of_both(
    fake: FakeEngine, oldest: str, newest: str, change: str
) -> None:
    fake.oldest, fake.newest = oldest, newest
    engine = Engine(fake.socket)
    reason = (
        f"{fake.socket}: the engine has the API versions {oldest} to {newest}, and the agent "
        f"needs one of 1.41 to 1.51: upgrade {change}"
    )
    assert await engine.missing() == reason
    with pytest.raises(EngineAway) as raised:
        await engine.identity()
    assert str(raised.value) == reason
    assert set(fake.asked) == {"/version"}


async def test_an_engine_gives_its_version_once(fake: FakeEngine) -> None:
    engine = Engine(fake.socket)
    for _ in range(3):
        await engine.identity()
    assert fake.asked == ["/version", *["/v1.41/info"] * 3]


async def test_a_request_is_repeated_in_the_version_of_an_engine_that_was_upgraded(
    fake: FakeEngine,
) -> None:
    engine = Engine(fake.socket)
    await engine.identity()
    fake.oldest, fake.newest = "1.44", "1.52"
    assert await engine.identity() == "an engine"
    assert fake.asked[2:] == ["/v1.41/info", "/version", "/v1.51/info"]
    fake.oldest, fake.newest = "1.52", "1.60"
    with pytest.raises(EngineAway, match=r"upgrade Yardmaster"):
        await engine.identity()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"ApiVersion": 1}', b"<html>"])
async def test_a_server_that_is_no_engine_is_named(fake: FakeEngine, body: bytes) -> None:
    fake.body = body
    reason = f"{fake.socket}: what answers is no container engine"
    assert await Engine(fake.socket).missing() == reason


async def test_an_error_of_a_pull_is_read_from_the_field_that_stays(fake: FakeEngine) -> None:
    with pytest.raises(EngineRefused, match="no such image"):
        async for _ in Engine(fake.socket).pull("train:1"):
            pass


async def test_an_error_of_the_engine_in_the_output_is_no_output(fake: FakeEngine) -> None:
    output = Engine(fake.socket).output("c1", "stdout", "0", follow=False)
    with pytest.raises(EngineAway, match="unexpected EOF"):
        await anext(output)
