"""The agent's API for its tasks, spoken to as a task, a stranger and a browser would."""

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_agent import AgentCell, sh
from yardmaster_node_agent.agent import simulated_ports
from yardmaster_node_agent.ledger import MemoryLedger
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import Clock, ManualClock
from yardmaster_runtime.http import MAX_BODY_BYTES, listen_at
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.decisions import Checkpoint
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    TaskExitedV1,
    TaskProgressedV1,
    TaskStartedV1,
)


class SpyLedger(MemoryLedger):
    """Shows where the API is and what the tasks' tokens are."""

    port = 0

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[str, str] = {}

    def write(self, entries: Any, *, durable: bool = True) -> None:
        for entry in entries:
            self.port = getattr(entry, "api_port", self.port)
            if entry.kind == "replica":
                self.tokens[entry.key.task_id] = entry.token
        super().write(entries, durable=durable)


@dataclass
class AgentApi:
    """An agent with two running tasks."""

    cell: AgentCell
    ledger: SpyLedger
    mine: str
    other: str
    telemetry: Telemetry

    @property
    def token_of_other(self) -> str:
        return self.ledger.tokens[self.other]

    async def progress(self) -> list[int]:
        """The reported progress of the first task."""
        return [p.permille for p in await self.cell.of_type(TaskProgressedV1, self.mine)]

    async def raw(self, data: bytes, *, keep_open: bool = False) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ledger.port)
        writer.write(data)
        if not keep_open:
            await writer.drain()
        answer = await reader.read()
        writer.close()
        return answer

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        **headers: str,
    ) -> tuple[int, dict[str, Any]]:
        """One request as the first task makes it."""
        content = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        given = {
            "Host": f"127.0.0.1:{self.ledger.port}",
            "Authorization": f"Bearer {self.ledger.tokens[self.mine] if token is None else token}",
            "Content-Length": str(len(content)),
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
        answer = await self.raw(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content)
        first, _, said = answer.partition(b"\r\n\r\n")
        return int(first.split()[1]), json.loads(said)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[AgentApi]:
    async with opened(tmp_path) as api:
        yield api


@asynccontextmanager
async def opened(
    path: Path, *, clock: Clock | None = None, checkpoint: Checkpoint | None = None
) -> AsyncIterator[AgentApi]:
    cell = await AgentCell(path / "n1", clock=clock).open()
    ledger = SpyLedger()
    telemetry = Telemetry("node_agent", now_ms=cell.clock.now_ms, level="warning")
    ports = simulated_ports(
        cell.settings,
        log=cell.log,
        clock=cell.clock,
        chance=SystemChance(),
        telemetry=telemetry,
        ledger=ledger,
    )
    async with cell.agent(ports):
        env = {"SIM_SECONDS": "1000", "SIM_STOP_SECONDS": "-1"}
        mine, other = [
            await cell.allocate(sh("true", env=env), checkpoint=checkpoint) for _ in range(2)
        ]
        await cell.until(TaskStartedV1, mine)
        await cell.until(TaskStartedV1, other)
        yield AgentApi(cell, ledger, mine, other, telemetry)
    await cell.assert_honest()


async def test_a_checkpoint_is_reported_for_the_tokens_own_task(api: AgentApi) -> None:
    assert await api.ask("POST", "/v1/checkpoints", {"uri": "s3://runs/a", "step": 3}) == (200, {})
    done = await api.cell.until(CheckpointDoneV1)
    assert [(c.task_id, c.uri, c.step) for c in done] == [(api.mine, "s3://runs/a", 3)]


async def test_a_repeated_checkpoint_is_accepted_and_a_step_that_does_not_rise_is_refused(
    api: AgentApi,
) -> None:
    for _ in range(2):
        await api.ask("POST", "/v1/checkpoints", {"uri": "s3://runs/a", "step": 3})
    for step in (3, 2):
        status, problem = await api.ask(
            "POST", "/v1/checkpoints", {"uri": "s3://runs/b", "step": step}
        )
        assert (status, problem["code"]) == (409, "step_not_rising")
    await api.ask("POST", "/v1/checkpoints", {"uri": "s3://runs/c", "step": 4})
    await api.cell.stop(api.mine, grace_s=600)
    done = await api.cell.until(CheckpointDoneV1, where=lambda c: c.step == 4)
    assert len(done) == 1
    assert {c.uri for c in await api.cell.of_type(CheckpointDoneV1)} == {
        "s3://runs/a",
        "s3://runs/c",
    }


async def test_a_step_below_that_of_an_earlier_attempt_is_refused(
    tmp_path: Path,
) -> None:
    saved = Checkpoint(uri="s3://runs/step-7", step=7)
    async with opened(tmp_path, checkpoint=saved) as api:
        for step in (6, 7):
            status, problem = await api.ask(
                "POST", "/v1/checkpoints", {"uri": "s3://runs/b", "step": step}
            )
            assert (status, problem["code"]) == (409, "step_not_rising")
            assert "7" in problem["detail"]
        assert (await api.ask("POST", "/v1/checkpoints", {"uri": saved.uri, "step": 7}))[0] == 200
        await api.cell.stop(api.mine, grace_s=0)
        await api.cell.ended(api.mine)
        assert not await api.cell.of_type(CheckpointDoneV1)


async def test_progress_in_a_loop_is_reported_once_in_ten_seconds_and_the_newest_wins(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as api:
        for permille in range(1, 51):
            assert (await api.ask("POST", "/v1/progress", {"permille": permille}))[0] == 202
        await api.ask("POST", "/v1/progress", {"permille": 900}, token=api.token_of_other)
        await api.cell.until(TaskProgressedV1, api.other)
        assert await api.progress() == [1]
        clock.advance(9.9)
        await api.ask("POST", "/v1/progress", {"permille": 60})
        assert await api.progress() == [1]
        clock.advance(0.2)
        await api.cell.until(TaskProgressedV1, api.mine, count=2)
        assert await api.progress() == [1, 60]
        exposed = api.telemetry.exposition().decode()
        assert 'yard_node_agent_reports_coalesced_total{kind="progress"} 49.0' in exposed


async def test_the_last_progress_is_reported_before_the_exit(tmp_path: Path) -> None:
    async with opened(tmp_path, clock=ManualClock()) as api:
        for permille in (1, 2, 999, 1000):
            await api.ask("POST", "/v1/progress", {"permille": permille})
        await api.cell.stop(api.mine, grace_s=0)
        await api.cell.ended(api.mine)
        assert await api.progress() == [1, 1000]
        types = [e.type for e in await api.cell.envelopes() if e.subject == api.mine]
        assert types[-3:] == ["TaskProgressed", "TaskExited", "SlotsReleased"]


async def test_checkpoints_are_coalesced_and_the_last_is_reported_at_a_stop_and_before_the_exit(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, clock=ManualClock()) as api:

        async def save(*steps: int) -> None:
            for step in steps:
                body = {"uri": f"s3://runs/{step}", "step": step}
                assert (await api.ask("POST", "/v1/checkpoints", body))[0] == 200

        async def reported(count: int) -> list[int]:
            return [c.step for c in await api.cell.until(CheckpointDoneV1, count=count)]

        await save(1, 2, 3)
        assert await reported(1) == [1]
        await api.cell.stop(api.mine, grace_s=600)
        assert await reported(2) == [1, 3]
        await save(4)
        assert await reported(3) == [1, 3, 4], "what is saved for the stop does not wait"
        await save(5, 6)
        await api.cell.stop(api.mine, grace_s=0)
        await api.cell.ended(api.mine)
        assert await reported(4) == [1, 3, 4, 6]
        types = [e.type for e in await api.cell.envelopes() if e.subject == api.mine]
        assert types[-3:] == ["CheckpointDone", "TaskExited", "SlotsReleased"]


@pytest.mark.parametrize(
    "body",
    [
        {"uri": "s3://user:pass@host/a", "step": 1},
        {"uri": "s3://a?query", "step": 1},
        {"uri": "ftp://a/b", "step": 1},
        {"uri": "/plain/path", "step": 1},
        {"uri": "s3://a/" + "b" * 1100, "step": 1},
        {"uri": "s3://a", "step": -1},
        {"uri": "s3://a", "step": 2**53},
        {"uri": "s3://a", "step": 1.5},
        {"uri": "s3://a", "step": True},
        {"uri": "s3://a"},
        {"uri": "s3://a", "step": 1, "more": 1},
        [],
        "text",
    ],
)
async def test_a_checkpoint_that_the_schema_refuses_is_refused(api: AgentApi, body: Any) -> None:
    status, problem = await api.ask("POST", "/v1/checkpoints", body)
    assert (status, problem["code"]) == (422, "invalid")
    assert not await api.cell.of_type(CheckpointDoneV1)


async def test_bodies_that_are_not_json_or_too_large_are_refused(api: AgentApi) -> None:
    assert (await api.ask("POST", "/v1/checkpoints", b"\xff{"))[0] == 400
    assert (await api.ask("POST", "/v1/checkpoints", b"[" * 5000))[0] == 400
    assert (await api.ask("POST", "/v1/checkpoints", b" " * (MAX_BODY_BYTES + 1)))[0] == 413


async def test_progress_is_reported_and_bounded(api: AgentApi) -> None:
    assert (await api.ask("POST", "/v1/progress", {"permille": 400}))[0] == 202
    for wrong in (-1, 1001, "5", 1.5, None, True, False, 10**30, float("nan")):
        assert (await api.ask("POST", "/v1/progress", {"permille": wrong}))[0] == 422
    reported = await api.cell.until(TaskProgressedV1)
    assert [(p.task_id, p.permille) for p in reported] == [(api.mine, 400)]


async def test_a_stop_is_answered_at_once_to_a_waiting_request(api: AgentApi) -> None:
    assert await api.ask("GET", "/v1/stop") == (200, {"stop": None})
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(api.ask("GET", "/v1/stop?wait_s=60"))
        await api.cell.stop(api.mine, grace_s=600)
        status, answer = await waiting
    assert status == 200
    assert answer["stop"]["code"] == "priority"
    assert answer["stop"]["deadline_at"].endswith("Z")
    assert (await api.ask("GET", "/v1/stop", token=api.ledger.tokens[api.other]))[1] == {
        "stop": None
    }


async def test_done_is_reported_with_the_exit(api: AgentApi) -> None:
    assert (await api.ask("POST", "/v1/done"))[0] == 200
    await api.cell.stop(api.mine, grace_s=0)
    exited = await api.cell.until(TaskExitedV1, api.mine)
    assert exited[0].done


async def test_the_token_of_an_ended_task_is_refused(api: AgentApi) -> None:
    await api.cell.stop(api.mine, grace_s=0)
    await api.cell.ended(api.mine)
    assert (await api.ask("GET", "/v1/stop"))[0] == 401


@pytest.mark.parametrize("token", ["", "wrong", "0" * 64, "é"])
async def test_without_the_token_a_caller_reads_and_changes_nothing(
    api: AgentApi, token: str
) -> None:
    for method, path in (("GET", "/v1/stop"), ("POST", "/v1/checkpoints"), ("POST", "/v1/none")):
        assert (await api.ask(method, path, token=token))[0] == 401


async def test_requests_of_web_pages_are_refused(api: AgentApi) -> None:
    assert (await api.ask("GET", "/v1/stop", Host="evil.example:80"))[0] == 403
    assert (await api.ask("GET", "/v1/stop", Host=f"127.0.0.1:{api.ledger.port + 1}"))[0] == 403
    assert (await api.ask("POST", "/v1/done", Origin="http://evil.example"))[0] == 403
    assert (await api.ask("GET", "/v1/stop", Host=f"localhost:{api.ledger.port}"))[0] == 200


async def test_unknown_routes_and_methods_are_refused_with_their_status(api: AgentApi) -> None:
    assert (await api.ask("GET", "/v1/other"))[0] == 404
    assert (await api.ask("GET", "/metrics"))[0] == 404
    assert (await api.ask("GET", "/v1/checkpoints"))[0] == 405
    assert (await api.ask("POST", "/v1/stop"))[0] == 405
    assert (await api.ask("GET", "/v1/stop?wait_s=-1"))[0] == 422


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x05hello",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/stop HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v1/done HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
    ],
)
async def test_a_malformed_request_gets_an_error_and_affects_no_other(
    api: AgentApi, data: bytes
) -> None:
    answer = await api.raw(data)
    assert answer.split()[1].startswith(b"4")
    assert (await api.ask("GET", "/v1/stop"))[0] == 200


async def test_a_client_that_disconnects_midway_affects_no_other(api: AgentApi) -> None:
    for data in (
        b"",
        b"GET /v1",
        b"POST /v1/done HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab",
    ):
        _, writer = await asyncio.open_connection("127.0.0.1", api.ledger.port)
        writer.write(data)
        await writer.drain()
        writer.close()
    assert (await api.ask("GET", "/v1/stop"))[0] == 200


async def test_a_request_may_wait_for_100_continue_before_it_sends_its_body(api: AgentApi) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.ledger.port)
    body = b'{"permille": 7}'
    writer.write(
        f"POST /v1/progress HTTP/1.1\r\nHost: 127.0.0.1:{api.ledger.port}\r\n"
        f"Authorization: Bearer {api.ledger.tokens[api.mine]}\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
    )
    assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
    writer.write(body)
    assert b" 202 " in await reader.read()
    writer.close()


async def test_a_socket_with_a_long_path_serves_containers_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "agent.sock"
    for _ in range(2):
        listener = listen_at(path)
        client = socket.socket(socket.AF_UNIX)
        folder = os.open(path.parent, os.O_DIRECTORY)
        client.connect(f"/proc/self/fd/{folder}/agent.sock")
        os.close(folder)
        for each in (client, listener):
            each.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
