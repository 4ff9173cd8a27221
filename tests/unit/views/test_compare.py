"""Comparing views with the log: every row, at its own position, while others write."""

from dataclasses import replace
from typing import Any

from tests.support import logs
from tests.support.logs import LogBuilder
from tests.support.views import ViewsCell, telemetry
from tests.unit.projections.test_cached import story
from yardmaster_projections.fold import USAGE, VIEWS, Fold
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.rows import HistoryRow, Row, TaskRow
from yardmaster_projections.store import Change, Delete, Page, Put, Query
from yardmaster_views.compare import Compared, Comparison
from yardmaster_views.follower import Metrics

TASK = "job000000001.0"


async def compared(followed: ViewsCell, store: MemoryViewStore | None = None) -> Compared:
    return await Comparison(
        log=followed.log,
        store=store or followed.store,
        cell="main",
        partition=0,
        fold=followed.fold,
        clock=followed.clock,
        metrics=Metrics(telemetry()),
    ).run()


async def test_views_that_were_folded_from_the_log_differ_nowhere() -> None:
    for fold in (VIEWS, USAGE):
        followed = ViewsCell(story(), fold=fold)
        await followed.catch_up()
        found = await compared(followed)
        assert found.ok, found.differences
        assert found.rows > 3
        assert found.position == await followed.store.position()


async def test_views_that_lag_behind_the_log_are_compared_where_they_are() -> None:
    followed = ViewsCell(story())
    await followed.catch_up()
    rest = LogBuilder()
    longer = story(9)
    rest.entries = longer.entries[len(followed.builder.entries) :]
    await rest.write_to(followed.log)
    found = await compared(followed)
    assert found.ok, found.differences
    assert found.position == await followed.store.position()


async def test_each_row_that_differs_is_named() -> None:
    followed = ViewsCell(story())
    store = await followed.catch_up()
    task = store.find(TaskRow, TASK)
    assert task is not None
    other = store.find(TaskRow, "job000000002.0")
    assert other is not None
    forged = replace(task, attempt=7)
    changes: list[Change] = [Put(forged), Delete(other), Put(replace(task, index=5))]
    await store.note(changes, {})
    found = await compared(followed)
    assert {(one.kind, one.key, one.found) for one in found.differences} == {
        ("task", TASK, "differs in attempt"),
        ("task", "job000000002.0", "is missing"),
        ("task", "job000000001.5", "is not in the log"),
    }
    assert found.differing == 3


async def test_a_trail_in_another_order_is_the_same_trail() -> None:
    followed = ViewsCell(story())
    store = await followed.catch_up()
    history = store.find(HistoryRow, TASK)
    assert history is not None
    await store.note([Put(replace(history, records=history.records[::-1]))], {})
    assert (await compared(followed)).ok
    await store.note([Put(replace(history, records=history.records[1:]))], {})
    assert not (await compared(followed)).ok


async def test_views_of_a_future_that_the_log_does_not_have_are_named() -> None:
    followed = ViewsCell(story())
    store = await followed.catch_up()
    position = await store.position()
    await store.apply([], position.at("decisions", 999), {})
    found = await compared(followed)
    assert [one.kind for one in found.differences] == ["position"]


class Busy(MemoryViewStore):
    """A store whose writer continues while it is read."""

    followed: ViewsCell
    entries: list[Any]

    async def page(self, kind: type[Any], query: Query) -> Page[Any]:
        page = await super().page(kind, query)
        if self.entries:
            self.followed.builder.entries = [
                *self.followed.builder.entries,
                *(self.entries.pop(0) for _ in range(min(7, len(self.entries)))),
            ]
            await self.followed.catch_up()
        return page


async def test_views_are_compared_while_their_writer_goes_on() -> None:
    def of(fold: Fold) -> ViewsCell:
        builder = LogBuilder()
        followed = ViewsCell(builder, fold=fold)
        busy = Busy("main", followed.clock)
        followed.store = busy
        entries = story(12).entries
        builder.entries, busy.entries = entries[:10], entries[10:]
        busy.followed = followed
        return followed

    for fold in (VIEWS, USAGE):
        followed = of(fold)
        await followed.catch_up()
        found = await compared(followed)
        assert found.ok, found.differences
        assert found.position != await of(fold).store.position()


def test_what_is_compared_is_every_kind_that_is_counted() -> None:
    def kinds(of: type[Row]) -> set[str]:
        return {each.KIND for each in of.__subclasses__() if each.__module__.startswith("yard")}

    soft_state = {"seen", "output"}
    assert {kind.KIND for kind in (*VIEWS.kinds, *USAGE.kinds)} == kinds(Row) - soft_state
    assert logs.START_MS
