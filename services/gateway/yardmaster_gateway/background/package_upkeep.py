"""Counts the stored code packages, and removes what interrupted uploads have left.

Every gateway of a store does both; repeating them changes nothing.
"""

from typing import NoReturn

from yardmaster_packages.errors import PackagesUnavailable
from yardmaster_packages.store import PackageStore
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry


class PackageUpkeep:
    """Looks through the store every `every_s` seconds.

    A file of an upload that was written last before `unfinished_s` seconds belongs to none that
    still runs.
    """

    def __init__(
        self,
        store: PackageStore,
        clock: Clock,
        telemetry: Telemetry,
        *,
        every_s: float,
        unfinished_s: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._every_s = every_s
        self._unfinished_s = unfinished_s
        self._packages = telemetry.gauge("packages", "Stored code packages")
        self._bytes = telemetry.gauge("package_bytes", "Bytes of stored code packages")
        self._removed = telemetry.counter(
            "package_uploads_removed", "Files of interrupted uploads that were removed"
        )

    async def run(self) -> NoReturn:
        """Look through the store periodically until cancelled."""
        while True:
            try:
                await self._round()
            except PackagesUnavailable as error:
                found = str(error)[:500]
                self._telemetry.warn("packages_unavailable", code=error.code, found=found)
            await self._clock.sleep(self._every_s)

    async def _round(self) -> None:
        before_ms = self._clock.now_ms() - int(self._unfinished_s * 1000)
        self._removed.inc(await self._store.remove_unfinished(before_ms=before_ms))
        sizes = [package.packed_bytes async for package in self._store.packages()]
        self._packages.set(len(sizes))
        self._bytes.set(sum(sizes))
