"""S3: reserved slots."""

from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    allocated,
    placed,
)
from tests.unit.core.audit.cell_log import (
    JOB,
    OTHER,
    THIRD,
    A,
    B,
    C,
    admit,
    expect_one,
    finish,
    found,
    overdue,
    preempted,
    requeued,
    run,
)
from yardmaster_schemas.events.admissions import (
    CancelAcceptedV1,
)
from yardmaster_schemas.events.decisions import (
    Outcome,
    ReservationDroppedV1,
    SlotsReservedV1,
    TaskEndedV1,
)
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
)
from yardmaster_schemas.reasons import (
    DropCode,
    EndCode,
)
from yardmaster_schemas.resources import Resources


def reserved(task: str, *placements: Any, attempt: int = 1, victims: int = 0) -> SlotsReservedV1:
    return SlotsReservedV1(
        task_id=task, attempt=attempt, pool="default", placements=placements, victims=victims
    )


def dropped(task: str, code: DropCode = DropCode.PAUSED, attempt: int = 1) -> ReservationDroppedV1:
    return ReservationDroppedV1(task_id=task, attempt=attempt, pool="default", code=code)


def test_s3_a_reservation_that_is_dropped_or_starts_its_task_is_correct(
    log: LogBuilder,
) -> None:
    admit(log, JOB)
    admit(log, OTHER, THIRD, priority=1)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(preempted(log, A), reserved(B, placed("n1", 0), victims=1))
    log.scheduler.cycle(reserved(C, placed("n2", 0)))
    log.scheduler.cycle(dropped(C), allocated(C, placed("n2", 1)))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A), allocated(B, placed("n1", 0)))
    assert found(log) == ()


def test_s3_a_start_on_slots_that_are_reserved_for_another_task(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    log.scheduler.cycle(reserved(B, placed("n1", 0)))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S3", f"{A} attempt 1 replica 0", "n1 slot 0 is reserved", B)


def test_s3_a_start_on_other_slots_than_the_reserved_ones(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(reserved(A, placed("n1", 0)))
    log.scheduler.cycle(allocated(A, placed("n1", 1)))
    expect_one(log, "S3", "starts on other slots than those reserved for it")


def test_s3_a_reservation_of_reserved_slots(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    log.scheduler.cycle(reserved(A, placed("n1", 0)))
    log.scheduler.cycle(reserved(B, placed("n1", 0)))
    # Both are reserved now, so the slot has too much from the second one on.
    expect_one(log, "S3", f"{B} attempt 1 replica 0", "n1 slot 0 is reserved")


def test_s3_two_reservations_share_a_slot_that_suffices_for_both(log: LogBuilder) -> None:
    half = Resources(gpus=1, gpu_milli=500)
    admit(log, JOB, OTHER, THIRD, resources=half)
    halves = [placed("n1", 0, gpu_milli=500)] * 3
    log.scheduler.cycle(reserved(A, halves[0]), reserved(B, halves[1]))
    assert found(log) == ()
    log.scheduler.cycle(reserved(C, halves[2]))
    expect_one(log, "S3", f"{C} attempt 1 replica 0", "n1 slot 0 is reserved")


def test_s3_a_reservation_of_slots_whose_holder_has_no_stop(
    log: LogBuilder,
) -> None:
    admit(log, JOB)
    admit(log, OTHER, priority=1)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(reserved(B, placed("n1", 0)))
    expect_one(log, "S3", f"{B} attempt 1 replica 0", "n1 slot 0")


@pytest.mark.parametrize("attempt", [1, 3])
def test_s3_a_reservation_that_is_not_for_the_next_attempt(log: LogBuilder, attempt: int) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A))
    log.scheduler.cycle(reserved(A, placed("n1", 0), attempt=attempt))
    expect_one(log, "S3", f"{A} attempt {attempt}", "is not its next attempt")


def test_s3_a_second_reservation_of_a_task(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(reserved(A, placed("n1", 0)))
    log.scheduler.cycle(reserved(A, placed("n2", 0)))
    expect_one(log, "S3", f"{A} attempt 1 has reserved slots already")


def test_s3_a_drop_of_a_reservation_that_does_not_exist(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(dropped(A, DropCode.CANCELLED))
    expect_one(log, "S3", f"{A} attempt 1", "is dropped (cancelled), but there is none")


def test_s3_a_task_that_ends_with_reserved_slots(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(reserved(A, placed("n1", 0)))
    log.judged(CancelRequestedV1(job_id=JOB), CancelAcceptedV1(job_id=JOB))
    cancelled = TaskEndedV1(task_id=A, attempt=0, outcome=Outcome.CANCELLED, code=EndCode.CANCELLED)
    log.scheduler.cycle(cancelled)
    expect_one(log, "S3", f"{A} ends with reserved slots, without a drop")


def preempt_for_b(log: LogBuilder) -> int:
    """Preempt A of n1 slot 0, reserve the slot for B, and return the deadline of A."""
    admit(log, JOB)
    admit(log, OTHER, priority=1)
    run(log, A, placed("n1", 0))
    stop = preempted(log, A)
    log.scheduler.cycle(stop, reserved(B, placed("n1", 0), victims=1))
    return stop.deadline_at_ms


def test_s3_an_overdue_stop_with_a_drop_of_what_is_reserved_there_is_correct(
    log: LogBuilder,
) -> None:
    deadline_ms = preempt_for_b(log)
    events = overdue(A, deadline_ms), dropped(B, DropCode.STOP_OVERDUE)
    log.scheduler.cycle(*events, after_ms=120_000)
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A), allocated(B, placed("n1", 0)))
    assert found(log) == ()


def test_s3_slots_of_an_overdue_stop_stay_reserved(log: LogBuilder) -> None:
    deadline_ms = preempt_for_b(log)
    log.scheduler.cycle(overdue(A, deadline_ms), after_ms=120_000)
    expect_one(log, "S3", f"{A} did not stop in time", "n1 slot 0 is reserved", B)


def test_s10_a_stop_is_overdue_before_its_time(log: LogBuilder) -> None:
    deadline_ms = preempt_for_b(log)
    events = overdue(A, deadline_ms), dropped(B, DropCode.STOP_OVERDUE)
    log.scheduler.cycle(*events, after_ms=119_000)
    expect_one(log, "S10", f"{A} attempt 1 is overdue")


def test_s4_a_task_that_does_not_stop_is_overdue(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(overdue(A, 0), after_ms=120_000)
    expect_one(log, "S4", f"{A} attempt 1 is overdue")
