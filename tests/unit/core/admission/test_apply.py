"""Appliers: each published event has one, and a record that contradicts the state stops."""

import pytest

from tests.unit.core.admission.admission_cell import (
    BODY,
    CELL_SETUP,
    DETAILS,
    JOB,
    OTHER,
    AdmissionCell,
    envelope,
    job,
    pool,
    project,
)
from yardmaster_core.admission import users
from yardmaster_core.admission.apply import IGNORED, JUDGED, VERDICTS
from yardmaster_core.admission.decide import JUDGES
from yardmaster_core.errors import ImpossibleEvent
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.events.machine import SnapshotTakenV1, TermStartedV1
from yardmaster_schemas.reasons import AdmissionCode
from yardmaster_schemas.topics import ADMISSIONS, REQUESTS

OWN = "quota/main.0123456789ab/1/1000"


def published(topic):
    return {cls for cls in EVENTS.values() if topic.name in cls.TOPICS}


def test_every_published_request_is_judged():
    assert published(REQUESTS) == JUDGED | {r.LogCreatedV1}
    apart = {r.TaskSubmittedV1, r.PoolChangeRequestedV1}
    assert set(JUDGES) | apart | set(users.REQUESTS) == JUDGED, "a request has no judge"


def test_every_published_admission_has_an_applier_or_is_listed_without_one():
    assert published(ADMISSIONS) == set(VERDICTS) | IGNORED
    assert not set(VERDICTS) & IGNORED


def waiting(quota, *requests):
    for seq, request in enumerate(requests, start=1000):
        record = envelope(request, seq=seq)
        quota.state = quota.machine.apply(quota.state, record.data, record.id)
    return quota


def impossible(quota, verdict):
    before = quota.dumped()
    with pytest.raises(ImpossibleEvent) as caught:
        quota.machine.apply(quota.state, verdict, OWN)
    assert quota.dumped() == before, "a refused record changed the state"
    return str(caught.value)


def refusal_of(cls):
    return a.RequestRefusedV1(request_type=cls.TYPE, code=AdmissionCode.JOB_UNKNOWN)


def test_a_verdict_without_a_request_is_impossible():
    message = impossible(AdmissionCell(), a.NodeCordonedV1(node="gpu-07"))
    assert "no request is pending" in message
    assert "yard replay verify" in message


@pytest.mark.parametrize(
    ("request_", "verdict"),
    [
        (r.NodeCordonRequestedV1(node="a"), a.NodeCordonedV1(node="b")),
        (r.NodeCordonRequestedV1(node="a"), a.NodeUncordonedV1(node="a")),
        (r.NodeCordonRequestedV1(node="a"), refusal_of(r.CancelRequestedV1)),
        (r.CancelRequestedV1(job_id=JOB), a.CancelAcceptedV1(job_id=JOB, index=0)),
        (r.CancelRequestedV1(job_id=JOB), a.CancelAcceptedV1(job_id=JOB, immediate=True)),
        (r.PauseRequestedV1(job_id=JOB), a.TaskPausedV1(job_id=OTHER)),
        (r.PauseRequestedV1(job_id=JOB), a.TaskResumedV1(job_id=JOB)),
        (
            r.WeightChangeRequestedV1(job_id=JOB, weight=2),
            a.WeightChangedV1(job_id=JOB, weight=3, revision=2),
        ),
        (job(OTHER), a.TaskRejectedV1(job_id=JOB, code=AdmissionCode.POOL_UNKNOWN)),
        (
            pool("x"),
            a.PoolConfiguredV1(pool="x", revision=1, config=pool("x", default_priority=1).config),
        ),
        (project(), a.EntitlementsChangedV1(level=a.Level.DEPARTMENT, name="nlp", revision=2)),
        (project(), a.EntitlementsChangedV1(level=a.Level.PROJECT, name="nlp", revision=2)),
        (project(), a.EntitlementsChangedV1(level=a.Level.PROJECT, name="ads", revision=2)),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_verdict_that_does_not_answer_the_first_request_is_impossible(request_, verdict):
    assert "the request" in impossible(
        waiting(AdmissionCell(*CELL_SETUP, job()), request_), verdict
    )


@pytest.mark.parametrize(
    ("request_", "verdict"),
    [
        (r.PauseRequestedV1(job_id=OTHER), a.TaskPausedV1(job_id=OTHER)),
        (
            r.WeightChangeRequestedV1(job_id=JOB, weight=2),
            a.WeightChangedV1(job_id=JOB, weight=2, revision=3),
        ),
        (job(), a.TaskRejectedV1(job_id=JOB, code=AdmissionCode.POOL_UNKNOWN)),
        (pool("x"), a.PoolConfiguredV1(pool="x", revision=2, config=pool("x").config)),
        (
            project(),
            a.EntitlementsChangedV1(
                level=a.Level.PROJECT, name="nlp", revision=1, project=project().config
            ),
        ),
        (r.PoolDeletionRequestedV1(pool="x"), a.PoolDeletedV1(pool="x")),
        (r.PoolDeletionRequestedV1(pool="default"), a.PoolDeletedV1(pool="default")),
        (
            r.ProjectDeletionRequestedV1(project="nlp"),
            a.EntitlementsChangedV1(level=a.Level.PROJECT, name="nlp", revision=2),
        ),
        (r.NodeUncordonRequestedV1(node="a"), a.NodeUncordonedV1(node="a")),
        (r.NodeRevokeRequestedV1(node="a"), a.NodeRevokedV1(node="a")),
        (
            r.NodeEnrolRequestedV1(node="a", enrollment=r.Enrollment(pool="default", gpus=1)),
            a.NodeEnrolledV1(node="a", enrollment=r.Enrollment(pool="default", gpus=1), revision=2),
        ),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_verdict_that_contradicts_the_state_is_impossible(request_, verdict):
    impossible(waiting(AdmissionCell(*CELL_SETUP, job()), request_), verdict)


def test_a_job_admitted_twice_is_impossible():
    quota = AdmissionCell(*CELL_SETUP)
    admitted = quota.one(job())
    assert admitted.details == DETAILS
    waiting(quota, job(body=BODY))
    impossible(quota, admitted)


def test_the_shells_records_do_not_change_the_digest():
    quota = AdmissionCell(*CELL_SETUP)
    before = quota.state.digest()
    for event in (
        TermStartedV1(cell="main", machine="quota", term=1, incarnation="0" * 12),
        SnapshotTakenV1(cycle=1, state_digest="0" * 64),
    ):
        quota.state = quota.machine.apply(quota.state, event, OWN)
    assert quota.state.digest() == before
