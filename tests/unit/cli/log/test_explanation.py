"""`yard explain` from the log gives the answers that the gateway gave at that moment."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import logs
from tests.support.gateway import JSON, GatewayCell, gateway_cell
from tests.support.kept_logs import KEPT, kept_log
from tests.support.simulated import Ran, job, node, ran
from yardmaster_cli.log.explanation import explain_at
from yardmaster_eventlog.port import EventLog
from yardmaster_projections.fold import VIEWS
from yardmaster_projections.presenter import Presenter
from yardmaster_projections.rows import TaskRow
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.errors import BeforeFirstCycle, UnknownTask
from yardmaster_schemas.api import Explain
from yardmaster_schemas.position import Position
from yardmaster_simulation.workload import NodeFaults
from yardmaster_views.past import views_at

CELL = "main"
#: The views that gateways read: of all jobs. Simulated logs have no soft state.
WHOLE = replace(VIEWS, soft_state=False)


async def shown(cell: GatewayCell, task_id: str) -> Any:
    """The answer of the gateway."""
    return await cell.call("GET", f"/v1/tasks/{task_id}/explain", run=False)


async def read(cell: GatewayCell, task_id: str, **moment: Any) -> Any:
    """The answer from the log."""
    return (await explain_at(cell.log, CELL, task_id, **moment)).model_dump(mode="json")


def codes(answer: Any) -> list[str]:
    return [wait["code"] for wait in answer["pools"]]


async def test_the_log_at_its_newest_moment_and_the_gateway_explain_every_task_alike() -> None:
    clock = ManualClock()
    async with gateway_cell(clock=clock) as cell:
        array = {"matrix": {"seed": [1, 2]}, "max_concurrent": 1}
        large = await cell.submit(resources={"gpus": 2}, priority=60)
        await cell.starts(f"{large}.0")
        limited = await cell.submit(tasks=array)
        retried = await cell.submit()
        await cell.claim(logs.released(f"{retried}.0", "n1", never_started=True))
        await cell.run_until_idle()
        ended = await cell.submit(resources={"gpus": 0})
        await cell.starts(f"{ended}.0")
        await cell.finishes(f"{ended}.0", exit_code=3)
        paused = await cell.submit(resources={"gpus": 4})
        await cell.call(
            "POST", f"/v1/jobs/{paused}/pause", token="nlp", status=202, headers=JSON, json={}
        )
        large_jobs = [
            await cell.submit(resources={"gpus": 4}),
            await cell.submit(resources={"gpus": 99}),
            await cell.submit(resources={"gpus": 0.5}),
            await cell.submit(resources={"gpus": 2}, priority=1),
        ]
        rejected = await cell.submit(pools=["nowhere"])
        answer = await cell.call(
            "POST",
            "/v1/jobs",
            token="nlp",
            status=202,
            run=False,
            json={"project": "nlp", "run": {"command": ["true"]}},
        )
        submitted = answer["job_id"]
        await cell.follower.catch_up()
        jobs = [large, limited, retried, ended, paused, *large_jobs, rejected, submitted]
        answers = {}
        position = await cell.store.position()
        for task_id in (*(f"{one}.0" for one in jobs), f"{limited}.1"):
            answer = answers[task_id] = await shown(cell, task_id)
            assert await read(cell, task_id) == answer
            assert await read(cell, task_id, time_ms=clock.now_ms()) == answer
            assert await read(cell, task_id, position=position) == answer
        phases = {answer["phase"] for answer in answers.values()}
        assert phases == {"submitted", "rejected", "pending", "starting", "stopping", "failed"}
        assert {code for answer in answers.values() for code in codes(answer)} == {
            *("start_backoff", "paused", "insufficient_free", "no_matching_node"),
            *("exceeds_every_node", "waiting_for_victims", "at_max_concurrent"),
        }
        assert answers[f"{rejected}.0"]["refusal"]["code"] == "pool_unknown"
        assert answers[f"{retried}.0"]["unblock"].startswith("the back-off after a failed start")
        end = answers[f"{ended}.0"]["end"]
        assert (end["code"], end["exit_code"]) == ("exit", 3)
        assert 0 < end["cycle"] < answers[f"{ended}.0"]["cycle"]


async def test_a_past_moment_is_explained_as_the_gateway_explained_it_then() -> None:
    clock = ManualClock()
    async with gateway_cell(clock=clock) as cell:
        low = await cell.submit(resources={"gpus": 4}, priority=60)
        await cell.starts(f"{low}.0")
        clock.advance(1)
        high = await cell.submit(resources={"gpus": 4}, priority=1)
        stopping = await shown(cell, f"{low}.0")
        assert stopping["stop"]["for_task"] == f"{high}.0"
        then_ms, then = clock.now_ms(), await cell.store.position()
        clock.advance(1)
        await cell.finishes(f"{low}.0")
        requeued = await shown(cell, f"{low}.0")
        assert (requeued["phase"], requeued["stop"]) == ("pending", None)
        assert requeued["last_stop"] == stopping["stop"]
        for moment in (
            {"time_ms": then_ms},
            {"time_ms": then_ms + 999},
            {"position": then},
            {"position": Position(cell=CELL, decisions=then.decisions)},
            {"cycle": stopping["cycle"]},
        ):
            assert await read(cell, f"{low}.0", **moment) == stopping
        assert await read(cell, f"{low}.0", time_ms=then_ms + 1000) == requeued


async def test_a_back_off_is_over_at_a_time_after_its_end() -> None:
    clock = ManualClock()
    async with gateway_cell(clock=clock) as cell:
        task_id = f"{await cell.submit()}.0"
        await cell.claim(logs.released(task_id, "n1", never_started=True))
        await cell.run_until_idle()
        waiting = await shown(cell, task_id)
        until_ms = waiting["pools"][0]["numbers"]["until_at_ms"]
        clock.advance((until_ms - clock.now_ms()) / 1000)
        over = await shown(cell, task_id)
        assert codes(waiting) != codes(over)
        assert await read(cell, task_id, time_ms=until_ms - 1) == waiting
        assert await read(cell, task_id, time_ms=until_ms) == over


async def test_a_moment_before_the_log_and_a_task_that_does_not_exist_by_then_are_errors() -> None:
    clock = ManualClock()
    async with gateway_cell(clock=clock) as cell:
        before_ms = clock.now_ms()
        clock.advance(1)
        task_id = f"{await cell.submit()}.0"
        with pytest.raises(UnknownTask, match=f"no task {task_id} at cycle 1"):
            await read(cell, task_id, cycle=1)
        with pytest.raises(UnknownTask):
            await read(cell, task_id, time_ms=before_ms)
        with pytest.raises(UnknownTask, match=r"no task job000000007\.0"):
            await read(cell, "job000000007.0")
        for moment in (
            {"cycle": 0},
            {"time_ms": before_ms - 1},
            {"position": Position(cell=CELL, decisions=0)},
        ):
            with pytest.raises(BeforeFirstCycle, match="starts with cycle 1 at"):
                await read(cell, task_id, **moment)


def simulated(policy: str) -> Ran:
    """A run with gangs, shares, preemptions and failing nodes."""
    jobs = [
        job(
            10 * number,
            *[60 + 7 * number] * (1 + number % 2),
            gpus=1 + number % 4,
            replicas_min=1 + (number % 5 == 0),
            replicas_max=1 + (number % 5 == 0),
            priority=10 + number % 3,
            preemptible=number % 4 != 0,
            max_concurrent=1 if number % 6 == 1 else None,
        )
        for number in range(24)
    ]
    nodes = [node("node-0", 4), node("node-1", 2)]
    return ran(
        jobs, nodes, policy=policy, faults=NodeFaults(mean_up_ms=200_000, mean_down_ms=90_000)
    )


async def explained(log: EventLog, cycle: int | None) -> dict[str, Explain]:
    """The explanation of every task from the views of all jobs."""
    views = await views_at(log, WHOLE, CELL, cycle=cycle)
    presenter = Presenter(views.store, views.now_ms)
    rows = views.store.rows(TaskRow).values()
    return {row.task_id: await presenter.explain(row, CELL) for row in rows}


async def reasons_compared(log: EventLog) -> set[str]:
    """Compare the fold of each job with that of all; return the reasons for which tasks waited."""
    last = (await views_at(log, WHOLE, CELL)).cycle
    reasons: set[str] = set()
    for cycle in (last // 3, 2 * last // 3, None):
        for task_id, expected in (await explained(log, cycle)).items():
            assert await explain_at(log, CELL, task_id, cycle=cycle) == expected
            reasons |= {str(wait.code) for wait in expected.pools}
    return reasons


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("priority", "backfill_not_allowed"),
        ("fair_share", "over_fair_share"),
        ("quota", "exceeds_deserved"),
        ("fitgpp", "behind_task"),
    ],
)
async def test_the_fold_of_one_job_explains_its_tasks_as_the_views_of_all_jobs_do(
    policy: str, reason: str
) -> None:
    assert reason in await reasons_compared(simulated(policy).sink.log)


@pytest.mark.parametrize("name", KEPT)
async def test_the_tasks_of_a_kept_log_are_explained_alike(name: str, tmp_path: Path) -> None:
    log = await kept_log(name, tmp_path)
    assert "insufficient_free" in await reasons_compared(log)
    await log.close()
