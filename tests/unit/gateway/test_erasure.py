"""`POST /v1/jobs/{id}/erase`: permissions, conditions, what is deleted, and crashes."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.gateway import GatewayCell, gateway_cell
from tests.support.views import telemetry
from tests.unit.gateway.test_operating import state
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_gateway.background.details_ticker import DetailsTicker
from yardmaster_gateway.context import Gateway
from yardmaster_projections.errors import ViewsUnavailable
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.rows import OutputRow, Row
from yardmaster_projections.store import Put
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.events.admissions import DetailsErasedV1
from yardmaster_schemas.events.requests import EraseRequestedV1
from yardmaster_schemas.topics import DETAILS
from yardmaster_views.follower import Follower, Metrics, Views

SECRET = "hunter2-of-ana"
DETAILS_PLACE = Partition(DETAILS.name)


async def ended_job(cell: GatewayCell, **spec: Any) -> str:
    """An ended job with a secret in its name, labels, command, environment and note."""
    job = await cell.submit(
        name=SECRET,
        labels={"team": SECRET},
        run={"command": ["echo", SECRET], "env": {"WHO": SECRET}},
        **spec,
    )
    await cell.starts(f"{job}.0")
    paused = {"reason": f"{SECRET} is absent"}
    await cell.call("POST", f"/v1/tasks/{job}.0/pause", token="nlp", status=202, json=paused)
    await cell.call("POST", f"/v1/tasks/{job}.0/resume", token="nlp", status=202, json={})
    await cell.call("POST", f"/v1/jobs/{job}/cancel", token="nlp", status=202, json=paused)
    await cell.finishes(f"{job}.0")
    assert (await cell.call("GET", f"/v1/tasks/{job}.0"))["phase"] == "cancelled"
    return job


async def erase(cell: GatewayCell, job: str, *, token: str = "admin", status: int = 202) -> Any:
    return await cell.call("POST", f"/v1/jobs/{job}/erase", token=token, status=status)


async def in_details(log: EventLog) -> bytes:
    stored = await log.read(DETAILS_PLACE, 0, max_records=1000)
    return b"\n".join(one.record.value or b"" for one in stored)


async def all_answers(cell: GatewayCell, job: str) -> str:
    """The text of all answers about a job, including its requests and the records of the log."""
    texts = []
    for path in (
        *("/v1/jobs", f"/v1/jobs/{job}", "/v1/tasks", f"/v1/tasks/{job}.0"),
        *(f"/v1/tasks/{job}.0/events", f"/v1/tasks/{job}.0/explain"),
        *(f"/v1/tasks/{job}.0/attempts", "/v1/events?limit=1000", "/v1/nodes"),
        *(f"/v1/requests/main.{offset}" for offset in range(6, 11)),
    ):
        async with cell.client() as client:
            response = await client.get(path)
        assert response.status_code in (200, 404), f"{path}: {response.text}"
        texts.append(response.text)
    return "\n".join(texts)


async def test_an_erased_job_has_no_details_in_the_log_and_in_any_answer(
    cell: GatewayCell,
) -> None:
    job = await ended_job(cell)
    assert SECRET in await all_answers(cell, job)
    assert (await in_details(cell.log)).count(SECRET.encode()) >= 3
    answer = await erase(cell, job)
    assert await state(cell, answer) == "accepted"
    assert SECRET.encode() not in await in_details(cell.log)
    assert SECRET not in await all_answers(cell, job)
    answer = await cell.call("GET", f"/v1/jobs/{job}")
    assert (answer["erased"], answer["name"], answer["labels"], answer["run"]) == (
        True,
        job,
        {},
        None,
    )
    assert [e for e in await cell.events("admissions") if isinstance(e, DetailsErasedV1)]


async def test_verify_counts_erased_details(cell: GatewayCell) -> None:
    job = await ended_job(cell)
    machines = (QuotaMachine(check), SchedulerMachine())
    before = await verify(cell.log, machines, "main")
    await erase(cell, job)
    after = await verify(cell.log, machines, "main")
    assert (before.ok, before.details_gone) == (True, 0)
    assert (after.ok, after.details_gone) == (True, 3)


async def test_an_erasure_finds_the_details_of_a_repetition_that_only_quota_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateway_cell(recent_requests=1, view_wait_s=0.01) as cell:
        gateway: Gateway = cell.app.state.gateway
        headers = {"Idempotency-Key": "twice"}
        body = {"project": "nlp", "run": {"command": ["echo", SECRET]}}

        async def submit() -> str:
            answer = await cell.call(
                "POST", "/v1/jobs", token="nlp", status=202, json=body, headers=headers
            )
            return str(answer["job_id"])

        job = await submit()
        await cell.submit()

        async def unavailable(kind: type[Row], key: str) -> None:
            raise ViewsUnavailable(found="unavailable")

        with monkeypatch.context() as patched:
            patched.setattr(gateway.views.store, "get", unavailable)
            assert await submit() == job
        await cell.call("POST", f"/v1/jobs/{job}/cancel", token="nlp", status=202, json={})
        await cell.starts(f"{job}.0")
        await cell.finishes(f"{job}.0")
        assert (await in_details(cell.log)).count(SECRET.encode()) == 2
        await erase(cell, job)
        assert SECRET.encode() not in await in_details(cell.log)
        report = await verify(cell.log, (QuotaMachine(check), SchedulerMachine()), "main")
        assert report.ok


async def test_views_rebuilt_after_an_erasure_do_not_contain_the_details(cell: GatewayCell) -> None:
    job = await ended_job(cell)
    await erase(cell, job)
    cell.store = MemoryViewStore("main", cell.clock)
    views = Views(cell.store, cell.store)
    follower = Follower(cell.log, views, "main", 0, Metrics(telemetry("views")))
    await follower.start()
    await follower.catch_up()
    cell.app.state.gateway.ports = replace(cell.ports, views=cell.store)
    cell.follower = follower
    assert SECRET not in await all_answers(cell, job)
    assert (await cell.call("GET", f"/v1/jobs/{job}"))["erased"]


async def test_output_of_an_erased_job_is_not_found(cell: GatewayCell) -> None:
    job = await ended_job(cell)
    row = OutputRow(task_id=f"{job}.0", attempt=1, first=0, last=0)
    await cell.store.note([Put(row)], {})
    await cell.call("GET", f"/v1/tasks/{job}.0/logs")
    await erase(cell, job)
    await cell.call("GET", f"/v1/tasks/{job}.0/logs", status=404)
    assert await cell.store.get(OutputRow, f"{job}.0/1") is None


async def test_a_job_that_has_not_ended_is_not_erased(cell: GatewayCell) -> None:
    job = await cell.submit(name=SECRET)
    starting = await erase(cell, job, status=409)
    await cell.starts(f"{job}.0")
    running = await erase(cell, job, status=409)
    assert (starting["code"], running["code"]) == ("wrong_phase", "wrong_phase")
    assert SECRET.encode() in await in_details(cell.log)


async def test_a_rejected_job_can_be_erased(cell: GatewayCell) -> None:
    job = await cell.submit(name=SECRET, pools=["ghost"])
    await erase(cell, job)
    assert SECRET.encode() not in await in_details(cell.log)
    assert SECRET not in await all_answers(cell, job)


@pytest.mark.parametrize("token", ["nlp", "nlp2", "viewer", "research"])
async def test_erasing_needs_an_operator_or_an_admin_of_the_project(
    cell: GatewayCell, token: str
) -> None:
    job = await ended_job(cell)
    problem = await erase(cell, job, token=token, status=403)
    assert problem["code"] == "forbidden"
    await erase(cell, job, token="vision", status=404)
    await erase(cell, job, token="operator")


async def test_repeating_an_erasure_does_no_harm(cell: GatewayCell) -> None:
    job = await ended_job(cell)
    first, second = await erase(cell, job), await erase(cell, job)
    assert [await state(cell, one) for one in (first, second)] == ["accepted", "accepted"]


async def test_a_gateway_that_crashes_before_recording_the_request_has_deleted_the_details(
    cell: GatewayCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tombstone is written first; the client gets no answer and repeats the request."""
    job = await ended_job(cell)
    append = cell.log.append

    async def crash(partition: Partition, batch: Any) -> int:
        if partition.topic == "requests":
            raise AppendOutcomeUnknown(topic="requests", found="the gateway is gone")
        return await append(partition, batch)

    monkeypatch.setattr(cell.log, "append", crash)
    problem = await cell.call("POST", f"/v1/jobs/{job}/erase", token="admin", status=504, run=False)
    assert problem["code"] == "outcome_unknown"
    monkeypatch.undo()
    assert SECRET.encode() not in await in_details(cell.log)
    await cell.run_until_idle()
    assert not (await cell.call("GET", f"/v1/jobs/{job}"))["erased"]
    await erase(cell, job)
    assert (await cell.call("GET", f"/v1/jobs/{job}"))["erased"]


async def test_the_request_names_a_tombstone_that_is_already_in_details(cell: GatewayCell) -> None:
    job = await ended_job(cell)
    await erase(cell, job)
    (request,) = [e for e in await cell.events("requests") if isinstance(e, EraseRequestedV1)]
    (found,) = await cell.log.read(DETAILS_PLACE, request.tombstone, max_records=1)
    assert (found.offset, found.record) == (request.tombstone, Record(job.encode(), None))


# The ticker ----------------------------------------------------------------------------------


class Ticking:
    """A ticker with an interval of one minute."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)
        self.telemetry = telemetry("gateway")
        self.ticker = DetailsTicker(
            *(self.log, self.clock, self.telemetry), partition=0, every_s=60
        )

    async def minute(self) -> int:
        """Let a minute pass; the end of `details` afterwards."""
        self.clock.advance(60)
        for _ in range(20):
            await asyncio.sleep(0)
        return await self.log.end(DETAILS_PLACE)


async def test_the_ticker_writes_when_it_starts_and_to_an_idle_partition_only() -> None:
    cell = Ticking()
    await cell.log.create_topics([DETAILS])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cell.ticker.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert await cell.log.end(DETAILS_PLACE) == 1, "its clock follows the log from the start"
        await cell.log.append(DETAILS_PLACE, [Record(b"job", b"details")])
        assert await cell.minute() == 2, "there is a new record since the last check"
        assert [await cell.minute() for _ in range(2)] == [3, 4]
        await cell.log.append(DETAILS_PLACE, [Record(b"job", None)])
        assert await cell.minute() == 5
        running.cancel()
    assert cell.telemetry.registry.get_sample_value("yard_gateway_details_ticks_total") == 3


async def test_of_two_gateways_only_one_writes_ticks() -> None:
    cell = Ticking()
    await cell.log.create_topics([DETAILS])
    await cell.log.append(DETAILS_PLACE, [Record(b"job", b"details")])
    other = DetailsTicker(*(cell.log, cell.clock, telemetry("two")), partition=0, every_s=60)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(cell.ticker.run())
        await cell.minute()
        cell.clock.advance(30)
        second = group.create_task(other.run())
        for _ in range(20):
            await asyncio.sleep(0)
        cell.clock.advance(30)
        ends = [await cell.minute() for _ in range(4)]
        first.cancel()
        second.cancel()
    assert ends[-1] - ends[0] == 3, "one record a minute"


async def test_an_unavailable_log_costs_the_ticker_one_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = Ticking()
    await cell.log.create_topics([DETAILS])
    await cell.log.append(DETAILS_PLACE, [Record(b"job", b"details")])

    async def unavailable(partition: Partition) -> int:
        raise LogUnavailable(found="unavailable")

    async with asyncio.TaskGroup() as group:
        running = group.create_task(cell.ticker.run())
        await cell.minute()
        with monkeypatch.context() as patched:
            patched.setattr(cell.log, "end", unavailable)
            cell.clock.advance(60)
            for _ in range(20):
                await asyncio.sleep(0)
        before = await cell.log.end(DETAILS_PLACE)
        assert await cell.minute() == before + 1
        running.cancel()
