"""The audit over a whole log: feeding order, inputs (S2), folds of others (S11), a real log."""

import random

import pytest

from tests.support.audit import assert_audit_clean
from tests.support.logs import (
    START_MS,
    LogBuilder,
    admitted,
    allocated,
    exited,
    incarnation,
    joined,
    placed,
    released,
    submitted,
)
from tests.unit.core.audit.cell_log import (
    GANG,
    JOB,
    OTHER,
    THIRD,
    A,
    B,
    C,
    admit,
    expect_one,
    finish,
    found,
    preempted,
    requeued,
    run,
    silent,
    stopped,
)
from yardmaster_core.audit import Audit, audit
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.port import Partition, StoredRecord
from yardmaster_schemas.events.admissions import (
    CancelAcceptedV1,
)
from yardmaster_schemas.events.decisions import (
    LossCause,
    NodeLostV1,
    Outcome,
    TaskEndedV1,
)
from yardmaster_schemas.events.machine import SnapshotTakenV1
from yardmaster_schemas.events.node_events import NodeDrainedV1, ReplicaRef
from yardmaster_schemas.events.requests import (
    CancelRequestedV1,
)
from yardmaster_schemas.reasons import (
    EndCode,
    RefusalCode,
    StopCode,
)


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
