"""S7: what a task may be preempted for."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    allocated,
    exited,
    placed,
    released,
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
    PoolConfiguredV1,
    PriorityChangedV1,
)
from yardmaster_schemas.events.decisions import (
    FailedStartsExpiredV1,
    PreemptionRequestedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.requests import (
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    PriorityChangeRequestedV1,
)
from yardmaster_schemas.reasons import (
    PolicyStop,
)


@pytest.mark.parametrize(
    ("stop", "word"),
    [
        ({"for_task": None}, "without naming a beneficiary"),
        ({"for_task": "zzzzzzzzzzzz.0"}, "cannot use its slots"),
        ({"for_task": A}, "cannot use its slots"),
    ],
)
def test_s7_a_preemption_without_a_beneficiary(log: LogBuilder, stop: Any, word: str) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(preempted(log, A, **stop))
    expect_one(log, "S7", word)


def preempted_by_policy(log: LogBuilder, for_task: str | None) -> PreemptionRequestedV1:
    """Preempt task `A` in a cycle one second later, by a policy that no schema knows."""
    return PreemptionRequestedV1(
        task_id=A,
        attempt=1,
        nodes=("n1",),
        stop=PolicyStop(policy="toy", rule="drawn", for_task=for_task, numbers={"dice": 6}),
        grace_s=60,
        deadline_at_ms=log.now_ms + 61_000,
    )


def test_a_preemption_by_a_policy_that_no_schema_knows_is_sound(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(preempted_by_policy(log, B))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(TaskRequeuedV1(task_id=A, attempt=1, code="toy", restarts=0))
    assert found(log) == ()


def test_s7_a_preemption_by_a_policy_without_a_beneficiary(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(preempted_by_policy(log, None))
    expect_one(log, "S7", "stopped (toy) without naming a beneficiary")


def test_s7_a_victim_that_is_not_preemptible(log: LogBuilder) -> None:
    admit(log, JOB, preemptible=False)
    admit(log, OTHER)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(preempted(log, A))
    expect_one(log, "S7", "not preemptible")


def test_s7_a_victim_before_its_min_runtime(log: LogBuilder) -> None:
    admit(log, JOB, min_runtime_s=600)
    admit(log, OTHER)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(preempted(log, A))
    expect_one(log, "S7", "after 1000 ms, min_runtime is 600000 ms")


@pytest.mark.parametrize("reordered", [False, True])
def test_s7_no_two_tasks_preempt_each_other(log: LogBuilder, reordered: bool) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(preempted(log, A))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A), allocated(B, placed("n1", 0)))
    if reordered:
        log.judged(
            PriorityChangeRequestedV1(job_id=JOB, priority=1),
            PriorityChangedV1(job_id=JOB, priority=1, revision=2),
        )
    log.scheduler.cycle(preempted(log, B, for_task=A))
    if reordered:
        assert found(log) == ()
    else:
        expect_one(log, "S7", f"{B} attempt 1 is stopped for {A}, which was stopped for it")


def test_s7_two_tasks_may_preempt_each_other_around_an_overdue_stop(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    admit(log, THIRD)
    run(log, A, placed("n1", 0))
    run(log, C, placed("n1", 1))
    of_a, of_c = preempted(log, A), preempted(log, C)
    log.scheduler.cycle(of_a, of_c)
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A), allocated(B, placed("n1", 0)))
    log.scheduler.cycle(overdue(C, of_c.deadline_at_ms), after_ms=120_000)
    log.scheduler.cycle(preempted(log, B, for_task=A))
    assert found(log) == ()


@pytest.mark.parametrize("half_life_s", [0, 60])
def test_s7_two_tasks_may_preempt_each_other_where_past_use_moves_shares(
    log: LogBuilder, half_life_s: int
) -> None:
    options: dict[str, Any] = {"usage_half_life_s": half_life_s}
    config = PoolConfig(policy=PolicyRef(name="quota", options=options), start_timeout_s=300)
    configured = PoolConfiguredV1(pool="default", revision=2, config=config)
    log.judged(PoolChangeRequestedV1(pool="default", config=config), configured)
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(preempted(log, A))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A), allocated(B, placed("n1", 0)))
    log.scheduler.cycle(after_ms=60_000)
    log.scheduler.cycle(preempted(log, B, for_task=A))
    if half_life_s:
        assert found(log) == ()
    else:
        expect_one(log, "S7", f"{B} attempt 1 is stopped for {A}, which was stopped for it")


@pytest.mark.parametrize("rules", [("reclaim", "moved"), ("moved", "reclaim")])
def test_s7_a_task_that_is_moved_for_another_one_does_not_preempt_it(
    log: LogBuilder, rules: tuple[str, str]
) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(preempted(log, A, rule=rules[0]))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A), allocated(B, placed("n1", 0)))
    log.scheduler.cycle(preempted(log, B, for_task=A, rule=rules[1]))
    if rules[1] == "moved":
        assert found(log) == ()
    else:
        expect_one(log, "S7", f"{B} attempt 1 is stopped for {A}, which was stopped for it")


def fails_to_start(log: LogBuilder, times: int) -> None:
    """Both jobs are admitted, A runs, and the first starts of B fail."""
    admit(log, JOB)
    admit(log, OTHER, priority=1)
    run(log, A, placed("n1", 0))
    for attempt in range(1, times + 1):
        log.scheduler.cycle(allocated(B, placed("n1", 1), attempt=attempt))
        log.claim(released(B, "n1", attempt=attempt, never_started=True))
        log.scheduler.cycle(replace(requeued(B, attempt), failed_starts=attempt))


def test_s7_a_task_whose_last_starts_failed_preempts_no_task(log: LogBuilder) -> None:
    fails_to_start(log, 2)
    log.scheduler.cycle(preempted(log, A))
    expect_one(log, "S7", f"{A} attempt 1 is stopped for {B}, whose last 2 starts failed")


def expired(times: int) -> FailedStartsExpiredV1:
    return FailedStartsExpiredV1(task_id=B, attempt=times, failed_starts=times)


def test_s7_a_task_may_preempt_once_its_failed_starts_expired(log: LogBuilder) -> None:
    fails_to_start(log, 2)
    log.scheduler.cycle(expired(2), after_ms=300_000)
    log.scheduler.cycle(preempted(log, A))
    assert found(log) == ()


def test_s7_a_failed_start_after_those_that_expired_counts(log: LogBuilder) -> None:
    fails_to_start(log, 2)
    log.scheduler.cycle(expired(2), allocated(B, placed("n1", 1), attempt=3), after_ms=300_000)
    log.claim(released(B, "n1", attempt=3, never_started=True))
    log.scheduler.cycle(replace(requeued(B, 3), failed_starts=3))
    log.scheduler.cycle(preempted(log, A))
    expect_one(log, "S7", f"{A} attempt 1 is stopped for {B}, whose last 3 starts failed")


def test_s4_failed_starts_expire_before_their_time(log: LogBuilder) -> None:
    fails_to_start(log, 2)
    log.scheduler.cycle(expired(2), after_ms=299_999)
    expect_one(log, "S4", f"2 failed starts of {B} expire")


def test_s4_other_failed_starts_expire_than_the_last(log: LogBuilder) -> None:
    fails_to_start(log, 2)
    log.scheduler.cycle(replace(expired(2), failed_starts=1), after_ms=300_000)
    expect_one(log, "S4", f"1 failed starts of {B} expire")


def test_s7_a_task_may_preempt_after_one_failed_start(log: LogBuilder) -> None:
    fails_to_start(log, 1)
    log.scheduler.cycle(preempted(log, A))
    assert found(log) == ()


def test_s7_a_task_may_preempt_after_it_started(log: LogBuilder) -> None:
    fails_to_start(log, 2)
    run(log, B, placed("n1", 1), attempt=3)
    log.claim(exited(B, "n1", attempt=3, exit_code=1))
    log.claim(released(B, "n1", attempt=3))
    log.scheduler.cycle(requeued(B, 3))
    log.scheduler.cycle(preempted(log, A))
    assert found(log) == ()
