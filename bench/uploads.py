"""The memory of a gateway while it receives a package of code.

A real gateway in this process; the client sends the package from a file, piece by piece.
"""

import asyncio
import gzip
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx

from bench.timing import Row
from tests.support.gateway import gateway_cell

#: The aim of the memory that one upload adds.
AIM_MIB: Final = 64
MIB: Final = 2**20


def rows(size_mib: int) -> list[Row]:
    """Upload a package of `size_mib` MiB: the peak of the added memory, and the time."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_rows(Path(folder), size_mib))


async def _rows(folder: Path, size_mib: int) -> list[Row]:
    package = _Package(folder / "package", size_mib)
    settings = {"packages": str(folder / "stored"), "max_package_bytes": 2 * package.size}
    async with gateway_cell(**settings) as cell:
        # The first upload imports what later ones use.
        await _upload(cell.client("nlp"), _Package(folder / "small", 1))
        before_mib = _peak_mib()
        began = time.perf_counter()
        await _upload(cell.client("nlp"), package)
        took = time.perf_counter() - began
        added_mib = _peak_mib() - before_mib
    name = f"upload of {size_mib} MiB"
    return [
        Row(f"{name}: memory added to the gateway", added_mib, "MiB", f"<= {AIM_MIB}"),
        Row(name, took, "s"),
    ]


class _Package:
    """A package in a file; its content does not compress."""

    def __init__(self, path: Path, size_mib: int) -> None:
        digest = hashlib.sha256()
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(size_mib):
                piece = os.urandom(MIB)
                digest.update(piece)
                file.write(piece)
        self.path = path
        self.digest = digest.hexdigest()
        self.size = path.stat().st_size


async def _upload(client: httpx.AsyncClient, package: _Package) -> None:
    async def content() -> AsyncIterator[bytes]:
        with package.path.open("rb") as file:
            while piece := file.read(MIB):
                yield piece

    headers = {"Content-Length": str(package.size)}
    path = f"/v1/packages/nlp/{package.digest}"
    async with client:
        answer = await client.put(path, content=content(), headers=headers)
    assert answer.status_code == 201, answer.text


def _peak_mib() -> float:
    """The largest memory of this process since the last call."""
    status = Path("/proc/self/status").read_text()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what the process has
    return int(peak) / 1024
