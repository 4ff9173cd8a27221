"""HTTP of the gateway: HEAD, disconnected clients, and readiness while a part of it hangs."""

import asyncio
import io
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.support.gateway import GatewayCell
from tests.support.memory_cell import CELL
from tests.support.views import telemetry
from yardmaster_cli.dev.watched_log import WatchedLog
from yardmaster_eventlog.errors import LogUnavailable
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition, Record
from yardmaster_gateway.app import create_app
from yardmaster_gateway.routes.health import HealthCheck, report_health
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.http import Request
from yardmaster_runtime.telemetry.health import Health, health_handler
from yardmaster_runtime.telemetry.port import Telemetry


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/v1/tasks", "/v1/cell"])
async def test_every_get_has_a_head_without_content(cell: GatewayCell, path: str) -> None:
    async with cell.client() as client:
        got, head = await client.get(path), await client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":  # it counts the request before
        assert head.headers["content-length"] == got.headers["content-length"]


async def test_a_head_of_a_missing_object_and_of_a_stream_end(cell: GatewayCell) -> None:
    async with cell.client() as client:
        assert (await client.head("/v1/jobs/aaaaaaaaaaaa")).status_code == 404
        assert (await client.head("/v1/jobs/aaaaaaaaaaaa/cancel")).status_code == 405
        watch = await client.head("/v1/watch?kinds=task")
    assert (watch.status_code, watch.content) == (200, b"")


def with_lines(cell: GatewayCell) -> io.StringIO:
    """Let the cell's gateway write its log lines into the result."""
    lines = io.StringIO()
    said = Telemetry("gateway", now_ms=cell.clock.now_ms, stream=lines)
    cell.app = create_app(replace(cell.ports, telemetry=said), cell.settings)
    return lines


async def test_a_client_that_disconnects_within_its_body_is_one_line(cell: GatewayCell) -> None:
    lines = with_lines(cell)
    parts = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"},
        **{"path": "/v1/jobs", "raw_path": b"/v1/jobs", "root_path": "", "query_string": b""},
        **{"scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)},
        "headers": [
            (b"authorization", b"Bearer nlp"),
            (b"content-type", b"application/json"),
            (b"content-length", b"100"),
        ],
    }

    async def receive() -> Any:
        return parts.pop(0)

    async def send(part: Any) -> None:
        sent.append(part)

    await cell.app(scope, receive, send)
    assert sent == []
    (line,) = [json.loads(each) for each in lines.getvalue().splitlines()]
    assert (line["event"], line["level"]) == ("client_disconnected", "info")


async def verdicts(cell: GatewayCell) -> tuple[str, str]:
    """The verdicts of the gateway's own port and of its health port, each within a second."""
    process = Health()
    check: HealthCheck = cell.app.state.health
    reporting = asyncio.create_task(report_health(check, cell.clock, process))
    try:
        started = time.monotonic()
        async with cell.client(None) as client:
            own = (await client.get("/readyz")).json()
        answer = health_handler(process, cell.ports.telemetry)
        other: dict[str, Any] = {"reasons": {"process": "starting"}}
        while "process" in other.get("reasons", {}):
            got = await answer(Request("GET", "/readyz", "", {}, b""))
            other = json.loads(got.body)
            await asyncio.sleep(0)
        assert time.monotonic() - started < 2.0, "twice within a second"
    finally:
        reporting.cancel()
    return own.get("code") or own["status"], other["status"]


async def hang(*_: object, **__: object) -> Any:
    await asyncio.Event().wait()


async def test_both_ports_say_degraded_while_the_store_of_the_views_hangs(
    cell: GatewayCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await verdicts(cell) == ("ready", "ready")
    with monkeypatch.context() as patched:
        patched.setattr(cell.store, "get", hang)
        patched.setattr(cell.store, "get_all", hang)
        patched.setattr(cell.store, "position", hang)
        assert await verdicts(cell) == ("degraded", "degraded")
    assert await verdicts(cell) == ("ready", "ready")


async def test_a_gateway_is_not_ready_while_the_log_takes_no_records() -> None:
    class Full(MemoryLog):
        full = False

        async def append(self, partition: Partition, batch: Any) -> int:
            if self.full:
                raise LogUnavailable(found="database or disk is full")
            return await super().append(partition, batch)

    clock, lines = SystemClock(), io.StringIO()
    full = Full(clock)
    log = WatchedLog(full, Telemetry("log", now_ms=clock.now_ms, stream=lines))
    cell = await GatewayCell(clock=clock, log=log).start()
    ports = replace(cell.ports, telemetry=telemetry("gateway"), log_fault=lambda: log.fault)
    cell.app = create_app(ports, cell.settings)
    assert await verdicts(cell) == ("ready", "ready")
    full.full = True
    record = Record(CELL.encode(), b"{}")
    for _ in range(3):
        with pytest.raises(LogUnavailable):
            await log.append(Partition("heartbeats"), [record])
    assert await verdicts(cell) == ("not_ready", "not_ready")
    full.full = False
    await log.append(Partition("heartbeats"), [record])
    assert await verdicts(cell) == ("ready", "ready")
    events = [json.loads(line)["event"] for line in lines.getvalue().splitlines()]
    assert events == ["log_unavailable", "log_available"]
