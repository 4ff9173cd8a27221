"""Views are verified against and rebuilt from their own log only; its Redis is found."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.support.logs import LogBuilder
from tests.support.redis_server import RedisServer
from tests.support.redis_views import own_database
from tests.support.views_service import Story
from tests.support.yard_cli import CommandResult, run_yard
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_localcluster.data_lock import announce
from yardmaster_localcluster.redis_server import RedisServer as LocalRedis
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_projections.rows import LogRow
from yardmaster_projections.store import Put
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events.requests import LogMode
from yardmaster_schemas.topics import TOPICS

OTHER = LogRow(cell="main", log_id="1" * 32, mode=LogMode.KAFKA, created_ms=1)


def log_in(path: Path, builder: LogBuilder) -> None:
    """Write a log to a file."""

    async def write() -> None:
        log = await SqliteLog.open(path, SystemClock())
        try:
            await log.create_topics(tuple(TOPICS.values()))
            await builder.write_to(log)
        finally:
            await log.close()

    asyncio.run(write())


def set_log(settings: RedisSettings, row: LogRow) -> None:
    """Set the log that the views belong to."""

    async def write() -> None:
        store = RedisViewStore(settings, "main", SystemClock())
        try:
            await store.note([Put(row)], {})
        finally:
            await store.close()

    asyncio.run(write())


def yard(folder: Path, *words: str) -> CommandResult:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("YARD_")}
    env = {**clean, "XDG_CONFIG_HOME": str(folder / "config"), "NO_COLOR": "1"}
    return run_yard(words, env, folder)


@pytest.mark.parametrize("command", [("replay", "verify", "--views"), ("views", "rebuild")])
def test_views_of_another_log_are_neither_compared_nor_replaced(
    tmp_path: Path, redis_server: RedisServer, command: tuple[str, ...]
) -> None:
    settings = own_database(redis_server)
    story = Story()
    story.job()
    log_in(tmp_path / "log.db", story)
    where = ("--log", str(tmp_path / "log.db"), "--redis", settings.url)
    assert yard(tmp_path, "views", "rebuild", *where).code == 0
    assert yard(tmp_path, *command, *where).code == 0

    set_log(settings, OTHER)
    said = yard(tmp_path, *command, *where)
    assert said.code == 103, said.err
    assert f"the views in {settings.url} belong to another log: they show log {OTHER.log_id}" in (
        said.err
    )
    # Nothing was written: the views still belong to the other log.
    assert yard(tmp_path, *command, *where).code == 103


def test_the_redis_of_a_running_cluster_is_found_like_its_log(tmp_path: Path) -> None:
    story = Story()
    story.job()
    log_in(tmp_path / "log.db", story)
    password = tmp_path / "credentials" / "redis" / "views"
    password.parent.mkdir(parents=True)
    password.write_text("s3cret\n")
    password.chmod(0o600)
    data = tmp_path / "data"
    data.mkdir()
    redis = LocalRedis(
        tmp_path / "redis",
        port=0,
        passwords={"views": "s3cret"},
        log_file=tmp_path / "redis.log",
    )
    url = redis.start()
    try:
        announce(
            data,
            7450,
            "token",
            what="yard up",
            log=f"sqlite:///{tmp_path / 'log.db'}",
            redis=url,
            credentials=str(tmp_path / "credentials"),
        )
        said = yard(tmp_path, "views", "rebuild", "--data", str(data))
        assert said.code == 0, said.err
        said = yard(tmp_path, "replay", "verify", "--views", "--data", str(data), "-o", "json")
        assert said.code == 0, said.err
        assert json.loads(said.out)["redis"] == url
    finally:
        redis.stop()
