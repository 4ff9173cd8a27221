"""The store of packages, as a gateway looks through it."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.support.packages import package_of_tar
from yardmaster_gateway.background.package_upkeep import PackageUpkeep
from yardmaster_packages.store import PackageStore
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


async def a_round(store: PackageStore) -> CollectorRegistry:
    """Run one round; return the metrics."""
    clock, registry = StoppedClock(), CollectorRegistry()
    telemetry = Telemetry("gateway", now_ms=clock.now_ms, registry=registry, level="error")
    upkeep = PackageUpkeep(store, clock, telemetry, every_s=1, unfinished_s=UNFINISHED_S)
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


async def test_a_store_that_does_not_answer_ends_no_gateway(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    registry = await a_round(PackageStore(str(tmp_path / "file" / "packages")))
    assert registry.get_sample_value("yard_gateway_packages") == 0
