"""S8: each request gets one verdict."""

import pytest

from tests.support.logs import (
    LogBuilder,
    admitted,
    allocated,
    placed,
    submitted,
)
from tests.unit.core.audit.cell_log import JOB, A, admit, expect_one, found
from yardmaster_schemas.events.admissions import (
    RequestRefusedV1,
    TaskPausedV1,
    TaskRejectedV1,
)
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
)
from yardmaster_schemas.reasons import (
    AdmissionCode,
    RefusalCode,
)


def test_s8_a_request_without_a_verdict(log: LogBuilder) -> None:
    request = log.request(submitted(JOB))
    log.quota.cycle()
    expect_one(log, "S8", request, "found none", topic="admissions")


def test_s8_a_cycle_that_was_cut_may_judge_later(log: LogBuilder) -> None:
    request = log.request(submitted(JOB))
    log.quota.cycle(complete=False)
    log.quota.cycle((admitted(JOB), request))
    assert found(log) == ()


def test_s8_a_request_judged_twice(log: LogBuilder) -> None:
    request = log.request(submitted(JOB))
    rejected = TaskRejectedV1(job_id=JOB, code=AdmissionCode.POOL_UNKNOWN)
    log.quota.cycle((admitted(JOB), request), (rejected, request))
    expect_one(log, "S8", "found TaskAdmitted and TaskRejected", topic="admissions")


def test_s8_a_job_admitted_twice(log: LogBuilder) -> None:
    admit(log, JOB)
    admit(log, JOB)
    expect_one(log, "S8", "expected one TaskAdmitted", topic="admissions")


def test_s8_an_admission_without_a_request(log: LogBuilder) -> None:
    log.quota.cycle((admitted(JOB), "gateway/gw-9/1/1"))
    expect_one(log, "S8", "expected a consumed request as cause", topic="admissions")


def test_s8_a_verdict_of_another_kind(log: LogBuilder) -> None:
    log.judged(CancelRequestedV1(job_id=JOB), TaskPausedV1(job_id=JOB))
    expect_one(log, "S8", "TaskPaused is not a verdict on CancelRequested", topic="admissions")


def test_s8_a_refusal_that_names_another_request(log: LogBuilder) -> None:
    refusal = RequestRefusedV1(request_type="PauseRequested", code=AdmissionCode.JOB_UNKNOWN)
    log.judged(CancelRequestedV1(job_id=JOB), refusal)
    expect_one(log, "S8", "refuses a PauseRequested", topic="admissions")


def test_s8_a_refused_record_needs_no_verdict(log: LogBuilder) -> None:
    log.request(submitted(JOB))
    at = log.end("requests") - 1
    log.quota.cycle(refused=[("requests", at, RefusalCode.REPEATED)])
    assert found(log) == ()


@pytest.mark.parametrize("task", [A, f"{JOB}.1"])
def test_s8_an_allocation_of_a_task_that_was_not_admitted(log: LogBuilder, task: str) -> None:
    if task != A:
        admit(log, JOB)
    log.scheduler.cycle(allocated(task, placed("n1", 0)))
    expect_one(log, "S8", "no such task was admitted")
