"""A full Redis refuses writes with a named error and still answers reads; nothing is lost."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.redis_server import RedisServer
from tests.support.redis_views import command
from tests.support.views import telemetry
from tests.unit.projections.test_cached import story
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_projections.cached import CachedReader
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.fold import VIEWS
from yardmaster_projections.redis.generations import RedisGenerations
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_projections.rows import JobRow, TaskRow
from yardmaster_projections.store import Query
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import TOPICS
from yardmaster_views import rebuild
from yardmaster_views.follower import Follower, Metrics, Views


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
async def log() -> MemoryLog:
    log = MemoryLog(SystemClock())
    await log.create_topics(tuple(TOPICS.values()))
    await story().write_to(log)
    return log


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisViewStore]:
    store = RedisViewStore(RedisSettings(url=server.url), "main", SystemClock())
    yield store
    await store.close()


def fill(server: RedisServer) -> None:
    """Lower the limit below the memory in use."""
    assert command(server, "CONFIG SET maxmemory 100kb") == "+OK\r\n"


def raise_the_limit(server: RedisServer) -> None:
    assert command(server, "CONFIG SET maxmemory 100mb") == "+OK\r\n"


def follower(log: MemoryLog, store: RedisViewStore) -> Follower:
    return Follower(log, Views(store, CachedReader(store)), "main", 0, Metrics(telemetry()))


async def test_a_full_redis_answers_reads_and_is_written_once_its_limit_is_raised(
    server: RedisServer, log: MemoryLog, store: RedisViewStore
) -> None:
    worker = follower(log, store)
    await worker.start()
    await worker.catch_up(steps=2)
    before = await store.position()
    fill(server)
    for _ in range(2):
        with pytest.raises(ViewsUnavailable, match=r"Redis is full.*maxmemory"):
            await worker.catch_up()
        assert await store.position() == before
        assert (await store.page(JobRow, Query())).rows
        assert not await store.reach(worker.position.at("requests", 99), 0.05)
        await worker.start()
    raise_the_limit(server)
    await worker.catch_up()
    assert len((await store.page(TaskRow, Query(limit=100))).rows) == 6


async def test_a_rebuild_in_a_full_redis_leaves_no_keys_and_the_views_unchanged(
    server: RedisServer, log: MemoryLog, store: RedisViewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = follower(log, store)
    await worker.start()
    await worker.catch_up()
    apply = RedisViewStore.apply

    async def then_full(self: RedisViewStore, *what: Any, **known: Any) -> None:
        await apply(self, *what, **known)
        fill(server)

    monkeypatch.setattr(RedisViewStore, "apply", then_full)
    monkeypatch.setattr(rebuild, "MAX_UNSAVED", 1)
    settings = RedisSettings(url=server.url)
    work = rebuild.Rebuild(
        log=log,
        redis=settings,
        cell="main",
        partition=0,
        fold=VIEWS,
        clock=SystemClock(),
        metrics=Metrics(telemetry()),
    )
    with pytest.raises(ViewsUnavailable, match="Redis is full"):
        await work.run(lambda _: None)
    generations = RedisGenerations(settings, "main")
    try:
        assert await generations.known() == [1]
    finally:
        await generations.close()
    assert await store.position() == worker.position
