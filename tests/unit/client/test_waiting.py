"""`Client.wait` on the real gateway: what ends a wait, and what it returns."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.support.gateway import GatewayCell, gateway_of
from yardmaster.client import Client
from yardmaster.errors import ApiError, InputError, NeverFits, WaitTimeout
from yardmaster.waiting import FEW_TASKS
from yardmaster_schemas.api import Phase, Submitted, Task

T = TypeVar("T")
JOB = {"project": "nlp", "resources": {"gpus": 1}, "run": {"command": ["true"]}}


async def started_cell() -> GatewayCell:
    return await GatewayCell(max_wait_s=60.0, view_wait_s=20.0, stop_s=0.0).start()


async def called(port: int, call: Callable[[Client], T]) -> T:
    """Call a client in a thread, with the gateway in this one."""

    def run() -> T:
        with Client(f"http://127.0.0.1:{port}", "nlp") as client:
            return call(client)

    return await asyncio.to_thread(run)


async def test_a_wait_covers_the_submission_before_it_and_returns_the_task_in_its_phase() -> None:
    cell = await started_cell()
    async with gateway_of(cell) as (port, _), asyncio.TaskGroup() as group:

        def submit_and_wait(client: Client) -> tuple[Submitted, list[Task]]:
            submitted = client.submit(JOB)
            submissions.set_result(submitted)
            return submitted, client.wait(submitted, for_="starting", timeout_s=30)

        submissions: asyncio.Future[Submitted] = asyncio.get_running_loop().create_future()
        waiting = group.create_task(called(port, submit_and_wait))
        async with asyncio.timeout(20):
            while not submissions.done():  # noqa: ASYNC110 set by another thread
                await asyncio.sleep(0.01)
        await cell.run_until_idle()
        submitted, tasks = await waiting
    assert [(task.task_id, task.phase) for task in tasks] == [(submitted.task_ids[0], "starting")]


async def test_every_way_to_name_a_task_is_accepted_and_a_later_phase_counts() -> None:
    cell = await started_cell()
    job = await cell.submit()
    await cell.starts(f"{job}.0")
    async with gateway_of(cell) as (port, _):

        def wait(client: Client) -> list[Task]:
            (task,) = client.wait(f"{job}.0", for_="pending")
            return client.wait(job, task, client.job(job), for_="admitted")

        assert [task.phase for task in await called(port, wait)] == ["running"] * 3


async def test_a_timeout_names_the_tasks_and_their_phases() -> None:
    cell = await started_cell()
    job = await cell.submit()
    async with gateway_of(cell) as (port, _):
        with pytest.raises(WaitTimeout) as caught:
            await called(port, lambda client: client.wait(job, timeout_s=2))
    assert str(caught.value) == f"Not ended after 2 s: {job}.0 (starting). No task was changed."
    assert isinstance(caught.value, TimeoutError)
    assert [task.task_id for task in caught.value.tasks] == [f"{job}.0"]


async def test_the_tasks_of_a_large_job_are_returned_in_order_and_not_reported_one_by_one() -> None:
    cell = await started_cell()
    count = FEW_TASKS + 3
    job = await cell.submit(tasks={"count": count}, resources={"gpus": 64})
    alone = await cell.submit(resources={"gpus": 64})
    for each in (job, alone):
        await cell.call("POST", f"/v1/jobs/{each}/cancel", token="nlp", status=202, json={})
    reported: list[str] = []
    async with gateway_of(cell) as (port, _):

        def wait(client: Client) -> list[Task]:
            report = lambda task: reported.append(task.task_id)  # noqa: E731
            return client.wait(job, alone, timeout_s=30, on_end=report)

        tasks = await called(port, wait)
    assert [task.task_id for task in tasks] == [*(f"{job}.{i}" for i in range(count)), f"{alone}.0"]
    assert {task.phase for task in tasks} == {Phase.CANCELLED}
    assert reported == [f"{alone}.0"]


async def test_a_wait_for_tasks_that_can_never_fit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yardmaster.waiting.NEVER_S", 0.1)
    cell = await started_cell()
    job = await cell.submit(resources={"gpus": 64})
    async with gateway_of(cell) as (port, _):
        with pytest.raises(
            NeverFits, match=rf"{job}.0 can never fit: exceeds_every_node"
        ) as caught:
            await called(port, lambda client: client.wait(job))
    assert caught.value.task.task_id == f"{job}.0"


async def test_an_unknown_job_task_or_phase_is_refused_at_once() -> None:
    cell = await started_cell()
    async with gateway_of(cell) as (port, _):
        for unknown in ("a" * 12, f"{'a' * 12}.0"):
            with pytest.raises(ApiError) as caught:
                await called(port, lambda client, ref=unknown: client.wait(ref))  # type: ignore[misc]
            assert caught.value.status == 404
        with pytest.raises(InputError, match="there is no phase 'done'"):
            await called(port, lambda client: client.wait("a" * 12, for_="done"))
