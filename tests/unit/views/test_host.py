"""A follower continues after its store was unavailable, moved or emptied, and follows its cells."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from tests.support.events import sample
from tests.support.logs import LogBuilder
from tests.support.views import ViewsCell, telemetry
from tests.unit.projections.test_cached import all_rows, story
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import Partition
from yardmaster_projections.cached import CachedReader
from yardmaster_projections.errors import ViewsDamaged, ViewsMoved, ViewsUnavailable
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.rows import NodeRow, Row
from yardmaster_projections.store import Found, Put
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import HEARTBEATS
from yardmaster_views.cells import Cells
from yardmaster_views.follower import Follower, Metrics, Views
from yardmaster_views.host import Host, HostMetrics
from yardmaster_views.progress import Progress
from yardmaster_views.settings import ViewsSettings


class Away(MemoryViewStore):
    """A store that can be away, or lose everything."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__("main", clock)
        self.away = False
        self.clock = clock
        self.generation = self.begun = 1

    def _reached(self) -> None:
        if self.away:
            raise ViewsUnavailable(found="no answer")

    async def position(self) -> Position:
        self._reached()
        return await super().position()

    async def notes(self) -> Mapping[str, Any]:
        self._reached()
        return await super().notes()

    async def get_all(self, wanted: Any) -> Found:
        self._reached()
        return await super().get_all(wanted)

    async def apply(self, *what: Any, **known: Any) -> None:
        self._fence()
        await super().apply(*what, **known)

    async def note(self, *what: Any, **known: Any) -> None:
        self._fence()
        await super().note(*what, **known)

    async def begin(self) -> Position:
        self.begun = self.generation
        return await super().begin()

    async def check(self, before: Position) -> None:
        self._fence()
        await super().check(before)

    def _fence(self) -> None:
        self._reached()
        if self.begun != self.generation:
            raise ViewsMoved(found=self.generation, expected=self.begun)

    def lose(self) -> None:
        """Everything is gone."""
        super().__init__("main", self.clock)

    def rebuild(self, row: Row) -> None:
        """Other rows at the very same position."""
        self.generation += 1
        self._change([Put(row)])


class HostCell(ViewsCell):
    """Views whose follower runs in a host, on a store that can be away."""

    store: Away

    def __init__(self) -> None:
        super().__init__(story())
        self.views_telemetry = telemetry()
        self.metrics = Metrics(self.views_telemetry)
        self.host_metrics = HostMetrics(self.views_telemetry)
        self.health = Health()
        #: Whether a node is heard at each step of the clock.
        self.beating = False
        self.beats = 0

    def new_store(self) -> Away:
        return Away(self.clock)

    def host(self) -> Host:
        views = Views(self.store, CachedReader(self.store))
        follower = Follower(self.log, views, "main", 0, self.metrics)
        return Host(
            follower,
            self.log,
            self.clock,
            self.views_telemetry,
            self.host_metrics,
            ViewsSettings(),
            health=self.health,
        )

    async def beat(self) -> None:
        self.beats += 1
        envelope = replace(sample(NodeHeartbeatV1), seq=self.beats, time_ms=self.clock.now_ms())
        await self.log.append(Partition(HEARTBEATS.name), [encode(envelope, "gpu-07")])

    async def happens(self, true: Callable[[], Awaitable[bool] | bool]) -> None:
        for _ in range(400):
            found = true()
            if found if isinstance(found, bool) else await found:
                return
            if self.beating:
                await self.beat()
            self.clock.advance(0.5)
            for _ in range(20):
                await asyncio.sleep(0)
        raise AssertionError("it did not happen")


@pytest.fixture
def views() -> HostCell:
    return HostCell()


async def until(views: HostCell, host: Host, change: Callable[[], Awaitable[None]]) -> None:
    """Run a host, make a change when it has caught up, and wait until it has again."""
    end = Position(cell="main", **_ends(views.builder))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(host.run())
        await views.happens(lambda: host.progress.position != Position.start("main"))
        await change()
        await views.happens(lambda: _at(views, end))
        running.cancel()


def _at(views: HostCell, end: Position) -> bool:
    return views.store._position == end


def _ends(builder: LogBuilder) -> dict[str, int]:
    names = ("requests", "admissions", "node-events", "decisions")
    return {name.replace("-", "_"): builder.end(name) for name in names}


async def test_a_store_that_is_away_is_waited_for(views: HostCell) -> None:
    await views.write(20)
    host = views.host()

    async def change() -> None:
        views.store.away = True
        await views.write()
        await views.happens(lambda: bool(views.health.reasons))
        assert "views_unavailable" in views.health.reasons["views main"]
        views.store.away = False

    await until(views, host, change)
    assert views.health.reasons == {}
    retries = host._metrics.store_retries._value.get()
    assert 1 <= retries < 400


async def test_a_store_that_was_emptied_is_filled_again_without_a_new_record(
    views: HostCell,
) -> None:
    await views.write()
    host = views.host()
    before: dict[str, Any] = {}

    async def change() -> None:
        await views.happens(lambda: host.progress.position.covers(views.store._position))
        before.update(all_rows(views.store))
        views.store.lose()

    await until(views, host, change)
    assert all_rows(views.store) == before
    assert host._metrics.moved._value.get() == 1


async def test_heartbeats_that_keep_coming_do_not_hide_that_a_store_was_emptied(
    views: HostCell,
) -> None:
    await views.write()
    host = views.host()
    views.beating = True

    async def change() -> None:
        await views.happens(lambda: host.progress.position.covers(views.store._position))
        views.store.lose()

    await until(views, host, change)
    assert host._metrics.moved._value.get() == 1


async def test_a_store_that_was_rebuilt_at_the_same_position_is_noticed(views: HostCell) -> None:
    await views.write(25)
    host = views.host()

    async def change() -> None:
        await views.happens(lambda: host.progress.position.covers(views.store._position))
        node = views.store.find(NodeRow, "n1")
        assert node is not None
        views.store.rebuild(replace(node, reason="repaired"))
        await views.write()

    await until(views, host, change)
    node = views.store.find(NodeRow, "n1")
    assert node is not None
    assert node.reason == "repaired"
    assert host._metrics.moved._value.get() == 1


async def test_a_store_that_was_restored_old_is_brought_up_to_date(views: HostCell) -> None:
    older = HostCell()
    await older.write(25)
    follower = older.host()._follower
    await follower.start()
    await follower.catch_up()
    await views.write()
    host = views.host()
    before: dict[str, Any] = {}

    async def change() -> None:
        await views.happens(lambda: host.progress.position.covers(views.store._position))
        before.update(all_rows(views.store))
        vars(views.store).update(vars(older.store) | {"_waiters": {}})

    await until(views, host, change)
    assert all_rows(views.store) == before


async def test_two_that_follow_one_cell_lose_and_double_nothing(views: HostCell) -> None:
    await views.write(15)
    alone = HostCell()
    await alone.write()
    single = alone.host()
    await until(alone, single, lambda: asyncio.sleep(0))
    first, second = views.host(), views.host()
    end = Position(cell="main", **_ends(views.builder))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(host.run()) for host in (first, second)]
        await views.happens(lambda: views.store._position != Position.start("main"))
        for cut in range(20, len(views.builder.entries), 5):
            await views.write(cut)
            for _ in range(7):
                await asyncio.sleep(0)
        await views.write()
        await views.happens(lambda: _at(views, end))
        for task in tasks:
            task.cancel()
    assert all_rows(views.store) == all_rows(alone.store)


# --- progress and cells -------------------------------------------------------------------------


async def test_a_waiter_for_a_record_continues_once_it_is_covered() -> None:
    progress = Progress(Position.start("main"))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(progress.covers("requests", 4))
        for offset in (3, 4):
            progress.reached(Position.start("main").at("requests", offset))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
        progress.reached(Position.start("main").at("requests", 5))
    assert waiting.result()


async def test_a_waiter_for_a_cell_that_is_revoked_gets_false() -> None:
    served: list[int] = []

    async def serve(partition: int, cell: str, progress: Mapping[str, Progress]) -> None:
        served.append(partition)
        try:
            await asyncio.Event().wait()
        finally:
            served.remove(partition)

    cells = Cells({0: "main", 1: "east"}, serve, telemetry())
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cells.run())
        cells.assign(frozenset({0, 1, 7}))
        await run_all_tasks()
        assert served == [0, 1]
        waiting = group.create_task(cells.wait_covered(1, "views", "requests", 0))
        await run_all_tasks()
        assert not waiting.done()
        cells.assign(frozenset({0}))
        await run_all_tasks()
        assert served == [0]
        assert waiting.result() is False
        assert await cells.wait_covered(7, "views", "requests", 0) is False
        running.cancel()


async def test_a_cell_that_stops_leaves_the_others_alone() -> None:
    served: list[int] = []
    broken = {0, 1}

    async def serve(partition: int, cell: str, progress: Mapping[str, Progress]) -> None:
        served.append(partition)
        if partition in broken:
            raise ViewsDamaged(kind="job", found=f"{cell} is odd")
        await asyncio.Event().wait()

    health, out = Health(), StringIO()
    telemetry = Telemetry("views", now_ms=lambda: 0, stream=out)
    cells = Cells({0: "main", 1: "east", 2: "west"}, serve, telemetry, health)

    def stopped(cell: str) -> bool:
        return f'yard_views_stopped{{cell="{cell}"}} 1.0' in telemetry.exposition().decode()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(cells.run())
        cells.assign(frozenset({0, 2}))
        await run_all_tasks()
        assert served == [0, 2]
        assert not running.done()
        assert stopped("main")
        assert "main is odd" in health.reasons["cell main"]
        assert await cells.wait_covered(0, "views", "requests", 0) is False
        assert "cell_stopped" in out.getvalue()

        # Assigned again, it is tried again, also if it was revoked in the same moment.
        broken.discard(0)
        cells.assign(frozenset({2}))
        cells.assign(frozenset({0, 2}))
        await run_all_tasks()
        assert served == [0, 2, 0]
        assert not health.reasons
        assert not stopped("main")
        running.cancel()


async def test_a_worker_none_of_whose_cells_is_left_ends() -> None:
    async def serve(partition: int, cell: str, progress: Mapping[str, Progress]) -> None:
        raise ViewsDamaged(kind="job", found=f"{cell} is odd")

    cells = Cells({0: "main", 1: "east"}, serve, telemetry(), Health())
    cells.assign(frozenset({0, 1}))
    with pytest.raises(ViewsDamaged, match="main is odd"):
        await cells.run()


async def run_all_tasks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
