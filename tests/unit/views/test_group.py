"""A member of the group that falls, and falls once more while it leaves."""

import asyncio
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_views import group as module
from yardmaster_views.group import Group
from yardmaster_views.settings import ViewsSettings


class Falling:
    """An app that cannot start, and cannot stop either."""

    on_partitions_assigned = SimpleNamespace(connect=lambda *_, **__: None)
    crash_reason = None

    def finalize(self) -> None:
        """Nothing to do."""

    async def start(self) -> None:
        raise OSError("no broker")

    async def stop(self) -> None:
        raise RuntimeError("half of it was never made")


async def test_an_app_that_cannot_be_stopped_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "bind_to_running_loop", lambda app: None)
    clock, out = ManualClock(), StringIO()
    telemetry = Telemetry("views", now_ms=clock.now_ms, stream=out, level="warning")
    process: Any = SimpleNamespace(health=Health(), clock=clock, telemetry=telemetry)
    made: list[Any] = []

    def make() -> Any:
        made.append(Falling())
        return made[-1]

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(Group(make, process, ViewsSettings()).run())
        for _ in range(100):
            clock.advance(1)
            await asyncio.sleep(0)
        running.cancel()
    assert len(made) > 1
    assert "half of it was never made" in out.getvalue()
    assert "OSError: no broker" in process.health.reasons["group"]
