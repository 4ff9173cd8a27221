"""Views of hand-made logs."""

from io import StringIO

from tests.support.logs import LogBuilder
from tests.support.memory_cell import MemoryCell
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_projections.cached import CachedReader
from yardmaster_projections.fold import VIEWS, Fold
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_views.follower import Follower, Metrics, Views


def telemetry(service: str = "views") -> Telemetry:
    """Telemetry without output."""
    return Telemetry(service, now_ms=lambda: 0, stream=StringIO(), level="warning")


class ViewsCell(MemoryCell):
    """A hand-made log in a real one, and the views that follow it; `cached`: as if elsewhere."""

    log: MemoryLog
    clock: ManualClock

    def __init__(
        self, builder: LogBuilder, *, fold: Fold = VIEWS, cached: int = 0, max_unsaved: int = 1000
    ) -> None:
        super().__init__()
        self.builder = builder
        self.store = self.new_store()
        self.fold = fold
        self.max_unsaved = max_unsaved
        self.cache = CachedReader(self.store, max_rows=cached) if cached else None
        self.written = 0
        self.follower: Follower | None = None

    def new_store(self) -> MemoryViewStore:
        """The empty store of the views."""
        return MemoryViewStore(self.builder.cell, self.clock)

    async def write(self, until: int | None = None) -> None:
        """Write what the builder has beyond what was written before, up to its entry `until`."""
        await self.create()
        rest = LogBuilder(self.builder.cell)
        rest.entries = self.builder.entries[self.written : until]
        self.written += len(rest.entries)
        await rest.write_to(self.log)

    def another(self) -> Follower:
        """A follower into the same store."""
        return Follower(
            self.log,
            Views(self.store, self.store if self.cache is None else self.cache),
            self.builder.cell,
            0,
            Metrics(telemetry()),
            fold=self.fold,
            max_unsaved=self.max_unsaved,
        )

    async def catch_up(self) -> MemoryViewStore:
        """Write what the builder has beyond what was written before, and follow it."""
        if self.follower is None:
            await self.create()
            self.follower = self.another()
            await self.follower.start()
        await self.write()
        await self.follower.catch_up()
        return self.store


async def viewed(builder: LogBuilder) -> MemoryViewStore:
    """The views of all records of a builder."""
    return await ViewsCell(builder).catch_up()
