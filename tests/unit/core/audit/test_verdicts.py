"""S8: each request gets one verdict."""

from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    admitted,
    allocated,
    placed,
    pool_configured,
    project,
    submitted,
)
from tests.unit.core.audit.cell_log import JOB, A, admit, expect_one, found, run
from yardmaster_schemas.events.admissions import (
    RequestRefusedV1,
    TaskPausedV1,
    TaskRejectedV1,
)
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    PoolChangeRequestedV1,
    ProjectChangeRequestedV1,
)
from yardmaster_schemas.reasons import (
    AdmissionCode,
    RefusalCode,
)
from yardmaster_schemas.run_as import RunAs


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


#: A field of a job, a list without it, what the message names, and a list with it.
LISTED: list[tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = [
    (
        {"image": "docker.io/ada/train"},
        {"images": ("python",)},
        "image docker.io/ada/train",
        {"images": ("ada/",)},
    ),
    (
        {"git_host": "git.example.org"},
        {"git_hosts": ("github.com",)},
        "git host git.example.org",
        {"git_hosts": ("git.example.org",)},
    ),
    (
        {"image": "docker.io/a/b", "mounts": ("data:rw",)},
        {"mounts": ("data", "more:rw")},
        "mount data:rw",
        {"mounts": ("data:rw",)},
    ),
    (
        {"image": "docker.io/a/b", "mounts": ("data",)},
        {"mounts": ("more",)},
        "mount data",
        {"mounts": ("data:rw",)},
    ),
    (
        {"run_as": RunAs(uid=1001, gid=100)},
        {"users": ("1002:100",)},
        "user 1001:100",
        {"users": ("1001:100",)},
    ),
]


@pytest.mark.parametrize("owner", ["project nlp", "pool default"])
@pytest.mark.parametrize(("used", "without", "named", "with_"), LISTED)
def test_s8_a_job_that_an_allow_list_does_not_allow(
    log: LogBuilder,
    owner: str,
    used: dict[str, Any],
    without: dict[str, Any],
    named: str,
    with_: dict[str, Any],
) -> None:
    other = "pool default" if owner == "project nlp" else "project nlp"
    allow(log, owner, without)
    allow(log, other, with_)
    log.judged(submitted(JOB, **used), admitted(JOB))
    run(log, A, placed("n1", 0))
    expect_one(log, "S8", f"{named} is not in the list of {owner}", topic="admissions")


@pytest.mark.parametrize(("used", "without", "named", "with_"), LISTED)
def test_s8_the_lists_count_that_are_in_force_at_the_admission(
    log: LogBuilder,
    used: dict[str, Any],
    without: dict[str, Any],
    named: str,
    with_: dict[str, Any],
) -> None:
    allow(log, "project nlp", with_)
    log.judged(submitted(JOB, **used), admitted(JOB))
    allow(log, "project nlp", without)
    allow(log, "pool default", without)
    run(log, A, placed("n1", 0))
    assert found(log) == ()


def test_s8_a_job_that_mounts_a_folder_needs_a_list_of_its_project(log: LogBuilder) -> None:
    log.judged(submitted(JOB, image="docker.io/a/b", mounts=("data",)), admitted(JOB))
    expect_one(log, "S8", "mount data is not in the list of project nlp", topic="admissions")


def allow(log: LogBuilder, owner: str, lists: dict[str, Any]) -> None:
    """Configure the project or the pool with lists."""
    if owner == "pool default":
        pool = pool_configured(start_timeout_s=300, node_timeout_s=60, **lists)
        log.judged(PoolChangeRequestedV1(pool="default", config=pool.config), pool)
        return
    changed = project(**lists)
    assert changed.project is not None
    log.judged(ProjectChangeRequestedV1(project="nlp", config=changed.project), changed)
