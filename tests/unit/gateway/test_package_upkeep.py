"""The store of packages, as a gateway looks through it."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.support.packages import package_of_tar
from yardmaster_gateway.background.package_upkeep import PackageUpkeep
from yardmaster_packages.store import PackageStore
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry

NOW_MS = 10_000_000
UNFINISHED_S = 1200


class StoppedClock(SystemClock):
    """A clock that stands still; `asleep` is set when a round is over."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = asyncio.Event()

    def now_ms(self) -> int:
        return NOW_MS

    async def sleep(self, seconds: float) -> None:
        self.asleep.set()
        await asyncio.Event().wait()


KEPT_S = 3600


async def no_job(project: str, digest: str) -> bool:
    """No job has any package."""
    return False


async def a_round(
    store: PackageStore, is_needed: Callable[[str, str], Awaitable[bool]] = no_job
) -> CollectorRegistry:
    """Run one round; return the metrics."""
    clock, registry = StoppedClock(), CollectorRegistry()
    telemetry = Telemetry("gateway", now_ms=clock.now_ms, registry=registry, level="error")
    upkeep = PackageUpkeep(
        *(store, clock, telemetry),
        is_needed=is_needed,
        every_s=1,
        unfinished_s=UNFINISHED_S,
        kept_s=KEPT_S,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(upkeep.run())
        await clock.asleep.wait()
        running.cancel()
    return registry


async def test_packages_are_counted_and_old_files_of_uploads_removed(tmp_path: Path) -> None:
    store = PackageStore(str(tmp_path))
    packages = [package_of_tar(content) for content in (b"one", b"another")]
    for package in packages:

        async def content(of: bytes = package.content) -> AsyncIterator[bytes]:
            yield of

        await store.put("nlp", package.digest, content(), packed_bytes=package.size)
    limit_s = NOW_MS / 1000 - UNFINISHED_S
    files = {}
    for name, age_s in (("1", 1), ("2", -1)):
        files[name] = tmp_path / "nlp" / f"{packages[0].digest}.{name * 32}.new"
        files[name].write_bytes(b"part")
        os.utime(files[name], (limit_s - age_s, limit_s - age_s))
    registry = await a_round(store)
    assert not files["1"].exists()
    assert files["2"].exists(), "its upload may still run"
    assert registry.get_sample_value("yard_gateway_packages") == 2
    size = sum(package.size for package in packages)
    assert registry.get_sample_value("yard_gateway_package_bytes") == size
    assert registry.get_sample_value("yard_gateway_package_uploads_removed_total") == 1


async def stored(store: PackageStore, content: bytes, age_s: float) -> str:
    """Put a package that was written `age_s` seconds ago; return its digest."""
    package = package_of_tar(content)

    async def pieces() -> AsyncIterator[bytes]:
        yield package.content

    await store.put("nlp", package.digest, pieces(), packed_bytes=package.size)
    written_s = NOW_MS / 1000 - age_s
    os.utime(f"{store.url}/nlp/{package.digest}.tar.gz", (written_s, written_s))
    return package.digest


async def test_packages_that_no_job_used_for_long_are_removed(tmp_path: Path) -> None:
    store = PackageStore(str(tmp_path))
    young = await stored(store, b"young", KEPT_S - 1)
    unused = await stored(store, b"unused", KEPT_S + 1)
    needed = await stored(store, b"needed", KEPT_S + 1)
    again = await stored(store, b"used again", KEPT_S + 1)
    await store.mark_used("nlp", again)
    asked = []

    async def is_needed(project: str, digest: str) -> bool:
        asked.append((project, digest))
        return digest == needed

    registry = await a_round(store, is_needed)
    assert sorted(asked) == sorted([("nlp", unused), ("nlp", needed)])
    assert {one.digest async for one in store.packages()} == {young, needed, again}
    assert registry.get_sample_value("yard_gateway_packages_expired_total") == 1


async def test_without_the_views_no_package_is_removed(tmp_path: Path) -> None:
    store = PackageStore(str(tmp_path))
    digest = await stored(store, b"old", KEPT_S + 1)

    async def is_needed(project: str, digest: str) -> bool:
        raise ViewsUnavailable(found="Redis is away")

    registry = await a_round(store, is_needed)
    assert [one.digest async for one in store.packages()] == [digest]
    assert registry.get_sample_value("yard_gateway_packages_expired_total") == 0


async def test_a_store_that_does_not_answer_ends_no_gateway(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    registry = await a_round(PackageStore(str(tmp_path / "file" / "packages")))
    assert registry.get_sample_value("yard_gateway_packages") == 0
