"""Lost views that are being rebuilt: a missing row does not mean a missing object."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.gateway import CALLERS, GatewayCell, StaticTokens, caller, gateway_cell
from tests.support.memory_cell import CELL
from tests.support.views import telemetry
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.port import Partition
from yardmaster_gateway.app import create_app
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.monotonic import MonotonicViews
from yardmaster_projections.errors import ViewsUnfinished
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_schemas.events.users import RoleName, Scope
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import DETAILS
from yardmaster_views.follower import Follower, Metrics, Views

JOB: dict[str, Any] = {"project": "nlp", "run": {"command": ["true"]}}
#: A user with a role in the department of project nlp.
ROSS = caller("ross", RoleName.USER, Scope.DEPARTMENT, "research")


def lose(*stores: MemoryViewStore) -> None:
    """Empty the stores, and wake all readers that wait for a change."""
    for store in stores:
        waiters, clock = store._waiters, store._clock
        MemoryViewStore.__init__(store, CELL, clock)
        store._waiters = waiters
        for waiter in waiters.values():
            waiter.wake.set()


async def refill(cell: GatewayCell, until: Position | None = None) -> None:
    for follower in (cell.follower, cell.meter):
        await follower.start()
        await follower.catch_up(until)


def part_of(cell: GatewayCell, requests: int) -> Position:
    return Position.start(CELL).at("requests", requests)


def start_another_gateway(cell: GatewayCell) -> None:
    ports = replace(cell.ports, telemetry=telemetry("gateway"))
    cell.app = create_app(ports, cell.settings)


async def unavailable(cell: GatewayCell, method: str, path: str, **what: Any) -> None:
    async with cell.client(what.pop("token", "operator")) as client:
        response = await client.request(method, path, **what)
    assert response.status_code == 503, f"{method} {path}: {response.text[:300]}"
    assert response.json()["code"] == "views_unavailable"
    assert response.headers["Retry-After"] == "1"


@pytest.mark.parametrize("fresh", [False, True], ids=["known", "fresh"])
async def test_reads_are_unavailable_until_lost_views_are_rebuilt(fresh: bool) -> None:
    identity = StaticTokens({**CALLERS, "dept": ROSS})
    async with gateway_cell(identity=identity, view_wait_s=0.01) as cell:
        job = await cell.submit()
        etag = (await cell.call("GET", "/v1/projects/nlp"))["revision"]
        await cell.call("GET", "/v1/usage")
        await cell.call("GET", "/readyz", token=None)
        if fresh:
            start_another_gateway(cell)
        lose(cell.store, cell.usage)
        for requests in (0, 3, None):
            if requests is None:
                await refill(cell)
                break
            await refill(cell, part_of(cell, requests))
            for path in (
                *("jobs", "tasks", f"jobs/{job}", f"tasks/{job}.0", "nodes/n1", "pools"),
                *(f"tasks/{job}.0?wait_for=ended", "projects/nlp", "usage", "watch"),
            ):
                await unavailable(cell, "GET", f"/v1/{path}")
            await unavailable(cell, "GET", "/v1/jobs", token="dept")
            match = {"If-Match": f'"{etag}"'}
            config = {"department": "research"}
            await unavailable(cell, "PUT", "/v1/projects/nlp", json=config, headers=match)
            await unavailable(cell, "POST", "/v1/jobs", json=JOB, token="dept")
            await unavailable(cell, "POST", f"/v1/jobs/{job}/erase")
            if not fresh:
                ready = await cell.call("GET", "/readyz", run=False, token=None)
                assert ready["status"] == "degraded"
        assert (await cell.call("GET", f"/v1/jobs/{job}"))["job_id"] == job
        assert (await cell.call("GET", "/readyz", token=None))["status"] == "ready"
        await cell.call("POST", "/v1/jobs", json=JOB, token="dept", status=202)


async def test_a_read_waits_for_the_rebuild_of_lost_views() -> None:
    async with gateway_cell(view_wait_s=10.0) as cell:
        job = await cell.submit()
        await cell.call("GET", "/v1/jobs")
        lose(cell.store)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(cell.call("GET", f"/v1/jobs/{job}", run=False))
            await cell.until_reads_wait()
            group.create_task(refill(cell))
        assert reading.result()["job_id"] == job


async def test_views_lost_during_a_wait_do_not_mean_a_missing_task() -> None:
    async with gateway_cell(max_wait_s=10.0) as cell:
        job = await cell.submit()
        async with asyncio.TaskGroup() as group:
            wait = unavailable(cell, "GET", f"/v1/tasks/{job}.0?wait_for=ended&timeout_s=10")
            group.create_task(wait)
            await cell.until_reads_wait()
            lose(cell.store)
        await refill(cell)


async def test_a_gateway_compares_the_views_with_the_log_only_once(
    cell: GatewayCell,
) -> None:
    await cell.submit()
    # Views do not cover the records of a leader that has started a term and committed nothing.
    leader = cell._leader(QuotaMachine(check))
    await leader.fold.catch_up()
    await leader.take_term()
    start_another_gateway(cell)
    before = await cell.call("GET", "/v1/jobs", run=False)
    await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=JOB, run=False)
    after = await cell.call("GET", "/v1/jobs", run=False)
    assert after["position"] == before["position"]
    cell.leaders[0] = leader


async def test_a_position_beyond_a_truncated_log_is_not_waited_for(cell: GatewayCell) -> None:
    store = MemoryViewStore(CELL, cell.clock)
    views = MonotonicViews(store, cell.log, CELL, 0)
    end = await cell.log.end(Partition("requests"))
    follower = Follower(cell.log, Views(store, store), CELL, 0, Metrics(telemetry("views")))
    await follower.start()
    reached = await follower.catch_up()
    await views.position()
    await store.apply([], reached.at("requests", end + 1), {})
    await views.position()
    lose(store)
    with pytest.raises(ViewsUnfinished):
        await views.position()
    await follower.start()
    await follower.catch_up()
    assert await views.position() == reached


# --- submits ------------------------------------------------------------------------------------


async def ends(cell: GatewayCell) -> tuple[int, int]:
    requests, details = Partition("requests"), Partition("details")
    return await cell.log.end(requests), await cell.log.end(details)


def keyed(key: str) -> dict[str, Any]:
    return {"json": JOB, "headers": {"Idempotency-Key": key}, "token": "nlp"}


async def test_a_key_that_only_lost_views_know_is_decided_by_quota_alone() -> None:
    async with gateway_cell(recent_requests=3, view_wait_s=0.01) as cell:
        job = (await cell.call("POST", "/v1/jobs", status=202, **keyed("old")))["job_id"]
        for _ in range(5):
            await cell.submit()
        before = await ends(cell)
        lose(cell.store)
        repeat = await cell.call("POST", "/v1/jobs", status=202, run=False, **keyed("old"))
        assert repeat["job_id"] == job
        await cell.call("POST", "/v1/jobs", status=202, run=False, **keyed("new"))
        assert await ends(cell) == (before[0] + 2, before[1] + 2), "both were recorded"
        details = await cell.log.read(Partition(DETAILS.name), 0)
        keys = [stored.record.key.decode() for stored in details]
        apart = sum(key.startswith(f"{job}.") for key in keys)
        assert apart == 2, "the details of the repetition have a key of their own"
        await refill(cell)
        again = await cell.call("POST", "/v1/jobs", status=202, run=False, **keyed("old"))
        assert again["job_id"] == job
        assert await ends(cell) == (before[0] + 2, before[1] + 2)


async def test_a_key_needs_no_views_while_the_gateway_knows_all_requests(cell: GatewayCell) -> None:
    job = (await cell.call("POST", "/v1/jobs", status=202, **keyed("old")))["job_id"]
    lose(cell.store)
    again = await cell.call("POST", "/v1/jobs", status=202, run=False, **keyed("old"))
    other = await cell.call("POST", "/v1/jobs", status=202, run=False, **keyed("new"))
    assert again["job_id"] == job != other["job_id"]
    gateway: Gateway = cell.app.state.gateway
    assert gateway.recent.oldest == 0
    await refill(cell)
