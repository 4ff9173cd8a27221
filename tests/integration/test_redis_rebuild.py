"""A rebuild that ends at the position of a worker: the position is the same, the rows differ."""

from dataclasses import replace

import pytest

from tests.support.logs import LogBuilder
from tests.support.redis_server import RedisServer
from tests.support.redis_views import own_database
from tests.support.views import telemetry
from tests.unit.projections.test_cached import story
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_projections.cached import CachedReader
from yardmaster_projections.errors import ViewsMoved
from yardmaster_projections.redis.generations import RedisGenerations
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_projections.rows import NodeRow, SeenRow
from yardmaster_projections.store import Put
from yardmaster_runtime.clock import ManualClock, SystemClock
from yardmaster_schemas.topics import HEARTBEATS, TOPICS
from yardmaster_views.follower import Follower, Metrics, Views


async def test_a_worker_notices_a_rebuild_that_ends_at_its_own_position(
    redis_server: RedisServer,
) -> None:
    settings = own_database(redis_server)
    log = MemoryLog(ManualClock())
    await log.create_topics(tuple(TOPICS.values()))
    builder = story()
    first, rest = LogBuilder(), LogBuilder()
    first.entries, rest.entries = builder.entries[:20], builder.entries[20:]
    await first.write_to(log)

    def follower(store: RedisViewStore) -> Follower:
        return Follower(log, Views(store, CachedReader(store)), "main", 0, Metrics(telemetry()))

    generations = RedisGenerations(settings, "main")
    number = await generations.begin()
    live, built = (
        RedisViewStore(settings, "main", SystemClock(), generation=generation)
        for generation in (None, number)
    )
    try:
        worker, rebuild = follower(live), follower(built)
        await worker.start()
        await worker.catch_up()
        await rebuild.start()
        position = await rebuild.catch_up()
        assert position == worker.position
        node = await built.get(NodeRow, "n1")
        assert node is not None
        # Represents a difference between the old rows and the new ones.
        await built.note([Put(replace(node, reason="repaired"))], {})
        assert await generations.switch(number)

        seen = [Put(SeenRow(node="n1", at_ms=5))]
        with pytest.raises(ViewsMoved, match=f"generation {number}"):
            await worker.check()
        with pytest.raises(ViewsMoved):
            await live.note(seen, {HEARTBEATS.name: 9}, before=position)
        await rest.write_to(log)
        with pytest.raises(ViewsMoved):
            await worker.catch_up()
        assert await live.position() == position, "nothing was written"
        assert HEARTBEATS.name not in await live.notes()

        assert await worker.start() == position
        await worker.check()
        assert await worker.catch_up() != position
        found = await live.get(NodeRow, "n1")
        assert found is not None
        assert found.reason == "repaired", "the new row was made from a cached old row"
    finally:
        await live.close()
        await built.close()
        await generations.close()
