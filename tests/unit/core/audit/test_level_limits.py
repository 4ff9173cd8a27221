"""S6: limits of departments, projects and jobs."""

from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    allocated,
    department,
    placed,
    pool_configured,
    project,
)
from tests.unit.core.audit.cell_log import JOB, OTHER, THIRD, A, B, C, admit, expect_one, found, run
from yardmaster_schemas.events.requests import (
    PoolChangeRequestedV1,
    ProjectChangeRequestedV1,
    Quota,
)


@pytest.mark.parametrize(
    ("level", "word"),
    [
        (project(limit_milli=1000), "project nlp limit 1000, used 1000, requested 1000"),
        (project(quotas={"default": Quota(limit_milli=1500)}), "project nlp limit in default"),
        (department(quotas={"default": Quota(limit_milli=1999)}), "department research limit"),
    ],
)
def test_s6_a_limit_exceeded(log: LogBuilder, level: Any, word: str) -> None:
    log.judged(ProjectChangeRequestedV1(project="nlp", config=project().project), level)  # type: ignore[arg-type]
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    assert found(log) == ()
    log.scheduler.cycle(allocated(B, placed("n1", 1)))
    expect_one(log, "S6", word)


@pytest.mark.parametrize(
    ("spec", "word"),
    [({"max_slots_milli": 1000}, "max_slots 1000"), ({"max_concurrent": 1}, "max_concurrent 1")],
)
def test_s6_a_jobs_own_limits(log: LogBuilder, spec: Any, word: str) -> None:
    admit(log, JOB, tasks=2, **spec)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(allocated(f"{JOB}.1", placed("n1", 1)))
    expect_one(log, "S6", word)


def test_s6_lowering_a_limit_stops_nothing(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    level = project(limit_milli=0)
    assert level.project is not None
    log.judged(ProjectChangeRequestedV1(project="nlp", config=level.project), level)
    log.scheduler.cycle()
    assert found(log) == ()


@pytest.mark.parametrize("policy", ["quota", "priority"])
def test_s6_deserved_limits_non_preemptible_tasks_under_quota(log: LogBuilder, policy: str) -> None:
    pool = pool_configured(policy=policy)
    log.judged(PoolChangeRequestedV1(pool="default", config=pool.config), pool)
    level = project(quotas={"default": Quota(deserved_milli=1000)})
    assert level.project is not None
    log.judged(ProjectChangeRequestedV1(project="nlp", config=level.project), level)
    admit(log, JOB, preemptible=True)
    admit(log, OTHER, THIRD, preemptible=False)
    log.scheduler.cycle(allocated(A, placed("n1", 0)), allocated(B, placed("n1", 1)))
    assert found(log) == ()
    log.scheduler.cycle(allocated(C, placed("n1", 2)))
    if policy == "quota":
        expect_one(log, "S6", "deserved in default", "used 1000, requested 1000")
    else:
        assert found(log) == ()


def test_s6_what_is_deserved_without_limit_limits_nothing(log: LogBuilder) -> None:
    pool = pool_configured(policy="quota")
    log.judged(PoolChangeRequestedV1(pool="default", config=pool.config), pool)
    level = project(quotas={"default": Quota(deserved_unlimited=True)})
    assert level.project is not None
    log.judged(ProjectChangeRequestedV1(project="nlp", config=level.project), level)
    admit(log, JOB, preemptible=False)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    assert found(log) == ()
