"""Counts the stored artifacts, and removes those that are older than they are kept.

Every gateway of a store does both; repeating them changes nothing. A round looks at all that is
kept, so its cost is limited by the age of artifacts and not by the history.
"""

from typing import NoReturn

from yardmaster_packages.artifact_store import ArtifactStore
from yardmaster_packages.errors import ArtifactsUnavailable
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry


class ArtifactUpkeep:
    """Looks through the store every `every_s` seconds; artifacts are kept for `kept_s` seconds."""

    def __init__(
        self,
        store: ArtifactStore,
        clock: Clock,
        telemetry: Telemetry,
        *,
        every_s: float,
        kept_s: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._every_s = every_s
        self._kept_s = kept_s
        self._files = telemetry.gauge("artifact_files", "Stored files of artifacts")
        self._bytes = telemetry.gauge("artifact_bytes", "Bytes of stored artifacts")
        self._removed = telemetry.counter(
            "artifacts_expired", "Replicas whose artifacts were removed because of their age"
        )

    async def run(self) -> NoReturn:
        """Look through the store periodically until cancelled."""
        while True:
            try:
                await self._round()
            except ArtifactsUnavailable as error:
                found = str(error)[:500]
                self._telemetry.warn("artifacts_unavailable", code=error.code, found=found)
            await self._clock.sleep(self._every_s)

    async def _round(self) -> None:
        before_ms = self._clock.now_ms() - int(self._kept_s * 1000)
        files = size_bytes = 0
        async for stored in self._store.stored():
            if stored.written_ms < before_ms:
                await self._store.remove(stored.place)
                self._removed.inc()
            else:
                files += stored.files
                size_bytes += stored.size_bytes
        self._files.set(files)
        self._bytes.set(size_bytes)
