"""The audit finds exactly the planted violation in logs that are otherwise correct.

One file, because its tests follow the table of predicates from S1 to S11.
"""

import dataclasses
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.audit import assert_audit_clean
from tests.support.logs import (
    START_MS,
    LogBuilder,
    admitted,
    allocated,
    department,
    exited,
    incarnation,
    joined,
    log_created,
    placed,
    pool_configured,
    project,
    released,
    started,
    submitted,
)
from yardmaster_core import commit as committed
from yardmaster_core.audit import Audit, Finding, audit
from yardmaster_core.audit import chain as audited
from yardmaster_core.fencing import fence_of
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.port import Partition, StoredRecord
from yardmaster_schemas.events.admissions import (
    CancelAcceptedV1,
    DetailsErasedV1,
    NodeDrainingV1,
    NodeEnrolledV1,
    NodeRevokedV1,
    PriorityChangedV1,
    RequestRefusedV1,
    TaskPausedV1,
    TaskRejectedV1,
)
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    LossCause,
    NodeLostV1,
    NodeSilenceObservedV1,
    Outcome,
    PreemptionRequestedV1,
    ReservationDroppedV1,
    SlotsReservedV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.machine import SnapshotTakenV1
from yardmaster_schemas.events.node_events import NodeDrainedV1, ReplicaRef
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
    Enrollment,
    EraseRequestedV1,
    Fence,
    NodeDrainRequestedV1,
    NodeEnrolRequestedV1,
    NodeRevokeRequestedV1,
    PauseRequestedV1,
    PoolChangeRequestedV1,
    PriorityChangeRequestedV1,
    ProjectChangeRequestedV1,
    Quota,
)
from yardmaster_schemas.reasons import (
    AdmissionCode,
    DropCode,
    EndCode,
    PolicyStop,
    RefusalCode,
    Stop,
    StopCode,
)
from yardmaster_schemas.resources import Resources

JOB, OTHER, THIRD = "aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"
A, B, C = f"{JOB}.0", f"{OTHER}.0", f"{THIRD}.0"
GANG = {"replicas_min": 2, "replicas_max": 2}
PAIR = (placed("n1", 0), placed("n2", 0, replica=1))


def admit(log: LogBuilder, *jobs: str, **spec: Any) -> None:
    """Submit and admit."""
    for job in jobs:
        log.judged(submitted(job), admitted(job, **spec))


@pytest.fixture
def log() -> LogBuilder:
    """A pool of two nodes of four slots, a project; nothing submitted."""
    log = LogBuilder()
    log.request(log_created())
    configured = pool_configured(start_timeout_s=300, node_timeout_s=60)
    log.judged(PoolChangeRequestedV1(pool="default", config=configured.config), configured)
    for level in (department(), project()):
        config = level.project or project().project
        assert config is not None
        log.judged(ProjectChangeRequestedV1(project="nlp", config=config), level)
    for node in ("n1", "n2"):
        log.claim(joined(node))
    log.scheduler.cycle()
    return log


def run(log: LogBuilder, task: str, *placements: Any, attempt: int = 1) -> None:
    """Allocate, and have every replica start."""
    log.scheduler.cycle(allocated(task, *placements, attempt=attempt))
    for p in placements:
        log.claim(started(task, p.node, attempt=attempt, replica=p.replica, pid=100 + p.replica))
    log.scheduler.cycle()


def finish(log: LogBuilder, task: str, *placements: Any, attempt: int = 1) -> None:
    """Have every replica exit with 0 and be released."""
    for p in placements:
        log.claim(exited(task, p.node, attempt=attempt, replica=p.replica))
        log.claim(released(task, p.node, attempt=attempt, replica=p.replica))


def ended(task: str, attempt: int = 1) -> TaskEndedV1:
    return TaskEndedV1(
        task_id=task, attempt=attempt, outcome=Outcome.SUCCEEDED, code=EndCode.EXIT, exit_code=0
    )


def requeued(task: str, attempt: int = 1, not_before_ms: int = 0) -> TaskRequeuedV1:
    return TaskRequeuedV1(
        task_id=task,
        attempt=attempt,
        code="priority",
        restarts=0,
        not_before_ms=not_before_ms,
    )


def preempted(log: LogBuilder, task: str, attempt: int = 1, **stop: Any) -> PreemptionRequestedV1:
    """Preempt a task in a cycle one second later, by default for `B`."""
    full = {"policy": "priority", "rule": "higher_priority", "for_task": B} | stop
    return PreemptionRequestedV1(
        task_id=task,
        attempt=attempt,
        nodes=("n1",),
        stop=PolicyStop(**full),
        grace_s=60,
        deadline_at_ms=log.now_ms + 61_000,
    )


def stopped(
    log: LogBuilder, task: str, code: StopCode, *nodes: str, after_ms: int = 1000
) -> StopRequestedV1:
    return StopRequestedV1(
        task_id=task,
        attempt=1,
        nodes=nodes,
        stop=Stop(code=code),
        grace_s=60,
        deadline_at_ms=log.now_ms + after_ms + 60_000,
    )


def lost(node: str, *closed: tuple[str, int], cause: LossCause = LossCause.SILENT) -> NodeLostV1:
    return NodeLostV1(
        node=node,
        incarnation=incarnation(),
        cause=cause,
        last_heard_at_ms=START_MS,
        closed=tuple(ReplicaRef(task_id=t, attempt=1, replica=r) for t, r in closed),
    )


def silent(node: str) -> NodeSilenceObservedV1:
    return NodeSilenceObservedV1(node=node, incarnation=incarnation(), last_heard_at_ms=START_MS)


def found(log: LogBuilder, **options: bool) -> tuple[Finding, ...]:
    return audit(log.fed(), **options)


def expect_one(log: LogBuilder, predicate: str, *words: str, topic: str = "decisions") -> Finding:
    findings = found(log)
    assert [f.predicate for f in findings] == [predicate], "\n".join(map(str, findings))
    finding = findings[0]
    assert finding.topic == topic, finding
    for word in words:
        assert word in finding.message, finding
    return finding


# Clean logs


def whole_life(log: LogBuilder) -> None:
    """Preemption with a checkpoint, a requeue, a gang, a node lost, a cancel, ends."""
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    admit(log, OTHER, priority=1)
    log.scheduler.cycle(preempted(log, A))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A), allocated(B, placed("n1", 0)))
    run(log, A, placed("n2", 0), attempt=2)
    log.claim(released(B, "n1", never_started=True))
    log.scheduler.cycle(requeued(B))
    admit(log, THIRD, **GANG)
    run(log, C, placed("n1", 1), placed("n2", 1, replica=1))
    log.scheduler.cycle(
        silent("n2"),
        NodeLostV1(
            node="n2",
            incarnation=incarnation(),
            cause=LossCause.SILENT,
            last_heard_at_ms=START_MS,
            closed=(
                ReplicaRef(task_id=A, attempt=2, replica=0),
                ReplicaRef(task_id=C, attempt=1, replica=1),
            ),
        ),
        requeued(A, 2),
        stopped(log, C, StopCode.NODE_LOST, "n1", "n2", after_ms=70_000),
        after_ms=70_000,
    )
    log.judged(CancelRequestedV1(job_id=THIRD), CancelAcceptedV1(job_id=THIRD))
    log.claim(exited(C, "n1", exit_code=143))
    log.claim(released(C, "n1"))
    cancelled = TaskEndedV1(task_id=C, attempt=1, outcome=Outcome.CANCELLED, code=EndCode.CANCELLED)
    log.scheduler.cycle(cancelled)
    log.claim(joined("n2", life=2))
    log.scheduler.cycle(
        allocated(A, placed("n2", 0, life=2), attempt=3),
        SnapshotTakenV1(cycle=2, state_digest=f"{2:064x}"),
    )


def test_a_whole_life_is_clean(log: LogBuilder) -> None:
    whole_life(log)
    assert found(log) == ()


def test_topics_may_be_fed_in_any_order(log: LogBuilder) -> None:
    whole_life(log)
    admit(log, "dddddddddddd")
    log.scheduler.cycle(allocated(B, placed("n1", 0), attempt=7))
    as_written = found(log)
    assert [f.predicate for f in as_written] == ["S4"]
    fed = list(log.fed())
    for seed in range(20):
        topics = ("requests", "admissions", "node-events", "decisions")
        queues = {topic: [r for r in fed if r[0] == topic] for topic in topics}
        chance = random.Random(seed)
        auditor = Audit()
        while left := [q for q in queues.values() if q]:
            auditor.feed(*chance.choice(left).pop(0))
        assert auditor.finish() == as_written


def test_a_finding_is_reported_with_the_record_that_breaks_the_guarantee(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0), attempt=2))
    auditor = Audit()
    *rest, last = log.fed()
    for record in rest:
        auditor.feed(*record)
    assert not auditor.findings
    auditor.feed(*last)
    assert [f.predicate for f in auditor.findings] == ["S4"]


def test_records_of_a_fenced_leader_do_not_count(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    admit(log, OTHER)
    late = LogBuilder()
    late.scheduler.start_term("aaaaaaaaaaaa")
    late.scheduler.cycle()
    fenced = late.scheduler.cycle(allocated(B, placed("n1", 0)))
    log.scheduler.start_term("bbbbbbbbbbbb")
    for entry in fenced:
        assert entry.envelope is not None
        log.append("decisions", entry.envelope)
    log.scheduler.cycle(allocated(B, placed("n1", 1)))
    assert found(log) == ()


def test_a_term_belongs_to_its_first_incarnation(log: LogBuilder) -> None:
    log.scheduler.start_term("bbbbbbbbbbbb")
    log.scheduler.start_term("cccccccccccc", term=2)
    log.scheduler.cycle()
    assert found(log) == ()


def test_an_uncommitted_batch_is_dropped_by_the_next_term(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n9", 0)), take={}, keep=[0])
    log.scheduler.cycles -= 1
    log.scheduler.start_term("bbbbbbbbbbbb")
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    assert found(log) == ()


def test_both_ends_compute_the_same_digests() -> None:
    """Otherwise the audit would report correct chains as broken."""
    headers = (("ce_id", b"x/1/0"), ("ce_type", b"T"))
    for value in (b"{}", b"", None):
        ours = audited.record_digest(b"main", headers, value)
        assert ours == committed.record_digest(b"main", headers, value)
        assert audited.range_digest([ours, ours]) == committed.range_digest([ours, ours])
        assert audited.unmarked([ours], committed.marks([ours])) is None


# S1


@pytest.mark.parametrize(
    ("commit", "word"),
    [
        ({"cycle": 9}, "expected cycle 2, found cycle 9"),
        ({"prev": "1" * 64}, "prev"),
        ({"decisions": 3}, "expected 3 decisions, found 1"),
        ({"decision_marks": "0" * 16}, "not decision 1"),
        ({"decisions_digest": "0" * 64}, "decisions_digest"),
        ({"term": 7}, "was written in term 1"),
    ],
)
def test_s1_a_commit_that_does_not_match(log: LogBuilder, commit: Any, word: str) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0)), commit=commit)
    expect_one(log, "S1", word)


def test_s1_a_missing_decision(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    log.scheduler.cycle(allocated(A, placed("n1", 0)), allocated(B, placed("n1", 1)), keep=[1, 2])
    expect_one(log, "S1", "expected seq")


def test_s1_a_batch_that_is_appended_twice(log: LogBuilder) -> None:
    admit(log, JOB)
    for entry in log.scheduler.cycle(allocated(A, placed("n1", 0)))[-1:]:
        assert entry.envelope is not None
        log.append("decisions", entry.envelope)
    findings = found(log)
    assert {f.predicate for f in findings} == {"S1", "S2"}


def test_s1_a_term_that_skips_a_number(log: LogBuilder) -> None:
    log.scheduler.start_term("bbbbbbbbbbbb", term=5)
    expect_one(log, "S1", "expected term 2 to start, found 5")


def test_s1_a_term_that_never_started(log: LogBuilder) -> None:
    entry = log.scheduler.cycle()[0]
    assert entry.envelope is not None
    log.append("decisions", dataclasses.replace(entry.envelope, epoch=8))
    expect_one(log, "S1", "written in term 8")


def test_s1_a_foreign_record(log: LogBuilder) -> None:
    log.append("decisions", log.gateway.envelope(submitted(JOB), JOB))
    expect_one(log, "S1", "found TaskSubmitted")


def test_s1_undecodable_bytes(log: LogBuilder) -> None:
    log.raw("admissions")
    expect_one(log, "S1", "undecodable", topic="admissions")


# S2


def test_s2_inputs_taken_twice(log: LogBuilder) -> None:
    log.scheduler.taken["node-events"] = 0
    log.scheduler.cycle()
    expect_one(log, "S2", "node-events 0 to before 2", "expected to continue at 2")


def test_s2_inputs_skipped(log: LogBuilder) -> None:
    log.claim(joined("n3"))
    log.claim(joined("n4"))
    log.scheduler.taken["node-events"] = 3
    log.scheduler.cycle()
    expect_one(log, "S2", "expected to continue at 2")


def test_s2_an_input_that_changed_after_it_was_taken(log: LogBuilder) -> None:
    log.claim(joined("n3"))
    log.scheduler.cycle()
    fed = list(log.fed())
    at = next(i for i, r in enumerate(fed) if r[0] == "node-events" and r[2] == 2)
    fed[at] = (*fed[at][:4], b"\x00" * 32)
    (finding,) = audit(fed)
    assert (finding.predicate, finding.topic, finding.offset) == ("S2", "node-events", 2)


def test_s2_inputs_that_do_not_exist(log: LogBuilder) -> None:
    log.claim(joined("n3"))
    log.scheduler.cycle()
    fed = [r for r in log.fed() if not (r[0] == "node-events" and r[2] == 2)]
    (finding,) = audit(fed)
    assert finding.predicate == "S2"
    assert "took node-events to 3 (ends at 2)" in finding.message


def test_s2_a_missing_record(log: LogBuilder) -> None:
    log.claim(joined("n3"))
    log.claim(joined("n4"))
    log.scheduler.cycle()
    findings = audit(r for r in log.fed() if not (r[0] == "node-events" and r[2] == 2))
    assert findings[0].predicate == "S2"
    assert "expected offset 2 of node-events/0, found 3" in findings[0].message


def test_s2_a_cycle_of_quota_taken_in_part(log: LogBuilder) -> None:
    one, two = log.request(submitted(JOB)), log.request(submitted(OTHER))
    log.quota.cycle((admitted(JOB), one), (admitted(OTHER), two))
    log.scheduler.cycle(take={"admissions": log.end("admissions") - 2})
    expect_one(log, "S2", "part of a cycle")


def test_s2_an_undecodable_record_that_was_accepted(log: LogBuilder) -> None:
    log.raw("node-events")
    log.scheduler.cycle()
    expect_one(log, "S2", "undecodable: expected it refused", topic="node-events")


def test_s2_a_refused_undecodable_record_is_correct(log: LogBuilder) -> None:
    log.raw("node-events")
    log.scheduler.cycle(refused=[("node-events", 2, RefusalCode.MALFORMED)])
    assert found(log) == ()


def test_s2_a_claim_about_another_node_that_was_accepted(log: LogBuilder) -> None:
    log.claim(NodeDrainedV1(node="n1", incarnation=incarnation()), node="n2")
    log.scheduler.cycle()
    expect_one(log, "S2", f"node/n2.{incarnation()} is not its author", topic="node-events")


def test_s2_refusals_of_records_that_were_not_taken(log: LogBuilder) -> None:
    log.scheduler.cycle(refused=[("node-events", 77, RefusalCode.MALFORMED)])
    expect_one(log, "S2", "node-events/77")


def test_s2_a_refused_record_of_a_machine(log: LogBuilder) -> None:
    admit(log, JOB)
    at = log.end("admissions") - 2
    log.scheduler.cycle(refused=[("admissions", at, RefusalCode.CONTRADICTION)])
    expect_one(log, "S2", "never refused", topic="admissions")


# S3


def test_s3_two_attempts_on_one_slot(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    log.scheduler.cycle(allocated(A, placed("n1", 0)), allocated(B, placed("n1", 0)))
    expect_one(log, "S3", "n1 slot 0", "found 2000", A, B)


def test_s3_fractions_fill_a_slot_and_no_more(log: LogBuilder) -> None:
    half = Resources(gpus=1, gpu_milli=500, cpu_milli=1000, memory_mib=1024)
    admit(log, JOB, OTHER, THIRD, resources=half)
    where = placed("n1", 2, gpu_milli=500)
    log.scheduler.cycle(allocated(A, where), allocated(B, where))
    assert found(log) == ()
    log.scheduler.cycle(allocated(C, where))
    expect_one(log, "S3", "found 1500")


def test_s3_a_slot_is_held_until_it_is_released(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    log.claim(exited(A, "n1"))
    log.scheduler.cycle(allocated(B, placed("n1", 0)))
    expect_one(log, "S3", "slot 0")


@pytest.mark.parametrize(
    ("resources", "unit"),
    [({"cpu_milli": 40_000}, "cpu_milli"), ({"memory_mib": 200_000}, "MiB")],
)
def test_s3_more_than_the_node_has(log: LogBuilder, resources: Any, unit: str) -> None:
    big = Resources(**({"cpu_milli": 1000, "memory_mib": 1024} | resources))
    admit(log, JOB, OTHER, resources=big)
    where = dataclasses.replace(placed("n1"), **resources)
    log.scheduler.cycle(allocated(A, where), allocated(B, where))
    expect_one(log, "S3", unit)


@pytest.mark.parametrize(
    ("where", "word"),
    [
        (placed("n9", 0), "is unknown"),
        (placed("n1", 0, life=2), "expected 000000000002"),
        (placed("n1", 9), "has 4 slots"),
    ],
)
def test_s3_a_placement_that_does_not_exist(log: LogBuilder, where: Any, word: str) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, where))
    expect_one(log, "S3", word)


def test_s3_another_pools_node(log: LogBuilder) -> None:
    log.claim(joined("x1", pool="other"))
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("x1", 0)))
    expect_one(log, "S3", "of pool default", "of pool other")


def test_s3_a_node_that_left_or_was_lost(log: LogBuilder) -> None:
    log.claim(NodeDrainedV1(node="n1", incarnation=incarnation()))
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S3", "gone")


def test_s3_a_lost_node_that_leaves_a_replica_open(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(silent("n1"), lost("n1"), after_ms=70_000)
    expect_one(log, "S3", "closed and open replicas differ", A)


def test_s3_a_lost_incarnation_that_was_accepted_again(log: LogBuilder) -> None:
    log.scheduler.cycle(silent("n1"), lost("n1"), after_ms=70_000)
    log.claim(joined("n1"))
    log.scheduler.cycle()
    expect_one(log, "S3", "was lost", topic="node-events")


def test_s3_a_replaced_node_without_a_successor(log: LogBuilder) -> None:
    log.scheduler.cycle(lost("n1", cause=LossCause.REPLACED))
    expect_one(log, "S3", "no other incarnation joined")


def test_s3_a_replaced_node_frees_its_slots(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.claim(joined("n1", life=2))
    log.scheduler.cycle(lost("n1", (A, 0), cause=LossCause.REPLACED), requeued(A))
    log.scheduler.cycle(allocated(A, placed("n1", 0, life=2), attempt=2))
    assert found(log) == ()


# S4


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


def reserved(task: str, *placements: Any, attempt: int = 1, victims: int = 0) -> SlotsReservedV1:
    return SlotsReservedV1(
        task_id=task, attempt=attempt, pool="default", placements=placements, victims=victims
    )


def dropped(task: str, code: DropCode = DropCode.PAUSED, attempt: int = 1) -> ReservationDroppedV1:
    return ReservationDroppedV1(task_id=task, attempt=attempt, pool="default", code=code)


@pytest.fixture
def reserving(log: LogBuilder) -> LogBuilder:
    return log


def test_s3_a_reservation_that_is_dropped_or_starts_its_task_is_correct(
    reserving: LogBuilder,
) -> None:
    admit(reserving, JOB)
    admit(reserving, OTHER, THIRD, priority=1)
    run(reserving, A, placed("n1", 0))
    reserving.scheduler.cycle(preempted(reserving, A), reserved(B, placed("n1", 0), victims=1))
    reserving.scheduler.cycle(reserved(C, placed("n2", 0)))
    reserving.scheduler.cycle(dropped(C), allocated(C, placed("n2", 1)))
    finish(reserving, A, placed("n1", 0))
    reserving.scheduler.cycle(requeued(A), allocated(B, placed("n1", 0)))
    assert found(reserving) == ()


def test_s3_a_start_on_slots_that_are_reserved_for_another_task(reserving: LogBuilder) -> None:
    admit(reserving, JOB, OTHER)
    reserving.scheduler.cycle(reserved(B, placed("n1", 0)))
    reserving.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(reserving, "S3", f"{A} attempt 1 replica 0", "n1 slot 0 is reserved", B)


def test_s3_a_start_on_other_slots_than_the_reserved_ones(reserving: LogBuilder) -> None:
    admit(reserving, JOB)
    reserving.scheduler.cycle(reserved(A, placed("n1", 0)))
    reserving.scheduler.cycle(allocated(A, placed("n1", 1)))
    expect_one(reserving, "S3", "starts on other slots than those reserved for it")


def test_s3_a_reservation_of_reserved_slots(reserving: LogBuilder) -> None:
    admit(reserving, JOB, OTHER)
    reserving.scheduler.cycle(reserved(A, placed("n1", 0)))
    reserving.scheduler.cycle(reserved(B, placed("n1", 0)))
    # Both are reserved now, so the slot has too much from the second one on.
    expect_one(reserving, "S3", f"{B} attempt 1 replica 0", "n1 slot 0 is reserved")


def test_s3_two_reservations_share_a_slot_that_suffices_for_both(reserving: LogBuilder) -> None:
    half = Resources(gpus=1, gpu_milli=500)
    admit(reserving, JOB, OTHER, THIRD, resources=half)
    halves = [placed("n1", 0, gpu_milli=500)] * 3
    reserving.scheduler.cycle(reserved(A, halves[0]), reserved(B, halves[1]))
    assert found(reserving) == ()
    reserving.scheduler.cycle(reserved(C, halves[2]))
    expect_one(reserving, "S3", f"{C} attempt 1 replica 0", "n1 slot 0 is reserved")


def test_s3_a_reservation_of_slots_whose_holder_has_no_stop(
    reserving: LogBuilder,
) -> None:
    admit(reserving, JOB)
    admit(reserving, OTHER, priority=1)
    run(reserving, A, placed("n1", 0))
    reserving.scheduler.cycle(reserved(B, placed("n1", 0)))
    expect_one(reserving, "S3", f"{B} attempt 1 replica 0", "n1 slot 0")


@pytest.mark.parametrize("attempt", [1, 3])
def test_s3_a_reservation_that_is_not_for_the_next_attempt(
    reserving: LogBuilder, attempt: int
) -> None:
    admit(reserving, JOB)
    run(reserving, A, placed("n1", 0))
    finish(reserving, A, placed("n1", 0))
    reserving.scheduler.cycle(requeued(A))
    reserving.scheduler.cycle(reserved(A, placed("n1", 0), attempt=attempt))
    expect_one(reserving, "S3", f"{A} attempt {attempt}", "is not its next attempt")


def test_s3_a_second_reservation_of_a_task(reserving: LogBuilder) -> None:
    admit(reserving, JOB)
    reserving.scheduler.cycle(reserved(A, placed("n1", 0)))
    reserving.scheduler.cycle(reserved(A, placed("n2", 0)))
    expect_one(reserving, "S3", f"{A} attempt 1 has reserved slots already")


def test_s3_a_drop_of_a_reservation_that_does_not_exist(reserving: LogBuilder) -> None:
    admit(reserving, JOB)
    reserving.scheduler.cycle(dropped(A, DropCode.CANCELLED))
    expect_one(reserving, "S3", f"{A} attempt 1", "is dropped (cancelled), but there is none")


def test_s3_a_task_that_ends_with_reserved_slots(reserving: LogBuilder) -> None:
    admit(reserving, JOB)
    reserving.scheduler.cycle(reserved(A, placed("n1", 0)))
    reserving.judged(CancelRequestedV1(job_id=JOB), CancelAcceptedV1(job_id=JOB))
    cancelled = TaskEndedV1(task_id=A, attempt=0, outcome=Outcome.CANCELLED, code=EndCode.CANCELLED)
    reserving.scheduler.cycle(cancelled)
    expect_one(reserving, "S3", f"{A} ends with reserved slots, without a drop")


def test_s4_a_gap_in_the_attempts(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0), attempt=2))
    expect_one(log, "S4", "expected attempt 1")


def test_s4_an_attempt_while_the_last_is_open(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(allocated(A, placed("n1", 1), attempt=2))
    expect_one(log, "S4", "while replicas [0] of attempt 1 are open")


def test_s4_a_requeue_while_slots_are_held(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A))
    expect_one(log, "S4", "found replicas [0] open")


def test_s4_a_stop_of_an_attempt_that_is_not_open(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(stopped(log, A, StopCode.CANCELLED, "n1"))
    expect_one(log, "S4", "is not open")


def test_s4_a_replica_that_started_twice(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.claim(started(A, "n1", pid=999))
    log.scheduler.cycle()
    expect_one(log, "S4", "pid 100", "pid 999", topic="node-events")


def test_s4_covers_refused_records_of_honest_agents(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    at = log.claim(started(A, "n1", pid=999)).offset
    log.scheduler.cycle(refused=[("node-events", at, RefusalCode.REPEATED)])
    assert [f.predicate for f in found(log)] == ["S4"]
    assert found(log, honest_agents=False) == ()


def test_s4_a_repeated_start_report_counts_once(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    at = log.claim(started(A, "n1")).offset
    log.scheduler.cycle(refused=[("node-events", at, RefusalCode.REPEATED)])
    assert found(log) == ()


# S5


def test_s5_half_a_gang(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S5", "expected 2 to 2 replicas", "found [0]")


def test_s5_less_than_the_requested_resources(log: LogBuilder) -> None:
    admit(log, JOB, resources=Resources(gpus=2, gpu_milli=1000, cpu_milli=1000, memory_mib=1024))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(
        log, "S5", "expected (slots, gpu_milli, cpu_milli, memory_mib, gpu_memory_mib) (2, 1000"
    )


def test_s5_a_broken_gang_that_keeps_running(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    run(log, A, *PAIR)
    log.scheduler.cycle(silent("n2"), lost("n2", (A, 1)), after_ms=70_000)
    assert found(log) == ()
    log.scheduler.cycle()
    expect_one(log, "S5", "replica 1 was lost with node n2", "expected the 1 others")


def test_s5_a_failed_replica_stops_its_gang(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    run(log, A, *PAIR)
    log.claim(exited(A, "n1", exit_code=3))
    log.scheduler.cycle()
    log.scheduler.cycle(stopped(log, A, StopCode.GANG_INCOMPLETE, "n1", "n2"))
    log.scheduler.cycle()
    assert found(log) == ()


def test_s5_a_cycle_that_was_cut_may_stop_the_gang_later(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    run(log, A, *PAIR)
    log.claim(released(A, "n1", never_started=True))
    log.scheduler.cycle()
    log.scheduler.cycle(complete=False)
    assert found(log) == ()
    log.scheduler.cycle()
    expect_one(log, "S5", "never started")


def test_s5_a_stop_that_leaves_out_a_node(log: LogBuilder) -> None:
    admit(log, JOB, **GANG)
    run(log, A, *PAIR)
    log.scheduler.cycle(stopped(log, A, StopCode.GANG_INCOMPLETE, "n1"))
    expect_one(log, "S5", "not on its nodes ['n2']")


def test_s4_failed_starts_are_counted_one_by_one(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    log.claim(released(A, "n1", never_started=True))
    log.scheduler.cycle(replace(requeued(A), failed_starts=2))
    expect_one(log, "S4", "requeued after 2 failed starts, after 0 before")


# S6


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


# S7


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


# S8


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


# S9


def test_s9_a_task_that_ends_twice(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(ended(A))
    log.scheduler.cycle(ended(A))
    expect_one(log, "S9", "ends again")


def test_s9_a_task_that_ends_with_slots(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(ended(A))
    expect_one(log, "S9", "found replicas [0] open")


def test_s9_a_start_after_the_end(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(ended(A))
    log.scheduler.cycle(allocated(A, placed("n1", 0), attempt=2))
    expect_one(log, "S9", "opens after the task ended")


def test_s9_a_start_after_a_cancel(log: LogBuilder) -> None:
    admit(log, JOB, tasks=2)
    log.judged(CancelRequestedV1(job_id=JOB, index=0), CancelAcceptedV1(job_id=JOB, index=0))
    log.scheduler.cycle(allocated(f"{JOB}.1", placed("n1", 1)))
    assert found(log) == ()
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S9", "after its cancellation")


def test_s9_a_start_after_the_details_were_erased(log: LogBuilder) -> None:
    admit(log, JOB)
    log.judged(EraseRequestedV1(job_id=JOB, tombstone=3), DetailsErasedV1(job_id=JOB))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S9", "opens after the job's details were erased")


def test_s9_a_start_while_paused(log: LogBuilder) -> None:
    admit(log, JOB)
    log.judged(PauseRequestedV1(job_id=JOB), TaskPausedV1(job_id=JOB))
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    expect_one(log, "S9", "while the task is paused")


# S10


def test_s10_time_decreases(log: LogBuilder) -> None:
    log.scheduler.cycle(after_ms=-60_000)
    expect_one(log, "S10", "time decreases from")


def test_s10_a_start_before_its_time(log: LogBuilder) -> None:
    admit(log, JOB)
    run(log, A, placed("n1", 0))
    finish(log, A, placed("n1", 0))
    log.scheduler.cycle(requeued(A, not_before_ms=log.now_ms + 10_000))
    log.scheduler.cycle(allocated(A, placed("n1", 0), attempt=2))
    expect_one(log, "S10", "held until")


def test_s10_a_deadline_before_the_grace_is_over(log: LogBuilder) -> None:
    admit(log, JOB, OTHER)
    run(log, A, placed("n1", 0))
    early = dataclasses.replace(preempted(log, A), deadline_at_ms=log.now_ms + 2000)
    log.scheduler.cycle(early)
    expect_one(log, "S10", "60 s of grace")


def test_s10_a_time_limit_that_is_not_reached(log: LogBuilder) -> None:
    admit(log, JOB, time_limit_s=3600)
    run(log, A, placed("n1", 0))
    log.scheduler.cycle(stopped(log, A, StopCode.TIME_LIMIT, "n1"))
    expect_one(log, "S10", "exceeds its time limit of 3600 s: 1000 ms")


@pytest.mark.parametrize("preemptible", [True, False])
def test_s10_a_drain_waits_for_non_preemptible_tasks(log: LogBuilder, preemptible: bool) -> None:
    admit(log, JOB, preemptible=preemptible)
    run(log, A, placed("n1", 0))
    when = log.now_ms + 600_000
    log.judged(
        NodeDrainRequestedV1(node="n1", deadline_at_ms=when),
        NodeDrainingV1(node="n1", deadline_at_ms=when),
    )
    log.scheduler.cycle(stopped(log, A, StopCode.NODE_DRAINED, "n1"))
    if preemptible:
        assert found(log) == ()
    else:
        expect_one(log, "S10", "is drained at")


def test_s10_an_allocation_revoked_too_soon(log: LogBuilder) -> None:
    admit(log, JOB)
    log.scheduler.cycle(allocated(A, placed("n1", 0)))
    revoked = AllocationRevokedV1(
        task_id=A, attempt=1, nodes=("n1",), stop=Stop(code=StopCode.START_TIMEOUT)
    )
    log.scheduler.cycle(revoked, after_ms=299_000)
    expect_one(log, "S10", "revoked after 299000 ms")


def test_s10_a_node_lost_too_soon(log: LogBuilder) -> None:
    seen = dataclasses.replace(silent("n1"), last_heard_at_ms=log.now_ms)
    log.scheduler.cycle(seen, lost("n1"), after_ms=59_000)
    expect_one(log, "S10", "after 59000 ms of silence")


def test_s10_a_node_lost_without_an_observation(log: LogBuilder) -> None:
    log.scheduler.cycle(lost("n1"), after_ms=70_000)
    expect_one(log, "S10", "never observed")


# S11


def test_s11_a_snapshot_of_another_state(log: LogBuilder) -> None:
    log.scheduler.cycle(SnapshotTakenV1(cycle=1, state_digest="e" * 64))
    expect_one(log, "S11", "snapshot of cycle 1")


def test_s11_digests_of_a_standby(log: LogBuilder) -> None:
    log.scheduler.cycle()
    auditor = Audit()
    for record in log.fed():
        auditor.feed(*record)
    mine = {1: f"{1:064x}", 2: f"{2:064x}"}
    assert auditor.differing("decisions", mine, "standby") == ()
    (finding,) = auditor.differing("decisions", mine | {2: "f" * 64}, "standby")
    assert finding.predicate == "S11"
    assert "cycle 2" in finding.message
    assert "standby has fff" in finding.message


# Over a log


class _Held:
    """The part of an event log that the audit uses."""

    def __init__(self, log: LogBuilder) -> None:
        self.log = log

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> list[StoredRecord]:
        if not self.log.of(partition.topic):
            raise UnknownTopic(topic=partition.topic, partition=partition.number)
        return [
            StoredRecord(partition, e.offset, 0, e.record)
            for e in self.log.of(partition.topic)[offset : offset + max_records]
        ]


async def test_the_audit_reads_and_decodes_a_log_and_reports_findings(log: LogBuilder) -> None:
    whole_life(log)
    await assert_audit_clean(_Held(log))  # type: ignore[arg-type]
    log.raw("node-events")
    log.scheduler.cycle(allocated(B, placed("n1", 0), attempt=9))
    with pytest.raises(AssertionError, match=r"S2 node-events/\d+: undecodable[\s\S]+S4 decisions"):
        await assert_audit_clean(_Held(log))  # type: ignore[arg-type]
