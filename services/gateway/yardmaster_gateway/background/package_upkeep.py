"""Counts the stored code packages; removes unused ones, and what interrupted uploads have left.

Every gateway of a store does both; repeating them changes nothing.
"""

from collections.abc import Awaitable, Callable
from typing import NoReturn

from yardmaster_packages.errors import PackagesUnavailable
from yardmaster_packages.store import PackageStore
from yardmaster_projections.errors import ViewsError
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry


class PackageUpkeep:
    """Looks through the store every `every_s` seconds.

    A file of an upload that was written last before `unfinished_s` seconds belongs to none that
    still runs. A package that no job was submitted with for `kept_s` seconds is removed, unless
    `is_needed` says that a job that has not ended has it; it gets the project and the digest.
    """

    def __init__(
        self,
        store: PackageStore,
        clock: Clock,
        telemetry: Telemetry,
        *,
        is_needed: Callable[[str, str], Awaitable[bool]],
        every_s: float,
        unfinished_s: float,
        kept_s: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._is_needed = is_needed
        self._every_s = every_s
        self._kept_s = kept_s
        self._unfinished_s = unfinished_s
        self._packages = telemetry.gauge("packages", "Stored code packages")
        self._bytes = telemetry.gauge("package_bytes", "Bytes of stored code packages")
        self._removed = telemetry.counter(
            "package_uploads_removed", "Files of interrupted uploads that were removed"
        )

        self._expired = telemetry.counter(
            "packages_expired", "Code packages that were removed because no job had used them"
        )

    async def run(self) -> NoReturn:
        """Look through the store periodically until cancelled."""
        while True:
            try:
                await self._round()
            except PackagesUnavailable as error:
                found = str(error)[:500]
                self._telemetry.warn("packages_unavailable", code=error.code, found=found)
            except ViewsError as error:
                # Without the views nothing is known to be unused; the next round decides.
                found = str(error)[:500]
                self._telemetry.warn("packages_not_checked", code=error.code, found=found)
            await self._clock.sleep(self._every_s)

    async def _round(self) -> None:
        now_ms = self._clock.now_ms()
        before_ms = now_ms - int(self._unfinished_s * 1000)
        self._removed.inc(await self._store.remove_unfinished(before_ms=before_ms))
        found = [package async for package in self._store.packages()]
        self._packages.set(len(found))
        self._bytes.set(sum(package.packed_bytes for package in found))
        for package in found:
            if package.used_ms >= now_ms - int(self._kept_s * 1000):
                continue
            if not await self._is_needed(package.project, package.digest):
                await self._store.remove(package.project, package.digest)
                self._expired.inc()
