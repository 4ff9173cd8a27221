"""A member of the workers' group: a Faust app in this process's own event loop.

Faust would rather own the process: its worker sets signals, logging and the loop. Here it is one
service among others, started, watched, stopped in order (which leaves the group at once), and made
anew when it falls.
"""

from collections.abc import Callable
from typing import Final, NoReturn

import faust
from faust.contrib.asgi import bind_to_running_loop

from yardmaster_runtime.service import Process
from yardmaster_runtime.waiting import first_of
from yardmaster_views.settings import ViewsSettings

#: How long leaving the group may take.
STOP_S: Final = 5.0
#: The part of the service's health that membership is.
PART: Final = "group"


class Group:
    """Keeps a Faust app going; each is made by `make` and used once."""

    def __init__(
        self, make: Callable[[], faust.App], process: Process, settings: ViewsSettings
    ) -> None:
        self._make = make
        self._process = process
        self._settings = settings
        self._restarts = process.telemetry.counter("group_restarts", "Faust apps that fell.")

    async def run(self) -> NoReturn:
        """Be a member until cancelled."""
        process, backoff = self._process, self._settings.retry.backoff()
        process.health.report(PART, "joining")
        while True:
            reason = await self._one()
            self._restarts.inc()
            process.health.report(PART, f"fell: {reason}")
            process.telemetry.warn("group_lost", found=reason)
            await process.clock.sleep(backoff.next_s())

    async def _one(self) -> str:
        """Run one app until it falls; returns why."""
        app = self._make()
        bind_to_running_loop(app)
        app.finalize()

        async def joined(*_: object, **__: object) -> None:
            self._process.health.report(PART)

        app.on_partitions_assigned.connect(joined, weak=False)
        try:
            await app.start()
            await app.wait_until_stopped()
        except Exception as error:  # noqa: BLE001 whatever Faust fell over, another one is made
            return f"{type(error).__name__}: {error}"
        finally:
            await self._stop(app)
        return f"{type(app.crash_reason).__name__}: {app.crash_reason}"

    async def _stop(self, app: faust.App) -> None:
        """Say to the group that it leaves; a broker that is away would be waited for."""
        try:
            await first_of(app.stop(), self._process.clock.sleep(STOP_S))
        except Exception as error:  # noqa: BLE001 what fell may fall once more; another one is made
            found = f"{type(error).__name__}: {error}"
            self._process.telemetry.warn("group_not_left", found=found)
