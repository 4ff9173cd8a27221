"""One trace from the HTTP request through the log to the start of a process."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.otlp import Collector, Seen
from yardmaster_cli.dev.embedded import owner
from yardmaster_cli.log.first_records import Site, set_up
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_gateway import main as gateway
from yardmaster_gateway.context import GatewayPorts
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_node_agent import agent
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_quota import main as quota
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.replay.verify import verify
from yardmaster_runtime.service import Ports
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.telemetry.tracing import TraceSettings, trace_id_of
from yardmaster_scheduler import main as scheduler
from yardmaster_schemas.events.requests import LogMode
from yardmaster_schemas.topics import ADMISSIONS
from yardmaster_views import main as views
from yardmaster_views.follower import Views

CELL = "main"
TOKEN = "t" * 40
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"
JOB = {"project": "default", "resources": {"gpus": 1}, "run": {"command": ["true"]}}
#: The spans of a job from its submission to its process.
PATH_SPANS = {
    *("POST /v1/jobs", "append details", "append requests", "quota cycle", "quota TaskAdmitted"),
    *("scheduler cycle", "scheduler relay", "views step"),
    *("node_agent assignment", "node_agent prepare", "node_agent start"),
}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@dataclass
class Running:
    """A cell whose services run in this process, each with separate telemetry."""

    url: str
    log: MemoryLog
    telemetry: dict[str, Telemetry] = field(default_factory=dict)
    lines: dict[str, io.StringIO] = field(default_factory=dict)

    async def submit(self, job: Mapping[str, object] = JOB, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.post(
                f"{self.url}/v1/jobs",
                json=job,
                headers={"Authorization": f"Bearer {TOKEN}", **headers},
                timeout=20,
            )

    async def node_is_ready(self) -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answer = await client.get(f"{self.url}/v1/nodes", headers=headers, timeout=20)
        return [node["state"] for node in answer.json().get("items", ())] == ["ready"]

    def said(self, service: str, event: str) -> list[dict[str, object]]:
        lines = map(json.loads, self.lines[service].getvalue().splitlines())
        return [line for line in lines if line["event"] == event]

    async def until(self, wanted: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not wanted():  # noqa: ASYNC110 a log line sets no event
                await asyncio.sleep(0.02)


@asynccontextmanager
async def cell(path: Path, traces: TraceSettings) -> AsyncIterator[Running]:
    clock, chance = SystemClock(), SystemChance()
    log = MemoryLog(clock)
    listener = gateway.listen("127.0.0.1", 0)
    running = Running(f"http://127.0.0.1:{listener.getsockname()[1]}", log)

    def telemetry(service: str) -> Telemetry:
        lines = running.lines[service] = io.StringIO()
        made = running.telemetry[service] = Telemetry(service, now_ms=clock.now_ms, stream=lines)
        made.trace_to(traces, f"{service}-1")
        return made

    def ports(service: str) -> Ports:
        return Ports(log=log, clock=clock, chance=chance, telemetry=telemetry(service))

    site = Site(mode=LogMode.EMBEDDED, cells=(CELL,), actor="dev", nodes=("n1",))
    await set_up(log, clock, chance, site)
    store = MemoryViewStore(CELL, clock)
    runtime = RuntimeSettings(data=path, cell=CELL)
    node = agent.Settings(node="n1", cell=CELL, data_dir=path / "n1", gpus=1, api=False)
    node_ports = agent.host_ports(
        node, log=log, clock=clock, chance=chance, telemetry=telemetry("node_agent")
    )
    users = (owner(TOKEN),)
    services = [
        quota.run(ports("quota"), runtime),
        scheduler.run(ports("scheduler"), runtime),
        views.run(
            views.ViewsPorts(log, Views(store, store), clock, telemetry("views")),
            views.ViewsSettings(cell=CELL),
        ),
        gateway.run(
            GatewayPorts(log, store, clock, chance, telemetry("gateway"), file_users=users),
            GatewaySettings(cell=CELL),
            listener=listener,
        ),
        agent.run(node_ports, node),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in services]
            yield running
            for task in tasks:
                task.cancel()
    finally:
        for each in running.telemetry.values():
            each.close()


def traced(collector: Collector) -> TraceSettings:
    return TraceSettings(endpoint=collector.url, interval_s=0.05)


def names(spans: list[Seen], service: str) -> list[str]:
    return [span.name for span in spans if span.service == f"yardmaster-{service}"]


async def test_one_trace_leads_from_the_request_to_the_start_of_the_process(
    tmp_path: Path, collector: Collector
) -> None:
    def about_it() -> list[Seen]:
        return [span for span in collector.spans if span.concerns(TRACE)]

    async with cell(tmp_path, traced(collector)) as running:
        # What the relay copies to a node that joins in the same cycle is no span of it.
        async with asyncio.timeout(20):
            while not await running.node_is_ready():  # noqa: ASYNC110 a view sets no event
                await asyncio.sleep(0.02)
        answer = await running.submit(traceparent=CALLER)
        assert answer.status_code == 202, answer.text
        assert answer.headers["Trace-Id"] == TRACE
        # The last span of the path is not always the last one that is sent.
        await running.until(lambda: {span.name for span in about_it()} >= PATH_SPANS)
    spans = about_it()
    assert "POST /v1/jobs" in names(spans, "gateway")
    assert {"append details", "append requests"} <= set(names(spans, "gateway"))
    assert {"quota cycle", "quota TaskAdmitted"} <= set(names(spans, "quota"))
    assert {"scheduler cycle", "scheduler relay"} <= set(names(spans, "scheduler"))
    assert "views step" in names(spans, "views")

    (request,) = [span for span in spans if span.name == "POST /v1/jobs"]
    assert request.trace_id == TRACE
    assert request.parent == CALLER.split("-")[2]
    assert request.attributes["http.response.status_code"] == 202
    (admitted,) = [span for span in spans if span.name == "quota TaskAdmitted"]
    assert (admitted.trace_id, admitted.parent) == (TRACE, request.span_id)
    cycles = [span for span in spans if span.name == "scheduler cycle"]
    assert all(TRACE in span.links for span in cycles)

    (assignment,) = [span for span in spans if span.name == "node_agent assignment"]
    assert (assignment.trace_id, assignment.parent) == (TRACE, request.span_id)
    (start,) = [span for span in spans if span.name == "node_agent start"]
    assert (start.trace_id, start.parent) == (TRACE, assignment.span_id)
    # Quota and scheduler have a second cycle when the task ends.
    for name in ("POST /v1/jobs", "quota cycle", "scheduler cycle", "node_agent details"):
        assert min(s.start_ns for s in spans if s.name == name) < start.start_ns, name


async def test_a_refusal_is_in_the_trace_with_its_code(
    tmp_path: Path, collector: Collector
) -> None:
    job = {**JOB, "project": "unknown"}
    async with cell(tmp_path, traced(collector)) as running:
        await running.submit(job, traceparent=CALLER)
        await running.until(lambda: "quota TaskRejected" in {span.name for span in collector.spans})
    (rejected,) = [span for span in collector.spans if span.name == "quota TaskRejected"]
    assert rejected.trace_id == TRACE
    assert rejected.attributes["yard.code"] == "project_unknown"


async def test_log_lines_carry_the_trace_of_the_request(
    tmp_path: Path, collector: Collector
) -> None:
    async with cell(tmp_path, traced(collector)) as running:
        answer = await running.submit(traceparent=CALLER)
        assert answer.status_code == 202
        await running.until(lambda: running.said("node_agent", "replica_started"))
        wrong = await running.submit(traceparent=CALLER, Authorization="Bearer unknown")
    accepted, refused = running.said("gateway", "request")
    assert (accepted["trace_id"], accepted["route"], accepted["status"]) == (
        TRACE,
        "/v1/jobs",
        202,
    )
    assert wrong.status_code == 401
    assert refused["trace_id"] == wrong.json()["trace_id"] == TRACE
    (started,) = running.said("node_agent", "replica_started")
    assert started["trace_id"] == TRACE


async def test_verify_reproduces_the_traces_of_the_machines(
    tmp_path: Path, collector: Collector
) -> None:
    async with cell(tmp_path, traced(collector)) as running:
        for _ in range(3):
            assert (await running.submit(traceparent=CALLER)).status_code == 202
        await running.until(lambda: len(running.said("node_agent", "replica_started")) == 3)
    records = await running.log.read(Partition(ADMISSIONS.name), 0)
    admitted = [one for one in (decode(each.record) for each in records) if one.cause]
    traced_ones = [one.type for one in admitted if trace_id_of(one.traceparent) == TRACE]
    assert traced_ones == ["TaskAdmitted"] * 3
    machines: list[Machine[Any]] = [QuotaMachine(check), SchedulerMachine()]
    report = await verify(running.log, machines, CELL)
    assert report.ok, report
    assert sum(each.decisions for each in report.proved) > 3


async def test_without_tracing_there_are_no_spans_and_the_trace_id_reaches_the_agent(
    tmp_path: Path,
) -> None:
    async with cell(tmp_path, TraceSettings()) as running:
        answer = await running.submit()
        await running.until(lambda: running.said("node_agent", "replica_started"))
    (started,) = running.said("node_agent", "replica_started")
    assert started["trace_id"] == answer.headers["Trace-Id"]
    assert b"yard_gateway_spans" not in running.telemetry["gateway"].exposition()


async def test_a_trace_that_its_caller_does_not_sample_makes_no_spans(
    tmp_path: Path, collector: Collector
) -> None:
    async with cell(tmp_path, traced(collector)) as running:
        answer = await running.submit(traceparent=CALLER.removesuffix("01") + "00")
        assert answer.headers["Trace-Id"] == TRACE
        await running.until(lambda: running.said("node_agent", "replica_started"))
        await asyncio.sleep(0.2)  # spans would be sent in this time
    assert [span for span in collector.spans if span.concerns(TRACE)] == []
    records = await running.log.read(Partition(ADMISSIONS.name), 0)
    assert all("traceparent" not in dict(stored.record.headers) for stored in records)


async def test_an_unavailable_collector_loses_only_spans(
    tmp_path: Path, collector: Collector
) -> None:
    collector.status = 400
    async with cell(tmp_path, traced(collector)) as running:
        assert (await running.submit()).status_code == 202
        await running.until(lambda: running.said("node_agent", "replica_started"))
        dropped = b'yard_gateway_spans_dropped_total{why="failed"} 0.0'
        telemetry = running.telemetry["gateway"]
        await running.until(lambda: b'spans_dropped_total{why="failed"}' in telemetry.exposition())
        assert dropped not in telemetry.exposition()
