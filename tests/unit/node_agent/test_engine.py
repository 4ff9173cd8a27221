"""Requests to a container engine: versions of its API, its errors, and output; on a fake one."""

from collections.abc import AsyncIterator

import pytest

from tests.support.fake_engine import FakeEngine, fake_engine, frame
from yardmaster_node_agent.executors.engine import (
    Engine,
    EngineAway,
    EngineRefused,
    LogUnreadable,
    OutputPart,
)


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    async with fake_engine() as fake:
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


async def test_an_error_of_the_engine_in_the_output_follows_the_output_before_it(
    fake: FakeEngine,
) -> None:
    fake.log = [frame(b"1Z one\n"), frame(b"2Z tw") + frame(b"Error grabbing logs: EOF", 3)]
    output = Engine(fake.socket).output("c1", "stdout", "0", follow=False)
    assert await anext(output) == [OutputPart("1Z", b"one\n"), OutputPart("2Z", b"tw")]
    with pytest.raises(LogUnreadable, match="grabbing logs: EOF"):
        await anext(output)


async def test_lines_that_have_arrived_together_are_copied_together(fake: FakeEngine) -> None:
    """The engine sends each of them as a chunk."""
    lines = [b"%dZ %s\n" % (number, b"x" * (number % 300)) for number in range(20_000)]
    fake.log = [frame(line) for line in lines]
    batches = [
        parts async for parts in Engine(fake.socket).output("c1", "stdout", "0", follow=False)
    ]
    seen = [part for parts in batches for part in parts]
    assert seen == [OutputPart.of(line) for line in lines]
    assert len(batches) < len(lines) // 10
