"""Quota accepts a gateway's records whatever its clock shows; refused records stop the gateway."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.gateway import JSON, TestCell, test_cell
from tests.support.views import telemetry
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown
from yardmaster_eventlog.port import Partition
from yardmaster_gateway.app import create_app
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.errors import OwnRecordRefused
from yardmaster_gateway.own_records import watch_own_records
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.events.requests import NodeCordonRequestedV1
from yardmaster_schemas.sources import MAX_EPOCH_AHEAD_MS

RUN = {"command": ["true"]}
REQUESTS = Partition("requests")


def restarted_gateway(cell: TestCell, clock: ManualClock | None = None) -> Gateway:
    """A restarted gateway of the cell, optionally with its own clock."""
    ports = replace(cell.ports, telemetry=telemetry("gateway"), clock=clock or cell.clock)
    cell.app = create_app(ports, cell.settings)
    gateway = cell.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


async def test_requests_acknowledged_after_a_clock_step_backwards_are_accepted() -> None:
    async with test_cell(clock=ManualClock(1_700_000_000_000)) as cell:
        await cell.submit()
        restarted_gateway(cell, ManualClock(1_700_000_000_000 - 30_000))
        job = await cell.submit()
        assert (await cell.call("GET", f"/v1/jobs/{job}"))["job_id"] == job


async def test_a_gateway_stops_when_quota_refuses_an_acknowledged_record(cell: TestCell) -> None:
    gateway = restarted_gateway(cell)
    source = gateway.writer.source
    await cell.submit()
    # Its sequence numbers start again, so quota refuses the next records as repeated.
    gateway.writer = type(gateway.writer)(
        *(cell.log, cell.clock, telemetry("gateway")),
        cell="main",
        partition=0,
        instance="gw-1",
        start=source.rpartition(".")[2],
    )
    gateway.writer._epoch = 1
    watching = asyncio.create_task(watch_own_records(gateway))
    await cell.submit()
    with pytest.raises(OwnRecordRefused) as caught:
        await watching
    assert caught.value.code == "own_record_refused"
    assert str(caught.value.fields["record"]).startswith(f"{source}/1/")
    assert caught.value.fields["reason"] == "repeated"
    problem = await cell.call("GET", "/readyz", token=None, status=503, run=False)
    assert problem["code"] == "not_ready"
    assert source in problem["detail"]


async def test_a_gateway_whose_epoch_was_pushed_ahead_stops_and_its_next_run_is_accepted(
    cell: TestCell,
) -> None:
    """A record that names the gateway, with an epoch that quota still accepts."""
    gateway = restarted_gateway(cell)
    await cell.submit()
    stored = (await cell.log.read(REQUESTS, await cell.log.end(REQUESTS) - 1))[0]
    own = decode(stored.record)
    cordon = NodeCordonRequestedV1(node="n1")
    ahead = stored.appended_ms + MAX_EPOCH_AHEAD_MS - 60_000
    forged = replace(own, type=cordon.TYPE, epoch=ahead, subject="n1", data=cordon)
    await cell.log.append(REQUESTS, [encode(forged, "main")])
    watching = asyncio.create_task(watch_own_records(gateway))
    await cell.submit()
    with pytest.raises(OwnRecordRefused) as caught:
        await watching
    assert caught.value.fields["reason"] == "repeated"
    restarted_gateway(cell)
    job = await cell.submit()
    assert (await cell.call("GET", f"/v1/jobs/{job}"))["job_id"] == job


async def test_a_late_record_that_was_never_acknowledged_does_not_stop_the_gateway(
    cell: TestCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = restarted_gateway(cell)
    late: list[Any] = []
    append = cell.log.append

    async def unanswered(partition: Partition, batch: Any) -> int:
        if partition.topic != "requests":
            return await append(partition, batch)
        late.extend(batch)
        raise AppendOutcomeUnknown(topic="requests", found="no answer")

    with monkeypatch.context() as patched:
        patched.setattr(cell.log, "append", unanswered)
        body = {"project": "nlp", "run": RUN}
        await cell.call("POST", "/v1/jobs", token="nlp", status=504, json=body, headers=JSON)
    watching = asyncio.create_task(watch_own_records(gateway))
    job = await cell.submit()
    await cell.log.append(REQUESTS, late)
    await cell.run_until_idle()
    assert (await cell.call("GET", f"/v1/jobs/{job}"))["job_id"] == job
    for _ in range(20):
        await asyncio.sleep(0)
    assert not watching.done()
    assert gateway.failed is None
    watching.cancel()
