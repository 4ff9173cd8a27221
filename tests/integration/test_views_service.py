"""The views service as processes on a real broker and Redis: rebalance, kills, an empty Redis."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tests.support.gateway import GatewayCell
from tests.support.groups import until_joined
from tests.support.kafka_broker import KafkaBroker
from tests.support.redis_server import RedisServer
from tests.support.views_service import Story, ViewsProcesses
from tests.support.yard_cli import run_yard
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_localcluster.ports import free_ports
from yardmaster_projections.redis.client import Client
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.rows import JobRow, TaskRow
from yardmaster_projections.store import Query
from yardmaster_projections.usage import UsageRow
from yardmaster_views.faust_app import GROUP

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka-views"), pytest.mark.timeout(240)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def cells() -> tuple[str, ...]:
    return ("main",)


@pytest.fixture
async def views(
    tmp_path: Path, broker: KafkaBroker, redis: RedisServer, cells: tuple[str, ...]
) -> AsyncIterator[ViewsProcesses]:
    async with ViewsProcesses(tmp_path, broker, redis, cells) as views:
        yield views


async def tasks(views: ViewsProcesses, cell: str = "main") -> int:
    return len((await views.store(cell).page(TaskRow, Query(limit=1000))).rows)


async def redis_do(views: ViewsProcesses, *command: str | bytes) -> Any:
    client = Client(RedisSettings(url=views.redis.url))
    try:
        return await client.run(*command)
    finally:
        await client.close()


async def committed(views: ViewsProcesses, offset: int | None) -> bool:
    """Wait up to 10 s until the group has committed this offset of `requests`."""
    admin = AIOKafkaAdminClient(bootstrap_servers=views.broker.bootstrap)
    await admin.start()
    try:
        for _ in range(100):
            found = await admin.list_consumer_group_offsets(GROUP)
            if any(at.topic == "requests" and to.offset == offset for at, to in found.items()):
                return True
            await asyncio.sleep(0.1)
        return False
    finally:
        await admin.close()


async def yard(views: ViewsProcesses, *args: str) -> tuple[int, str]:
    """Run the command line in a thread; return its exit code and its stdout."""

    def run() -> tuple[int, str]:
        said = run_yard(args, views.environment(), views.folder)
        print(said.err)
        return said.code, said.out

    return await asyncio.to_thread(run)


def ready(port: int) -> tuple[int, dict[str, Any]]:
    """The status and the body of `/readyz`."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


async def assert_clean(views: ViewsProcesses) -> None:
    code, said = await yard(views, "replay", "verify", "--views", "-o", "json")
    assert code == 0, said
    found = json.loads(said)
    assert [one["view"] for one in found["views"]] == ["views", "usage"]
    assert all(one["rows"] for one in found["views"])


async def test_a_worker_projects_the_log_and_stops_gracefully(views: ViewsProcesses) -> None:
    story = Story()
    for _ in range(20):
        story.job()
    await views.write(story)
    views.start("one", YARD_HEALTH_PORT="0")
    await views.shows(story)
    assert await tasks(views) == 20
    # Each job held one GPU for a minute, and the two cycles around it took a second each.
    usage = await views.store(space="usage").page(UsageRow, Query())
    assert sum(row.gpu_milli_ms for row in usage.rows) == 20 * 62_000 * 1000
    await assert_clean(views)
    # The group has committed the position that Redis shows.
    story.job()
    await views.write(story)
    await views.shows(story)
    assert await committed(views, story.position.requests) is True
    assert views.stop("one") == 0
    assert '"event": "stopping"' in views.said("one")


async def test_another_worker_continues_when_one_is_killed_or_stops(views: ViewsProcesses) -> None:
    story = Story()
    story.job()
    await views.write(story)
    views.start("one")
    await views.shows(story)
    views.start("two")
    # Both workers are in the group; either may have the cell.
    await until_joined(KafkaSettings(bootstrap=views.broker.bootstrap), GROUP, 2)
    for _ in range(3):
        story.job()
        await views.write(story)
        await asyncio.sleep(0.2)  # the kill comes at any moment of the work
    views.kill("one")
    story.job()
    await views.write(story)
    assert await views.shows(story) < 20  # a session of 6 s, and the takeover
    # The killed worker leaves the group even if the other one had the cell from the start.
    await until_joined(KafkaSettings(bootstrap=views.broker.bootstrap), GROUP, 1)
    views.start("three")
    await until_joined(KafkaSettings(bootstrap=views.broker.bootstrap), GROUP, 2)
    assert views.stop("two") == 0
    story.job()
    await views.write(story)
    assert await views.shows(story) < 6  # a stopped worker leaves the group
    assert await tasks(views) == 6
    await assert_clean(views)


async def test_a_suspended_worker_changes_nothing_when_it_continues(
    views: ViewsProcesses,
) -> None:
    story = Story()
    story.job()
    await views.write(story)
    views.start("one")
    await views.shows(story)
    views.workers["one"].send_signal(signal.SIGSTOP)
    views.start("two")
    for _ in range(5):
        story.job()
        await views.write(story)
    await views.shows(story)
    views.workers["one"].send_signal(signal.SIGCONT)
    for _ in range(5):
        story.job()
        await views.write(story)
        await asyncio.sleep(0.2)  # one batch for each job
    await views.shows(story)
    assert await tasks(views) == 11
    await assert_clean(views)


@pytest.mark.parametrize("cells", [("main", "east")])
async def test_two_cells_are_spread_over_two_workers(views: ViewsProcesses) -> None:
    stories = [Story(cell) for cell in views.cells]
    for story in stories:
        story.job()
        await views.write(story)
    views.start("one")
    views.start("two")

    def spread() -> bool:
        last = []
        for name in ("one", "two"):
            lines = [
                json.loads(line) for line in views.said(name).splitlines() if '"cells"' in line
            ]
            last.append(lines[-1]["cells"] if lines else [])
        return sorted(last) == [["east"], ["main"]]

    await views.happens(spread)
    for story in stories:
        story.job()
        await views.write(story)
        await views.shows(story)
    views.kill("one")
    for story in stories:
        story.job()
        await views.write(story)
        await views.shows(story)
        assert await tasks(views, story.cell) == 3
    code, said = await yard(views, "replay", "verify", "--views", "--cell", "east")
    assert code == 0, said


async def test_an_emptied_redis_is_filled_again_without_a_new_record(views: ViewsProcesses) -> None:
    story = Story()
    for _ in range(5):
        story.job()
    await views.write(story)
    views.start("one")
    await views.shows(story)
    await redis_do(views, "FLUSHALL")
    await asyncio.sleep(1)  # the worker finds the empty store by itself, without a new record
    await views.shows(story)
    assert await tasks(views) == 5
    await assert_clean(views)


async def test_workers_wait_for_a_killed_redis(views: ViewsProcesses) -> None:
    story = Story()
    story.job()
    await views.write(story)
    views.start("one")
    await views.shows(story)
    views.redis.kill()
    story.job()
    await views.write(story)
    await views.happens(lambda: '"views_unavailable"' in views.said("one"))
    views.redis.start()
    await views.shows(story)
    assert '"views_healed"' in views.said("one")
    await assert_clean(views)


async def test_workers_with_and_without_a_cell_report_a_silent_redis_alike(
    views: ViewsProcesses,
) -> None:
    ports = dict(zip(("one", "two"), free_ports(2), strict=True))
    for name, port in ports.items():
        views.start(name, YARD_HEALTH_PORT=str(port))
    found: dict[str, tuple[int, dict[str, Any]]] = {}

    async def report(code: int, reason: str | None) -> None:
        deadline = time.monotonic() + 30
        while not all(
            found.get(name, (0, {}))[0] == code
            and found[name][1].get("reasons", {}).get("store") == reason
            for name in ports
        ):
            views.check()
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.2)
            for name, port in ports.items():
                with suppress(OSError):
                    found[name] = await asyncio.to_thread(ready, port)

    # Both workers are in the group, and one of them has the only cell.
    await until_joined(KafkaSettings(bootstrap=views.broker.bootstrap), GROUP, 2)
    await report(200, None)
    os.kill(views.redis.pid, signal.SIGSTOP)
    try:
        await report(503, "views_unavailable: Redis does not answer within 1 s")
    finally:
        os.kill(views.redis.pid, signal.SIGCONT)
    await report(200, None)


async def test_workers_wait_for_a_killed_broker(views: ViewsProcesses) -> None:
    story = Story()
    story.job()
    await views.write(story)
    views.start("one")
    await views.shows(story)
    views.broker.kill()
    await asyncio.sleep(12)  # longer than a session
    views.broker.start()
    story.job()
    await views.write(story)
    await views.shows(story)
    await assert_clean(views)


async def test_views_are_rebuilt_while_events_arrive(views: ViewsProcesses) -> None:
    story = Story()
    for _ in range(30):
        story.job()
    await views.write(story)
    views.start("one")
    await views.shows(story)
    done = asyncio.Event()

    async def keep_writing() -> None:
        while not done.is_set():
            story.job()
            await views.write(story)
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        group.create_task(keep_writing())
        code, said = await yard(views, "views", "rebuild", "-o", "json")
        assert code == 0, said
        checked = await yard(views, "replay", "verify", "--views")
        done.set()
    assert checked[0] == 0, checked[1]
    document = json.loads(said)
    assert [one["view"] for one in document["items"]] == ["views", "usage"]
    assert all(one["generation"] == 2 for one in document["items"])
    await views.shows(story)
    assert await tasks(views) == story.jobs
    assert await redis_do(views, "KEYS", "yard:{main}:g1:*") == []
    await assert_clean(views)


async def test_a_row_that_was_tampered_with_is_named(views: ViewsProcesses) -> None:
    story = Story()
    for _ in range(3):
        story.job()
    await views.write(story)
    views.start("one")
    await views.shows(story)
    views.stop("one")
    key = "job000000001.0"
    raw = await redis_do(views, "HGET", "yard:{main}:g1:row:task", key)
    assert b'"attempt":1' in raw
    forged = raw.replace(b'"attempt":1', b'"attempt":7')
    await redis_do(views, "HSET", "yard:{main}:g1:row:task", key, forged)
    code, said = await yard(views, "replay", "verify", "--views")
    assert code == 1
    assert f"DIFFERS: views task {key} differs in attempt" in said
    await redis_do(views, "HSET", "yard:{main}:g1:row:task", key, raw)
    await redis_do(views, "HDEL", "yard:{main}:g1:row:job", "job000000002")
    code, said = await yard(views, "replay", "verify", "--views")
    assert code == 1
    assert "job job000000002 is missing" in said
    assert JobRow.KIND == "job"


async def test_the_command_line_reads_the_log_on_kafka(views: ViewsProcesses) -> None:
    cell = await GatewayCell(log=views.log).start()
    task = f"{await cell.submit()}.0"
    await cell.starts(task)
    await cell.finishes(task)
    code, said = await yard(views, "log", "stat", "-o", "json")
    assert code == 0, said
    counted = {row["topic"]: row["records"] for row in json.loads(said)["items"]}
    assert counted["requests"] == (await cell.store.position()).requests
    code, said = await yard(views, "log", "dump", "--type", "TaskSubmitted")
    assert code == 0, said
    assert json.loads(said)["type"] == "TaskSubmitted"
    code, said = await yard(views, "log", "tail", "-n", "1")
    assert code == 0, said
    code, said = await yard(views, "replay", "at", "--all", "-o", "json")
    assert code == 0, said
    assert [one["task_id"] for one in json.loads(said)["tasks"]] == [task]
    code, said = await yard(views, "replay", "verify", "-o", "json")
    assert code == 0, said
    assert json.loads(said)["log"] == f"kafka://{views.broker.bootstrap}"
    position = str(await cell.store.position())
    code, said = await yard(views, "explain", task, "--at", position, "-o", "json")
    assert code == 0, said
    assert json.loads(said)["phase"] == "succeeded"
