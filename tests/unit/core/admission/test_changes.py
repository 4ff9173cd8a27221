"""Verdicts on changes of jobs, pools, departments, projects and nodes."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.core.admission.admission_cell import (
    CELL_SETUP,
    JOB,
    LOG,
    OTHER,
    AdmissionCell,
    department,
    job,
    pool,
    project,
)
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.reasons import AdmissionCode


def refused(verdict, code, **numbers):
    assert isinstance(verdict, a.RequestRefusedV1), verdict
    assert (verdict.code, verdict.numbers) == (code, numbers)
    return verdict


def with_job(**spec):
    return AdmissionCell(*CELL_SETUP, job(**spec))


# Jobs ----------------------------------------------------------------------------------------

REQUESTS_OF_A_JOB = [
    r.CancelRequestedV1(job_id=JOB),
    r.CancelRequestedV1(job_id=JOB, index=0),
    r.PauseRequestedV1(job_id=JOB),
    r.ResumeRequestedV1(job_id=JOB),
    r.PriorityChangeRequestedV1(job_id=JOB, priority=5),
    r.WeightChangeRequestedV1(job_id=JOB, weight=2),
    r.MaxSlotsChangeRequestedV1(job_id=JOB, max_slots_milli=8000),
]


@pytest.mark.parametrize("request_", REQUESTS_OF_A_JOB, ids=lambda e: e.TYPE)
def test_a_request_about_an_unknown_job_is_refused(request_):
    verdict = refused(AdmissionCell(*CELL_SETUP).one(request_), AdmissionCode.JOB_UNKNOWN)
    assert (verdict.about, verdict.request_type) == (JOB, request_.TYPE)


@pytest.mark.parametrize("request_", REQUESTS_OF_A_JOB, ids=lambda e: e.TYPE)
def test_no_change_is_accepted_after_a_whole_job_was_cancelled(request_):
    quota = with_job()
    quota.one(r.CancelRequestedV1(job_id=JOB))
    refused(quota.one(request_), AdmissionCode.WRONG_PHASE)


@pytest.mark.parametrize("request_", REQUESTS_OF_A_JOB, ids=lambda e: e.TYPE)
def test_no_change_is_accepted_for_a_rejected_job(request_):
    quota = AdmissionCell(*CELL_SETUP, job(project="ghost"))
    refused(quota.one(request_), AdmissionCode.WRONG_PHASE)


def test_a_cancel_is_accepted_with_the_requested_fields():
    verdict = with_job(tasks=3).one(r.CancelRequestedV1(job_id=JOB, index=2, immediate=True))
    assert verdict == a.CancelAcceptedV1(job_id=JOB, index=2, immediate=True)


@pytest.mark.parametrize(
    "cls", [r.CancelRequestedV1, r.PauseRequestedV1, r.ResumeRequestedV1], ids=lambda c: c.TYPE
)
def test_a_task_that_the_job_does_not_have_is_unknown(cls):
    verdict = with_job(tasks=3).one(cls(job_id=JOB, index=3))
    refused(verdict, AdmissionCode.TASK_UNKNOWN, index=3, tasks=3)


def test_a_job_whose_tasks_were_cancelled_one_by_one_is_cancelled():
    quota = with_job(tasks=2)
    quota.ask(*(r.CancelRequestedV1(job_id=JOB, index=i) for i in range(2)))
    refused(quota.one(r.CancelRequestedV1(job_id=JOB)), AdmissionCode.WRONG_PHASE)


def test_an_immediate_cancel_may_follow_a_cancel():
    quota = with_job(tasks=2)
    quota.one(r.CancelRequestedV1(job_id=JOB))
    refused(quota.one(r.CancelRequestedV1(job_id=JOB)), AdmissionCode.WRONG_PHASE)
    at_once = r.CancelRequestedV1(job_id=JOB, immediate=True)
    assert quota.one(at_once) == a.CancelAcceptedV1(job_id=JOB, immediate=True)


def test_a_cancelled_task_does_not_affect_the_others():
    quota = with_job(tasks=2)
    quota.one(r.CancelRequestedV1(job_id=JOB, index=0))
    verdict = refused(quota.one(r.PauseRequestedV1(job_id=JOB, index=0)), AdmissionCode.WRONG_PHASE)
    assert verdict.about == f"{JOB}.0"
    assert quota.one(r.PauseRequestedV1(job_id=JOB)) == a.TaskPausedV1(job_id=JOB)
    assert quota.one(r.CancelRequestedV1(job_id=JOB)) == a.CancelAcceptedV1(job_id=JOB)


def test_a_job_is_paused_once_and_resumed_once():
    quota = with_job()
    refused(quota.one(r.ResumeRequestedV1(job_id=JOB)), AdmissionCode.WRONG_PHASE)
    assert quota.one(r.PauseRequestedV1(job_id=JOB)) == a.TaskPausedV1(job_id=JOB)
    refused(quota.one(r.PauseRequestedV1(job_id=JOB)), AdmissionCode.WRONG_PHASE)
    assert quota.one(r.ResumeRequestedV1(job_id=JOB)) == a.TaskResumedV1(job_id=JOB)
    refused(quota.one(r.ResumeRequestedV1(job_id=JOB)), AdmissionCode.WRONG_PHASE)


def test_tasks_are_paused_and_resumed_one_by_one_within_a_job():
    quota = with_job(tasks=3)
    quota.one(r.PauseRequestedV1(job_id=JOB, index=1))
    refused(quota.one(r.ResumeRequestedV1(job_id=JOB, index=0)), AdmissionCode.WRONG_PHASE)
    assert isinstance(quota.one(r.PauseRequestedV1(job_id=JOB)), a.TaskPausedV1)
    assert isinstance(quota.one(r.ResumeRequestedV1(job_id=JOB, index=0)), a.TaskResumedV1)
    assert isinstance(quota.one(r.ResumeRequestedV1(job_id=JOB)), a.TaskResumedV1)
    refused(quota.one(r.ResumeRequestedV1(job_id=JOB, index=1)), AdmissionCode.WRONG_PHASE)


def test_each_change_of_a_job_increments_its_revision():
    quota = with_job()
    assert quota.ask(
        r.PriorityChangeRequestedV1(job_id=JOB, priority=10, if_revision=1),
        r.WeightChangeRequestedV1(job_id=JOB, weight=3, if_revision=2),
        r.MaxSlotsChangeRequestedV1(job_id=JOB, max_slots_milli=None, if_revision=3),
        r.PriorityChangeRequestedV1(job_id=JOB, priority=11),
    ) == [
        a.PriorityChangedV1(job_id=JOB, priority=10, revision=2),
        a.WeightChangedV1(job_id=JOB, weight=3, revision=3),
        a.MaxSlotsChangedV1(job_id=JOB, max_slots_milli=None, revision=4),
        a.PriorityChangedV1(job_id=JOB, priority=11, revision=5),
    ]


@pytest.mark.parametrize(
    "request_",
    [
        r.PriorityChangeRequestedV1(job_id=JOB, priority=5, if_revision=2),
        r.WeightChangeRequestedV1(job_id=JOB, weight=5, if_revision=2),
        r.MaxSlotsChangeRequestedV1(job_id=JOB, max_slots_milli=1, if_revision=2),
    ],
    ids=lambda e: e.TYPE,
)
def test_the_loser_of_a_race_gets_both_revisions(request_):
    verdict = with_job().one(request_)
    refused(verdict, AdmissionCode.VERSION_MISMATCH, revision=1, if_revision=2)


def test_a_priority_above_the_projects_current_best_is_refused():
    quota = with_job(priority=5)
    quota.one(project(best_priority=20))
    refused(
        quota.one(r.PriorityChangeRequestedV1(job_id=JOB, priority=19)),
        AdmissionCode.PRIORITY_NOT_ALLOWED,
        priority=19,
        best_priority=20,
    )
    assert quota.one(r.PriorityChangeRequestedV1(job_id=JOB, priority=20)).revision == 2


# Pools, departments, projects ------------------------------------------------------------------

KINDS: list[tuple[Any, str, Any, str, AdmissionCode]] = [
    (pool, "default", r.PoolDeletionRequestedV1, "pool", AdmissionCode.POOL_UNKNOWN),
    (
        department,
        "research",
        r.DepartmentDeletionRequestedV1,
        "department",
        AdmissionCode.DEPARTMENT_UNKNOWN,
    ),
    (project, "nlp", r.ProjectDeletionRequestedV1, "project", AdmissionCode.PROJECT_UNKNOWN),
]


@pytest.mark.parametrize(("make", "name", "_d", "_f", "_c"), KINDS, ids=[k[3] for k in KINDS])
def test_revisions_of_a_configuration_count_from_one(make, name, _d, _f, _c):
    quota = AdmissionCell(*CELL_SETUP)
    assert quota.one(make(name)).revision == 2
    assert quota.one(make(name, if_revision=2)).revision == 3
    refused(quota.one(make(name, 2)), AdmissionCode.VERSION_MISMATCH, revision=3, if_revision=2)


@pytest.mark.parametrize(("make", "name", "_d", "_f", "_c"), KINDS, ids=[k[3] for k in KINDS])
def test_revision_0_means_that_the_entity_must_not_exist(make, name, _d, _f, _c):
    quota = AdmissionCell(*CELL_SETUP)
    refused(quota.one(make(name, 0)), AdmissionCode.VERSION_MISMATCH, revision=1, if_revision=0)
    assert quota.one(make("fresh", 0)).revision == 1
    refused(quota.one(make("other", 1)), AdmissionCode.VERSION_MISMATCH, revision=0, if_revision=1)


@pytest.mark.parametrize(
    ("make", "_n", "delete", "field", "code"), KINDS, ids=[k[3] for k in KINDS]
)
def test_an_unused_entity_is_deleted_once_and_may_be_created_again(make, _n, delete, field, code):
    quota = AdmissionCell(*CELL_SETUP, make("fresh"))
    refused(
        quota.one(delete(**{field: "fresh"}, if_revision=2)),
        AdmissionCode.VERSION_MISMATCH,
        revision=1,
        if_revision=2,
    )
    gone = quota.one(delete(**{field: "fresh"}, if_revision=1))
    if field == "pool":
        assert gone == a.PoolDeletedV1(pool="fresh")
    else:
        assert gone == a.EntitlementsChangedV1(level=a.Level(field), name="fresh", revision=2)
    assert refused(quota.one(delete(**{field: "fresh"})), code).about == "fresh"
    assert quota.one(make("fresh", 0)).revision == 1


@pytest.mark.parametrize(
    "user",
    [
        project(pools=("h100",)),
        project(quotas={"h100": r.Quota()}),
        department(quotas={"h100": r.Quota()}),
        job(pools=("h100",)),
    ],
    ids=["project pools", "project quota", "department quota", "job"],
)
def test_a_pool_in_use_cannot_be_deleted(user):
    quota = AdmissionCell(pool("h100"), *CELL_SETUP, user)
    refused(quota.one(r.PoolDeletionRequestedV1(pool="h100")), AdmissionCode.IN_USE, uses=1)
    free = r.CancelRequestedV1(job_id=JOB), department(), project()
    quota.ask(*free)
    assert isinstance(quota.one(r.PoolDeletionRequestedV1(pool="h100")), a.PoolDeletedV1)


def test_a_department_with_projects_cannot_be_deleted():
    quota = AdmissionCell(*CELL_SETUP, department("product"))
    deletion = r.DepartmentDeletionRequestedV1(department="research")
    refused(quota.one(deletion), AdmissionCode.IN_USE, uses=1)
    quota.one(project(department="product"))
    assert isinstance(quota.one(deletion), a.EntitlementsChangedV1)


def test_a_project_with_unfinished_jobs_cannot_be_deleted():
    quota = AdmissionCell(*CELL_SETUP, job(tasks=2), job(OTHER))
    deletion = r.ProjectDeletionRequestedV1(project="nlp")
    refused(quota.one(deletion), AdmissionCode.IN_USE, uses=2)
    quota.ask(r.CancelRequestedV1(job_id=OTHER), r.CancelRequestedV1(job_id=JOB, index=0))
    refused(quota.one(deletion), AdmissionCode.IN_USE, uses=1)
    quota.one(r.CancelRequestedV1(job_id=JOB, index=1))
    assert isinstance(quota.one(deletion), a.EntitlementsChangedV1)


@pytest.mark.parametrize(
    "code", [AdmissionCode.POLICY_UNKNOWN, AdmissionCode.POLICY_OPTIONS_INVALID]
)
def test_a_pool_whose_policy_does_not_pass_the_check_is_refused(code):
    machine = QuotaMachine(lambda config: code if config.policy.name == "odd" else None)
    quota = AdmissionCell(*CELL_SETUP, machine=machine)
    verdict = refused(quota.one(pool("h100", policy=r.PolicyRef(name="odd"))), code)
    assert verdict.about == "odd"
    assert isinstance(quota.one(pool("h100")), a.PoolConfiguredV1)


def test_a_policy_for_simulations_is_accepted_in_a_simulated_log():
    code = AdmissionCode.POLICY_FOR_SIMULATIONS
    change = pool("h100", policy=r.PolicyRef(name="sjf"))
    refused(AdmissionCell(*CELL_SETUP, machine=QuotaMachine(check)).one(change), code)
    simulated = replace(LOG, mode=r.LogMode.SIMULATED)
    quota = AdmissionCell(*CELL_SETUP, machine=QuotaMachine(check), log=simulated)
    assert isinstance(quota.one(change), a.PoolConfiguredV1)
    odd = pool("h100", policy=r.PolicyRef(name="odd"))
    refused(quota.one(odd), AdmissionCode.POLICY_UNKNOWN)


def test_a_project_of_an_unknown_department_is_refused():
    verdict = AdmissionCell(*CELL_SETUP).one(project(department="ghost"))
    assert refused(verdict, AdmissionCode.DEPARTMENT_UNKNOWN).about == "ghost"


@pytest.mark.parametrize(
    "request_",
    [
        project(pools=("moon",)),
        project(quotas={"moon": r.Quota()}),
        department(quotas={"moon": r.Quota()}),
    ],
    ids=["project pools", "project quota", "department quota"],
)
def test_entitlements_to_an_unknown_pool_are_refused(request_):
    verdict = AdmissionCell(*CELL_SETUP).one(request_)
    assert refused(verdict, AdmissionCode.POOL_UNKNOWN).about == "moon"


def test_a_project_whose_default_is_above_its_best_priority_is_refused():
    refused(
        AdmissionCell(*CELL_SETUP).one(project(best_priority=20, default_priority=10)),
        AdmissionCode.PRIORITY_NOT_ALLOWED,
        priority=10,
        best_priority=20,
    )


def test_entitlements_are_published_whole():
    quotas = {"default": r.Quota(deserved_milli=4000, limit_milli=8000)}
    verdict = AdmissionCell(*CELL_SETUP).one(project(weight=2, quotas=quotas))
    assert verdict.project == r.ProjectConfig(department="research", weight=2, quotas=quotas)
    assert (verdict.level, verdict.name, verdict.department) == (a.Level.PROJECT, "nlp", None)


# Nodes -----------------------------------------------------------------------------------------


def test_a_node_is_cordoned_drained_and_uncordoned_by_name():
    quota = AdmissionCell()
    assert quota.ask(
        r.NodeCordonRequestedV1(node="gpu-07"),
        r.NodeDrainRequestedV1(node="gpu-07", deadline_at_ms=5),
        r.NodeDrainRequestedV1(node="gpu-07", deadline_at_ms=6),
        r.NodeUncordonRequestedV1(node="gpu-07"),
    ) == [
        a.NodeCordonedV1(node="gpu-07"),
        a.NodeDrainingV1(node="gpu-07", deadline_at_ms=5),
        a.NodeDrainingV1(node="gpu-07", deadline_at_ms=6),
        a.NodeUncordonedV1(node="gpu-07"),
    ]


def test_a_node_that_is_not_cordoned_cannot_be_uncordoned():
    quota = AdmissionCell()
    uncordon = r.NodeUncordonRequestedV1(node="gpu-07")
    assert refused(quota.one(uncordon), AdmissionCode.WRONG_PHASE).about == "gpu-07"
    quota.ask(r.NodeCordonRequestedV1(node="gpu-07"), uncordon)
    refused(quota.one(uncordon), AdmissionCode.WRONG_PHASE)


def test_slots_of_any_node_are_disabled_as_requested():
    quota = AdmissionCell()
    for disabled, stop in (((0, 3), True), ((), False)):
        verdict = quota.one(
            r.NodeSlotsChangeRequestedV1(node="gpu-07", disabled=disabled, stop=stop)
        )
        assert verdict == a.NodeSlotsChangedV1(node="gpu-07", disabled=disabled, stop=stop)


# Enrollment -----------------------------------------------------------------------------------


def enroll(
    node: str = "gpu-07", if_revision: int | None = None, **bounds: Any
) -> r.NodeEnrolRequestedV1:
    enrollment = r.Enrollment(**{"pool": "default", "gpus": 8, **bounds})
    return r.NodeEnrolRequestedV1(node=node, enrollment=enrollment, if_revision=if_revision)


def revoke(node: str = "gpu-07", if_revision: int | None = None) -> r.NodeRevokeRequestedV1:
    return r.NodeRevokeRequestedV1(node=node, if_revision=if_revision)


def test_a_node_is_enrolled_as_requested_with_the_next_revision():
    quota = AdmissionCell(*CELL_SETUP)
    request = enroll(labels={"rack": "r1"}, keys=("ab" * 32,), address="10.0.0.7")
    assert quota.one(request) == a.NodeEnrolledV1(
        node="gpu-07", enrollment=request.enrollment, revision=1
    )
    assert quota.one(enroll(gpus=4)).revision == 2


def test_a_node_is_enrolled_only_into_an_existing_pool():
    verdict = refused(
        AdmissionCell(*CELL_SETUP).one(enroll(pool="h100")), AdmissionCode.POOL_UNKNOWN
    )
    assert verdict.about == "h100"


def test_the_second_enrollment_on_the_same_revision_is_refused():
    quota = AdmissionCell(*CELL_SETUP)
    assert quota.one(enroll(if_revision=0)).revision == 1
    refused(
        quota.one(enroll(if_revision=0)), AdmissionCode.VERSION_MISMATCH, revision=1, if_revision=0
    )
    assert quota.one(enroll(if_revision=1)).revision == 2
    refused(
        quota.one(revoke(if_revision=1)), AdmissionCode.VERSION_MISMATCH, revision=2, if_revision=1
    )


def test_a_node_is_revoked_once_and_may_be_enrolled_again():
    quota = AdmissionCell(*CELL_SETUP, enroll())
    assert quota.one(revoke()) == a.NodeRevokedV1(node="gpu-07")
    refused(quota.one(revoke()), AdmissionCode.NODE_UNKNOWN)
    again = quota.one(enroll(if_revision=0))
    assert again.revision == 2, "an ETag of before must not fit what came after"


def test_a_node_that_was_never_enrolled_cannot_be_revoked():
    refused(AdmissionCell(*CELL_SETUP).one(revoke()), AdmissionCode.NODE_UNKNOWN)


def test_a_pool_is_in_use_until_its_enrolled_nodes_are_revoked_or_moved():
    quota = AdmissionCell(*CELL_SETUP, pool("a"), pool("b"), enroll(pool="a"))
    delete_a, delete_b = (r.PoolDeletionRequestedV1(pool=name) for name in "ab")
    refused(quota.one(delete_a), AdmissionCode.IN_USE, uses=1)
    quota.one(enroll(pool="b"))
    assert quota.one(delete_a) == a.PoolDeletedV1(pool="a")
    refused(quota.one(delete_b), AdmissionCode.IN_USE, uses=1)
    quota.one(revoke())
    assert quota.one(delete_b) == a.PoolDeletedV1(pool="b")


# Erasure -------------------------------------------------------------------------------------


def erase(job_id: str = JOB) -> r.EraseRequestedV1:
    return r.EraseRequestedV1(job_id=job_id, tombstone=9)


def test_the_details_of_a_judged_job_are_erased_at_each_request():
    quota = with_job()
    assert quota.one(erase()) == a.DetailsErasedV1(job_id=JOB)
    assert quota.one(erase()) == a.DetailsErasedV1(job_id=JOB)


def test_the_details_of_a_rejected_job_are_erased_too():
    quota = AdmissionCell(*CELL_SETUP, job(project="ghost"))
    assert quota.one(erase()) == a.DetailsErasedV1(job_id=JOB)


def test_erasure_of_an_unknown_job_is_refused():
    refused(AdmissionCell(*CELL_SETUP).one(erase()), AdmissionCode.JOB_UNKNOWN)
