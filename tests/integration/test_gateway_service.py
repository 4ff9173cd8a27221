"""All services of a cell: each by its `run(ports, settings)`, with a real socket and client."""

import asyncio
import dataclasses
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from tests.support import logs
from tests.support.audit import assert_audit_clean
from tests.support.gateway import CALLERS, GatewayCell, StaticTokens, gateway_of
from tests.support.memory_cell import CELL
from tests.support.views import telemetry
from yardmaster.client import ApiError, Change, Client
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_gateway import main as gateway
from yardmaster_gateway.context import GatewayPorts
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.rows import TaskRow
from yardmaster_quota import main as quota
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.service import Ports
from yardmaster_scheduler import main as scheduler
from yardmaster_schemas.api import Node, NodePatch, RequestedNodeState, Task, parse_job
from yardmaster_schemas.position import Position
from yardmaster_views import main as views
from yardmaster_views.follower import Views

T = TypeVar("T")
JOB = '{"project": "nlp", "resources": {"gpus": 1}, "run": {"command": ["true"]}}'


def client(port: int, token: str = "nlp") -> Client:
    return Client(
        f"http://127.0.0.1:{port}",
        token,
        sleep=time.sleep,
        new_key=lambda: secrets.token_hex(16),
    )


@asynccontextmanager
async def services(path: Path) -> AsyncIterator[tuple[int, GatewayCell]]:
    """Run the services of a cell on a SQLite log; yield the gateway's port and the cell."""
    clock = SystemClock()
    log = await SqliteLog.open(path / "log.db", clock, create=True)
    setup = GatewayCell(log=log, clock=clock)
    await setup.start()
    store = MemoryViewStore(CELL, clock)
    listener = gateway.listen("127.0.0.1", 0)
    port = int(listener.getsockname()[1])

    def ports(name: str) -> Ports:
        return Ports(log=log, clock=clock, chance=SystemChance(), telemetry=telemetry(name))

    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(quota.run(ports("quota"), quota.Settings(data=path))),
            group.create_task(scheduler.run(ports("scheduler"), scheduler.Settings(data=path))),
            group.create_task(
                views.run(
                    views.ViewsPorts(log, Views(store, store), clock, telemetry("views")),
                    views.ViewsSettings(),
                )
            ),
            group.create_task(
                gateway.run(
                    GatewayPorts(
                        log=log,
                        views=store,
                        identity=StaticTokens(CALLERS),
                        clock=clock,
                        chance=SystemChance(),
                        telemetry=telemetry("gateway"),
                    ),
                    GatewaySettings(instance="gw-2"),
                    listener=listener,
                )
            ),
        ]
        assert await store.reach(await setup.store.position(), 20), "the views do not follow"
        yield port, setup
        for task in running:
            task.cancel()
    await assert_audit_clean(log)
    await log.close()


async def inside(call: Callable[[], T]) -> T:
    """Call the blocking client in a separate thread."""
    return await asyncio.to_thread(call)


async def test_a_job_goes_from_submission_to_its_end_over_http(tmp_path: Path) -> None:
    async with services(tmp_path) as (port, cell):
        with client(port) as user:
            submitted = await inside(lambda: user.submit(parse_job(JOB)))
            task_id = submitted.task_ids[0]
            task = await inside(
                lambda: user.task(
                    task_id,
                    min_position=submitted.position,
                    wait_for="starting",
                    timeout_s=20,
                )
            )
            assert task.phase == "starting", task
            await cell.claim(logs.started(task_id, "n1"))
            task = await inside(lambda: user.task(task_id, wait_for="running", timeout_s=20))
            assert task.phase == "running"
            await cell.claim(logs.exited(task_id, "n1"))
            await cell.claim(logs.released(task_id, "n1"))
            task = await inside(lambda: user.task(task_id, wait_for="ended", timeout_s=20))
            assert task.phase == "succeeded"
            assert [one.task_id for one in await inside(lambda: list(user.all_tasks()))] == [
                task_id
            ]
            events = await inside(lambda: user.task_events(task_id))
            assert events.items[-1].type == "TaskEnded"


async def test_an_operator_cordons_a_node_and_reads_the_result(tmp_path: Path) -> None:
    async with services(tmp_path) as (port, _):
        with client(port, "operator") as operator:
            patch = NodePatch(state=RequestedNodeState.CORDONED, reason="fan")
            node = await inside(lambda: operator.nodes().items)
            assert [one.name for one in node] == ["n1"]
            accepted = await inside(lambda: operator.patch_node("n1", patch))
            request = await inside(lambda: operator.request(accepted.request_ids[0], wait_s=20))
            assert request.state == "accepted"
            shown = await inside(lambda: operator.node("n1"))
            assert (shown.state, shown.reason) == ("cordoned", "fan")


async def test_a_watch_over_http_sees_a_job_appear(tmp_path: Path) -> None:
    async with services(tmp_path) as (port, _):
        with client(port) as watcher, client(port) as user:
            seen: list[str] = []
            found: list[object] = []

            def watch() -> None:
                for change in watcher.watch(["task", "node"]):
                    seen.append(change.event)
                    found.extend(change.items)
                    tasks = [item for item in change.items if isinstance(item, Task)]
                    if any(task.phase == "starting" for task in tasks):
                        break

            async with asyncio.TaskGroup() as group:
                group.create_task(inside(watch))
                await until_begun(seen)
                await inside(lambda: user.submit(parse_job(JOB)))
            assert seen[0] == "snapshot"
            assert seen[-1] == "upsert"
            assert {type(item) for item in found} == {Node, Task}


async def until_begun(seen: Sequence[object]) -> None:
    """Wait until a watch in another thread has received a change."""
    await until(lambda: bool(seen))


async def until(there: Callable[[], bool]) -> None:
    """Wait until another thread has made `there` true."""
    async with asyncio.timeout(20):
        while not there():  # noqa: ASYNC110 a thread sets no event here
            await asyncio.sleep(0.01)


async def test_a_gateway_that_is_cancelled_ends_open_streams_and_starts_again() -> None:
    cell = await GatewayCell(stream_s=600.0, bookmark_s=600.0).start()

    def read(url: str, begun: list[str]) -> None:
        headers = {"Authorization": "Bearer operator"}
        with (
            suppress(httpx.RemoteProtocolError),
            httpx.stream("GET", url, headers=headers, timeout=60) as answer,
        ):
            begun.extend(answer.iter_lines())

    port = 0
    for _ in range(2):
        begun: list[str] = []
        async with asyncio.TaskGroup() as group, gateway_of(cell, port) as (port, running):
            group.create_task(inside(partial(read, f"http://127.0.0.1:{port}/v1/watch", begun)))
            await until_begun(begun)
            running.cancel()


async def test_a_wait_and_a_watch_continue_on_a_gateway_that_restarts() -> None:
    cell = await GatewayCell(stream_s=600.0, bookmark_s=0.1, max_wait_s=600.0, stop_s=0.0).start()
    job = await cell.submit(tasks={"count": 2})
    seen: list[Change] = []
    noted: list[str] = []

    def phases(task_id: str) -> list[str]:
        upserts = [change.data["item"] for change in seen if change.event == "upsert"]
        return [item["phase"] for item in upserts if item["task_id"] == task_id]

    def watch(port: int) -> None:
        with client(port) as watcher:
            for change in watcher.watch(["task"]):
                seen.append(change)
                if change.event == "upsert" and "succeeded" in phases(f"{job}.1"):
                    return

    def wait(port: int) -> list[Task]:
        with client(port) as waiter:
            return waiter.wait(job, timeout_s=60, on_end=lambda task: noted.append(task.task_id))

    async with asyncio.TaskGroup() as group:
        async with gateway_of(cell) as (port, _):
            await cell.starts(f"{job}.0")
            group.create_task(inside(partial(watch, port)))
            waiting = group.create_task(inside(partial(wait, port)))
            await until_begun(seen)
            await cell.until_reads_wait(2)
        await cell.starts(f"{job}.1")
        await cell.finishes(f"{job}.0")
        async with gateway_of(cell, port):
            await until(lambda: bool(noted))
            await cell.finishes(f"{job}.1")
            tasks = await waiting
    assert [(task.task_id, task.phase) for task in tasks] == [
        (f"{job}.0", "succeeded"),
        (f"{job}.1", "succeeded"),
    ]
    assert noted == [f"{job}.0", f"{job}.1"]
    first, *later = seen
    assert first.event == "snapshot"
    assert first.id is not None
    kept = await cell.store.changes(Position.parse(first.id))
    assert kept is not None
    expected = [
        (one.row.task_id, one.row.phase)
        for step in kept
        for one in step.changes
        if isinstance(one.row, TaskRow)
    ]
    upserts = [change.data["item"] for change in later if change.event == "upsert"]
    assert [(item["task_id"], item["phase"]) for item in upserts] == expected
    assert {change.event for change in later} <= {"upsert", "bookmark"}


async def test_a_long_read_of_a_gateway_that_stops_gets_a_problem_document() -> None:
    cell = await GatewayCell(stop_s=0.0).start()
    task = f"{await cell.submit()}.0"
    ports = dataclasses.replace(cell.ports, telemetry=telemetry("gateway"))
    listener = gateway.listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/tasks/{task}?wait_for=ended"
    headers = {"Authorization": "Bearer nlp"}
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gateway.run(ports, cell.settings, listener=listener))
        reading = group.create_task(inside(lambda: httpx.get(url, headers=headers, timeout=60)))
        await cell.until_reads_wait()
        running.cancel()
    answer = reading.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "1"


async def test_an_unknown_caller_gets_a_problem_over_http(tmp_path: Path) -> None:
    async with services(tmp_path) as (port, _):
        with client(port, "wrong") as stranger:
            with pytest.raises(ApiError) as caught:
                await inside(stranger.whoami)
            assert caught.value.problem.code == "unauthenticated"
            assert await inside(stranger.ready)


async def test_two_gateways_run_in_one_process_and_release_their_ports() -> None:
    cells = [await GatewayCell().start() for _ in range(2)]
    listeners = [gateway.listen("127.0.0.1", 0) for _ in cells]
    numbers = [int(listener.getsockname()[1]) for listener in listeners]
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(
                gateway.run(
                    dataclasses.replace(cell.ports, telemetry=telemetry("gateway")),
                    cell.settings,
                    listener=listener,
                )
            )
            for cell, listener in zip(cells, listeners, strict=True)
        ]
        for port in numbers:
            with client(port, "operator") as user:
                assert (await inside(user.version)).cell == CELL
        for task in running:
            task.cancel()
    with socket.create_server(("127.0.0.1", numbers[0])):
        pass


def test_a_taken_address_is_a_named_error() -> None:
    with gateway.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(gateway.CannotListen, match=str(port)):
            gateway.listen("127.0.0.1", port)
