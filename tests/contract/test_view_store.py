"""The contract of every store of views; an adapter is one more parameter of `store`."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.support.logs import placed
from tests.support.pauses import let_wait_begin
from tests.support.redis_views import own_database
from yardmaster_projections.errors import ViewsMoved
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_projections.rows import (
    DepartmentRow,
    JobFacts,
    JobRow,
    NodeRow,
    PoolRow,
    ProjectRow,
    RequestRow,
    SeenRow,
    WaitRow,
)
from yardmaster_projections.store import Change, Delete, Put, Query, RowKey, ViewStore
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events.requests import PolicyRef, PoolConfig, ProjectConfig, SubmittedSpec
from yardmaster_schemas.position import Position
from yardmaster_schemas.reasons import Wait, WaitCode


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ViewStore]:
    if request.param == "memory":
        yield MemoryViewStore("main", SystemClock(), max_kept=8)
        return
    settings = own_database(request.getfixturevalue("redis_server"))
    found = RedisViewStore(settings, "main", SystemClock(), max_kept=8)
    yield found
    await found.close()


def at(requests: int) -> Position:
    return Position(cell="main", requests=requests, admissions=0, node_events=0, decisions=0)


def project(name: str, department: str = "research", revision: int = 1) -> ProjectRow:
    return ProjectRow(name=name, revision=revision, config=ProjectConfig(department=department))


def request(offset: int) -> RequestRow:
    return RequestRow(
        offset=offset,
        record_id=f"gateway/g/1/{offset}",
        type="TaskSubmitted",
        subject="j",
        actor="ana",
        at_ms=0,
    )


async def put(store: ViewStore, position: int, *rows: ProjectRow) -> None:
    await store.apply([Put(row) for row in rows], at(position), {})


async def names(store: ViewStore, **query: object) -> list[str]:
    page = await store.page(ProjectRow, Query(**query))  # type: ignore[arg-type]
    return [row.name for row in page.rows]


async def test_a_new_store_is_empty_and_at_the_start(store: ViewStore) -> None:
    assert await store.position() == at(0)
    assert await store.get(ProjectRow, "nlp") is None
    assert await names(store) == []
    assert await store.notes() == {}


async def test_a_row_is_found_by_its_key_and_only_in_its_kind(store: ViewStore) -> None:
    await put(store, 1, project("nlp"))
    assert await store.get(ProjectRow, "nlp") == project("nlp")
    assert await store.get(DepartmentRow, "nlp") is None


async def test_a_node_keeps_the_slots_that_are_held_and_reserved(store: ViewStore) -> None:
    held = {("j0.0", 0): placed("n1", 0)}
    reserved = {("j1.0", 0): placed("n1", 0, 1, gpu_milli=500), ("j1.0", 1): placed("n1")}
    row = NodeRow(name="n1", held=held, reserved=reserved)
    await store.apply([Put(row)], at(1), {})
    assert await store.get(NodeRow, "n1") == row
    await store.apply([Put(replace(row, reserved={}))], at(2), {})
    found = await store.get(NodeRow, "n1")
    assert found is not None
    assert (found.held, found.reserved) == (held, {})


async def test_changes_come_with_their_position_and_notes(store: ViewStore) -> None:
    await store.apply([Put(project("nlp"))], at(3), {"reader": {"next": 3}})
    assert await store.position() == at(3)
    assert await store.notes() == {"reader": {"next": 3}}


async def test_a_repeat_changes_nothing(store: ViewStore) -> None:
    await put(store, 2, project("nlp"))
    await put(store, 2, project("nlp", revision=9))
    await put(store, 1, project("vision"))
    assert await store.get(ProjectRow, "nlp") == project("nlp")
    assert await names(store) == ["nlp"]
    assert await store.position() == at(2)


async def test_soft_state_is_stored_without_a_position_and_no_watch_reports_it(
    store: ViewStore,
) -> None:
    await store.note([Put(SeenRow(node="n1", at_ms=5))], {"heartbeats": 7})
    assert await store.get(SeenRow, "n1") == SeenRow(node="n1", at_ms=5)
    assert await store.position() == at(0)
    assert await store.notes() == {"heartbeats": 7}
    assert await store.changes(at(0)) == []


async def test_a_writer_with_a_wrong_position_or_note_fails(store: ViewStore) -> None:
    assert await store.begin() == at(0)
    await store.apply([Put(project("nlp"))], at(1), {}, before=at(0))
    await store.check(at(1))
    seen = [Put(SeenRow(node="n1", at_ms=5))]
    for wrong in (
        store.apply([], at(2), {}, before=at(0)),
        store.check(at(0)),
        store.note(seen, {"heartbeats": 7}, before=at(0)),
        store.note(seen, {"heartbeats": 7}, before=at(1), noted={"heartbeats": 6}),
    ):
        with pytest.raises(ViewsMoved):
            await wrong
    assert await store.get(SeenRow, "n1") is None
    await store.note(seen, {"heartbeats": 7}, before=at(1), noted={"heartbeats": None})
    await store.note(seen, {"heartbeats": 9}, before=at(1), noted={"heartbeats": 7})
    assert (await store.position(), await store.notes()) == (at(1), {"heartbeats": 9})


async def test_a_deleted_row_is_in_no_list(store: ViewStore) -> None:
    await put(store, 1, project("nlp"), project("vision"))
    await store.apply([Delete(project("nlp")), Delete(project("ads"))], at(2), {})
    assert await names(store) == ["vision"]
    assert await names(store, facets={"department": frozenset({"research"})}) == ["vision"]


async def test_lists_are_in_order_from_either_end(store: ViewStore) -> None:
    await put(store, 1, project("c"), project("a"), project("b"))
    assert await names(store) == ["a", "b", "c"]
    assert await names(store, newest_first=True) == ["c", "b", "a"]


async def test_a_list_is_narrowed_by_every_facet_named(store: ViewStore) -> None:
    await put(store, 1, project("nlp"), project("ads", "product"), project("vision"))
    research = frozenset({"research"})
    assert await names(store, facets={"department": research}) == ["nlp", "vision"]
    both = frozenset({"research", "product"})
    assert await names(store, facets={"department": both}) == ["ads", "nlp", "vision"]
    narrow = {"department": both, "project": frozenset({"ads", "nlp"})}
    assert await names(store, facets=narrow) == ["ads", "nlp"]
    assert await names(store, facets={"department": frozenset()}) == []
    assert await names(store, facets={"color": frozenset({"red"})}) == []


async def test_what_a_list_holds_is_counted_up_to_its_limit(store: ViewStore) -> None:
    async def count(**query: object) -> int:
        return (await store.count(ProjectRow, Query(**query))).number  # type: ignore[arg-type]

    assert await count() == 0
    await put(store, 1, *(project(f"p{n}", "research" if n % 3 else "other") for n in range(9)))
    research = frozenset({"research"})
    assert await count() == 9
    assert await count(limit=4) == 4
    assert await count(facets={"department": research}) == 6
    assert await count(facets={"department": research}, limit=5) == 5
    assert await count(facets={"department": research | {"other"}}) == 9
    assert await count(facets={"department": frozenset()}) == 0
    assert await count(facets={"department": frozenset({"unknown"})}) == 0
    both = {"department": research, "project": frozenset({"p1", "p3", "p4"})}
    assert await count(facets=both) == 2
    assert await count(facets={"department": research}, prefix="p4") == 1
    assert (await store.count(ProjectRow, Query())).position == at(1)


async def test_a_row_that_changes_its_facets_changes_lists(store: ViewStore) -> None:
    await put(store, 1, project("nlp"))
    await put(store, 2, project("nlp", "product"))
    assert await names(store, facets={"department": frozenset({"research"})}) == []
    assert await names(store, facets={"department": frozenset({"product"})}) == ["nlp"]


async def test_pages_follow_one_another_without_gap_or_repeat(store: ViewStore) -> None:
    await put(store, 1, *(project(f"p{index:02}") for index in range(10)))
    for newest_first in (False, True):
        seen: list[str] = []
        query = Query(limit=3, newest_first=newest_first)
        while True:
            page = await store.page(ProjectRow, query)
            seen += [row.name for row in page.rows]
            if page.next is None:
                break
            query = Query(limit=3, newest_first=newest_first, after=page.next)
        expected = [f"p{index:02}" for index in range(10)]
        assert seen == (expected[::-1] if newest_first else expected)


async def test_a_page_that_is_just_full_is_the_last(store: ViewStore) -> None:
    await put(store, 1, project("a"), project("b"))
    page = await store.page(ProjectRow, Query(limit=2))
    assert page.next is None
    assert page.position == at(1)


async def test_a_prefix_narrows_by_key(store: ViewStore) -> None:
    await put(store, 1, project("nlp"), project("nlp-2"), project("vision"))
    assert await names(store, prefix="nlp") == ["nlp", "nlp-2"]


async def test_rows_of_other_kinds_do_not_mix(store: ViewStore) -> None:
    pool = PoolRow(name="nlp", revision=1, config=PoolConfig(policy=PolicyRef(name="priority")))
    wait = WaitRow(
        pool="h100",
        shape="0" * 16,
        priority=1,
        wait=Wait(code=WaitCode.NOT_CONSIDERED),
        since_ms=0,
        cycle=1,
    )
    await store.apply([Put(pool), Put(wait)], at(1), {})
    assert await names(store) == []


async def test_waiting_for_a_position_ends_when_it_is_reached(store: ViewStore) -> None:
    assert await store.reach(at(0), 5)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(store.reach(at(2), 5))
        await asyncio.sleep(0)
        await put(store, 1, project("a"))
        await asyncio.sleep(0)
        assert not waiting.done()
        await put(store, 2, project("b"))
    assert waiting.result()


async def test_waiting_for_a_position_gives_up_in_time(store: ViewStore) -> None:
    assert not await store.reach(at(9), 0.01)
    assert not await store.reach(at(9), 0)
    assert not await store.reach(Position(cell="other", requests=0), 0.01)


async def test_change_sets_are_read_in_order_from_any_kept_position(
    store: ViewStore,
) -> None:
    for position in range(1, 4):
        await put(store, position, project(f"p{position}"))
    sets = await store.changes(at(1))
    assert sets is not None
    assert [one.position for one in sets] == [at(2), at(3)]
    assert [change.key for one in sets for change in one.changes] == ["p2", "p3"]
    assert await store.changes(at(3)) == []


async def test_change_sets_that_are_no_longer_kept_are_reported_as_gone(store: ViewStore) -> None:
    for position in range(1, 21):
        await put(store, position, project(f"p{position}"))
    assert await store.changes(at(0)) is None
    assert await store.changes(at(19)) is not None
    assert await store.changes(at(20)) == []


async def test_a_deletion_is_in_the_change_set_with_the_deleted_row(store: ViewStore) -> None:
    await put(store, 1, project("nlp"))
    gone: list[Change] = [Delete(project("nlp"))]
    await store.apply(gone, at(2), {})
    sets = await store.changes(at(1))
    assert sets is not None
    assert list(sets[0].changes) == gone


async def test_waiting_for_a_change_ends_with_the_next_one(store: ViewStore) -> None:
    assert not await store.changed(at(0), 0.01)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(store.changed(at(0), 5))
        await asyncio.sleep(0)
        await put(store, 1, project("a"))
    assert waiting.result()
    assert await store.changed(at(0), 5), "also for a change before the call"


async def test_a_write_after_a_wrong_position_changes_nothing(
    store: ViewStore,
) -> None:
    await store.apply([Put(project("a"))], at(1), {}, before=at(0))
    for before, position in ((at(0), at(1)), (at(0), at(2)), (at(2), at(3))):
        with pytest.raises(ViewsMoved) as moved:
            await store.apply([Put(project("b"))], position, {"n": 1}, before=before)
        assert moved.value.fields["found"] == at(1)
    assert await store.position() == at(1)
    assert await store.notes() == {}
    assert await names(store) == ["a"]
    await store.apply([Put(project("b"))], at(2), {}, before=at(1))
    assert await names(store) == ["a", "b"]


async def test_many_rows_are_read_at_once_in_the_requested_order(store: ViewStore) -> None:
    await put(store, 1, project("nlp"), project("ads"))
    await store.note([Put(SeenRow(node="n1", at_ms=5))], {})
    wanted: list[RowKey] = [
        *((ProjectRow, "nlp"), (SeenRow, "n1"), (ProjectRow, "none")),
        *((ProjectRow, "ads"), (ProjectRow, "nlp")),
    ]
    found = await store.get_all(wanted)
    assert found.position == at(1)
    seen = SeenRow(node="n1", at_ms=5)
    assert found.rows == (project("nlp"), seen, None, project("ads"), project("nlp"))
    assert (await store.get_all([])).rows == ()


async def test_a_page_starts_at_the_requested_time(store: ViewStore) -> None:
    rows = [request(offset) for offset in range(5)]
    await store.apply([Put(row) for row in rows], at(1), {})
    for newest_first in (False, True):
        page = await store.page(RequestRow, Query(since_ms=3, newest_first=newest_first))
        assert sorted(row.offset for row in page.rows) == [3, 4]


async def test_all_waiters_are_woken_also_when_others_time_out_or_are_cancelled(
    store: ViewStore,
) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(store.reach(at(number % 3 + 1), 10)) for number in range(30)]
        leaving = [group.create_task(store.reach(at(9), 0.02 * number)) for number in range(10)]
        cancelled = [group.create_task(store.reach(at(9), 60)) for _ in range(3)]
        await let_wait_begin()
        for task in cancelled:
            task.cancel()
        for number in range(1, 4):
            await put(store, number, project(f"p{number}"))
            await asyncio.sleep(0.03)  # meanwhile some of `leaving` time out
    assert all(task.result() for task in waiting)
    assert not any(task.result() for task in leaving)


async def test_change_sets_from_before_an_erasure_are_no_longer_kept(
    store: ViewStore,
) -> None:
    facts = JobFacts(
        job_id="4kq7w2mz9c1f",
        project="nlp",
        user="ana",
        name="of-ana",
        actor="ana",
        submitted_at_ms=1,
        requested=SubmittedSpec(),
    )
    await put(store, 1, project("nlp"))
    await store.apply([Put(JobRow(facts=facts, body_digest="0" * 64, offset=1))], at(2), {})
    gone = replace(facts, name=facts.job_id, erased=True)
    erased: list[Change] = [Put(JobRow(facts=gone, body_digest="0" * 64, offset=1))]
    await store.apply(erased, at(3), {})
    assert await store.changes(at(1)) is None, "a watch begins with a snapshot"
    sets = await store.changes(at(2))
    assert sets is not None
    assert [list(one.changes) for one in sets] == [erased]
    await put(store, 4, project("vision"))
    assert len(await store.changes(at(2)) or ()) == 2
