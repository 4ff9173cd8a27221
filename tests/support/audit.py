"""Run the audit over the log that a test wrote."""

from collections.abc import Iterable
from typing import Any

from yardmaster_core.audit import Audit, Finding, record_digest
from yardmaster_core.audit.cluster import Cluster
from yardmaster_core.audit.decisions import Decisions
from yardmaster_core.audit.findings import FedRecord, Report
from yardmaster_core.testing import CycleBegun, CycleEnded, EventApplied, Step
from yardmaster_eventlog import codec
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, NODE_EVENTS, REQUESTS

#: Outputs come before inputs: while a log still grows, every cycle read has all its inputs.
TOPICS = (DECISIONS, NODE_EVENTS, ADMISSIONS, REQUESTS)
MAX_RECORDS = 5000
SHOWN = 20


async def audit_log(
    log: EventLog, *, honest_agents: bool = True, partition: int = 0
) -> tuple[Finding, ...]:
    """Return the findings over the present records of one cell's partition."""
    auditor = Audit(honest_agents=honest_agents)
    for topic in TOPICS:
        where = Partition(topic.name, partition)
        offset = 0
        while True:
            try:
                stored = await log.read(where, offset, max_records=MAX_RECORDS)
            except UnknownTopic:
                break
            if not stored:
                break
            for each in stored:
                record = each.record
                envelope: Envelope[Any] | None
                try:
                    envelope = codec.decode(record)
                except SchemaError:
                    envelope = None
                digest = record_digest(record.key, record.headers, record.value)
                auditor.feed(topic.name, partition, each.offset, envelope, digest)
            offset = stored[-1].offset + 1
    return auditor.finish()


async def assert_audit_clean(
    log: EventLog, *, honest_agents: bool = True, partition: int = 0
) -> None:
    """Fail with the findings when the log breaks a promise.

    Use `honest_agents=False` when agents send false claims: then only accepted claims count.
    """
    findings = await audit_log(log, honest_agents=honest_agents, partition=partition)
    more = f"\n... and {len(findings) - SHOWN} more" if len(findings) > SHOWN else ""
    assert not findings, "the log breaks promises:\n" + "\n".join(map(str, findings[:SHOWN])) + more


def audit_steps(steps: Iterable[Step]) -> tuple[Finding, ...]:
    """Return the findings over what the scheduler of a `Cell` consumed and decided.

    Without a log there are no terms, ranges of inputs, or requests to check (S1, S2, S8).
    """
    report = Report()
    cluster = Cluster(report, honest_agents=False)
    decisions = Decisions(cluster)
    fed = FedRecord(DECISIONS.name, 0, None, b"")
    for at, step in enumerate(steps):
        match step:
            case CycleBegun(cycle, now_ms, _):
                cluster.cycle, cluster.now_ms = cycle, max(cluster.now_ms, now_ms)
            case EventApplied(event, record_id):
                envelope = _envelope(event, record_id, cluster.now_ms)
                claim = record_id.startswith("node/")
                topic = NODE_EVENTS if claim else ADMISSIONS if record_id else DECISIONS
                fed = FedRecord(topic.name, at, None, b"")
                if not record_id:
                    decisions.decide(fed, envelope)
                else:
                    cluster.consume(fed, envelope)
            case CycleEnded(complete):
                if complete:
                    decisions.end(fed)
    return tuple(report.findings)


def _envelope(event: Event, record_id: str, now_ms: int) -> Envelope[Any]:
    # A decision has no id in a `Cell`.
    source, epoch, seq = (record_id or "scheduler/main.000000000000/0/0").rsplit("/", 2)
    return Envelope(
        type=event.TYPE,
        version=event.VERSION,
        source=source,
        epoch=int(epoch),
        seq=int(seq),
        subject="x",
        time_ms=now_ms,
        actor=Actor(kind=ActorKind.SERVICE, id="cell"),
        data=event,
    )
