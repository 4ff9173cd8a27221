"""The cache of the writer: cached rows, loaded rows, and that caching changes no result."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import logs
from tests.support.logs import LogBuilder
from tests.support.views import ViewsCell
from yardmaster_projections.cached import CachedReader
from yardmaster_projections.errors import NotLoaded, ViewsMoved
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.rows import (
    AttemptRow,
    CountersRow,
    CycleRow,
    HistoryRow,
    JobRow,
    LogRow,
    NodeRow,
    RequestRow,
    Row,
    TaskRow,
    WaitRow,
)
from yardmaster_projections.store import Delete, Put, Query
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.position import Position

KINDS: tuple[type[Row], ...] = (
    *(AttemptRow, CycleRow, JobRow, LogRow, NodeRow, RequestRow, CountersRow, TaskRow, HistoryRow),
    WaitRow,
)


def story(jobs: int = 6) -> LogBuilder:
    """Jobs of three tasks on two nodes, one refused, one lost with its node."""
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(logs.pool_configured(), logs.department(), logs.project())
    log.claim(logs.joined("n1"))
    log.claim(logs.joined("n2"))
    log.scheduler.cycle()
    for number in range(jobs):
        job = f"job{number:09d}"
        log.judged(logs.submitted(job), logs.admitted(job))
        task = f"{job}.0"
        node = f"n{1 + number % 2}"
        log.scheduler.cycle(logs.allocated(task, logs.placed(node, number)))
        log.claim(logs.started(task, node))
        log.scheduler.cycle()
        if number % 2:
            log.claim(logs.exited(task, node))
            log.claim(logs.released(task, node))
            log.scheduler.cycle()
    return log


def all_rows(store: MemoryViewStore) -> dict[str, dict[str, Row]]:
    return {
        kind.KIND: dict(store._kinds[kind.KIND].rows) for kind in KINDS if kind.KIND in store._kinds
    }


@settings(max_examples=25, deadline=None)
@given(
    cached=st.integers(1, 60),
    max_unsaved=st.sampled_from([1, 3, 20, 1000]),
    cuts=st.lists(st.integers(0, 80), max_size=4),
)
async def test_the_size_of_the_cache_does_not_change_the_rows(
    cached: int, max_unsaved: int, cuts: list[int]
) -> None:
    whole = await ViewsCell(story()).catch_up()
    entries = story().entries
    builder = LogBuilder()
    followed = ViewsCell(builder, cached=cached, max_unsaved=max_unsaved)
    for cut in sorted(cuts):
        builder.entries = entries[:cut]
        await followed.catch_up()
        assert followed.follower is not None
        await followed.follower.start()
    builder.entries = entries
    store = await followed.catch_up()
    assert all_rows(store) == all_rows(whole)
    assert await store.position() == await whole.position()


@pytest.fixture
def store() -> MemoryViewStore:
    return MemoryViewStore("main", ManualClock())


def counters(name: str, running: int = 0) -> CountersRow:
    return CountersRow(name=name, running=running)


async def test_a_row_that_is_not_cached_is_requested_once(store: MemoryViewStore) -> None:
    await store.note([Put(counters("pool/a", 3))], {})
    reader = CachedReader(store)
    with pytest.raises(NotLoaded) as missing:
        reader.find(CountersRow, "pool/a")
    await reader.load(missing.value)
    found = reader.find(CountersRow, "pool/a")
    assert found is not None
    assert found.running == 3
    assert reader.loaded == 1


async def test_a_missing_row_is_not_requested_again(store: MemoryViewStore) -> None:
    reader = CachedReader(store)
    await reader.want([(CountersRow, "pool/a")])
    assert reader.find(CountersRow, "pool/a") is None


async def test_an_empty_store_is_never_read(store: MemoryViewStore) -> None:
    reader = CachedReader(store, max_rows=2)
    reader.forget(empty=True)
    assert reader.find(CountersRow, "pool/a") is None
    reader.take([Put(counters("a")), Put(counters("b")), Put(counters("c"))])
    reader.saved()
    assert reader.evicted == 1
    with pytest.raises(NotLoaded):
        reader.find(CountersRow, "a")


async def test_an_unsaved_row_is_never_evicted(store: MemoryViewStore) -> None:
    reader = CachedReader(store, max_rows=1)
    reader.forget(empty=True)
    reader.take([Put(counters("a")), Put(counters("b"))])
    assert reader.find(CountersRow, "a") is not None
    assert [change.key for change in reader.unsaved] == ["a", "b"]


async def test_a_row_changed_twice_is_written_once(store: MemoryViewStore) -> None:
    reader = CachedReader(store)
    reader.take([Put(counters("a", 1)), Put(counters("b"))])
    reader.take([Put(counters("a", 2)), Delete(counters("b"))])
    assert reader.unsaved == [Put(counters("a", 2)), Delete(counters("b"))]
    assert reader.find(CountersRow, "b") is None


async def test_a_list_by_facet_includes_unsaved_changes() -> None:
    followed = ViewsCell(story(1), cached=100)
    store = await followed.catch_up()
    reader = CachedReader(store)
    page = await store.page(TaskRow, Query())
    (task,) = page.rows
    with pytest.raises(NotLoaded) as missing:
        reader.having(TaskRow, ("job", task.job.job_id))
    await reader.load(missing.value)
    assert list(reader.having(TaskRow, ("job", task.job.job_id))) == [task]
    reader.take([Delete(task)])
    with pytest.raises(NotLoaded) as missing:
        reader.having(TaskRow, ("job", task.job.job_id))
    await reader.load(missing.value)
    assert list(reader.having(TaskRow, ("job", task.job.job_id))) == []


async def test_several_steps_are_saved_in_one_write() -> None:
    one_by_one = ViewsCell(story(), cached=1000, max_unsaved=1)
    await one_by_one.catch_up()
    together = ViewsCell(story(), cached=1000)
    await together.catch_up()

    def writes(followed: ViewsCell) -> float:
        assert followed.follower is not None
        return float(followed.follower._metrics.writes.labels("views")._value.get())

    assert writes(one_by_one) > 10
    assert writes(together) == 1


async def test_a_second_writer_fails_and_can_start_again() -> None:
    whole = await ViewsCell(story()).catch_up()
    builder = LogBuilder()
    followed = ViewsCell(builder, cached=1000)
    builder.entries = story().entries[:20]
    await followed.catch_up()
    other = ViewsCell(builder, cached=1000)
    other.log, other.store = followed.log, followed.store
    other.cache = CachedReader(followed.store)
    second = other.another()
    await second.start()
    builder.entries = story().entries
    rest = LogBuilder()
    rest.entries = builder.entries[followed.written :]
    await rest.write_to(followed.log)
    await second.catch_up()
    assert followed.follower is not None
    with pytest.raises(ViewsMoved):
        await followed.follower.catch_up()
    await followed.follower.start()
    await followed.follower.catch_up()
    assert all_rows(followed.store) == all_rows(whole)


async def test_a_store_that_was_emptied_is_detected_without_a_new_record() -> None:
    followed = ViewsCell(story(), cached=1000)
    await followed.catch_up()
    follower = followed.follower
    assert follower is not None
    await follower.check()
    empty = MemoryViewStore("main", followed.clock)
    follower._store = empty
    with pytest.raises(ViewsMoved):
        await follower.check()
    assert follower.position != Position.start("main")
    assert await follower.start() == Position.start("main")


async def test_final_rows_are_not_cached() -> None:
    followed = ViewsCell(story(), cached=10_000)
    store = await followed.catch_up()
    cache = followed.cache
    assert cache is not None
    kinds = {kind for kind, _ in cache._rows}
    assert CycleRow.KIND not in kinds
    assert RequestRow.KIND not in kinds, "quota decided on all"
    assert JobRow.KIND in kinds
    assert store.rows(CycleRow)
    # They are in the store, although all other rows are known to be cached.
    with pytest.raises(NotLoaded) as missing:
        cache.find(RequestRow, "1")
    await cache.load(missing.value)
    assert cache.find(RequestRow, "1") == store.find(RequestRow, "1")
    assert cache.find(JobRow, "unknown") is None
    assert (cache.loaded, cache.evicted) == (1, 0)
