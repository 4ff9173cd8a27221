"""A log of a cell, written by hand, in which a test plants one violation."""

from typing import Any

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
from yardmaster_core.audit import Finding, audit
from yardmaster_schemas.events.decisions import (
    LossCause,
    NodeLostV1,
    NodeSilenceObservedV1,
    Outcome,
    PreemptionRequestedV1,
    StopOverdueV1,
    StopRequestedV1,
    TaskEndedV1,
    TaskRequeuedV1,
)
from yardmaster_schemas.events.node_events import ReplicaRef
from yardmaster_schemas.events.requests import (
    PoolChangeRequestedV1,
    ProjectChangeRequestedV1,
)
from yardmaster_schemas.reasons import (
    EndCode,
    PolicyStop,
    Stop,
    StopCode,
)

JOB, OTHER, THIRD = "aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"
A, B, C = f"{JOB}.0", f"{OTHER}.0", f"{THIRD}.0"
GANG = {"replicas_min": 2, "replicas_max": 2}
PAIR = (placed("n1", 0), placed("n2", 0, replica=1))


def admit(log: LogBuilder, *jobs: str, **spec: Any) -> None:
    """Submit and admit."""
    for job in jobs:
        log.judged(submitted(job), admitted(job, **spec))


def cell_log() -> LogBuilder:
    """The log of a cell with a pool of two nodes of four slots, and a project; nothing
    submitted.
    """
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


def overdue(task: str, deadline_at_ms: int) -> StopOverdueV1:
    return StopOverdueV1(
        task_id=task, attempt=1, pool="default", nodes=("n1",), deadline_at_ms=deadline_at_ms
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
