"""A gateway that starts on a log that lost its end, before the log is repaired."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.gateway import GatewayCell
from tests.support.memory_cell import CELL
from tests.support.views import telemetry
from tests.unit.gateway.test_lost_views import lose
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_gateway.app import create_app
from yardmaster_schemas.topics import REQUESTS
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
