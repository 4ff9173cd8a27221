"""`/v1/packages`: what is stored, who may store it, and what is refused."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateway import GatewayCell, gateway_cell
from tests.support.packages import Package, package_of_tar
from yardmaster_gateway.main import open_packages
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_packages.errors import PackagesUnavailable

PACKAGE = package_of_tar(b"a package " * 1000)
OTHER = package_of_tar(b"another package")


@pytest.fixture
async def cell() -> AsyncIterator[GatewayCell]:
    url = f"memory://{uuid.uuid4().hex}"
    async with gateway_cell(packages=url, max_package_bytes=2000, max_uploads=2) as made:
        yield made


def path(package: Package = PACKAGE, project: str = "nlp") -> str:
    return f"/v1/packages/{project}/{package.digest}"


async def stored(cell: GatewayCell) -> list[str]:
    assert cell.ports.packages is not None
    return [one.digest async for one in cell.ports.packages.packages()]


async def test_a_package_is_uploaded_once(cell: GatewayCell) -> None:
    async with cell.client("nlp") as client:
        assert (await client.head(path())).status_code == 404
    first = await cell.call("PUT", path(), token="nlp", status=201, content=PACKAGE.content)
    assert first["project"] == "nlp"
    assert first["digest"] == PACKAGE.digest
    assert first["packed_bytes"] == PACKAGE.size
    async with cell.client("nlp") as client:
        head = await client.head(path())
    assert (head.status_code, head.content) == (200, b"")
    again = await cell.call("PUT", path(), token="nlp2", content=PACKAGE.content)
    assert again == first == await cell.call("GET", path(), token="nlp")
    assert await stored(cell) == [PACKAGE.digest]


async def test_nothing_is_recorded_in_the_log(cell: GatewayCell) -> None:
    before = [(topic, await cell.app.state.gateway.end(topic)) for topic in ("requests", "details")]
    await cell.call("PUT", path(), token="nlp", status=201, content=PACKAGE.content)
    assert before == [(topic, await cell.app.state.gateway.end(topic)) for topic, _ in before]


async def test_a_package_of_another_project_is_neither_shown_nor_found(cell: GatewayCell) -> None:
    await cell.call("PUT", path(), token="nlp", status=201, content=PACKAGE.content)
    for token in ("vision", "research", "viewer", "no_roles"):
        for method in ("GET", "PUT"):
            problem = await cell.call(method, path(), token=token, status=403, content=b"")
            missing = await cell.call(method, path(OTHER), token=token, status=403, content=b"")
            assert problem["detail"] == missing["detail"]
    own = path(project="vision")
    assert (await cell.call("GET", own, token="vision", status=404))["code"] == "not_found"
    await cell.call("PUT", own, token="vision", status=201, content=PACKAGE.content)


async def test_a_caller_without_a_token_is_answered_before_the_body_is_read(
    cell: GatewayCell,
) -> None:
    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError
        yield b""  # type: ignore[unreachable]

    async with cell.client(None) as client:
        answer = await client.put(path(), content=unread(), headers={"Content-Length": "100"})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (OTHER.content, f"its content has the digest {OTHER.digest}"),
        (PACKAGE.content[:-1], "it is truncated"),
        (PACKAGE.content + b"x", "bytes follow its end"),
        (b"no gzip", "it is not gzip"),
        (b"", "it is truncated"),
    ],
)
async def test_another_content_is_refused_and_not_stored(
    cell: GatewayCell, content: bytes, found: str
) -> None:
    problem = await cell.call("PUT", path(), token="nlp", status=422, content=content)
    assert problem["code"] == "invalid_package"
    assert found in problem["detail"]
    assert await stored(cell) == []


async def test_a_package_above_the_limit_is_refused_before_it_is_read(cell: GatewayCell) -> None:
    sent = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal sent
        sent += 1
        yield bytes(100)

    for size in ("2001", "9" * 30):
        headers = {"Content-Length": size}
        problem = await cell.call(
            "PUT", path(), token="nlp", status=413, content=content(), headers=headers
        )
        assert "the limit is 2000" in problem["detail"]
    assert await stored(cell) == []


async def test_an_upload_says_its_size(cell: GatewayCell) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield PACKAGE.content

    problem = await cell.call("PUT", path(), token="nlp", status=400, content=content())
    assert "Content-Length" in problem["detail"]


async def test_an_upload_that_ends_early_stores_nothing(cell: GatewayCell) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield PACKAGE.content[:50]

    headers = {"Content-Length": str(PACKAGE.size)}
    problem = await cell.call(
        "PUT", path(), token="nlp", status=422, content=content(), headers=headers
    )
    assert f"it has 50 of {PACKAGE.size} bytes" in problem["detail"]
    assert await stored(cell) == []


@pytest.mark.parametrize("name", ["a" * 63, "A" * 64, "x" * 64, "a" * 65])
async def test_a_text_that_is_no_digest_is_malformed(cell: GatewayCell, name: str) -> None:
    problem = await cell.call("GET", f"/v1/packages/nlp/{name}", status=400)
    assert problem["code"] == "malformed"


async def test_a_text_that_is_no_project_is_not_found(cell: GatewayCell) -> None:
    for project in ("UPPER", "..%2Fnlp", "a" * 64, "-a"):
        await cell.call("GET", path(project=project), status=404)


async def test_more_uploads_at_once_than_the_limit_are_refused(cell: GatewayCell) -> None:
    more = asyncio.Event()
    begun = 0

    async def slow() -> AsyncIterator[bytes]:
        nonlocal begun
        begun += 1
        yield PACKAGE.content[:10]
        await more.wait()
        yield PACKAGE.content[10:]

    headers = {"Content-Length": str(PACKAGE.size), "Authorization": "Bearer operator"}
    async with cell.client() as client:
        uploads = [
            asyncio.ensure_future(
                client.put(path(project=project), content=slow(), headers=headers)
            )
            for project in ("nlp", "vision")
        ]
        while begun < 2:  # noqa: ASYNC110 - the client sets no event
            await asyncio.sleep(0.001)
        refused = await client.put(path(OTHER), content=OTHER.content)
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "5"
        more.set()
        assert [answer.status_code for answer in await asyncio.gather(*uploads)] == [201, 201]
        assert (await client.put(path(OTHER), content=OTHER.content)).status_code == 201


async def test_without_a_store_uploads_are_refused_with_the_name_of_the_setting() -> None:
    async with gateway_cell() as cell:
        for method in ("GET", "PUT"):
            problem = await cell.call(method, path(), status=501, content=b"")
            assert problem["code"] == "no_packages"
            assert "YARD_PACKAGES" in problem["detail"]
        await cell.call("PUT", path(), token="viewer", status=403, content=b"")


async def test_a_store_that_fails_is_unavailable_without_its_address(tmp_path: Path) -> None:
    place = tmp_path / "packages"
    place.write_bytes(b"a file in place of the folder")
    async with gateway_cell(packages=str(place)) as cell:
        problem = await cell.call("PUT", path(), status=503, content=PACKAGE.content)
        assert problem["code"] == "packages_unavailable"
        assert str(place) not in str(problem)


def test_the_settings_name_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YARD_PACKAGES", str(tmp_path))
    monkeypatch.setenv("YARD_MAX_PACKAGE_BYTES", "5000")
    store = open_packages(GatewaySettings())
    assert store is not None
    assert (store.url, store.limits.packed_bytes) == (str(tmp_path), 5000)
    monkeypatch.setenv("YARD_GATEWAY_PACKAGES", "")
    assert open_packages(GatewaySettings()) is None
    monkeypatch.setenv("YARD_GATEWAY_PACKAGES", "nowhere://x")
    with pytest.raises(PackagesUnavailable):
        open_packages(GatewaySettings())
