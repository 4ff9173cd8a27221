"""Queries of the views."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support import logs
from tests.support.logs import LogBuilder
from tests.support.views import viewed
from yardmaster_core.scheduling.state.shapes import shape_id
from yardmaster_projections import queries
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.presenter import UNBLOCK, Presenter
from yardmaster_projections.queries import BadCursor, Filters, Visibility, WaitFinder
from yardmaster_projections.rows import JobRow, NodeRow, ProjectRow, TaskRow
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import decisions as d
from yardmaster_schemas.events.node_events import FractionLimits
from yardmaster_schemas.reasons import EndCode, Wait, WaitClass, WaitCode

A, B, C = "a" * 12, "b" * 12, "c" * 12


def admit(log: LogBuilder, job: str, project: str = "nlp", **spec: Any) -> None:
    resources = logs.admitted(job).spec.resources
    request = logs.submitted(job, project, resources=resources, **spec)
    log.judged(request, logs.admitted(job, project, **spec))


async def populated() -> tuple[LogBuilder, MemoryViewStore]:
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(
        logs.pool_configured(), logs.department(), logs.project(), logs.project("vision")
    )
    log.claim(logs.joined("n1"))
    log.scheduler.cycle()
    admit(log, A)
    admit(log, B, "vision", tasks=3)
    admit(log, C)
    log.scheduler.cycle(logs.allocated(f"{A}.0", logs.placed("n1", 0)))
    return log, await viewed(log)


async def listed(
    store: MemoryViewStore, filters: Filters, visibility: Visibility = queries.ALL_PROJECTS
) -> list[str]:
    return [row.key for row in (await queries.rows(store, TaskRow, filters, visibility)).rows]


async def test_explain_and_nodes_say_where_fractions_are_not_enforced() -> None:
    log, _ = await populated()
    log.claim(replace(logs.joined("n2"), fraction_limits=FractionLimits.MPS))
    log.claim(logs.joined("n3"))
    log.scheduler.cycle()
    log.scheduler.cycle(
        logs.allocated(
            f"{B}.0",
            *(
                logs.placed(node, index, replica=index, gpu_milli=500)
                for index, node in enumerate(("n1", "n2", "n3"))
            ),
        )
    )
    store = await viewed(log)
    presenter = Presenter(store, log.now_ms)

    async def without_limits(task_id: str) -> list[str]:
        row = await store.get(TaskRow, task_id)
        assert row is not None
        return (await presenter.explain(row, "main")).nodes_without_fraction_limits

    assert await without_limits(f"{B}.0") == ["n1", "n3"]
    assert await without_limits(f"{A}.0") == [], "it has a whole GPU"
    assert await without_limits(f"{B}.1") == [], "it is pending"
    nodes = [await store.get(NodeRow, name) for name in ("n1", "n2")]
    shown = [await presenter.node(row) for row in nodes if row is not None]
    assert [node.fraction_limits for node in shown] == ["none", "mps"]
    assert [node.executors for node in shown] == [["process"], ["process"]]


async def test_tasks_are_filtered_by_phase_project_pool_node_and_job() -> None:
    _, store = await populated()
    assert await listed(store, Filters(phases=frozenset({Phase.STARTING}))) == [f"{A}.0"]
    vision = Filters(projects=frozenset({"vision"}), newest_first=False)
    assert await listed(store, vision) == [f"{B}.0", f"{B}.1", f"{B}.2"]
    assert await listed(store, Filters(nodes=frozenset({"n1"}))) == [f"{A}.0"]
    assert await listed(store, Filters(job_id=C)) == [f"{C}.0"]
    assert len(await listed(store, Filters(pools=frozenset({"default"})))) == 5
    assert await listed(store, Filters(users=frozenset({"unknown"}))) == []


async def test_the_newest_job_comes_first_unless_the_filter_reverses_it() -> None:
    _, store = await populated()
    assert (await listed(store, Filters()))[0] == f"{C}.0"
    assert (await listed(store, Filters(newest_first=False)))[0] == f"{A}.0"


async def test_pages_of_tasks_follow_their_cursor() -> None:
    _, store = await populated()
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await queries.rows(store, TaskRow, Filters(limit=2, cursor=cursor))
        seen += [row.key for row in page.rows]
        cursor = queries.cursor_of(page.next)
        if cursor is None:
            break
    assert seen == [f"{C}.0", f"{B}.2", f"{B}.1", f"{B}.0", f"{A}.0"]


@pytest.mark.parametrize("cursor", ["", "x", "W10", "WzFd", "bnVsbA", "WyIxIiwgImEiLCAwXQ", "é"])
def test_a_made_up_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadCursor):
        queries.order_of(cursor)


async def test_a_caller_sees_the_projects_of_its_sight_and_nothing_else() -> None:
    _, store = await populated()
    visibility = Visibility(frozenset({"vision"}))
    assert await listed(store, Filters(newest_first=False), visibility) == [
        f"{B}.{i}" for i in range(3)
    ]
    assert await listed(store, Filters(projects=frozenset({"nlp"})), visibility) == []
    assert await queries.task(store, f"{A}.0", visibility) is None
    assert await queries.job(store, A, visibility) is None
    assert await queries.project(store, "nlp", visibility) is None
    projects = await queries.rows(store, ProjectRow, Filters(), visibility)
    assert [row.name for row in projects.rows] == ["vision"]
    no_project = Visibility(frozenset())
    assert await listed(store, Filters(), no_project) == []
    jobs = await queries.rows(store, JobRow, Filters(), no_project)
    assert jobs.rows == ()


async def test_a_node_shows_no_task_that_the_caller_may_not_see() -> None:
    _, store = await populated()
    row = await store.get(NodeRow, "n1")
    assert row is not None
    everything = await Presenter(store, 0).node(row)
    assert everything.tasks == [f"{A}.0"]
    assert everything.slots[0].tasks == [f"{A}.0"]
    others = await Presenter(store, 0, Visibility(frozenset({"vision"}))).node(row)
    assert others.tasks == []
    assert others.slots[0].tasks == []
    assert others.slots[0].gpu_milli_used == 1000, "that a slot is taken is no secret"
    assert (others.gpu_milli_used, others.gpu_milli_free) == (1000, 3000)


async def test_a_ref_is_a_whole_id_or_the_beginning_of_one() -> None:
    _, store = await populated()
    assert await queries.resolve(store, A) == (A,)
    assert await queries.resolve(store, "b") == (B,)
    assert await queries.resolve(store, f"{B}.1") == (f"{B}.1",)
    assert await queries.resolve(store, "zz") == ()
    everything = await queries.resolve(store, "")
    assert len(everything) == 2, "two are enough to say that it is ambiguous"
    assert await queries.resolve(store, "a", Visibility(frozenset({"vision"}))) == ()


async def waits(store: MemoryViewStore, task_id: str, now_ms: int = 0) -> queries.Waits | None:
    row = await store.get(TaskRow, task_id)
    assert row is not None
    return await WaitFinder(store, now_ms).waits(row)


async def test_a_task_that_nothing_was_recorded_of_was_not_considered() -> None:
    _, store = await populated()
    found = await waits(store, f"{C}.0")
    assert found is not None
    assert found.recorded == (("default", None),)
    row = await store.get(TaskRow, f"{C}.0")
    assert row is not None
    presented = await Presenter(store, 0).task(row)
    assert presented.wait is not None
    assert (presented.wait.code, presented.wait.wait_class) == ("not_considered", WaitClass.NOT_NOW)


async def test_a_task_that_runs_does_not_wait() -> None:
    _, store = await populated()
    assert await waits(store, f"{A}.0") is None


async def test_one_recorded_wait_answers_for_all_tasks_of_a_shape() -> None:
    log, store = await populated()
    row = await store.get(TaskRow, f"{C}.0")
    assert row is not None
    assert row.job.shape is not None
    wait = Wait(
        code=WaitCode.INSUFFICIENT_FREE,
        numbers={"asked_milli": 1000, "free_milli": 0, "short_milli": 1000},
    )
    log.scheduler.cycle(
        d.TaskUnschedulableV1(
            task_id=f"{C}.0", shape=row.job.shape, priority=42, pool="default", wait=wait
        )
    )
    admit(log, "d" * 12)
    store = await viewed(log)
    for task_id in (f"{C}.0", f"{'d' * 12}.0"):
        task = await store.get(TaskRow, task_id)
        assert task is not None
        explained = await Presenter(store, log.now_ms).explain(task, "main")
        assert [(one.pool, one.code) for one in explained.pools] == [
            ("default", "insufficient_free")
        ]
        assert explained.pools[0].numbers["short_milli"] == 1000
        assert explained.unblock == "running tasks end"


def test_every_wait_says_what_lets_the_task_start() -> None:
    assert set(UNBLOCK) == set(WaitCode)


async def test_where_a_pool_is_divided_among_users_the_jobs_of_a_user_wait_by_themselves() -> None:
    log, store = await populated()
    row = await store.get(TaskRow, f"{C}.0")
    assert row is not None
    assert row.job.spec is not None
    shape = shape_id(C, row.job.project, row.job.spec, user=row.job.actor)
    wait = Wait(code=WaitCode.VICTIMS_PROTECTED, numbers={"victims": 2, "until_at_ms": 5})
    log.scheduler.cycle(
        d.TaskUnschedulableV1(task_id=f"{C}.0", shape=shape, priority=42, pool="default", wait=wait)
    )
    found = await waits(await viewed(log), f"{C}.0")
    assert found is not None
    row_of_wait = found.recorded[0][1]
    assert row_of_wait is not None
    assert row_of_wait.wait.code is WaitCode.VICTIMS_PROTECTED


async def test_where_a_pool_is_divided_among_jobs_a_job_waits_by_itself() -> None:
    log, store = await populated()
    row = await store.get(TaskRow, f"{C}.0")
    assert row is not None
    spec, shared = row.job.spec, row.job.shape
    assert spec is not None
    assert shared is not None
    own = shape_id(C, row.job.project, spec, own=True)
    numbers = {"fair_share_milli": 0, "weight": 1, "used_milli": 0, "asked_milli": 1000}
    recorded = {
        shared: Wait(code=WaitCode.BACKFILL_NOT_ALLOWED),
        own: Wait(code=WaitCode.OVER_FAIR_SHARE, numbers=numbers),
    }
    for shape in (shared, own, shared):
        wait = recorded[shape]
        log.scheduler.cycle(
            d.TaskUnschedulableV1(
                task_id=f"{C}.0", shape=shape, priority=42, pool="default", wait=wait
            )
        )
        found = await waits(await viewed(log), f"{C}.0")
        assert found is not None
        row_of_wait = found.recorded[0][1]
        assert row_of_wait is not None
        assert row_of_wait.wait.code == wait.code, "the last record says how it waits"


async def test_tasks_beyond_max_concurrent_wait_for_those_before_them() -> None:
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(logs.pool_configured(), logs.project())
    admit(log, A, tasks=5, max_concurrent=2)
    store = await viewed(log)
    held = [await waits(store, f"{A}.{index}") for index in range(5)]
    codes = [one.held.code if one and one.held else None for one in held]
    assert codes == [None, None, *["at_max_concurrent"] * 3]


async def test_a_paused_task_without_an_attempt_has_no_place_under_max_concurrent() -> None:
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(logs.pool_configured(), logs.project())
    admit(log, A, tasks=5, max_concurrent=2)
    log.quota.cycle(a.TaskPausedV1(job_id=A, index=0))
    store = await viewed(log)
    held = [await waits(store, f"{A}.{index}") for index in range(5)]
    codes = [one.held.code if one and one.held else None for one in held]
    assert codes == ["paused", None, None, *["at_max_concurrent"] * 2]


async def test_a_task_that_failed_waits_for_its_pause_to_be_over() -> None:
    log, _ = await populated()
    log.claim(logs.released(f"{A}.0", "n1"))
    log.scheduler.cycle(
        d.TaskRequeuedV1(
            task_id=f"{A}.0",
            attempt=1,
            code=EndCode.EXIT,
            restarts=1,
            not_before_ms=log.now_ms + 9000,
        )
    )
    store = await viewed(log)
    found = await waits(store, f"{A}.0", log.now_ms)
    assert found is not None
    assert found.held is not None
    assert (found.held.code, found.held.numbers["restarts"]) == ("restart_backoff", 1)
    later = await waits(store, f"{A}.0", log.now_ms + 9000)
    assert later is not None
    assert later.held is None


async def test_a_task_whose_start_failed_waits_for_its_pause_and_then_apart_from_its_equals() -> (
    None
):
    log, store = await populated()
    row = await store.get(TaskRow, f"{A}.0")
    assert row is not None
    spec = row.job.spec
    assert spec is not None
    log.claim(logs.released(f"{A}.0", "n1"))
    log.scheduler.cycle(
        d.TaskRequeuedV1(
            task_id=f"{A}.0",
            attempt=1,
            code=EndCode.NEVER_STARTED,
            restarts=0,
            not_before_ms=log.now_ms + 9000,
            failed_starts=2,
            failed_nodes=("n1",),
        )
    )
    store = await viewed(log)
    found = await waits(store, f"{A}.0", log.now_ms)
    assert found is not None
    assert found.held is not None
    assert found.held.code == "start_backoff"
    assert (found.held.numbers["failed_starts"], found.held.numbers["limit"]) == (2, 5)
    row = await store.get(TaskRow, f"{A}.0")
    assert row is not None
    explained = await Presenter(store, log.now_ms).explain(row, "main")
    assert "avoids the node" in (explained.unblock or "")
    apart = shape_id(A, row.job.project, spec, start_failed=True)
    for shape, code in (
        (apart, WaitCode.INSUFFICIENT_FREE),
        (row.job.shape or "", WaitCode.BACKFILL_NOT_ALLOWED),
    ):
        log.scheduler.cycle(
            d.TaskUnschedulableV1(
                task_id=f"{A}.0",
                shape=shape,
                priority=spec.priority,
                pool="default",
                wait=Wait(code=code),
            )
        )
    later = await waits(await viewed(log), f"{A}.0", log.now_ms + 9000)
    assert later is not None
    recorded = later.recorded[0][1]
    assert recorded is not None
    assert recorded.wait.code == "insufficient_free"
    log.scheduler.cycle(d.FailedStartsExpiredV1(task_id=f"{A}.0", attempt=1, failed_starts=2))
    later = await waits(await viewed(log), f"{A}.0", log.now_ms + 9000)
    assert later is not None
    recorded = later.recorded[0][1]
    assert recorded is not None
    assert recorded.wait.code == "backfill_not_allowed", "it waits with its equals again"
