"""Keeps a cell's soft state (heartbeats, offsets of output) up to date in a loop of its own.

Another loop projects the records that positions count. Topics of soft state are not synced, and
their records expire. Whatever happens to these topics, the views continue: if records were lost,
reading continues at the topic's end; a topic that cannot be read is tried again. So this loop has
its own waits, retries and errors.
"""

import asyncio
from typing import NoReturn

from yardmaster_eventlog.errors import LogError, LogUnavailable, UnknownTopic
from yardmaster_eventlog.port import EventLog
from yardmaster_projections.errors import ViewsMoved, ViewsUnavailable
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_views.settings import ViewsSettings
from yardmaster_views.soft_state import SoftState


class SoftHost:
    """Runs one `SoftState` until cancelled."""

    def __init__(
        self,
        soft_state: SoftState,
        log: EventLog,
        clock: Clock,
        telemetry: Telemetry,
        settings: ViewsSettings,
        cell: str,
    ) -> None:
        self._soft_state = soft_state
        self._log = log
        self._clock = clock
        self._telemetry = telemetry
        self._settings = settings
        self._cell = cell
        self._backoff = settings.retry.backoff()
        self._reported = ""
        self._measured_s: float | None = None

    async def run(self, started: asyncio.Event) -> NoReturn:
        """Follow the topics until cancelled, from when the follower has started.

        Raises:
            LogError: the log is closed or damaged, or topics that are kept were truncated.
        """
        await started.wait()
        while True:
            try:
                await self._soft_state.catch_up(buffered_only=True)
                self._recovered()
                await self._measure()
                await self._log.wait(self._soft_state.ends(), self._settings.idle_wait_s)
            except ViewsMoved:
                # Another worker wrote, or the views were emptied; the follower notices both itself.
                await self._clock.sleep(self._settings.retry.first_pause_s)
                await self._restart()
            except (LogUnavailable, UnknownTopic, ViewsUnavailable) as error:
                await self._wait(error)

    async def _restart(self) -> None:
        try:
            await self._soft_state.restart()
        except ViewsUnavailable as error:
            await self._wait(error)

    async def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._measured_s is None or now_s - self._measured_s >= self._settings.measure_s:
            self._measured_s = now_s
            await self._soft_state.measure()

    async def _wait(self, error: LogError | ViewsUnavailable) -> None:
        if error.code != self._reported:
            self._reported = error.code
            self._telemetry.warn(
                "reports_unavailable", cell=self._cell, code=error.code, found=str(error)
            )
        await self._clock.sleep(self._backoff.next_s())

    def _recovered(self) -> None:
        if self._reported:
            self._telemetry.info("reports_healed", cell=self._cell)
        self._reported = ""
        self._backoff.reset()
