"""Run the audit over the log that a test wrote."""

from typing import Any

from yardmaster_core.audit import Audit, Finding, record_digest
from yardmaster_eventlog import codec
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_schemas.envelope import Envelope
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
