"""A gateway during an outage of its Redis: submits work, reads answer 503, and all recovers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support import logs
from tests.support.gateway import GatewayCell
from tests.support.memory_cell import CELL
from tests.support.redis_server import RedisServer
from tests.support.redis_views import command
from tests.support.views import telemetry
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_gateway.app import create_app, document
from yardmaster_gateway.background.token_import import import_users
from yardmaster_gateway.identity.authentication import FileUser, digest_of
from yardmaster_projections.cached import CachedReader
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events import users
from yardmaster_schemas.events.expiring import Stream, TaskOutputV1
from yardmaster_schemas.sources import agent_source
from yardmaster_views.follower import Follower, Metrics, Views

JOB = {"project": "nlp", "resources": {"gpus": 1}, "run": {"command": ["true"]}}


class RecordingMiddleware:
    """ASGI middleware that records the bodies of answers while an app sends them."""

    def __init__(self, app: ASGIApp, sent: bytearray) -> None:
        self._app = app
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            self._sent += message.get("body", b"")
            await send(message)

        await self._app(scope, receive, noted)


class RedisCell(GatewayCell):
    """A cell whose gateway reads Redis."""

    def __init__(self, redis: RedisSettings, **settings: Any) -> None:
        super().__init__(**settings)
        self.redis = RedisViewStore(redis, CELL, self.clock)
        self.ports = type(self.ports)(
            log=self.log,
            views=self.redis,
            identity=self.ports.identity,
            clock=self.clock,
            chance=self.chance,
            telemetry=telemetry("gateway"),
        )
        #: The sent bytes of all answers, including unfinished ones: the client of these tests
        #: returns an answer only when it is complete.
        self.sent = bytearray()
        self.app = create_app(self.ports, self.settings)
        self.app.add_middleware(RecordingMiddleware, sent=self.sent)
        self.projected = True

    async def run_until_idle(self) -> None:
        """Let all services process the log, also the views on Redis while `projected` is set."""
        await super().run_until_idle()
        if self.projected:
            await follow(self.log, self.redis)

    async def submit_keyed(self, key: str) -> str:
        """Submit with an idempotency key; return the job's id."""
        headers = {"Idempotency-Key": key}
        call = self.call("POST", "/v1/jobs", token="nlp", status=202, json=JOB, headers=headers)
        return str((await call)["job_id"])


async def follow(log: EventLog, store: RedisViewStore) -> None:
    """Project a log into a store, from the position of the store to the end."""
    views = Views(store, CachedReader(store))
    follower = Follower(log, views, CELL, 0, Metrics(telemetry("views")))
    await follower.start()
    await follower.catch_up()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@asynccontextmanager
async def cell_on(server: RedisServer, **settings: Any) -> AsyncIterator[RedisCell]:
    cell = RedisCell(RedisSettings(url=server.url, timeout_s=2), **settings)
    try:
        await cell.start()
        yield cell
    finally:
        await cell.redis.close()


async def refused(cell: GatewayCell, path: str, token: str = "operator") -> dict[str, Any]:
    async with cell.client(token) as client:
        response = await client.get(path)
    assert response.status_code == 503, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["Retry-After"]) >= 1
    problem: dict[str, Any] = response.json()
    assert problem["code"] == "views_unavailable"
    assert "submitted" in problem["hint"]
    return problem


async def readiness(cell: GatewayCell) -> tuple[int, str]:
    async with cell.client(None) as client:
        assert (await client.get("/livez")).status_code == 200
        response = await client.get("/readyz")
    return response.status_code, response.json()["status"]


async def until_a_reader_waits(server: RedisServer) -> None:
    """Wait until a gateway waits for the next change in Redis."""
    async with asyncio.timeout(30):
        while True:
            for client in command(server, "CLIENT LIST").splitlines():
                # Blocked: a client that no longer waits still has xread as its last command.
                if "cmd=xread" in client and "flags=b" in client:
                    return
            await asyncio.sleep(0.02)


async def until_sent(cell: RedisCell, words: bytes) -> None:
    """Wait until an answer, possibly unfinished, contains these words."""
    async with asyncio.timeout(30):
        while words not in cell.sent:  # noqa: ASYNC110 an answer sets no event
            await asyncio.sleep(0.02)


async def until_port_closed(port: int) -> None:
    """Wait until no process accepts connections on `port`."""
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            writer.close()
            await asyncio.sleep(0.02)


async def test_without_redis_reads_answer_503_submits_work_and_all_recovers(
    server: RedisServer,
) -> None:
    async with cell_on(server) as cell:
        before = await cell.submit()
        assert await readiness(cell) == (200, "ready")
        server.kill()
        cell.projected = False
        for path in (
            *("/v1/jobs", "/v1/tasks", f"/v1/jobs/{before}", f"/v1/tasks/{before}.0", "/v1/nodes"),
            *("/v1/pools", "/v1/projects", "/v1/watch", f"/v1/tasks/{before}.0/logs?follow=true"),
        ):
            problem = await refused(cell, path)
            assert str(server.port) not in problem["detail"], "only the operator may know the port"
        assert await readiness(cell) == (200, "degraded")
        during = await cell.submit()
        keyed = await cell.submit_keyed("k1")
        assert await cell.submit_keyed("k1") == keyed, "the key is found in the log"
        async with cell.client("nlp") as client:
            other = await client.post(
                "/v1/jobs", json=JOB | {"name": "other"}, headers={"Idempotency-Key": "k1"}
            )
            assert other.json()["code"] == "idempotency_mismatch"
            change = await client.post(f"/v1/jobs/{during}/cancel", json={})
            assert change.json()["code"] == "views_unavailable"
        assert await cell.call("GET", "/v1/whoami", run=False)
        assert await cell.call("GET", "/v1/version", run=False)
        server.start()
        cell.projected = True
        await cell.run_until_idle()
        for job in (before, during, keyed):
            task = await cell.call("GET", f"/v1/tasks/{job}.0", token="nlp")
            assert task["phase"] in ("starting", "pending"), task
        assert await readiness(cell) == (200, "ready")
        submitted = [one for one in await cell.events("requests") if one.TYPE == "TaskSubmitted"]
        assert len(submitted) == 3, "the repeat was not recorded again"


async def test_a_submit_by_a_role_of_the_department_needs_the_views(
    server: RedisServer,
) -> None:
    async with cell_on(server) as cell:
        server.kill()
        cell.projected = False
        async with cell.client("research") as client:
            answer = await client.post("/v1/jobs", json=JOB)
            assert answer.json()["code"] == "views_unavailable"
        async with cell.client("vision") as client:
            answer = await client.post("/v1/jobs", json=JOB)
            assert answer.json()["code"] == "forbidden"


async def test_an_old_idempotency_key_is_found_in_the_views(server: RedisServer) -> None:
    async with cell_on(server, recent_requests=2) as cell:
        job = await cell.submit_keyed("old")
        for _ in range(4):
            await cell.submit()
        count = len(await cell.events("requests"))
        assert await cell.submit_keyed("old") == job
        assert len(await cell.events("requests")) == count


async def test_a_watch_ends_cleanly_when_redis_stops_and_resumes_when_it_is_back(
    server: RedisServer,
) -> None:
    async with cell_on(server, stream_s=30.0, bookmark_s=10.0, view_wait_s=20.0) as cell:
        await cell.submit()

        async def watch(after: str | None = None) -> list[tuple[str, str | None]]:
            headers = {} if after is None else {"Last-Event-ID": after}
            async with cell.client() as client:
                response = await client.get("/v1/watch", headers=headers)
            assert response.status_code == 200, response.text
            found = [part.splitlines() for part in response.text.split("\n\n") if part]
            return [
                (lines[0].removeprefix("event: "), lines[1].removeprefix("id: ")) for lines in found
            ]

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            await until_a_reader_waits(server)
            server.kill()
        seen = watching.result()
        assert seen[-1][0] == "snapshot"
        cell.projected = False
        second = await cell.submit()
        server.start()
        cell.projected = True
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch(seen[-1][1]))
            await until_a_reader_waits(server)
            await cell.run_until_idle()
            await until_sent(cell, b"event: upsert")
            server.kill()
        assert "upsert" in [event for event, _ in watching.result()], second
        cell.projected = False


async def test_following_output_continues_while_redis_is_away(server: RedisServer) -> None:
    async with cell_on(server, stream_s=30.0, bookmark_s=0.2) as cell:
        task_id = f"{await cell.submit()}.0"
        await cell.starts(task_id)

        async def says(seq: int) -> None:
            said = TaskOutputV1(
                task_id=task_id,
                attempt=1,
                replica=0,
                node="n1",
                seq=seq,
                at_ms=seq,
                stream=Stream.STDOUT,
                text=f"line {seq}\n",
            )
            await cell.write("task-logs", agent_source("n1", logs.incarnation()), said, task_id)

        async def follow() -> str:
            async with cell.client() as client:
                response = await client.get(f"/v1/tasks/{task_id}/logs?follow=true")
                return response.text

        await says(1)
        await cell.run_until_idle()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follow())
            await until_sent(cell, b"line 1")
            server.kill()
            cell.projected = False
            await says(2)
            await until_sent(cell, b"line 2")
            server.start()
            await says(3)
            await cell.finishes(task_id)
            cell.projected = True
            await cell.run_until_idle()
        text = following.result()
        assert [text.count(f"line {seq}\\n") for seq in (1, 2, 3)] == [1, 1, 1], text
        assert "event: end" in text


async def test_a_flushed_redis_is_filled_again_and_min_position_waits(server: RedisServer) -> None:
    async with cell_on(server) as cell:
        job = await cell.submit()
        position = str(await cell.redis.position())
        assert await readiness(cell) == (200, "ready")
        command(server, "FLUSHALL")
        async with cell.client() as client:
            behind = await client.get("/v1/jobs", params={"min_position": position})
            assert behind.json()["code"] == "view_behind"
            assert (await client.get("/readyz")).json()["status"] == "degraded"
            change = await client.put(
                "/v1/projects/nlp", json={"department": "research"}, headers={"If-Match": '"1"'}
            )
            assert change.json()["code"] == "views_unavailable"
        for path in ("/v1/jobs", f"/v1/jobs/{job}", f"/v1/tasks/{job}.0", "/v1/pools"):
            await refused(cell, path)
        await cell.run_until_idle()
        found = await cell.call("GET", f"/v1/jobs/{job}", params={"min_position": position})
        assert found["job_id"] == job


async def test_a_redis_flushed_during_a_wait_answers_503_instead_of_not_found(
    server: RedisServer,
) -> None:
    async with cell_on(server, max_wait_s=2.0) as cell:
        job = await cell.submit()
        async with asyncio.TaskGroup() as group:
            path = f"/v1/tasks/{job}.0?wait_for=ended&timeout_s=2"
            waiting = group.create_task(refused(cell, path))
            await until_a_reader_waits(server)
            command(server, "FLUSHALL")
        assert waiting.result()["status"] == 503


async def test_without_redis_the_quota_service_recognizes_an_old_idempotency_key(
    server: RedisServer,
) -> None:
    async with cell_on(server, recent_requests=2) as cell:
        job = await cell.submit_keyed("old")
        for _ in range(4):
            await cell.submit()
        server.kill()
        cell.projected = False
        async with cell.client("nlp") as client:
            again = await client.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "old"})
        assert (again.status_code, again.json()["job_id"]) == (202, job)
        details = await cell.log.read(Partition("details"), 0)
        keys = [stored.record.key.decode() for stored in details]
        assert len({key for key in keys if key.startswith(f"{job}.")}) == 2
        server.start()
        cell.projected = True
        await cell.run_until_idle()
        assert await cell.submit_keyed("old") == job


def test_every_operation_documents_that_the_views_may_be_unavailable() -> None:
    for path, operations in document()["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/"):
                assert "views_unavailable" in operation["responses"]["503"]["description"], path


# --- as a process -------------------------------------------------------------------------------


class GatewayProcess:
    """`yardmaster-gateway` on a SQLite log."""

    def __init__(self, path: Path, redis: str, **env: str) -> None:
        self.tokens = path / "tokens.json"
        self.tokens.touch(mode=0o600)
        entry = {
            "id": "t",
            "digest": digest_of("secret-token"),
            "user": "olga",
            "roles": [{"role": "operator", "scope": "cell", "name": CELL}],
        }
        self.tokens.write_text(json.dumps({"version": 1, "tokens": [entry]}))
        self.log = path / "gateway.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "yardmaster_gateway.main"],
                env=dict(os.environ)
                | {
                    "YARD_LOG": f"sqlite:///{path / 'log.db'}",
                    "YARD_REDIS__URL": redis,
                    "YARD_REDIS__TIMEOUT_S": "1",
                    "YARD_GATEWAY_PORT": "0",
                    "YARD_GATEWAY_READY_AGE_S": "0",
                    "YARD_GATEWAY_TOKEN_FILE": str(self.tokens),
                }
                | env,
                stdout=output,
                stderr=output,
            )

    async def port(self) -> int:
        """Wait until the process listens; return its port."""
        async with asyncio.timeout(60):
            while True:
                for line in self.log.read_text().splitlines():
                    if line.startswith("{") and json.loads(line)["event"] == "listening":
                        port: int = json.loads(line)["port"]
                        return port
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.05)

    def end(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


async def set_up(path: Path) -> EventLog:
    """A log with the user of `GatewayProcess`: the process has no quota."""
    log = await SqliteLog.open(path / "log.db", SystemClock(), create=True)
    role = users.RoleInScope(role=users.RoleName.OPERATOR, scope=users.Scope.CELL, name=CELL)
    user = FileUser("olga", (role,), (users.NewToken(id="t", digest=digest_of("secret-token")),))
    cell = await GatewayCell(log=log, file_users=[user]).start()
    work = asyncio.create_task(import_users(cell.app.state.gateway))
    while not work.done():
        await cell.run_until_idle()
        await asyncio.sleep(0)
    await work
    return log


async def status_of(client: httpx.AsyncClient) -> object:
    """The status of a gateway, once it has read the users of the log."""
    async with asyncio.timeout(60):
        while (found := (await client.get("/readyz")).json())["status"] == 503:  # noqa: ASYNC110 another process
            await asyncio.sleep(0.05)
    return found["status"]


async def test_a_process_starts_without_redis_and_uses_it_when_it_is_available(
    tmp_path: Path, server: RedisServer
) -> None:
    server.kill()
    log = await set_up(tmp_path)
    gateway = GatewayProcess(tmp_path, server.url)
    try:
        headers = {"Authorization": "Bearer secret-token"}
        url = f"http://127.0.0.1:{await gateway.port()}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as client:
            assert await status_of(client) == "degraded"
            assert (await client.get("/v1/jobs")).json()["code"] == "views_unavailable"
            end = await log.end(Partition("requests"))
            submitted = await client.post("/v1/jobs", json=JOB)
            assert submitted.status_code == 202, submitted.text
            assert await log.end(Partition("requests")) == end + 1
            server.start()
            store = RedisViewStore(RedisSettings(url=server.url), CELL, SystemClock())
            await follow(log, store)
            await store.close()
            assert (await client.get("/readyz")).json()["status"] == "ready"
            shown = await client.get(f"/v1/jobs/{submitted.json()['job_id']}")
            assert shown.status_code == 200
        assert gateway.end() == 0
        assert "secret-token" not in gateway.log.read_text()
    finally:
        gateway.process.kill()
        gateway.process.wait()
        await log.close()


async def test_a_stopping_gateway_finishes_its_open_answers(
    tmp_path: Path, server: RedisServer
) -> None:
    log = await set_up(tmp_path)
    store = RedisViewStore(RedisSettings(url=server.url), CELL, SystemClock())
    await follow(log, store)
    gateway = GatewayProcess(tmp_path, server.url, YARD_GATEWAY_STOP_S="5")
    try:
        headers = {"Authorization": "Bearer secret-token"}
        port = await gateway.port()
        url = f"http://127.0.0.1:{port}"
        position = await store.position()
        wanted = f"{CELL}@r{(position.requests or 0) + 1}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as client:
            assert await status_of(client) == "ready"
            submitted = await client.post("/v1/jobs", json=JOB)
            assert submitted.json()["position"] == wanted
            async with asyncio.TaskGroup() as group:
                # Waits for the views, which process the job only after the signal.
                reading = group.create_task(client.get("/v1/jobs", params={"min_position": wanted}))
                await until_a_reader_waits(server)
                gateway.process.send_signal(signal.SIGTERM)
                await until_port_closed(port)
                await follow(log, store)
            assert reading.result().status_code == 200, reading.result().text
        assert gateway.process.wait(20) == 0
    finally:
        gateway.process.kill()
        gateway.process.wait()
        await store.close()
        await log.close()


async def test_an_unavailable_redis_is_a_named_error_of_the_store(server: RedisServer) -> None:
    store = RedisViewStore(RedisSettings(url=server.url), CELL, SystemClock())
    server.kill()
    with pytest.raises(ViewsUnavailable):
        await store.ping()
    await store.close()
