"""Why a task is in its phase: now, and at any moment of the log."""

from pathlib import Path

import pytest

from tests.support.cell_world import World, job, of, submission
from tests.support.logs import exited, joined, released, started, submitted
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_runtime.errors import BeforeFirstCycle, UnknownTask
from yardmaster_runtime.replay.explain import explain, explain_at
from yardmaster_runtime.replay.rebuild import state_at
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    TaskEndedV1,
    TaskRequeuedV1,
    TaskUnschedulableV1,
)
from yardmaster_schemas.events.requests import PauseRequestedV1
from yardmaster_schemas.reasons import EndCode, WaitClass, WaitCode
from yardmaster_schemas.resources import Resources


def task(number: int) -> str:
    return f"{job(number)}.0"


async def test_a_task_that_does_not_fit_is_explained_with_the_numbers_of_the_pool(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.create()
    async with world.running():
        await world.claim(joined("n1", 2))
        await world.request(submission(0, gpus=2), submission(1, gpus=1), submission(2, gpus=4))
        await world.happens(lambda e: len(of(TaskUnschedulableV1, e)) >= 2)
    state = (await state_at(world.log, SchedulerMachine(), "main")).state
    waiting = explain(state, task(1))
    assert (waiting.phase, waiting.wait_class) == ("pending", WaitClass.NOT_NOW)
    (wait,) = waiting.waits
    assert (wait.pool, wait.wait.code) == ("default", WaitCode.INSUFFICIENT_FREE)
    assert wait.wait.numbers["asked_milli"] == 1000
    assert wait.wait.numbers["free_milli"] == 0
    assert wait.since_ms is not None
    assert wait.cycle is not None
    never = explain(state, task(2))
    assert never.wait_class is WaitClass.NEVER
    assert never.waits[0].wait.code is WaitCode.EXCEEDS_EVERY_NODE
    running = explain(state, task(0))
    assert (running.phase, running.waits, running.wait_class) == ("starting", (), None)
    assert [a.nodes for a in running.attempts] == [("n1",)]


async def test_the_explanation_of_a_preemption_names_the_preemptor_and_the_rule(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.create()
    async with world.running():
        await world.claim(joined("n1", 1))
        await world.request(submission(0))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 1)
        await world.claim(started(task(0), "n1"))
        urgent = submitted(job(1), resources=Resources(gpus=1, gpu_milli=1000), priority=1)
        await world.request(urgent)
        await world.happens(lambda e: bool(of(PreemptionRequestedV1, e)))
        stopping_ms = world.clock.now_ms()
        world.clock.advance(1)
        await world.claim(exited(task(0), "n1"), released(task(0), "n1"))
        await world.happens(lambda e: bool(of(TaskRequeuedV1, e)))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 2)
    now = await explain_at(world.log, "main", task(0))
    assert now.phase == "pending"
    assert [(a.number, a.ended) for a in now.attempts] == [(1, "priority")]
    assert now.last_stop is not None
    assert now.last_stop.stop is not None
    assert (now.last_stop.stop.code, now.last_stop.stop.for_task) == ("priority", task(1))
    then = await explain_at(world.log, "main", task(0), time_ms=stopping_ms)
    assert then.phase == "stopping"
    assert then.attempts[0].deadline_ms is not None
    with pytest.raises(UnknownTask, match=task(7)):
        await explain_at(world.log, "main", task(7))
    with pytest.raises(BeforeFirstCycle):
        await explain_at(world.log, "main", task(0), cycle=0)


async def test_a_tasks_own_reason_comes_before_the_reason_of_its_shape_and_priority(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.create()
    one = Resources(gpus=1, gpu_milli=1000)
    async with world.running():
        await world.claim(joined("n1", 1))
        await world.request(submitted(job(0), resources=one, tasks=2, max_concurrent=1))
        await world.request(submission(1))
        await world.happens(lambda e: bool(of(SlotsAllocatedV1, e)))
        then_ms = world.clock.now_ms()
        world.clock.advance(1)
        await world.request(PauseRequestedV1(job_id=job(1)))
        await world.claim(started(task(0), "n1"))
        await world.claim(exited(task(0), "n1"), released(task(0), "n1"))
        await world.happens(lambda e: bool(of(TaskEndedV1, e)))
        await world.run_for_half_a_second()
    before = await explain_at(world.log, "main", f"{job(0)}.1", time_ms=then_ms)
    assert before.waits[0].wait.code is WaitCode.AT_MAX_CONCURRENT
    assert before.waits[0].wait.numbers == {"limit": 1, "used": 1}
    paused = await explain_at(world.log, "main", task(1))
    assert paused.wait_class is WaitClass.HELD
    assert paused.waits[0].wait.code is WaitCode.PAUSED
    ended = await explain_at(world.log, "main", task(0))
    assert ended.end is not None
    assert (ended.phase, ended.end.code, ended.end.exit_code) == ("succeeded", EndCode.EXIT, 0)


async def test_a_task_that_ended_before_the_cycle_is_explained_from_its_records(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.create()
    async with world.running():
        await world.claim(joined("n1", 1))
        await world.request(submission(0))
        await world.happens(lambda e: bool(of(SlotsAllocatedV1, e)))
        await world.claim(started(task(0), "n1"))
        await world.claim(exited(task(0), "n1", exit_code=3), released(task(0), "n1"))
        await world.happens(lambda e: bool(of(TaskEndedV1, e)))
        await world.request(submission(1))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 2)
    found = await state_at(world.log, SchedulerMachine(), "main")
    assert task(0) not in found.state.tasks, "its job has left the state"
    why = await explain_at(world.log, "main", task(0))
    assert why.end is not None
    assert (why.phase, why.end.code, why.end.exit_code) == ("failed", EndCode.EXIT, 3)
    assert (why.request, why.waits) == (None, ())
    assert [attempt.ended for attempt in why.attempts] == ["exit"]
    assert why.end.cycle < why.cycle == found.cycle
    at_end = await explain_at(world.log, "main", task(0), cycle=why.end.cycle)
    assert at_end.end == why.end
    before = await explain_at(world.log, "main", task(0), cycle=why.end.cycle - 1)
    assert before.end is None
    with pytest.raises(UnknownTask):
        await explain_at(world.log, "main", task(7))


async def test_the_explanation_of_failed_starts_has_their_number_and_the_limit(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.create()
    async with world.running():
        await world.claim(joined("n1", 1))
        await world.request(submission(0))
        await world.happens(lambda e: len(of(SlotsAllocatedV1, e)) == 1)
        await world.claim(released(task(0), "n1", never_started=True))
        await world.happens(lambda e: len(of(TaskRequeuedV1, e)) == 1)
    state = (await state_at(world.log, SchedulerMachine(), "main")).state
    (wait,) = explain(state, task(0)).waits
    assert wait.wait.code is WaitCode.START_BACKOFF
    numbers = wait.wait.numbers
    assert (numbers["failed_starts"], numbers["limit"]) == (1, 5)
    await world.prove()
