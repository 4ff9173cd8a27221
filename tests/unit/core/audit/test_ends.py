"""Ends (S9) and times (S10)."""

import dataclasses

import pytest

from tests.support.logs import (
    LogBuilder,
    allocated,
    placed,
)
from tests.unit.core.audit.cell_log import (
    JOB,
    OTHER,
    A,
    B,
    admit,
    ended,
    expect_one,
    finish,
    found,
    lost,
    preempted,
    requeued,
    run,
    silent,
    stopped,
)
from yardmaster_schemas.events.admissions import (
    CancelAcceptedV1,
    DetailsErasedV1,
    NodeDrainingV1,
    TaskPausedV1,
)
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
)
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    EraseRequestedV1,
    NodeDrainRequestedV1,
    PauseRequestedV1,
)
from yardmaster_schemas.reasons import (
    Stop,
    StopCode,
)


def test_s9_a_task_that_ends_twice(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(ended(A))
    log.scheduler.cycle(ended(A))
    expect_one(log, "S9", "ends again")


def test_s9_a_task_that_ends_with_slots(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(ended(A))
    expect_one(log, "S9", "found replicas [0] open")


def test_s9_a_start_after_the_end(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(ended(A))
    log.scheduler.cycle(allocated(A, placed("n1", 0), attempt=2))
    expect_one(log, "S9", "opens after the task ended")


def test_s9_a_start_after_a_cancel(log: LogBuilder) -> None:
    admit(log, JOB, tasks=2)
    log.judged(CancelRequestedV1(job_id=JOB, index=0), CancelAcceptedV1(job_id=JOB, index=0))
    log.scheduler.cycle(allocated(f"{JOB}.1", placed("n1", 1)))
    assert found(log) == ()
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S9", "after its cancellation")


def test_s9_a_start_after_the_details_were_erased(log: LogBuilder) -> None:
    admit(log, JOB)
    log.judged(EraseRequestedV1(job_id=JOB, tombstone=3), DetailsErasedV1(job_id=JOB))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S9", "opens after the job's details were erased")


def test_s9_a_start_while_paused(log: LogBuilder) -> None:
    admit(log, JOB)
    log.judged(PauseRequestedV1(job_id=JOB), TaskPausedV1(job_id=JOB))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S9", "while the task is paused")


def test_s10_time_decreases(log: LogBuilder) -> None:
    log.scheduler.cycle(after_ms=-60_000)
    expect_one(log, "S10", "time decreases from")


def test_s10_a_start_before_its_time(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A, not_before_ms=log.now_ms + 10_000))
    log.scheduler.cycle(allocated(A, placed("n1", 0), attempt=2))
    expect_one(log, "S10", "held until")


def test_s10_a_deadline_before_the_grace_is_over(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    early = dataclasses.replace(preempted(log, A), deadline_at_ms=log.now_ms + 2000)
    log.scheduler.cycle(early)
    expect_one(log, "S10", "60 s of grace")


def test_s10_a_time_limit_that_is_not_reached(log: LogBuilder) -> None:
    admit(log, JOB, time_limit_s=3600)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(stopped(log, A, StopCode.TIME_LIMIT, "n1"))
    expect_one(log, "S10", "exceeds its time limit of 3600 s: 1000 ms")


@pytest.mark.parametrize("preemptible", [True, False])
def test_s10_a_drain_waits_for_non_preemptible_tasks(log: LogBuilder, preemptible: bool) -> None:
    admit(log, JOB, preemptible=preemptible)
    run(log, A, placed("n1", 0))
    when = log.now_ms + 600_000
    log.judged(
        NodeDrainRequestedV1(node="n1", deadline_at_ms=when),
        NodeDrainingV1(node="n1", deadline_at_ms=when),
    )
    log.scheduler.cycle(stopped(log, A, StopCode.NODE_DRAINED, "n1"))
    if preemptible:
        assert found(log) == ()
    else:
        expect_one(log, "S10", "is drained at")


def test_s10_an_allocation_revoked_too_soon(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    revoked = AllocationRevokedV1(
        task_id=A, attempt=1, nodes=("n1",), stop=Stop(code=StopCode.START_TIMEOUT)
    )
    log.scheduler.cycle(revoked, after_ms=299_000)
    expect_one(log, "S10", "revoked after 299000 ms")


def test_s10_a_node_lost_too_soon(log: LogBuilder) -> None:
    seen = dataclasses.replace(silent("n1"), last_heard_at_ms=log.now_ms)
    log.scheduler.cycle(seen, lost("n1"), after_ms=59_000)
    expect_one(log, "S10", "after 59000 ms of silence")


def test_s10_a_node_lost_without_an_observation(log: LogBuilder) -> None:
    log.scheduler.cycle(lost("n1"), after_ms=70_000)
    expect_one(log, "S10", "never observed")


def test_s10_a_start_that_takes_longer_than_its_bound(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(allocated(B, placed("n1", 1)))
    log.scheduler.cycle(after_ms=43_199_000)
    assert not found(log)
    log.scheduler.cycle()
    expect_one(log, "S10", f"{B} attempt 1 has not started after 43200000 ms")
