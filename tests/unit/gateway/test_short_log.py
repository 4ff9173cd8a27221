"""A gateway that starts on a log that lost its end, before the log is repaired."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.gateway import GatewayCell
from tests.support.memory_cell import CELL
from tests.support.views import telemetry
from tests.unit.gateway.test_lost_views import lose
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.errors import DetailsUnreadable, LogTruncated
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_eventlog.reader import read_details
from yardmaster_gateway.app import create_app
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.events.details import JobDetailedV1
from yardmaster_schemas.events.requests import TaskSubmittedV1
from yardmaster_schemas.topics import DETAILS, REQUESTS
from yardmaster_views.follower import Follower, Metrics, Views

JOB: dict[str, Any] = {"project": "nlp", "run": {"command": ["true"]}}


@pytest.fixture
async def cell() -> GatewayCell:
    """A cell whose log is not audited afterwards: it loses records."""
    return await GatewayCell().start()


async def cut(cell: GatewayCell, lost: int) -> None:
    """Lose the newest requests, and start a gateway that has seen none of them."""
    assert isinstance(cell.log, MemoryLog)
    at = Partition(REQUESTS.name)
    cell.log.cut(at, await cell.log.end(at) - lost)
    ports = replace(cell.ports, log=cell.log.handle(), telemetry=telemetry("gateway"))
    cell.app = create_app(ports, cell.settings)


async def problem(cell: GatewayCell, method: str, path: str, **what: Any) -> dict[str, Any]:
    async with cell.client(what.pop("token", "operator")) as client:
        response = await client.request(method, path, **what)
    assert response.status_code == 503, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize("grown", [False, True])
async def test_it_is_not_ready_and_answers_no_read_from_views_of_what_was_lost(
    cell: GatewayCell, grown: bool
) -> None:
    jobs = [await cell.submit() for _ in range(3)]
    await cell.run_until_idle()
    await cut(cell, 3)
    if grown:
        # Before anything was read of the views, a job is accepted; no read of it gets 404.
        for _ in range(5):
            await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=JOB, run=False)
    for path in ("/v1/jobs", f"/v1/jobs/{jobs[0]}", "/v1/jobs/000000000000"):
        found = await problem(cell, "GET", path)
        assert found["code"] == "log_unavailable"
        assert "requests/0" in found["detail"]
    assert (await problem(cell, "GET", "/readyz"))["code"] == "not_ready"
    refused = await problem(cell, "POST", "/v1/jobs", token="nlp", json=JOB)
    assert refused["code"] == "log_unavailable"


async def test_it_serves_once_the_views_are_those_of_the_log_again(cell: GatewayCell) -> None:
    await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=JOB, run=False)
    await cell.follower.catch_up()
    await cut(cell, 1)
    await problem(cell, "GET", "/v1/jobs")
    lose(cell.store, cell.usage)
    assert isinstance(cell.log, MemoryLog)
    cell.log = cell.log.handle()
    cell.follower = Follower(
        cell.log, Views(cell.store, cell.store), CELL, 0, Metrics(telemetry("views"))
    )
    await cell.follower.start()
    await cell.follower.catch_up()
    await cell.call("GET", "/v1/jobs", run=False)
    await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=JOB, run=False)


async def test_lost_details_stop_their_readers_by_name_and_no_job_gets_the_command_of_another(
    cell: GatewayCell,
) -> None:
    assert isinstance(cell.log, MemoryLog)
    at = Partition(DETAILS.name)
    ports = replace(cell.ports, log=cell.log.handle(), telemetry=telemetry("gateway"))
    cell.app = create_app(ports, cell.settings)
    jobs = [await cell.submit(resources={"gpus": 4}, run={"command": [name]}) for name in "abc"]
    admitted = {
        e.job_id: e for e in await cell.events("requests") if isinstance(e, TaskSubmittedV1)
    }
    cell.log.cut(at, await cell.log.handle().end(at) - 2)
    named = "details/0 ends at 1"
    # The gateway that wrote them, and the views that read them, continue on no shorter log.
    for _ in range(2):
        refused = await problem(cell, "POST", "/v1/jobs", token="nlp", json=JOB)
        assert (refused["code"], named in refused["detail"]) == ("log_unavailable", True)
    with pytest.raises(LogTruncated, match=named):
        await cell.log.end(at)
    # A gateway that has seen nothing records other details on the lost offsets.
    fresh = cell.log.handle()
    cell.app = create_app(replace(ports, log=fresh, telemetry=telemetry("gateway")), cell.settings)
    for _ in range(2):
        await cell.call("POST", "/v1/jobs", token="nlp", status=202, json=JOB, run=False)
    kept = (await read_details(fresh, admitted[jobs[0]].details)).data
    assert isinstance(kept, JobDetailedV1)
    assert kept.run.command == ("a",)
    for job in jobs[1:]:
        with pytest.raises(DetailsUnreadable, match="do not match"):
            await read_details(fresh, admitted[job].details)
    report = await verify(fresh, [QuotaMachine(check), SchedulerMachine()], CELL, promises=False)
    lost = [found.found for found in report.findings if found.topic == DETAILS.name]
    assert [any(job in found for found in lost) for job in jobs] == [False, True, True]
