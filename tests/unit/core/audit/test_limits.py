"""S6 under `quota`: at every level, for GPUs, CPUs and memory, also of what is reserved."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    admitted,
    allocated,
    department,
    joined,
    log_created,
    placed,
    pool_configured,
    project,
    submitted,
)
from tests.support.logs import (
    released as slots_released,
)
from tests.unit.core.audit.cell_log import stopped as stop_requested
from yardmaster_core.audit import Finding, audit
from yardmaster_schemas.events.admissions import EntitlementsChangedV1, Level
from yardmaster_schemas.events.decisions import (
    Placement,
    PreemptionRequestedV1,
    ReservationDroppedV1,
    SlotsReservedV1,
    StopOverdueV1,
)
from yardmaster_schemas.events.requests import (
    DepartmentChangeRequestedV1,
    Layout,
    PoolChangeRequestedV1,
    ProjectChangeRequestedV1,
    Quota,
)
from yardmaster_schemas.reasons import DropCode, PolicyStop, StopCode
from yardmaster_schemas.resources import Resources

JOBS = ("aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc")
A, B, C = (f"{job}.0" for job in JOBS)


@pytest.fixture
def log() -> LogBuilder:
    """A pool with the policy `quota` of a node of four slots; nothing configured or submitted."""
    log = LogBuilder()
    log.request(log_created())
    configure_pool(log, "quota")
    log.claim(joined("n1"))
    return log


def configure_pool(log: LogBuilder, policy: str) -> None:
    pool = pool_configured(policy=policy)
    log.judged(PoolChangeRequestedV1(pool="default", config=pool.config), pool)


def configure(log: LogBuilder, level: EntitlementsChangedV1) -> None:
    if level.level is Level.DEPARTMENT:
        assert level.department is not None
        log.judged(
            DepartmentChangeRequestedV1(department=level.name, config=level.department), level
        )
    else:
        assert level.project is not None
        log.judged(ProjectChangeRequestedV1(project=level.name, config=level.project), level)


def nested(log: LogBuilder, **quotas: Quota) -> None:
    """Project `nlp` in department `team`, in department `research`, with these quotas."""
    of = {name: {"default": quota} for name, quota in quotas.items()}
    configure(log, department("research", quotas=of.get("research", {})))
    configure(log, department("team", parent="research", quotas=of.get("team", {})))
    configure(log, project("nlp", "team", quotas=of.get("nlp", {})))


def admit(log: LogBuilder, *jobs: str, project: str = "nlp", **spec: Any) -> None:
    for job in jobs:
        log.judged(submitted(job, project), admitted(job, project, **spec))


def reserved(task: str, *placements: Placement, attempt: int = 1) -> SlotsReservedV1:
    return SlotsReservedV1(task_id=task, attempt=attempt, pool="default", placements=placements)


def found(log: LogBuilder) -> tuple[Finding, ...]:
    return audit(log.fed())


def expect_one(log: LogBuilder, text: str) -> None:
    findings = found(log)
    assert len(findings) == 1, findings
    assert findings[0].predicate == "S6"
    assert text in findings[0].message, findings[0].message


#: Quotas, whether tasks are preemptible, and what the second task of 1 GPU, 1 CPU, 1 GiB breaks.
BROKEN: list[tuple[dict[str, Quota], bool, str]] = [
    ({"nlp": Quota(limit_milli=1999)}, True, "project nlp limit in default 1999, used 1000"),
    ({"team": Quota(limit_milli=1000)}, True, "department team limit in default 1000"),
    ({"research": Quota(limit_milli=1000)}, True, "department research limit in default 1000"),
    (
        {"nlp": Quota(limit_cpu_milli=1500)},
        True,
        "project nlp limit of CPUs (milli) in default 1500, used 1000, requested 1000",
    ),
    ({"team": Quota(limit_memory_mib=2047)}, True, "team limit of memory (MiB) in default 2047"),
    ({"research": Quota(limit_cpu_milli=1000)}, True, "department research limit of CPUs"),
    (
        {"nlp": Quota(deserved_milli=1000, over_quota=False)},
        True,
        "project nlp deserved in default (over-quota off) 1000, used 1000, requested 1000",
    ),
    (
        {"research": Quota(deserved_unlimited=True, deserved_cpu_milli=1000, over_quota=False)},
        True,
        "department research deserved of CPUs (milli) in default (over-quota off) 1000",
    ),
    (
        {"nlp": Quota(deserved_milli=1000)},
        False,
        "project nlp deserved in default (not preemptible) 1000, used 1000, requested 1000",
    ),
    (
        {"nlp": Quota(deserved_milli=2000), "team": Quota(deserved_milli=1000)},
        False,
        "department team deserved in default (not preemptible) 1000",
    ),
    (
        {"nlp": Quota(deserved_unlimited=True), "research": Quota(deserved_milli=1999)},
        False,
        "department research deserved in default (not preemptible) 1999",
    ),
    (
        {"nlp": Quota(deserved_unlimited=True, deserved_cpu_milli=1000)},
        False,
        "project nlp deserved of CPUs (milli) in default (not preemptible) 1000",
    ),
    (
        {"nlp": Quota(deserved_unlimited=True), "team": Quota(deserved_memory_mib=1024)},
        False,
        "department team deserved in default (not preemptible) 0, used 0",
    ),
    (
        {
            "nlp": Quota(deserved_unlimited=True),
            "team": Quota(deserved_unlimited=True, deserved_memory_mib=1024),
        },
        False,
        "department team deserved of memory (MiB) in default (not preemptible) 1024",
    ),
]


@pytest.mark.parametrize(("quotas", "preemptible", "text"), BROKEN)
def test_a_start_beyond_a_bound_of_a_level_is_named(
    log: LogBuilder, quotas: dict[str, Quota], preemptible: bool, text: str
) -> None:
    nested(log, **quotas)
    admit(log, JOBS[0], JOBS[1], preemptible=preemptible)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    if "used 0" not in text:
        assert found(log) == ()
        log.scheduler.cycle(allocated(B, placed("n1", 1)))
    expect_one(log, text)


@pytest.mark.parametrize(("quotas", "preemptible", "text"), BROKEN)
def test_a_reservation_beyond_a_bound_is_named(
    log: LogBuilder, quotas: dict[str, Quota], preemptible: bool, text: str
) -> None:
    nested(log, **quotas)
    admit(log, JOBS[0], JOBS[1], preemptible=preemptible)
    log.scheduler.cycle(reserved(A, placed("n1", 0)))
    if "used 0" not in text:
        assert found(log) == ()
        log.scheduler.cycle(reserved(B, placed("n1", 1)))
    expect_one(log, f"gets reserved slots: {text}" if text.startswith("project") else text)


@pytest.mark.parametrize(("quotas", "preemptible", "text"), BROKEN[3:])
def test_other_policies_promise_only_limits_of_gpus_of_a_project_and_its_department(
    log: LogBuilder, quotas: dict[str, Quota], preemptible: bool, text: str
) -> None:
    assert text
    configure_pool(log, "priority")
    nested(log, **quotas)
    admit(log, JOBS[0], JOBS[1], preemptible=preemptible)
    log.scheduler.cycle(allocated(A, placed("n1", 0)), allocated(B, placed("n1", 1)))
    assert found(log) == ()


def test_a_project_without_a_quota_deserves_no_gpus_and_any_cpus(log: LogBuilder) -> None:
    configure(log, department("research"))
    configure(log, project("nlp", "research"))
    admit(log, JOBS[0], preemptible=False, resources=Resources(cpu_milli=1000, memory_mib=1024))
    log.scheduler.cycle(allocated(A, placed("n1")))
    assert found(log) == ()
    admit(log, JOBS[1], preemptible=False)
    log.scheduler.cycle(allocated(B, placed("n1", 0)))
    expect_one(log, "project nlp deserved in default (not preemptible) 0, used 0, requested 1000")


def test_a_department_without_a_quota_deserves_the_sum_of_those_in_it(log: LogBuilder) -> None:
    nested(log, nlp=Quota(deserved_milli=1000))
    admit(log, JOBS[0], preemptible=False)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    nested(log, nlp=Quota(deserved_milli=0))
    configure(log, project("vision", "research", quotas={"default": Quota(deserved_milli=2000)}))
    admit(log, JOBS[1], JOBS[2], project="vision", preemptible=False)
    log.scheduler.cycle(replace(allocated(B, placed("n1", 1)), project="vision"))
    assert found(log) == ()
    log.scheduler.cycle(replace(allocated(C, placed("n1", 2)), project="vision"))
    expect_one(
        log, "department research deserved in default (not preemptible) 2000, used 2000, requested"
    )


def test_a_department_deserves_all_if_one_in_it_does(log: LogBuilder) -> None:
    nested(log, nlp=Quota(deserved_unlimited=True))
    admit(log, *JOBS, preemptible=False)
    log.scheduler.cycle(*(allocated(task, placed("n1", i)) for i, task in enumerate((A, B, C))))
    assert found(log) == ()


def test_what_a_project_deserves_in_all_pools_bounds_what_it_holds_there(log: LogBuilder) -> None:
    other = pool_configured("other", policy="quota")
    log.judged(PoolChangeRequestedV1(pool="other", config=other.config), other)
    log.claim(joined("o1", pool="other"))
    configure(log, department("research", quotas={"other": Quota(deserved_unlimited=True)}))
    both = {"default": Quota(deserved_milli=1000), "other": Quota(deserved_milli=1000)}
    configure(log, project("nlp", "research", quotas=both))
    admit(log, *JOBS, preemptible=False, pools=("default", "other"))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    # It keeps what it holds; all pools together deserve 2,000.
    both = {"default": Quota(deserved_milli=0), "other": Quota(deserved_milli=2000)}
    configure(log, project("nlp", "research", quotas=both))
    log.scheduler.cycle(allocated(B, placed("o1", 0), pool="other"))
    assert found(log) == ()
    log.scheduler.cycle(allocated(C, placed("o1", 1), pool="other"))
    expect_one(
        log, "project nlp deserved in all pools (not preemptible) 2000, used 2000, requested 1000"
    )


def test_a_project_that_moves_takes_what_it_holds_along(log: LogBuilder) -> None:
    nested(log, team=Quota(limit_milli=1000), research=Quota(limit_milli=2000))
    configure(log, department("other", quotas={"default": Quota(limit_milli=1000)}))
    admit(log, *JOBS)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    configure(log, project("nlp", "research"))
    log.scheduler.cycle(allocated(B, placed("n1", 1)))
    assert found(log) == ()
    configure(log, project("nlp", "other"))
    log.scheduler.cycle(allocated(C, placed("n1", 2)))
    expect_one(log, "department other limit in default 1000, used 2000, requested 1000")


def test_what_is_reserved_leaves_less_for_others(log: LogBuilder) -> None:
    nested(log, nlp=Quota(limit_milli=1000))
    admit(log, JOBS[0], JOBS[1])
    log.scheduler.cycle(reserved(A, placed("n1", 0)))
    log.scheduler.cycle(allocated(B, placed("n1", 1)))
    expect_one(log, "project nlp limit in default 1000, used 1000, requested 1000")


def test_a_dropped_reservation_leaves_it(log: LogBuilder) -> None:
    nested(log, nlp=Quota(limit_milli=1000, limit_cpu_milli=1000))
    admit(log, JOBS[0], JOBS[1])
    log.scheduler.cycle(reserved(A, placed("n1", 0)))
    drop = ReservationDroppedV1(
        task_id=A, attempt=1, pool="default", code=DropCode.PRIORITY_CHANGED
    )
    log.scheduler.cycle(drop, allocated(B, placed("n1", 1)))
    assert found(log) == ()


def test_a_task_takes_its_reserved_slots_also_after_a_bound_was_lowered(log: LogBuilder) -> None:
    nested(log, nlp=Quota(deserved_milli=1000, limit_cpu_milli=1000))
    admit(log, JOBS[0], preemptible=False)
    log.scheduler.cycle(reserved(A, placed("n1", 0)))
    nested(log, nlp=Quota(deserved_milli=0, limit_cpu_milli=0))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    assert found(log) == ()


def test_lowering_a_bound_stops_nothing(log: LogBuilder) -> None:
    nested(log, nlp=Quota(deserved_milli=1000))
    admit(log, JOBS[0], preemptible=False)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    nested(log, team=Quota(deserved_milli=0, limit_memory_mib=0, over_quota=False))
    log.scheduler.cycle()
    assert found(log) == ()


def test_a_moved_task_counts_once(log: LogBuilder) -> None:
    nested(log, nlp=Quota(limit_milli=2000, limit_cpu_milli=2000))
    admit(log, *JOBS)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    moved = PreemptionRequestedV1(
        task_id=A,
        attempt=1,
        nodes=("n1",),
        stop=PolicyStop(policy="quota", rule="moved", for_task=B, numbers={"asked_milli": 1000}),
        grace_s=60,
        deadline_at_ms=log.now_ms + 61_000,
    )
    log.scheduler.cycle(
        moved, reserved(B, placed("n1", 0)), reserved(A, placed("n1", 1), attempt=2)
    )
    assert found(log) == ()
    drop = ReservationDroppedV1(task_id=A, attempt=2, pool="default", code=DropCode.POOL_CHANGED)
    # What it still holds counts again.
    log.scheduler.cycle(drop, allocated(C, placed("n1", 2)))
    expect_one(log, "project nlp limit in default 2000, used 2000, requested 1000")


def test_a_task_on_whole_nodes_counts_the_cpus_of_one(log: LogBuilder) -> None:
    nested(log, nlp=Quota(limit_cpu_milli=1500))
    log.claim(joined("n2"))
    resources = Resources(gpus=8, gpu_milli=1000, cpu_milli=1000, memory_mib=1024)
    admit(log, JOBS[0], resources=resources, layout=Layout.WHOLE_NODES)
    log.scheduler.cycle(allocated(A, placed("n1", 0, 1, 2, 3), placed("n2", 0, 1, 2, 3, replica=1)))
    assert found(log) == ()
    admit(log, JOBS[1], resources=Resources(cpu_milli=1000, memory_mib=1024))
    log.scheduler.cycle(allocated(B, placed("n1")))
    expect_one(log, "project nlp limit of CPUs (milli) in default 1500, used 2000, requested 1000")


@pytest.mark.parametrize("policy", ["quota", "priority"])
def test_a_start_in_a_pool_that_the_project_may_not_use_is_named(
    log: LogBuilder, policy: str
) -> None:
    configure_pool(log, policy)
    configure(log, department("research"))
    configure(log, project("nlp", "research", pools=("other",)))
    admit(log, JOBS[0])
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "project nlp limit in default, not one of its pools, 0")


def preempted_at_limit(log: LogBuilder, victim: str, task: str) -> PreemptionRequestedV1:
    return PreemptionRequestedV1(
        task_id=victim,
        attempt=1,
        nodes=("n1",),
        stop=PolicyStop(policy="quota", rule="at_limit", for_task=task),
        grace_s=60,
        deadline_at_ms=log.now_ms + 61_000,
    )


@pytest.mark.parametrize("gone", [True, False])
def test_a_task_at_a_limit_starts_only_when_its_victim_is_gone(log: LogBuilder, gone: bool) -> None:
    nested(log, nlp=Quota(deserved_milli=1000, over_quota=False))
    admit(log, JOBS[0], JOBS[1])
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    log.scheduler.cycle(preempted_at_limit(log, A, B), reserved(B, placed("n1", 1)))
    if gone:
        log.claim(slots_released(A, "n1"))
    log.scheduler.cycle(allocated(B, placed("n1", 1)))
    if gone:
        assert found(log) == ()
    else:
        expect_one(log, f"{B} attempt 1: project nlp deserved in default (over-quota off) 1000")


@pytest.mark.parametrize("stops", [True, False])
def test_slots_at_a_limit_are_reserved_only_where_others_stop(log: LogBuilder, stops: bool) -> None:
    nested(log, nlp=Quota(limit_milli=1000))
    admit(log, JOBS[0], JOBS[1])
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    if stops:
        log.scheduler.cycle(stop_requested(log, A, StopCode.CANCELLED, "n1"))
    log.scheduler.cycle(reserved(B, placed("n1", 1)))
    if stops:
        assert found(log) == ()
        log.scheduler.cycle(allocated(B, placed("n1", 1)))
    expect_one(log, "project nlp limit in default 1000, used 1000, requested 1000")


def test_a_task_whose_stop_is_overdue_counts_at_a_limit(log: LogBuilder) -> None:
    nested(log, nlp=Quota(limit_milli=2000))
    admit(log, *JOBS)
    log.scheduler.cycle(allocated(A, placed("n1", 0)), allocated(B, placed("n1", 1)))
    stop = preempted_at_limit(log, A, C)
    log.scheduler.cycle(stop, reserved(C, placed("n1", 2)))
    log.now_ms = stop.deadline_at_ms + 60_000
    overdue = StopOverdueV1(
        task_id=A, attempt=1, pool="default", nodes=("n1",), deadline_at_ms=stop.deadline_at_ms
    )
    drop = ReservationDroppedV1(task_id=C, attempt=1, pool="default", code=DropCode.STOP_OVERDUE)
    log.scheduler.cycle(overdue, drop)
    assert found(log) == ()
    nested(log, nlp=Quota(limit_milli=1000))
    log.scheduler.cycle(preempted_at_limit(log, B, C), reserved(C, placed("n1", 2)))
    expect_one(log, "project nlp limit in default 1000, used 1000, requested 1000")
