"""A member of the workers' group: a Faust app in the event loop of this process.

Faust's own worker sets signals, logging and the loop of the process. Here the app is one service
among others: it is started, watched, stopped in order (so it leaves the group at once), and
replaced when it crashes.
"""

from collections.abc import Callable
from typing import Final, NoReturn

import faust
from faust.contrib.asgi import bind_to_running_loop

from yardmaster_runtime.service import Process
from yardmaster_runtime.waiting import first_of
from yardmaster_views.settings import ViewsSettings

#: The longest time to leave the group.
STOP_S: Final = 5.0
#: The name of the membership in the health of the service.
PART: Final = "group"


class Group:
    """Keeps a Faust app running; `make` creates each app, which is used once."""

    def __init__(
        self, make: Callable[[], faust.App], process: Process, settings: ViewsSettings
    ) -> None:
        self._make = make
        self._process = process
        self._settings = settings
        self._restarts = process.telemetry.counter("group_restarts", "Faust apps that crashed.")

    async def run(self) -> NoReturn:
        """Stay a member until cancelled."""
        process, backoff = self._process, self._settings.retry.backoff()
        process.health.report(PART, "joining")
        while True:
            reason = await self._one()
            self._restarts.inc()
            process.health.report(PART, f"crashed: {reason}")
            process.telemetry.warn("group_lost", found=reason)
            await process.clock.sleep(backoff.next_s())

    async def _one(self) -> str:
        """Run one app until it crashes; return the reason."""
        app = self._make()
        bind_to_running_loop(app)
        app.finalize()

        async def joined(*_: object, **__: object) -> None:
            self._process.health.report(PART)

        app.on_partitions_assigned.connect(joined, weak=False)
        try:
            await app.start()
            await app.wait_until_stopped()
        except Exception as error:  # noqa: BLE001 any crash is reported, and a new app started
            return f"{type(error).__name__}: {error}"
        finally:
            await self._stop(app)
        return f"{type(app.crash_reason).__name__}: {app.crash_reason}"

    async def _stop(self, app: faust.App) -> None:
        """Leave the group, within `STOP_S`: Faust itself would wait for an unavailable broker."""
        try:
            await first_of(app.stop(), self._process.clock.sleep(STOP_S))
        except Exception as error:  # noqa: BLE001 a crashed app may crash again; it is replaced
            found = f"{type(error).__name__}: {error}"
            self._process.telemetry.warn("group_not_left", found=found)
