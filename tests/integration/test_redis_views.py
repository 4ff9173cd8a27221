"""The store of the views when Redis is slow, down, empty, restored, shared or has a password."""

import asyncio
import itertools
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.pauses import let_wait_begin
from tests.support.redis_server import RedisServer
from tests.support.redis_views import TlsFront, authority, command, own_database
from yardmaster_projections.errors import ViewsDamaged, ViewsMoved, ViewsUnavailable
from yardmaster_projections.redis.client import Client
from yardmaster_projections.redis.generations import RedisGenerations
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_projections.rows import JobFacts, JobRow, ProjectRow, TaskRow
from yardmaster_projections.store import Delete, Put, Query
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.access import REDIS_USERS
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.requests import ProjectConfig, SubmittedSpec
from yardmaster_schemas.position import Position

SECRET = "correct-horse-battery"


def at(requests: int) -> Position:
    return Position(cell="main", requests=requests, admissions=0, node_events=0, decisions=0)


def project(name: str) -> ProjectRow:
    return ProjectRow(name=name, revision=1, config=ProjectConfig(department="research"))


async def put(store: RedisViewStore, position: int, *, before: int | None = None) -> None:
    known = at(before) if before is not None else None
    await store.apply([Put(project(f"p{position}"))], at(position), {}, before=known)


async def names(store: RedisViewStore) -> list[str]:
    return [row.name for row in (await store.page(ProjectRow, Query())).rows]


@asynccontextmanager
async def opened(settings: RedisSettings, **options: Any) -> AsyncIterator[RedisViewStore]:
    store = RedisViewStore(settings, "main", SystemClock(), **options)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A separate server for the test, which stores all writes on disk."""
    with RedisServer(tmp_path, settings={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


def settings_of(server: RedisServer, **more: object) -> RedisSettings:
    return RedisSettings.model_validate({"url": server.url, "timeout_s": 2} | more)


# --- authentication -----------------------------------------------------------------------------


async def test_a_password_is_read_from_its_file_for_each_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text(f"{SECRET}\n")
    with RedisServer(tmp_path / "redis", password=SECRET) as server:
        async with opened(settings_of(server)) as stranger:
            with pytest.raises(ViewsUnavailable, match=r"NOAUTH|[Aa]uthentication"):
                await stranger.position()
        async with opened(settings_of(server, password_file=file)) as store:
            await put(store, 1)
            assert await names(store) == ["p1"]
        async with opened(settings_of(server, password=SECRET)) as store:
            assert await names(store) == ["p1"]
        file.write_text("wrong")
        async with opened(settings_of(server, password_file=file)) as store:
            with pytest.raises(ViewsUnavailable) as wrong:
                await store.position()
            assert "wrong" not in str(wrong.value)
        file.unlink()
        async with opened(settings_of(server, password_file=file)) as store:
            with pytest.raises(ViewsUnavailable, match="No such file"):
                await store.position()
    assert caplog.messages == []


def test_a_password_appears_in_no_text(tmp_path: Path) -> None:
    settings = RedisSettings.model_validate({"password": SECRET})
    assert SECRET not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()
    for url in (f"redis://u:{SECRET}@host", f"redis://host/0?password={SECRET}", "http://host"):
        with pytest.raises(ValidationError) as refused:
            RedisSettings(url=url)
        assert SECRET not in str(refused.value)
    with pytest.raises(ValidationError, match="one is enough"):
        RedisSettings.model_validate({"password": SECRET, "password_file": tmp_path / "file"})


async def test_tls_connects_only_to_a_server_with_a_trusted_certificate(
    server: RedisServer, tmp_path: Path
) -> None:
    ours, theirs = (authority(tmp_path / name) for name in ("ours", "theirs"))
    async with TlsFront(server.port, ours) as front:
        url = f"rediss://127.0.0.1:{front.port}/0"
        async with opened(RedisSettings(url=url, ssl_cafile=ours.cafile)) as store:
            await put(store, 1)
            assert await store.reach(at(1), 1)
        async with opened(RedisSettings(url=url, ssl_cafile=theirs.cafile)) as store:
            with pytest.raises(ViewsUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await store.position()
        plain = RedisSettings(url=f"redis://127.0.0.1:{front.port}/0", timeout_s=1)
        async with opened(plain) as store:
            with pytest.raises(ViewsUnavailable):
                await store.position()


async def test_the_rights_of_the_shipped_redis_are_enough_and_include_no_other_scripting(
    server: RedisServer,
) -> None:
    assert command(server, f"ACL SETUSER default {REDIS_USERS['views']}") == "+OK\r\n"
    async with opened(settings_of(server)) as store:
        await put(store, 1)
        assert await names(store) == ["p1"]
        assert await store.reach(at(1), 1)
    generations = RedisGenerations(settings_of(server), "main")
    assert await generations.begin() == 2
    await generations.close()
    for refused in ("EVAL 'return 1' 0", "SCRIPT FLUSH", "SCRIPT KILL"):
        assert "NOPERM" in command(server, refused)


# --- down ---------------------------------------------------------------------------------------


async def test_a_store_without_redis_fails_at_once_and_recovers_by_itself(
    server: RedisServer,
) -> None:
    async with opened(settings_of(server)) as store:
        await put(store, 1)
        server.kill()
        for _ in range(2):
            with pytest.raises(ViewsUnavailable):
                await store.get(ProjectRow, "p1")
            with pytest.raises(ViewsUnavailable):
                await store.page(ProjectRow, Query())
            with pytest.raises(ViewsUnavailable):
                await put(store, 2)
            with pytest.raises(ViewsUnavailable):
                await store.reach(at(2), 5)
            with pytest.raises(ViewsUnavailable):
                await store.changes(at(0))
        server.start()
        assert await names(store) == ["p1"]
        await put(store, 2, before=1)
        assert await store.reach(at(2), 1)


async def test_idle_connections_that_broke_are_replaced_without_an_error(
    server: RedisServer,
) -> None:
    async with opened(settings_of(server)) as store:
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(store.position())
        await put(store, 1)
        assert not await store.reach(at(2), 0.05)
        server.restart()
        await put(store, 2, before=1)
        server.restart()
        assert await store.reach(at(2), 1)
        assert await names(store) == ["p1", "p2"]
        server.restart()
        assert not await store.reach(at(3), 0.05)


async def test_a_store_may_be_opened_before_its_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    server.kill()
    async with opened(settings_of(server)) as store:
        with pytest.raises(ViewsUnavailable):
            await store.position()
        with server:
            await put(store, 1, before=0)
            assert await names(store) == ["p1"]


async def test_waiters_get_an_error_when_redis_stops(server: RedisServer) -> None:
    async with opened(settings_of(server)) as store:

        async def wait() -> str:
            try:
                return str(await store.reach(at(9), 30))
            except ViewsUnavailable:
                return "unavailable"

        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(wait()) for _ in range(20)]
            await let_wait_begin(0.2)
            server.kill()
        assert {task.result() for task in waiting} == {"unavailable"}


async def test_a_redis_that_does_not_answer_meets_the_deadline(server: RedisServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        async with opened(RedisSettings(url=url, timeout_s=0.2)) as store, asyncio.timeout(5):
            with pytest.raises(ViewsUnavailable, match="Timeout"):
                await store.position()


# --- few connections ----------------------------------------------------------------------------


def clients(server: RedisServer) -> int:
    return command(server, "CLIENT LIST").count("name=yardmaster")


async def test_a_thousand_waiters_use_one_connection(server: RedisServer) -> None:
    async with opened(settings_of(server, max_connections=4)) as store:
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(store.reach(at(1), 20)) for _ in range(500)]
            waiting += [group.create_task(store.changed(at(0), 20)) for _ in range(500)]
            await let_wait_begin(0.5)
            assert clients(server) <= 5
            await put(store, 1)
        assert all(task.result() for task in waiting)


async def test_callers_wait_for_a_free_connection_but_not_forever(
    server: RedisServer,
) -> None:
    async with opened(settings_of(server, max_connections=2)) as store:
        await put(store, 1)
        async with asyncio.TaskGroup() as group:
            found = [group.create_task(names(store)) for _ in range(50)]
        assert {tuple(task.result()) for task in found} == {("p1",)}
        command(server, "CLIENT PAUSE 1500")
        async with opened(settings_of(server, max_connections=1, timeout_s=0.3)) as busy:
            results = await asyncio.gather(
                *(busy.notes() for _ in range(3)), return_exceptions=True
            )
        assert all(isinstance(result, ViewsUnavailable) for result in results)
        assert any("in use" in str(result) for result in results)


async def test_a_cancelled_reader_leaves_no_answer_to_another(server: RedisServer) -> None:
    async with opened(settings_of(server, max_connections=1)) as store:
        await put(store, 1)
        for delay in range(30):
            task = asyncio.get_running_loop().create_task(store.get(ProjectRow, "p1"))
            await asyncio.sleep(delay * 0.0001)  # another moment of the exchange each time
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await store.position() == at(1)


# --- empty, old, of another --------------------------------------------------------------------


async def test_a_flushed_redis_is_at_the_start_and_the_writer_fails(server: RedisServer) -> None:
    async with opened(settings_of(server)) as writer, opened(settings_of(server)) as reader:
        for position in range(1, 4):
            await put(writer, position, before=position - 1)
        assert len(await reader.changes(at(1)) or ()) == 2
        command(server, "FLUSHALL")
        assert await reader.position() == at(0)
        assert await reader.changes(at(0)) == []
        assert await reader.get(ProjectRow, "p1") is None
        assert not await reader.reach(at(1), 0.05)
        with pytest.raises(ViewsMoved) as moved:
            await put(writer, 4, before=3)
        assert moved.value.fields["found"] == at(0)
        assert await names(reader) == []
        await put(writer, 2, before=0)
        changes = await reader.changes(at(0))
        assert [one.position for one in changes or ()] == [at(2)]


async def test_a_restored_dump_reports_no_newer_changes(
    server: RedisServer, tmp_path: Path
) -> None:
    dump = tmp_path / "appendonly.aof"
    async with opened(settings_of(server)) as writer, opened(settings_of(server)) as reader:
        await put(writer, 1, before=0)
        await put(writer, 2, before=1)
        server.kill()
        shutil.copy(dump, tmp_path / "old.aof")
        server.start()
        await put(writer, 5, before=2)
        assert [one.position for one in await reader.changes(at(0)) or ()] == [at(1), at(2), at(5)]
        server.kill()
        shutil.copy(tmp_path / "old.aof", dump)
        server.start()
        assert await reader.position() == at(2)
        assert not await reader.reach(at(5), 0.05)
        assert [one.position for one in await reader.changes(at(0)) or ()] == [at(1), at(2)]
        assert await reader.changes(at(5)) == []
        with pytest.raises(ViewsMoved):
            await put(writer, 6, before=5)
        await put(writer, 3, before=2)
        await put(writer, 4, before=3)
        found = await reader.changes(at(0))
        assert [one.position for one in found or ()] == [at(1), at(2), at(3), at(4)]
        assert await names(reader) == ["p1", "p2", "p3", "p4"]


async def test_two_writers_never_write_over_one_another(redis_server: RedisServer) -> None:
    settings = own_database(redis_server)

    async def write(store: RedisViewStore) -> int:
        """Write 40 positions, each after the current one; return the number of successes."""
        done = 0
        for _ in range(40):
            position = await store.position()
            now = position.requests or 0
            try:
                await put(store, now + 1, before=now)
                done += 1
            except ViewsMoved:
                pass
            await store.note([], {"done": done})
        return done

    async with opened(settings) as one, opened(settings) as other:
        counts = await asyncio.gather(write(one), write(other))
        assert await one.position() == at(sum(counts))
        found = await one.changes(at(0))
        assert [change.position for change in found or ()] == [
            at(number) for number in range(1, sum(counts) + 1)
        ]


async def test_a_row_of_another_version_is_reported_as_damaged(redis_server: RedisServer) -> None:
    settings = own_database(redis_server)
    async with opened(settings) as store:
        await put(store, 1)
        where = f"yard:{{main}}:g1:row:{ProjectRow.KIND}"
        command(redis_server, "SELECT 9", f"HSET {where} p1 '\\n{{}}'")
        with pytest.raises(ViewsDamaged, match="project"):
            await store.get(ProjectRow, "p1")


async def test_views_of_an_older_layout_are_refused_until_they_are_rebuilt(
    redis_server: RedisServer,
) -> None:
    settings = own_database(redis_server)
    # The head key of the first layout.
    head = '["main@r1.a0.n0.d0","main@r1.a0.n0.d0",1,1,1]'
    command(redis_server, "SELECT 9", f"SET yard:{{main}}:g1:head '{head}'")
    generations = RedisGenerations(settings, "main")
    async with opened(settings) as store:
        for refused in (store.begin, store.position, lambda: put(store, 2, before=1)):
            with pytest.raises(ViewsDamaged, match="yard views rebuild"):
                await refused()
        number = await generations.begin()
        async with opened(settings, generation=number) as built:
            await put(built, 1)
        assert await generations.switch(number)
        await generations.drop_older()
        assert await generations.known() == [number]
        assert await names(store) == ["p1"]
    await generations.close()


async def test_a_write_after_an_outdated_position_changes_nothing(
    redis_server: RedisServer,
) -> None:
    settings = own_database(redis_server)
    async with opened(settings) as late, opened(settings) as other:
        await put(late, 1, before=0)
        await put(other, 2, before=1)
        await other.note([], {"n": 1})
        stored = command(redis_server, "SELECT 9", "GET yard:{main}:g1:head")
        with pytest.raises(ViewsMoved):
            await put(late, 3, before=1)
        assert command(redis_server, "SELECT 9", "GET yard:{main}:g1:head") == stored
        assert await names(other) == ["p1", "p2"]


# --- shared parts of rows ------------------------------------------------------------------------


def task(facts: JobFacts, index: int) -> TaskRow:
    return TaskRow(job=facts, index=index, phase=Phase.PENDING)


def facts(*, size: int = 0, priority: int = 1) -> JobFacts:
    return JobFacts(
        job_id="a" * 12,
        project="nlp",
        user="ana",
        name="train",
        actor="ana",
        submitted_at_ms=priority,
        requested=SubmittedSpec(priority=priority),
        params=({"text": "x" * size},) if size else (),
    )


async def test_shared_parts_of_the_rows_of_a_job_are_stored_once_and_deleted_with_it(
    redis_server: RedisServer,
) -> None:
    async with opened(own_database(redis_server)) as store:
        prefix = "yard:{main}:g1:shared"

        def stored(name: str) -> str:
            return command(redis_server, "SELECT 9", f"HLEN {prefix}:{name}").split()[1]

        first = facts(size=100_000)
        job = JobRow(facts=first, body_digest="0" * 64, offset=1, run=Run(script="x" * 9_000))
        many = [Put(task(first, index)) for index in range(50)]
        await store.apply([Put(job), *many], at(1), {})
        assert (stored("facts"), stored("run")) == (":1", ":1")
        changed = facts(size=100_000, priority=2)
        job = replace(job, facts=changed, run=None)
        many = [Put(task(changed, index)) for index in range(50)]
        await store.apply([Put(job), *many], at(2), {})
        assert (stored("facts"), stored("run")) == (":1", ":0")
        async with opened(own_settings(redis_server)) as reader:
            page = await reader.page(TaskRow, Query(limit=100))
            assert (await reader.get(JobRow, job.key)) == job
        assert [row.job for row in page.rows] == [changed] * 50
        gone = [Delete(task(changed, index)) for index in range(50)]
        await store.apply([Delete(job), *gone], at(3), {})
        assert (stored("facts"), stored("run")) == (":0", ":0")


def own_settings(server: RedisServer) -> RedisSettings:
    return RedisSettings(url=f"redis://127.0.0.1:{server.port}/9")


async def test_nothing_of_an_erased_job_is_left_in_redis(redis_server: RedisServer) -> None:
    async with opened(own_database(redis_server)) as store:
        named = replace(facts(), name="secret", user="secret", labels={"team": "secret"})
        job = JobRow(facts=named, body_digest="0" * 64, offset=1, run=Run(script="secret"))
        job = replace(job, again=replace(job, offset=2))
        await store.apply([Put(job), Put(task(named, 0)), Put(task(named, 1))], at(1), {})

        def stored() -> str:
            """The names and the contents of all keys."""
            keys = command(redis_server, "SELECT 9", "KEYS *").split("\r\n")
            keys = [key for key in keys if key.startswith("yard")]
            reads = {"hash": "HGETALL {}", "string": "GET {}", "zset": "ZRANGE {} 0 -1"}
            types = command(redis_server, "SELECT 9", *(f"TYPE {key}" for key in keys))
            kinds = [line[1:] for line in types.split("\r\n")[1:]]
            lines = [
                reads.get(kind, "XRANGE {} - +").format(key)
                for kind, key in zip(kinds, keys, strict=False)
            ]
            return "\n".join(keys) + command(redis_server, "SELECT 9", *lines)

        assert stored().count("secret") > 10
        erased = replace(named, name=job.key, user="ana", labels={}, erased=True)
        job = replace(job, facts=erased, run=None, again=None)
        await store.apply([Put(job), Put(task(erased, 0)), Put(task(erased, 1))], at(2), {})
        assert "secret" not in stored()
        assert job.key in stored()


async def test_a_change_set_whose_large_value_changed_is_no_longer_kept(
    redis_server: RedisServer,
) -> None:
    settings = own_database(redis_server)
    async with opened(settings) as store, opened(settings) as reader:
        await store.apply([Put(task(facts(size=9_000), 0))], at(1), {})
        await store.apply([Put(task(facts(size=0), 0))], at(2), {})
        assert await reader.changes(at(0)) is None
        assert len(await reader.changes(at(1)) or ()) == 1


async def test_the_row_of_a_job_and_the_rows_of_its_tasks_share_their_facts(
    redis_server: RedisServer,
) -> None:
    async with opened(own_database(redis_server)) as store:
        shared = facts()
        job = JobRow(facts=shared, body_digest="0" * 64, offset=1)
        await store.apply([Put(job), Put(task(shared, 0))], at(1), {})
        async with opened(own_settings(redis_server)) as reader:
            found = await reader.get_all([(JobRow, job.key), (TaskRow, f"{job.key}.0")])
        row, one = found.rows
        assert isinstance(row, JobRow)
        assert isinstance(one, TaskRow)
        assert row.facts is one.job


# --- generations --------------------------------------------------------------------------------


async def test_views_are_rebuilt_while_the_old_ones_are_read(redis_server: RedisServer) -> None:
    settings = own_database(redis_server)
    generations = RedisGenerations(settings, "main")
    async with opened(settings) as live, opened(settings) as reader:
        await put(live, 1)
        await put(live, 2)
        number = await generations.begin()
        assert (await generations.current(), number) == (1, 2)
        async with opened(settings, generation=number) as built, asyncio.TaskGroup() as group:
            await put(built, 1)
            assert not await generations.switch(number), "the new generation is behind"
            assert await names(reader) == ["p1", "p2"]
            waiting = group.create_task(reader.reach(at(3), 10))
            await built.apply([Put(project("new"))], at(3), {"n": 1})
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert await generations.switch(number)
            assert await generations.switch(number), "a second switch changes nothing"
        assert waiting.result()
        assert await names(reader) == ["new", "p1"]
        assert await reader.notes() == {"n": 1}
        assert [one.position for one in await reader.changes(at(0)) or ()] == [at(1), at(3)]
        with pytest.raises(ViewsMoved):
            await put(live, 3, before=2)
        await put(live, 4, before=3)
        assert await names(reader) == ["new", "p1", "p4"]
        with pytest.raises(ViewsMoved):
            await generations.drop(number)
        assert await generations.known() == [1, 2]
        assert await generations.drop_older() > 0
        assert await generations.known() == [2]
        assert await names(reader) == ["new", "p1", "p4"]
        with pytest.raises(ViewsMoved):
            await generations.switch(1)
    await generations.close()


async def test_views_ahead_of_the_log_are_replaced_by_force(
    redis_server: RedisServer,
) -> None:
    settings = own_database(redis_server)
    generations = RedisGenerations(settings, "main")
    async with opened(settings) as store:
        await put(store, 9)
        number = await generations.begin()
        async with opened(settings, generation=number) as built:
            await put(built, 5)
        assert not await generations.switch(number)
        assert await generations.switch(number, even_behind=True)
        assert await store.position() == at(5)
        assert await store.changes(at(9)) == []
    await generations.close()


async def test_pages_are_complete_while_another_process_writes(redis_server: RedisServer) -> None:
    settings = own_database(redis_server)
    async with opened(settings) as writer, opened(settings) as reader:
        for position in range(1, 30):
            await put(writer, position)

        async def write() -> None:
            for position in range(30, 90):
                await put(writer, position)

        async with asyncio.TaskGroup() as group:
            writing = group.create_task(write())
            last = 0
            while not writing.done():
                page = await reader.page(ProjectRow, Query(limit=1000))
                requests = page.position.requests or 0
                assert requests >= last
                last = requests
                assert {row.name for row in page.rows} >= {f"p{n}" for n in range(1, requests + 1)}


async def test_many_watches_share_their_reads_of_redis(redis_server: RedisServer) -> None:
    settings = own_database(redis_server)

    def commands() -> int:
        found = command(redis_server, "INFO stats")
        return int(found.partition("total_commands_processed:")[2].split()[0])

    async with opened(settings) as writer, opened(settings) as reader:
        await put(writer, 1)
        assert len(await reader.changes(at(0)) or ()) == 1
        before = commands()
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(reader.changes(at(0))) for _ in range(500)]
            reading = [group.create_task(reader.position()) for _ in range(500)]
        assert commands() - before < 50
        assert all(len(task.result() or ()) == 1 for task in watching)
        assert {task.result() for task in reading} == {at(1)}


async def test_a_cancellation_at_any_step_is_not_lost(redis_server: RedisServer) -> None:
    client = Client(own_database(redis_server))
    try:
        for steps in itertools.count(1):
            reading = asyncio.create_task(client.read(["a"], [("GET", "a")] * 3))
            for _ in range(steps):
                await asyncio.sleep(0)
            if reading.done():
                break
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled(), f"cancelled after {steps} steps of the loop, and lost"
        assert steps > 3, "the read never waited: this test proves nothing"
    finally:
        await client.close()
