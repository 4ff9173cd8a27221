"""Verdicts on submitted jobs: defaults of admitted jobs, and reasons of rejections."""

import pytest

from tests.unit.core.admission.admission_cell import (
    BODY,
    CELL_SETUP,
    JOB,
    OTHER,
    OTHER_BODY,
    START_MS,
    AdmissionCell,
    department,
    gpus,
    job,
    pool,
    project,
)
from yardmaster_schemas.events.admissions import RequestRefusedV1, TaskAdmittedV1, TaskRejectedV1
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    ExitZero,
    Kind,
    Layout,
    Quota,
    Unschedulable,
)
from yardmaster_schemas.reasons import AdmissionCode


def admitted(quota, request):
    verdict = quota.one(request)
    assert isinstance(verdict, TaskAdmittedV1), verdict
    return verdict.spec


def rejected(quota, request):
    verdict = quota.one(request)
    assert isinstance(verdict, TaskRejectedV1), verdict
    assert verdict.job_id == request.job_id
    return verdict


def test_an_admitted_job_has_every_default_resolved():
    quota = AdmissionCell(*CELL_SETUP)
    verdict = quota.one(job(tasks=3, resources=gpus(2)))
    assert isinstance(verdict, TaskAdmittedV1)
    assert (verdict.project, verdict.department) == ("nlp", "research")
    assert verdict.submitted_at_ms == START_MS
    spec = verdict.spec
    assert spec.preemptible
    assert (spec.priority, spec.weight, spec.pools) == (42, 1, ("default",))
    assert (spec.max_restarts, spec.min_runtime_s, spec.grace_s) == (0, 0, 120)
    assert spec.unschedulable is Unschedulable.WAIT
    assert spec.exit_zero is ExitZero.STOPPED
    assert (spec.tasks, spec.replicas_min, spec.replicas_max) == (3, 1, 1)
    assert spec.resources == gpus(2)


def test_an_admission_names_the_user():
    quota = AdmissionCell(*CELL_SETUP)
    assert quota.one(job(), user="ada").user == "ada"


def test_layout_is_as_requested_and_avoided_nodes_are_sorted():
    quota = AdmissionCell(*CELL_SETUP)
    spec = admitted(quota, job(layout=Layout.WHOLE_NODES, avoid_nodes=("n2", "n10", "n2")))
    assert (spec.layout, spec.avoid_nodes) == (Layout.WHOLE_NODES, ("n10", "n2"))
    spec = admitted(quota, job(OTHER))
    assert (spec.layout, spec.avoid_nodes) == (Layout.REPLICAS, ())


def test_the_runtime_estimate_is_as_requested():
    quota = AdmissionCell(*CELL_SETUP)
    assert admitted(quota, job(runtime_estimate_s=60)).runtime_estimate_s == 60
    assert admitted(quota, job(OTHER)).runtime_estimate_s is None


@pytest.mark.parametrize("kind", list(Kind))
def test_only_training_is_preemptible_by_default(kind):
    assert admitted(AdmissionCell(*CELL_SETUP), job(kind=kind)).preemptible == (
        kind is Kind.TRAINING
    )


def test_a_job_may_set_whether_it_is_preemptible():
    quota = AdmissionCell(*CELL_SETUP)
    assert not admitted(quota, job(preemptible=False)).preemptible
    assert admitted(quota, job(OTHER, kind=Kind.INFERENCE, preemptible=True)).preemptible


def test_pools_default_to_the_projects_then_to_all_with_default_first():
    quota = AdmissionCell(pool("a100"), pool("zeta"), pool("default"), department(), project())
    assert admitted(quota, job()).pools == ("default", "a100", "zeta")
    quota.one(project(pools=("zeta", "a100")))
    assert admitted(quota, job(OTHER)).pools == ("zeta", "a100")
    assert admitted(quota, job("x7t1v9ga3wde", pools=("a100",))).pools == ("a100",)


def test_a_pool_that_is_named_twice_counts_once():
    quota = AdmissionCell(pool("b"), *CELL_SETUP)
    assert admitted(quota, job(pools=("default", "b", "default"))).pools == ("default", "b")


def test_priority_defaults_to_the_projects_then_to_the_first_pools():
    quota = AdmissionCell(pool("slow", default_priority=70), *CELL_SETUP)
    assert admitted(quota, job(pools=("slow", "default"))).priority == 70
    quota.one(project(default_priority=30))
    assert admitted(quota, job(OTHER, pools=("slow",))).priority == 30


def test_a_pools_default_priority_is_cut_to_what_the_project_allows():
    quota = AdmissionCell(pool("default"), department(), project(best_priority=50))
    assert admitted(quota, job()).priority == 50


def test_grace_is_capped_by_the_lowest_maximum_of_its_pools():
    quota = AdmissionCell(pool("strict", max_grace_s=30), *CELL_SETUP)
    assert admitted(quota, job(pools=("default", "strict"))).grace_s == 30
    assert admitted(quota, job(OTHER, pools=("default",), grace_s=9000)).grace_s == 3600
    assert admitted(quota, job("x7t1v9ga3wde", pools=("default",), grace_s=0)).grace_s == 0


def test_min_runtime_is_capped_by_the_project():
    quota = AdmissionCell(pool("default"), department(), project(max_min_runtime_s=600))
    assert admitted(quota, job(min_runtime_s=1200)).min_runtime_s == 600


def test_node_types_default_to_the_projects():
    quota = AdmissionCell(pool("default"), department(), project(node_types=("sxm", "pcie")))
    assert admitted(quota, job()).node_types == ("sxm", "pcie")
    assert admitted(quota, job(OTHER, node_types=("pcie",))).node_types == ("pcie",)


def test_the_largest_gang_size_is_at_least_the_smallest():
    spec = admitted(AdmissionCell(*CELL_SETUP), job(replicas_min=4, replicas_max=1))
    assert (spec.replicas_min, spec.replicas_max) == (4, 4)


def test_resolved_defaults_stay_when_the_project_changes():
    quota = AdmissionCell(*CELL_SETUP)
    before = admitted(quota, job())
    quota.one(project(default_priority=1))
    assert quota.one(job()).code is AdmissionCode.DUPLICATE_ID
    assert admitted(quota, job(OTHER)).priority == 1
    assert before.priority == 42


def test_a_job_of_an_unknown_project_is_rejected():
    verdict = rejected(AdmissionCell(*CELL_SETUP), job(project="ghost"))
    assert (verdict.code, verdict.about) == (AdmissionCode.PROJECT_UNKNOWN, "ghost")


def test_a_job_for_an_unknown_pool_is_rejected():
    verdict = rejected(AdmissionCell(*CELL_SETUP), job(pools=("default", "moon")))
    assert (verdict.code, verdict.about) == (AdmissionCode.POOL_UNKNOWN, "moon")


def test_a_job_in_a_cell_without_pools_is_rejected():
    assert (
        rejected(AdmissionCell(department(), project()), job()).code is AdmissionCode.POOL_UNKNOWN
    )


def test_a_job_for_a_pool_that_its_project_may_not_use_is_rejected():
    quota = AdmissionCell(pool("h100"), pool("default"), department(), project(pools=("default",)))
    verdict = rejected(quota, job(pools=("h100",)))
    assert (verdict.code, verdict.about) == (AdmissionCode.POOL_NOT_ALLOWED, "h100")


def test_a_job_of_a_kind_its_project_may_not_run_is_rejected():
    quota = AdmissionCell(pool("default"), department(), project(kinds=(Kind.TRAINING,)))
    verdict = rejected(quota, job(kind=Kind.INTERACTIVE))
    assert (verdict.code, verdict.about) == (AdmissionCode.KIND_NOT_ALLOWED, "interactive")


def test_a_job_for_a_node_type_that_its_project_may_not_use_is_rejected():
    quota = AdmissionCell(pool("default"), department(), project(node_types=("pcie",)))
    verdict = rejected(quota, job(node_types=("pcie", "sxm")))
    assert (verdict.code, verdict.about) == (AdmissionCode.NODE_TYPE_NOT_ALLOWED, "sxm")


def test_a_job_of_higher_priority_than_its_project_allows_is_rejected():
    quota = AdmissionCell(pool("default"), department(), project(best_priority=20))
    verdict = rejected(quota, job(priority=19))
    assert verdict.code is AdmissionCode.PRIORITY_NOT_ALLOWED
    assert verdict.numbers == {"priority": 19, "best_priority": 20}
    assert admitted(quota, job(OTHER, priority=20)).priority == 20


def test_a_task_over_the_projects_limit_is_rejected():
    quota = AdmissionCell(pool("default"), department(), project(limit_milli=4000))
    verdict = rejected(quota, job(replicas_min=5, replicas_max=5, resources=gpus(1)))
    assert (verdict.code, verdict.about) == (AdmissionCode.LIMIT_EXCEEDED, "nlp")
    assert verdict.numbers == {"asked_milli": 5000, "limit_milli": 4000}
    admitted(quota, job(OTHER, tasks=100, resources=gpus(4)))


def test_limits_apply_to_the_smallest_size_of_an_elastic_task():
    quota = AdmissionCell(pool("default"), department(), project(limit_milli=4000))
    admitted(quota, job(replicas_min=4, replicas_max=8, resources=gpus(1)))


def test_a_task_over_the_limit_of_one_pool_is_admitted_for_another():
    quotas = {"h100": Quota(limit_milli=2000), "default": Quota(limit_milli=8000)}
    quota = AdmissionCell(pool("h100"), pool("default"), department(), project(quotas=quotas))
    admitted(quota, job(resources=gpus(4)))
    verdict = rejected(quota, job(OTHER, resources=gpus(4), pools=("h100",)))
    assert verdict.numbers == {"asked_milli": 4000, "limit_milli": 2000}
    admitted(quota, job("x7t1v9ga3wde", resources=gpus(2), pools=("h100",)))


def test_a_task_over_every_pools_limit_gets_the_highest_limit_and_its_owner():
    quota = AdmissionCell(
        pool("h100"),
        pool("default"),
        department(quotas={"default": Quota(limit_milli=3000)}),
        project(quotas={"h100": Quota(limit_milli=2000), "default": Quota(limit_milli=9000)}),
    )
    verdict = rejected(quota, job(resources=gpus(4)))
    assert (verdict.code, verdict.about) == (AdmissionCode.LIMIT_EXCEEDED, "research")
    assert verdict.numbers == {"asked_milli": 4000, "limit_milli": 3000}


def test_a_limit_of_zero_admits_tasks_without_gpus():
    quota = AdmissionCell(pool("default"), department(), project(limit_milli=0))
    admitted(quota, job())
    rejected(quota, job(OTHER, resources=gpus(1, 500)))


def test_a_job_with_more_tasks_than_max_pending_is_rejected():
    quota = AdmissionCell(pool("default"), department(), project(max_pending=10))
    verdict = rejected(quota, job(tasks=11))
    assert verdict.numbers == {"tasks": 11, "max_pending": 10}
    admitted(quota, job(OTHER, tasks=10))


@pytest.mark.parametrize(("body", "same"), [(BODY, 1), (OTHER_BODY, 0)])
def test_a_job_id_is_admitted_once_and_a_repeat_differs_from_a_conflict(body, same):
    quota = AdmissionCell(*CELL_SETUP)
    admitted(quota, job())
    verdict = quota.one(job(body=body))
    assert isinstance(verdict, RequestRefusedV1)
    assert (verdict.code, verdict.about) == (AdmissionCode.DUPLICATE_ID, JOB)
    assert verdict.numbers == {"same_body": same}
    assert verdict.request_type == "TaskSubmitted"


def test_a_rejected_job_id_cannot_be_used_again():
    quota = AdmissionCell(pool("default"), department())
    rejected(quota, job())
    quota.one(project())
    verdict = quota.one(job())
    assert isinstance(verdict, RequestRefusedV1)
    assert verdict.code is AdmissionCode.DUPLICATE_ID


def test_a_cancelled_job_id_cannot_be_used_again():
    quota = AdmissionCell(*CELL_SETUP)
    admitted(quota, job())
    quota.one(CancelRequestedV1(job_id=JOB))
    assert quota.one(job()).code is AdmissionCode.DUPLICATE_ID


def test_requests_of_one_cycle_are_judged_after_the_earlier_ones():
    quota = AdmissionCell()
    verdicts = quota.ask(*CELL_SETUP, job(), job(), job(OTHER, project="ghost"))
    assert [type(v).__name__ for v in verdicts[3:]] == [
        "TaskAdmittedV1",
        "RequestRefusedV1",
        "TaskRejectedV1",
    ]


def test_a_job_starts_only_from_a_checkpoint_within_the_prefixes_of_its_project():
    quota = AdmissionCell(*CELL_SETUP, project(checkpoint_prefixes=("s3://runs/nlp",)))
    verdict = quota.one(job(checkpoint_uri="s3://runs/vision/x"))
    assert verdict.code is AdmissionCode.CHECKPOINT_NOT_ALLOWED
    inside = quota.one(job(OTHER, checkpoint_uri="s3://runs/nlp/x"))
    assert inside.spec.checkpoint_uri == "s3://runs/nlp/x"


def test_a_prefix_with_dot_segments_is_refused():
    verdict = AdmissionCell(*CELL_SETUP).one(project(checkpoint_prefixes=("s3://runs/../nlp",)))
    assert verdict.code is AdmissionCode.CHECKPOINT_NOT_ALLOWED
