"""Uploads of packages over real connections: memory, clients that leave, early answers."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import GatewayCell, gateway_cell, gateway_of
from tests.support.packages import Package, package_of_tar
from yardmaster_packages.limits import MIB

#: Larger than all buffers between client and store together.
PACKAGE = package_of_tar(random.Random(5).randbytes(12 * MIB), level=1)


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[GatewayCell]:
    async with gateway_cell(packages=str(tmp_path / "packages")) as made:
        yield made


def path(package: Package = PACKAGE) -> str:
    return f"/v1/packages/nlp/{package.digest}"


#: A request that has sent a part of the package.
HALF = (
    f"PUT {path()} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer nlp\r\n"
    f"content-length: {PACKAGE.size}\r\n\r\n"
).encode() + PACKAGE.content[: 4 * MIB]


def client(port: int) -> httpx.AsyncClient:
    headers = {"Authorization": "Bearer nlp"}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)


def files(cell: GatewayCell) -> list[str]:
    place = Path(cell.settings.packages)
    return [found.name for found in place.rglob("*") if found.is_file()]


async def test_a_package_is_uploaded_over_http(cell: GatewayCell) -> None:
    async with gateway_of(cell) as (port, _), client(port) as http:
        assert (await http.head(path())).status_code == 404
        answer = await http.put(path(), content=PACKAGE.content)
        assert (answer.status_code, answer.json()["packed_bytes"]) == (201, PACKAGE.size)
        assert (await http.head(path())).status_code == 200
    assert files(cell) == [f"{PACKAGE.digest}.tar.gz"]


async def test_an_upload_of_a_stored_package_is_answered_without_reading_it(
    cell: GatewayCell,
) -> None:
    async with gateway_of(cell) as (port, _), client(port) as http:
        assert (await http.put(path(), content=PACKAGE.content)).status_code == 201
        for _ in range(3):
            assert (await http.put(path(), content=PACKAGE.content)).status_code == 200


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(cell: GatewayCell) -> None:
    async with gateway_of(cell) as (port, _):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HALF)
        await writer.drain()
        while not files(cell):  # noqa: ASYNC110 - the gateway says it only in its files
            await asyncio.sleep(0.01)
        writer.transport.abort()
        async with asyncio.timeout(10):
            while files(cell):  # noqa: ASYNC110 - the gateway says it only in its files
                await asyncio.sleep(0.01)
        async with client(port) as http:
            assert (await http.put(path(), content=PACKAGE.content)).status_code == 201


async def test_a_gateway_that_stops_leaves_no_incomplete_package(cell: GatewayCell) -> None:
    async with gateway_of(cell) as (port, running):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HALF)
        await writer.drain()
        while not files(cell):  # noqa: ASYNC110 - the gateway says it only in its files
            await asyncio.sleep(0.01)
        running.cancel()
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert b" 504 " in answer
        assert b"outcome_unknown" in answer
        writer.close()
    assert files(cell) == []
