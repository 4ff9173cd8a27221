"""Keeps a follower running: after a failure it starts again from the position of its store."""

import asyncio
from typing import Any, Final, NoReturn

from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.port import EventLog
from yardmaster_projections.errors import ViewsMoved, ViewsUnavailable
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.waiting import Work, together
from yardmaster_schemas.position import Position
from yardmaster_views.follower import Follower
from yardmaster_views.progress import Progress
from yardmaster_views.settings import ViewsSettings
from yardmaster_views.soft_host import SoftHost

#: Steps of each topic between two reports of progress.
MAX_STEPS: Final = 200


class HostMetrics:
    """The metrics of hosts, one set per process."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.log_retries = telemetry.counter(
            "log_retries", "Restarts because the log was unavailable."
        )
        self.store_retries = telemetry.counter(
            "store_retries", "Restarts because the store was unavailable."
        )
        self.moved = telemetry.counter(
            "store_moved", "Restarts because the store was at another position."
        )


class Host:
    """Runs one follower until cancelled; `progress` is the position of its store."""

    def __init__(
        self,
        follower: Follower,
        log: EventLog,
        clock: Clock,
        telemetry: Telemetry,
        metrics: HostMetrics,
        settings: ViewsSettings,
        *,
        interval_s: float = 0.0,
        health: Health | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`interval_s`: the least time between the starts of two rounds."""
        self.progress = progress or Progress(Position.start(follower.cell))
        self._follower = follower
        self._log = log
        self._clock = clock
        self._telemetry = telemetry
        self._metrics = metrics
        self._settings = settings
        self._interval_s = interval_s
        self._health = health
        self._part = f"{follower.name} {follower.cell}"
        self._backoff = settings.retry.backoff()
        self._reported = ""
        self._measured_s: float | None = None
        self._checked_s = clock.monotonic_s()
        self._soft_host = (
            None
            if follower.soft_state is None
            else SoftHost(follower.soft_state, log, clock, telemetry, settings, follower.cell)
        )

    async def run(self) -> NoReturn:
        """Follow the log until cancelled.

        Raises:
            SchemaError, CoreError: a machine's topic holds an invalid record. The views stay as
                they are; `yard replay verify` tells more.
            LogError: the log is closed, truncated or damaged.
        """
        started = asyncio.Event()
        work: list[Work] = [self._follow(started)]
        if self._soft_host is not None:
            work.append(self._soft_host.run(started))
        await together(*work)
        raise AssertionError("neither loop returns")

    async def _follow(self, has_started: asyncio.Event) -> NoReturn:
        """Run rounds; start the follower again after each failure of the log or the store.

        `has_started` is set when the follower has started for the first time.
        """
        started = False
        while True:
            try:
                if not started:
                    position = await self._follower.start()
                    self.progress.reached(position)
                    self._telemetry.info("following", **self._where(position))
                    started = True
                    has_started.set()
                await self._round()
            except LogUnavailable as error:
                # Records that were read but not projected are read again.
                self._metrics.log_retries.inc()
                started = False
                await self._wait(error)
            except ViewsUnavailable as error:
                self._metrics.store_retries.inc()
                started = False
                await self._wait(error)
            except ViewsMoved as moved:
                self._metrics.moved.inc()
                self._telemetry.warn("views_moved", found=str(moved), **self._where(None))
                started = False
                await self._clock.sleep(self._settings.retry.first_pause_s)

    def release(self) -> None:
        """Remove the cell from the health of this worker."""
        if self._health is not None:
            self._health.report(self._part)

    async def _round(self) -> None:
        """Project the received records, then wait for more records, at most `idle_wait_s`."""
        began_s = self._clock.monotonic_s()
        self.progress.reached(await self._follower.project(steps=MAX_STEPS, buffered_only=True))
        self._recovered()
        await self._measure()
        left_s = began_s + self._interval_s - self._clock.monotonic_s()
        if left_s > 0:
            await self._clock.sleep(left_s)
        idle_wait_s = self._settings.idle_wait_s
        more = await self._log.wait(self._follower.ends(), idle_wait_s)
        # A write finds out that the store was lost, but records that change no row cause no write.
        now_s = self._clock.monotonic_s()
        if not more or now_s - self._checked_s >= idle_wait_s:
            self._checked_s = now_s
            await self._follower.check()

    async def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._measured_s is None or now_s - self._measured_s >= self._settings.measure_s:
            self._measured_s = now_s
            await self._follower.measure()

    async def _wait(self, error: LogUnavailable | ViewsUnavailable) -> None:
        """Report an unavailable log or store once, and back off."""
        if error.code != self._reported:
            self._reported = error.code
            self._telemetry.warn(error.code, found=str(error), **self._where(None))
            if self._health is not None:
                self._health.report(self._part, f"{error.code}: {error}")
        await self._clock.sleep(self._backoff.next_s())

    def _recovered(self) -> None:
        if self._reported:
            self._telemetry.info("views_healed", **self._where(self._follower.position))
        self._reported = ""
        self._backoff.reset()
        if self._health is not None:
            self._health.report(self._part)

    def _where(self, position: Position | None) -> dict[str, Any]:
        where = {"cell": self._follower.cell, "view": self._follower.name}
        return where if position is None else {**where, "position": str(position)}
