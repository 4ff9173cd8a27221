"""Quota accepts a gateway's records whatever its clock shows; refused records stop the gateway."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.gateway import JSON, GatewayCell, gateway_cell
from tests.support.views import telemetry
from yardmaster_core.admission.state import LastRecord
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_gateway.app import create_app
from yardmaster_gateway.background.own_records import watch_own_records
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.errors import OwnRecordRefused
from yardmaster_gateway.request_writer import COMPARE_S
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.events.requests import NodeCordonRequestedV1
from yardmaster_schemas.sources import MAX_EPOCH_AHEAD_MS

RUN = {"command": ["true"]}
REQUESTS = Partition("requests")


def restarted_gateway(cell: GatewayCell, clock: ManualClock | None = None) -> Gateway:
    """A restarted gateway of the cell, optionally with its own clock."""
    ports = replace(cell.ports, telemetry=telemetry("gateway"), clock=clock or cell.clock)
    cell.app = create_app(ports, cell.settings)
    gateway = cell.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


async def test_requests_acknowledged_after_a_clock_step_backwards_are_accepted() -> None:
    async with gateway_cell(clock=ManualClock(1_700_000_000_000)) as cell:
        await cell.submit()
        restarted_gateway(cell, ManualClock(1_700_000_000_000 - 30_000))
        job = await cell.submit()
        assert (await cell.call("GET", f"/v1/jobs/{job}"))["job_id"] == job


async def push_ahead(cell: GatewayCell) -> None:
    """Append a record that names the source of the newest request, with a higher epoch."""
    stored = (await cell.log.read(REQUESTS, await cell.log.end(REQUESTS) - 1))[0]
    cordon = NodeCordonRequestedV1(node="n1")
    ahead = stored.appended_ms + MAX_EPOCH_AHEAD_MS - 60_000
    own = decode(stored.record)
    forged = replace(own, type=cordon.TYPE, epoch=ahead, subject="n1", data=cordon)
    await cell.log.append(REQUESTS, [encode(forged, "main")])


async def repeated(cell: GatewayCell, count: int) -> None:
    """Wait until a gateway has repeated `count` requests."""
    last = await cell.log.end(REQUESTS) + count - 1
    assert await cell.log.wait({REQUESTS: last}, 30)


async def test_acknowledged_requests_of_a_source_that_was_pushed_ahead_are_recorded_again(
    cell: GatewayCell,
) -> None:
    gateway = restarted_gateway(cell)
    await cell.submit()
    first = gateway.writer.source
    await push_ahead(cell)
    watching = asyncio.create_task(watch_own_records(gateway))
    jobs = [await cell.submit() for _ in range(3)]
    async with asyncio.timeout(30):
        while [job for job in jobs if (await cell.call("GET", f"/v1/jobs/{job}"))["refusal"]]:
            await cell.log.wait({REQUESTS: await cell.log.end(REQUESTS)}, 0.01)
    for job in jobs:
        assert (await cell.call("GET", f"/v1/jobs/{job}"))["phases"] != {"submitted": 1}
    assert gateway.writer.source != first
    assert not watching.done()
    watching.cancel()


async def test_a_gateway_stops_when_quota_refuses_a_record_a_second_time(cell: GatewayCell) -> None:
    gateway = restarted_gateway(cell)
    await cell.submit()
    await push_ahead(cell)
    await cell.submit(token="nlp")
    watching = asyncio.create_task(watch_own_records(gateway))
    await repeated(cell, 1)
    # The repetition is refused as well: its source was pushed ahead before quota judged it.
    newest = (await cell.log.read(REQUESTS, await cell.log.end(REQUESTS) - 1))[0]
    own = decode(newest.record)
    assert own.source == gateway.writer.source
    for leader in cell.leaders:
        if leader.fold.machine.name == "quota":
            row = LastRecord(own.epoch, own.seq)
            leader.fold.state.sources.put(own.source, row)
    await cell.run_machines()
    with pytest.raises(OwnRecordRefused) as caught:
        await watching
    assert caught.value.code == "own_record_refused"
    assert caught.value.fields["reason"] == "repeated"
    problem = await cell.call("GET", "/readyz", token=None, status=503, run=False)
    assert problem["code"] == "not_ready"
    assert own.source in problem["detail"]


async def test_a_client_learns_that_its_request_was_refused_and_its_retry_is_a_new_record(
    cell: GatewayCell,
) -> None:
    """No gateway is there any more that could repeat the request by itself."""
    restarted_gateway(cell)
    await cell.submit()
    await push_ahead(cell)
    body = {"project": "nlp", "resources": {"gpus": 1}, "run": RUN}
    headers = {**JSON, "Idempotency-Key": "k1"}
    send: dict[str, Any] = {"token": "nlp", "status": 202, "json": body, "headers": headers}
    job = (await cell.call("POST", "/v1/jobs", **send))["job_id"]
    found = await cell.call("GET", f"/v1/jobs/{job}")
    assert found["refusal"]["code"] == "repeated"
    assert found["phases"] == {"rejected": 1}
    restarted_gateway(cell)
    assert (await cell.call("POST", "/v1/jobs", **send))["job_id"] == job
    found = await cell.call("GET", f"/v1/jobs/{job}")
    assert (found["refusal"], "rejected" in found["phases"]) == (None, False)


async def test_a_gateway_whose_epoch_is_ahead_of_the_logs_clock_begins_a_new_source() -> None:
    clock, log_clock = ManualClock(), ManualClock()
    async with gateway_cell(clock=clock, log=MemoryLog(log_clock)) as cell:
        log_clock.advance(86_400)
        await cell.submit()  # the newest request, of which a gateway takes its epoch
        gateway = restarted_gateway(cell)
        await cell.submit()
        first = gateway.writer.source
        log_clock.advance(-86_400)
        jobs = [await cell.submit()]
        clock.advance(COMPARE_S)
        jobs += [await cell.submit() for _ in range(3)]
        assert gateway.writer.source != first
        for job in jobs:
            assert (await cell.call("GET", f"/v1/jobs/{job}"))["refusal"] is None


async def test_a_late_record_that_was_never_acknowledged_does_not_stop_the_gateway(
    cell: GatewayCell, monkeypatch: pytest.MonkeyPatch
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
