"""The store of artifacts, as a gateway looks through it."""

import asyncio
import os
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.unit.gateway.test_package_upkeep import NOW_MS, StoppedClock
from yardmaster_gateway.background.artifact_upkeep import ArtifactUpkeep
from yardmaster_packages.artifact_files import find_artifacts
from yardmaster_packages.artifact_store import ArtifactPlace, ArtifactStore
from yardmaster_packages.limits import ArtifactLimits
from yardmaster_runtime.telemetry.port import Telemetry

KEPT_S = 600


async def a_round(store: ArtifactStore) -> CollectorRegistry:
    """Run one round; return the metrics."""
    clock, registry = StoppedClock(), CollectorRegistry()
    telemetry = Telemetry("gateway", now_ms=clock.now_ms, registry=registry, level="error")
    upkeep = ArtifactUpkeep(store, clock, telemetry, every_s=1, kept_s=KEPT_S)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(upkeep.run())
        await clock.asleep.wait()
        running.cancel()
    return registry


async def test_artifacts_are_counted_and_old_ones_removed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "model").write_bytes(bytes(100))
    store = ArtifactStore(str(tmp_path / "kept"))
    limit_s = NOW_MS / 1000 - KEPT_S
    for attempt, age_s in ((1, 1), (2, -1)):
        place = ArtifactPlace(project="nlp", task_id="4kq7w2mz9c1f.0", attempt=attempt, replica=0)
        found = find_artifacts(work, ["*"], limits=ArtifactLimits(), owner=None)
        await store.keep(place, work, found)
        for path in (tmp_path / "kept" / place.folder).iterdir():
            os.utime(path, (limit_s - age_s, limit_s - age_s))
    registry = await a_round(store)
    assert [one.place.attempt async for one in store.stored()] == [2]
    assert registry.get_sample_value("yard_gateway_artifact_files") == 2
    assert (registry.get_sample_value("yard_gateway_artifact_bytes") or 0) > 100
    assert registry.get_sample_value("yard_gateway_artifacts_expired_total") == 1


async def test_a_store_that_does_not_answer_ends_no_gateway(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    registry = await a_round(ArtifactStore(str(tmp_path / "file" / "kept")))
    assert registry.get_sample_value("yard_gateway_artifact_files") == 0
