"""The chaos run: its plan repeats, and its verdict sees each kind of damage."""

from itertools import islice

import pytest

from tests.chaos.load import Acknowledged
from tests.chaos.plan import Kind, faults
from tests.chaos.tail_cut import Removed
from tests.chaos.verdict import broken
from tests.support.logs import LogBuilder, admitted, allocated, placed, submitted
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.events.decisions import AllocationRevokedV1, Outcome, TaskEndedV1
from yardmaster_schemas.reasons import EndCode, Stop, StopCode
from yardmaster_schemas.topics import INPUT_ORDER, TOPICS

NAMES = ("kafka", "redis", "quota-1", "scheduler-1", "agent-n1", "agent-n2", "gateway-1")
JOB = "abcdefghijkl"
TASK = f"{JOB}.0"


def test_a_seed_gives_the_same_faults_again_and_another_seed_other_faults() -> None:
    first = list(islice(faults(7, NAMES, list(Kind)), 200))
    assert first == list(islice(faults(7, NAMES, list(Kind)), 200))
    assert first != list(islice(faults(8, NAMES, list(Kind)), 200))


def test_every_kind_of_fault_comes_and_hits_processes_that_can_have_it() -> None:
    seen = list(islice(faults(7, NAMES, list(Kind)), 500))
    assert {fault.kind for fault in seen} == set(Kind)
    for fault in seen:
        if fault.kind in (Kind.WIPE, Kind.TWIN):
            assert fault.target.startswith("agent-")
        if fault.kind is Kind.CUT:
            assert fault.topic in INPUT_ORDER
            assert fault.records
        if fault.kind is Kind.CLOCK:
            assert fault.target not in ("kafka", "redis")
            assert fault.step_s
        if fault.kind is Kind.BROKER_CLOCK:
            assert fault.target == "kafka"
            assert fault.step_s
        if fault.kind is Kind.SOFT:
            assert fault.topic not in INPUT_ORDER
            assert fault.records
        if fault.kind in (Kind.FENCE, Kind.HANG):
            assert fault.target.startswith(("quota-", "scheduler-"))


def _ended(task_id: str) -> TaskEndedV1:
    return TaskEndedV1(task_id=task_id, attempt=1, outcome=Outcome.SUCCEEDED, code=EndCode.EXIT)


async def _broken(built: LogBuilder, *removed: str) -> list[str]:
    log = MemoryLog(ManualClock())
    await log.create_topics(list(TOPICS.values()))
    await built.write_to(log)
    job = Acknowledged("key", {}, JOB, (TASK,), "main@r1")
    return await broken(log, [job], Removed(set(removed)))


def _kept() -> LogBuilder:
    built = LogBuilder()
    built.judged(submitted(JOB), admitted(JOB))
    built.scheduler.cycle(_ended(TASK))
    return built


async def test_a_job_that_was_admitted_and_ended_once_breaks_nothing() -> None:
    assert await _broken(_kept()) == []


async def test_an_acknowledged_job_that_no_topic_has_is_lost() -> None:
    assert [f"{JOB} was acknowledged at main@r1 and is lost", f"{TASK} ended 0 times"] == (
        await _broken(LogBuilder())
    )


async def test_a_job_that_the_brokers_lost_is_exempt() -> None:
    assert await _broken(LogBuilder(), JOB) == []


async def test_a_job_without_a_verdict_and_one_with_two_are_reported() -> None:
    built = LogBuilder()
    built.request(submitted(JOB))
    built.scheduler.cycle(_ended(TASK))
    assert await _broken(built) == [f"{JOB} was admitted 0 times: not judged"]
    built = _kept()
    built.judged(submitted(JOB), admitted(JOB))
    assert await _broken(built) == [f"{JOB} was admitted 2 times: not judged"]


async def test_a_task_that_ended_twice_is_reported() -> None:
    built = _kept()
    built.scheduler.cycle(_ended(TASK))
    assert await _broken(built) == [f"{TASK} ended 2 times"]


async def test_what_a_fenced_leader_wrote_late_does_not_count() -> None:
    built = _kept()
    late = built.scheduler.writer
    built.scheduler.start_term("bbbbbbbbbbbb")
    built.append("decisions", late.envelope(_ended(TASK), TASK))
    assert await _broken(built) == []


@pytest.mark.parametrize(("jump_s", "reported"), [(0, True), (86_400, False)])
async def test_an_attempt_that_never_started_is_reported_unless_the_clock_jumped(
    jump_s: int, reported: bool
) -> None:
    stop = Stop(code=StopCode.START_TIMEOUT, numbers={"active": 0, "needed": 1, "limit_s": 300})
    built = LogBuilder()
    built.judged(submitted(JOB), admitted(JOB))
    built.scheduler.cycle(allocated(TASK, placed("n1", 0)))
    built.scheduler.cycle(after_ms=200_000)
    built.scheduler.cycle(after_ms=1000 * jump_s)
    built.scheduler.cycle(
        AllocationRevokedV1(task_id=TASK, attempt=1, nodes=("n1",), stop=stop), after_ms=100_000
    )
    built.scheduler.cycle(_ended(TASK))
    found = [f"{TASK} did not start attempt 1 before the start timeout"] if reported else []
    assert await _broken(built) == found
