"""Quota reads the ends of tasks: limits on unfinished tasks, and what remains of an ended job."""

import json
from random import Random

import pytest

from tests.unit.core.admission.admission_cell import (
    BODY,
    CELL_SETUP,
    JOB,
    LOG,
    OTHER,
    OTHER_BODY,
    AdmissionCell,
    department,
    job,
    pool,
    project,
)
from yardmaster_core.admission.judged import JudgedIds
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.reasons import AdmissionCode

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
THIRD = "x7t1v9ga3wde"


def cell(**config):
    return r.CellChangeRequestedV1(config=r.CellConfig(**config))


def test_a_project_takes_no_more_tasks_than_its_limit_until_some_have_ended():
    quota = AdmissionCell(*CELL_SETUP, cell(project_tasks=3))
    assert isinstance(quota.one(job(tasks=2)), a.TaskAdmittedV1)
    verdict = quota.one(job(OTHER, tasks=2))
    assert isinstance(verdict, a.TaskRejectedV1)
    assert (verdict.code, verdict.about) == (AdmissionCode.PROJECT_FULL, "nlp")
    assert verdict.numbers == {"tasks": 2, "unfinished": 2, "limit": 3}
    quota.end(f"{JOB}.1")
    assert isinstance(quota.one(job(THIRD, tasks=2)), a.TaskAdmittedV1)


def test_a_project_s_own_limit_replaces_that_of_the_cell():
    quota = AdmissionCell(*CELL_SETUP, cell(project_tasks=1), project(max_unfinished=2))
    assert isinstance(quota.one(job(tasks=2)), a.TaskAdmittedV1)
    assert quota.one(job(OTHER)).code is AdmissionCode.PROJECT_FULL


def test_a_user_takes_no_more_tasks_than_the_limit_over_all_projects():
    quota = AdmissionCell(*CELL_SETUP, project("vision"), cell(user_tasks=2))
    assert isinstance(quota.one(job(tasks=2)), a.TaskAdmittedV1)
    verdict = quota.one(job(OTHER, "vision"))
    assert (verdict.code, verdict.about) == (AdmissionCode.USER_FULL, None)
    assert verdict.numbers == {"tasks": 1, "unfinished": 2, "limit": 2}
    assert isinstance(quota.one(job(THIRD, "vision"), user="bob"), a.TaskAdmittedV1)


def test_a_user_can_have_a_limit_of_its_own():
    quota = AdmissionCell(*CELL_SETUP, cell(user_tasks=1, tasks_of={"bob": 5}))
    assert quota.one(job(tasks=2)).code is AdmissionCode.USER_FULL
    assert isinstance(quota.one(job(OTHER, tasks=5), user="bob"), a.TaskAdmittedV1)


def test_without_a_configuration_of_the_cell_its_defaults_apply():
    quota = AdmissionCell(*CELL_SETUP)
    ids = ["".join(Random(n).choices(DIGITS, k=12)) for n in range(11)]
    verdicts = quota.ask(*(job(job_id, tasks=10_000) for job_id in ids))
    assert [type(v) for v in verdicts[:10]] == [a.TaskAdmittedV1] * 10
    refused = verdicts[10]
    assert isinstance(refused, a.TaskRejectedV1)
    assert refused.code is AdmissionCode.USER_FULL
    assert refused.numbers == {"tasks": 10_000, "unfinished": 100_000, "limit": 100_000}


def test_a_simulated_cell_has_no_limit():
    log = r.LogCreatedV1(
        log_id=LOG.log_id, mode=r.LogMode.SIMULATED, cell=LOG.cell, format=LOG_FORMAT
    )
    quota = AdmissionCell(*CELL_SETUP, cell(project_tasks=1), log=log)
    assert isinstance(quota.one(job(tasks=2)), a.TaskAdmittedV1)


def test_a_cancelled_task_counts_until_it_has_ended():
    quota = AdmissionCell(*CELL_SETUP, cell(project_tasks=1), job())
    quota.one(r.CancelRequestedV1(job_id=JOB))
    assert quota.one(job(OTHER)).code is AdmissionCode.PROJECT_FULL
    quota.end(f"{JOB}.0")
    assert isinstance(quota.one(job(THIRD)), a.TaskAdmittedV1)


def test_a_change_of_the_cell_names_its_revision():
    quota = AdmissionCell(cell(user_tasks=5))
    changed = quota.one(r.CellChangeRequestedV1(config=r.CellConfig(), if_revision=1))
    assert (changed.revision, changed.config.user_tasks) == (2, 100_000)
    stale = quota.one(r.CellChangeRequestedV1(config=r.CellConfig(), if_revision=1))
    assert stale.code is AdmissionCode.VERSION_MISMATCH


@pytest.mark.parametrize(("body", "same"), [(BODY, 1), (OTHER_BODY, 0)])
def test_the_id_of_an_ended_job_cannot_be_used_again(body, same):
    quota = AdmissionCell(*CELL_SETUP, job(tasks=2))
    quota.end(f"{JOB}.0", f"{JOB}.1")
    assert quota.state.jobs.get(JOB) is None
    verdict = quota.one(job(body=body))
    assert (verdict.code, verdict.about) == (AdmissionCode.DUPLICATE_ID, JOB)
    assert verdict.numbers == {"same_body": same}


@pytest.mark.parametrize(
    "request_",
    [
        r.CancelRequestedV1(job_id=JOB),
        r.CancelRequestedV1(job_id=JOB, immediate=True),
        r.CancelRequestedV1(job_id=JOB, index=0, immediate=True),
        r.PauseRequestedV1(job_id=JOB),
        r.ResumeRequestedV1(job_id=JOB),
        r.PriorityChangeRequestedV1(job_id=JOB, priority=50),
        r.WeightChangeRequestedV1(job_id=JOB, weight=2),
        r.MaxSlotsChangeRequestedV1(job_id=JOB, max_slots_milli=None),
    ],
    ids=lambda request: request.TYPE,
)
def test_an_ended_job_cannot_be_changed(request_):
    quota = AdmissionCell(*CELL_SETUP, job())
    quota.end(f"{JOB}.0")
    assert quota.one(request_).code is AdmissionCode.WRONG_PHASE


def test_an_ended_job_can_be_erased():
    quota = AdmissionCell(*CELL_SETUP, job())
    quota.end(f"{JOB}.0")
    assert isinstance(
        quota.one(r.EraseRequestedV1(job_id=JOB, partition=0, tombstone=3)), a.DetailsErasedV1
    )


def test_of_a_job_with_an_ended_task_only_the_others_can_be_changed():
    quota = AdmissionCell(*CELL_SETUP, job(tasks=2))
    quota.end(f"{JOB}.0")
    for request in (r.CancelRequestedV1, r.PauseRequestedV1):
        assert quota.one(request(job_id=JOB, index=0)).code is AdmissionCode.WRONG_PHASE
    assert isinstance(quota.one(r.PauseRequestedV1(job_id=JOB)), a.TaskPausedV1)
    quota.end(f"{JOB}.1")
    assert quota.state.jobs.get(JOB) is None


def test_pool_department_and_project_can_be_deleted_once_their_jobs_have_ended():
    quota = AdmissionCell(pool("default"), department(), project(), job())
    deletion = r.ProjectDeletionRequestedV1(project="nlp")
    assert quota.one(deletion).code is AdmissionCode.IN_USE
    quota.end(f"{JOB}.0")
    assert isinstance(quota.one(deletion), a.EntitlementsChangedV1)
    deleted = quota.one(r.DepartmentDeletionRequestedV1(department="research"))
    assert isinstance(deleted, a.EntitlementsChangedV1)
    assert isinstance(quota.one(r.PoolDeletionRequestedV1(pool="default")), a.PoolDeletedV1)


def test_a_snapshot_keeps_ended_tasks_users_and_the_ids_of_ended_jobs():
    quota = AdmissionCell(*CELL_SETUP, cell(user_tasks=9), job(tasks=3), job(OTHER))
    quota.end(f"{JOB}.1", f"{OTHER}.0")
    quota.state = quota.machine.load("main", json.loads(quota.dumped()))
    assert quota.state.unfinished("user", "ada") == quota.state.unfinished("project", "nlp") == 2
    assert quota.one(job(OTHER)).code is AdmissionCode.DUPLICATE_ID


def test_judged_ids_are_found_whatever_their_order_and_their_dump_does_not_depend_on_it():
    random = Random(7)
    rows = {"".join(random.choices(DIGITS, k=12)): random.randbytes(32) for _ in range(20_000)}
    one, other = JudgedIds(), JudgedIds()
    for job_id, body in rows.items():
        one.add(job_id, body)
    for job_id, body in sorted(rows.items()):
        other.add(job_id, body)
    assert all(one.get(job_id) == body for job_id, body in rows.items())
    assert all(one.get(job_id[::-1]) is None for job_id in rows if job_id[::-1] not in rows)
    loaded = JudgedIds()
    loaded.load(one.dump())
    assert one.dump() == other.dump() == loaded.dump()
    assert one.total() == other.total() == loaded.total()
    assert len(one) == len(loaded) == 20_000


def test_an_id_added_to_a_draft_does_not_show_in_its_base():
    base = JudgedIds()
    draft = base.draft()
    draft.add(JOB, b"b" * 32)
    assert (draft.get(JOB), base.get(JOB)) == (b"b" * 32, None)
    assert base.total() == 0 != draft.total()


@pytest.mark.parametrize("damage", [["AAAA"], ["AAAA"] * 4096, ["x"] * 4096, []], ids=len)
def test_a_damaged_dump_of_judged_ids_is_refused(damage):
    with pytest.raises(ValueError, match=r"judged ids|base64|padding|symbol"):
        JudgedIds().load(damage)
