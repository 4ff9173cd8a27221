"""Enrolled and revoked nodes (S3, S4, S10)."""

import dataclasses
from typing import Any

import pytest

from tests.support.logs import (
    LogBuilder,
    allocated,
    joined,
    placed,
    pool_configured,
)
from tests.unit.core.audit.cell_log import (
    JOB,
    A,
    admit,
    ended,
    expect_one,
    finish,
    found,
    lost,
    requeued,
    run,
    stopped,
)
from yardmaster_core.fencing import fence_of
from yardmaster_schemas.events.admissions import (
    NodeEnrolledV1,
    NodeRevokedV1,
    NodeUncordonedV1,
)
from yardmaster_schemas.events.decisions import (
    LossCause,
    StopRequestedV1,
)
from yardmaster_schemas.events.requests import (
    Enrollment,
    Fence,
    NodeEnrolRequestedV1,
    NodeRevokeRequestedV1,
    NodeUncordonRequestedV1,
    PoolChangeRequestedV1,
)
from yardmaster_schemas.reasons import (
    Stop,
    StopCode,
)


def enroll(log: LogBuilder, node: str, gpus: int = 4, **bounds: Any) -> None:
    enrollment = Enrollment(pool="default", gpus=gpus, **bounds)
    log.judged(
        NodeEnrolRequestedV1(node=node, enrollment=enrollment),
        NodeEnrolledV1(node=node, enrollment=enrollment, revision=1),
    )


def revoke(log: LogBuilder, node: str) -> None:
    log.judged(NodeRevokeRequestedV1(node=node), NodeRevokedV1(node=node))


@pytest.mark.parametrize(
    ("bounds", "word"),
    [
        ({"gpus": 3}, "4 GPUs, enrolled with 3"),
        ({"node_type": "pcie"}, "node_type sxm, enrolled with pcie"),
        ({"address": "10.0.0.9"}, "address n9.example, enrolled with 10.0.0.9"),
    ],
)
def test_s3_an_accepted_join_beyond_its_enrollment(log: LogBuilder, bounds: Any, word: str) -> None:
    enroll(log, "n9", **bounds)
    log.claim(joined("n9"))
    log.scheduler.cycle()
    expect_one(log, "S3", word, topic="node-events")


def test_s3_an_accepted_join_of_an_unknown_node_in_a_closed_cell(log: LogBuilder) -> None:
    enroll(log, "n1")
    log.claim(joined("n9"))
    log.scheduler.cycle()
    expect_one(log, "S3", "n9 is not enrolled: expected its join refused", topic="node-events")


def test_s3_a_placement_on_a_node_that_its_enrollment_does_not_cover(log: LogBuilder) -> None:
    enroll(log, "n1")
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n2", 0)))
    expect_one(log, "S3", "node n2 is not enrolled")


def test_s3_a_node_that_its_enrollment_covers_is_correct(log: LogBuilder) -> None:
    enroll(log, "n1")
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(ended(A))
    assert not found(log)


def test_s3_only_a_revoked_node_is_lost_as_revoked(log: LogBuilder) -> None:
    for name in ("n1", "n2"):
        enroll(log, name)
    revoke(log, "n1")
    log.scheduler.cycle(lost("n1", cause=LossCause.REVOKED))
    assert not found(log)
    log.scheduler.cycle(lost("n2", cause=LossCause.REVOKED))
    expect_one(log, "S3", "is lost as revoked, but its enrollment is not")


@pytest.mark.parametrize("fence", list(Fence))
def test_s4_a_revoked_node_is_not_lost_while_its_tasks_have_a_fence(
    log: LogBuilder, fence: Fence
) -> None:
    for name in ("n1", "n2"):
        enroll(log, name)
    pool = pool_configured(revision=2, node_timeout_s=60, fence=fence)
    log.judged(PoolChangeRequestedV1(pool="default", config=pool.config), pool)
    admit(log, JOB)
    fence_s = fence_of(pool.config)
    log.scheduler.cycle(dataclasses.replace(allocated(A, placed("n1", 0)), fence_s=fence_s))
    revoke(log, "n1")
    log.scheduler.cycle(lost("n1", (A, 0), cause=LossCause.REVOKED), requeued(A), after_ms=3600_000)
    if fence_s is None:
        assert not found(log)
    else:
        expect_one(log, "S4", f"while {A} may run there for 54 s")


def test_s10_tasks_of_a_revoked_node_are_stopped_at_once(log: LogBuilder) -> None:
    for name in ("n1", "n2"):
        enroll(log, name)
    admit(log, JOB, preemptible=False)
    run(log, A, placed("n1", 0))
    revoke(log, "n1")
    stop = StopRequestedV1(
        task_id=A,
        attempt=1,
        nodes=("n1",),
        stop=Stop(code=StopCode.NODE_DRAINED, about="n1"),
        grace_s=0,
        deadline_at_ms=log.now_ms + 1000,
    )
    log.scheduler.cycle(stop)
    assert not found(log)


def test_s10_the_tasks_of_a_revoked_node_stop_although_it_is_uncordoned(log: LogBuilder) -> None:
    enroll(log, "n1")
    admit(log, JOB, preemptible=False)
    run(log, A, placed("n1", 0))
    revoke(log, "n1")
    log.judged(NodeUncordonRequestedV1(node="n1"), NodeUncordonedV1(node="n1"))
    log.scheduler.cycle(stopped(log, A, StopCode.NODE_DRAINED, "n1"))
    assert found(log) == ()
