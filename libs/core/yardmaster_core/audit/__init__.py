"""The auditor: folds the log into plain dicts and reports which guarantees the log breaks.

The auditor imports the schemas, but no code of the state machines, not even the code that selects
the batches that count: the audit would not find a bug that it shares with a machine. Each guarantee
is a predicate: S1 terms and the chain, S2 inputs, S3 slots, S4 attempts, S5 gangs, S6 quotas, S7
stops, S8 requests, S9 ends, S10 time, S11 folds. `chain.py` checks S1, this file S2, `limits.py`
S6, `verdicts.py` S8; `decisions.py` checks most of the others. `cluster.py` and `quotas.py` hold
the folded state.

The caller may feed the topics in any order, but the records of one topic in order from its start. A
cycle is checked as soon as its inputs were fed, so that the audit can run after every append.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from yardmaster_core.audit.chain import Batch, Chain, range_digest, record_digest, unmarked
from yardmaster_core.audit.cluster import Cluster
from yardmaster_core.audit.decisions import Decisions
from yardmaster_core.audit.findings import FedRecord, Finding, Report
from yardmaster_core.audit.verdicts import Verdicts
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events.machine import InputRange
from yardmaster_schemas.events.node_events import TaskStartedV1
from yardmaster_schemas.sources import written_by_agent
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, INPUT_ORDER, NODE_EVENTS, REQUESTS

__all__ = ["Audit", "Finding", "audit", "record_digest"]

#: The topic that a machine writes -> the topics that the machine consumes.
INPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    ADMISSIONS.name: (REQUESTS.name, DECISIONS.name),
    DECISIONS.name: (ADMISSIONS.name, NODE_EVENTS.name),
}


class Audit:
    """Audits the log of one cell.

    With `honest_agents`, S4 also covers TaskStarted records that the scheduler refused: an honest
    agent writes such a record only if the process exists. A test with hostile agents sets
    `honest_agents` to False.
    """

    def __init__(self, *, honest_agents: bool = True) -> None:
        self._report = Report()
        self._records: dict[str, list[FedRecord]] = {topic: [] for topic in INPUT_ORDER}
        self._chains = {topic: Chain(topic, self._report) for topic in INPUTS}
        #: Machine's topic -> its counted cycles that are not checked yet.
        self._waiting: dict[str, deque[Batch]] = {topic: deque() for topic in INPUTS}
        #: (machine's topic, input topic) -> the next offset to consume.
        self._taken = {(to, of): 0 for to, inputs in INPUTS.items() for of in inputs}
        self._verdicts = Verdicts(self._report)
        self._cluster = Cluster(self._report, honest_agents=honest_agents)
        self._decisions = Decisions(self._cluster)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings so far."""
        return tuple(self._report.findings)

    def feed(
        self, topic: str, partition: int, offset: int, envelope: Envelope[Any] | None, digest: bytes
    ) -> None:
        """Consume the next record of a topic; `envelope` is None if the record cannot be decoded.

        `digest` is the `record_digest` of the raw record. Only messages show `partition`, because
        an audit covers one cell. A record of a topic without effect on decisions is skipped. A gap
        in the offsets is a finding, and the missing records count as undecodable.
        """
        records = self._records.get(topic)
        if records is None:
            return
        fed = FedRecord(topic, offset, envelope, digest)
        if offset != len(records):
            self._report.add(
                "S2", fed, f"expected offset {len(records)} of {topic}/{partition}, found {offset}"
            )
            if offset < len(records):
                return
            records += [
                FedRecord(topic, missing, None, b"") for missing in range(len(records), offset)
            ]
        records.append(fed)
        chain = self._chains.get(topic)
        batch = chain.feed(fed) if chain is not None else None
        if batch is not None:
            self._waiting[topic].append(batch)
            self._not_split(batch)
        self._advance()

    def finish(self) -> tuple[Finding, ...]:
        """Return all findings after the last record was fed.

        A cycle that is still unchecked consumed records that the log does not have: each such cycle
        adds a finding (S2).
        """
        for waiting in self._waiting.values():
            for batch in waiting:
                missing = [
                    f"{r.topic} to {r.next} (ends at {len(self._records.get(r.topic, ()))})"
                    for r in batch.body.inputs
                    if not self._is_fed(r)
                ]
                if missing:
                    self._report.add(
                        "S2",
                        batch.commit,
                        f"cycle {batch.body.cycle} took {', '.join(missing)}",
                    )
            waiting.clear()
        return self.findings

    def differing(self, topic: str, digests: Mapping[int, str], fold: str) -> tuple[Finding, ...]:
        """Return a finding (S11) for each cycle whose committed state digest differs from
        `digests`.

        `topic` is the machine's topic with the commits, and `digests` maps cycles to the state
        digests that a reader computed. `fold` names that reader in messages: a standby, a replay, a
        snapshot with its tail.
        """
        committed = self._chains[topic].digests
        return tuple(
            Finding(
                "S11",
                topic,
                -1,
                f"cycle {cycle}: expected state {committed.get(cycle, 'of no counted cycle')}, "
                f"{fold} has {found}",
            )
            for cycle, found in sorted(digests.items())
            if committed.get(cycle) != found
        )

    # Cycles whose inputs were fed

    def _is_fed(self, taken: InputRange) -> bool:
        return taken.next <= len(self._records.get(taken.topic, ()))

    def _advance(self) -> None:
        """Check the waiting cycles, each as soon as all its inputs were fed."""
        progress = True
        while progress:
            progress = False
            for topic, waiting in self._waiting.items():
                while waiting and all(map(self._is_fed, waiting[0].body.inputs)):
                    self._check(topic, waiting.popleft())
                    progress = True

    def _check(self, topic: str, batch: Batch) -> None:
        """Consume the inputs of a cycle, then check its decisions or verdicts.

        Drops the envelopes that no later check reads, so each cycle can be checked only once.
        """
        body = batch.body
        scheduling = topic == DECISIONS.name
        if scheduling:
            self._cluster.now_ms = max(self._cluster.now_ms, body.now_ms)
            self._cluster.cycle = body.cycle
        refused = {(r.topic, offset) for r in body.refused for offset in range(r.first, r.last + 1)}
        for taken in sorted(body.inputs, key=_input_order):
            if (topic, taken.topic) not in self._taken:
                self._report.add(
                    "S2",
                    batch.commit,
                    f"cycle {body.cycle} took {taken.topic}, which is not an input",
                )
                continue
            for fed in self._take(topic, batch, taken):
                refused_here = (fed.topic, fed.offset) in refused
                refused.discard((fed.topic, fed.offset))
                self._consume(scheduling, fed, refused_here)
                if fed.topic != ADMISSIONS.name:
                    fed.envelope = None  # no later check reads it; saves memory with a long log
        if refused:
            where = ", ".join(f"{t}/{o}" for t, o in sorted(refused)[:8])
            self._report.add(
                "S2", batch.commit, f"cycle {body.cycle} refused what it did not take: {where}"
            )
        decide = self._decisions.decide if scheduling else self._verdicts.decide
        for record in batch.records:
            if record.envelope is not None:
                decide(record, record.envelope)
            if scheduling:
                record.envelope = None
        if body.complete:
            (self._decisions.end if scheduling else self._verdicts.end)(batch.commit)

    def _take(self, topic: str, batch: Batch, taken: InputRange) -> list[FedRecord]:
        """Return the records of the input range `taken`, and advance the position of the topic.

        Add a finding (S2) if the range does not follow the one before, or its records changed since
        the machine consumed them.
        """
        expected = self._taken[topic, taken.topic]
        where = f"cycle {batch.body.cycle}: {taken.topic} {taken.first} to before {taken.next}"
        self._taken[topic, taken.topic] = taken.next
        if taken.first != expected:
            self._report.add("S2", batch.commit, f"{where}, expected to continue at {expected}")
        first = max(taken.first, expected)
        records = self._records[taken.topic][first : taken.next]
        if first == taken.first:
            digests = [r.digest for r in records]
            changed = unmarked(digests, taken.marks)
            if changed is not None:
                at = records[changed] if changed < len(records) else batch.commit
                self._report.add("S2", at, f"{where}, changed since they were taken")
            elif range_digest(digests) != taken.digest:
                self._report.add("S2", batch.commit, f"{where}, the digest does not match")
        if records and records[-1].batch_end is not None and records[-1].batch_end >= taken.next:
            self._report.add("S2", batch.commit, f"{where}, part of a cycle")
        return records

    def _not_split(self, batch: Batch) -> None:
        """Check that no cycle took only a part of `batch`."""
        at = batch.commit
        for (to, of), taken in self._taken.items():
            if of == at.topic and batch.records and batch.records[0].offset < taken <= at.offset:
                self._report.add(
                    "S2", at, f"{to} took {of} to before {taken}, part of cycle {batch.body.cycle}"
                )

    def _consume(self, scheduling: bool, fed: FedRecord, refused_here: bool) -> None:
        """Apply one input of a cycle of the scheduler (`scheduling`) or of quota.

        Add a finding (S2) if the machine refused a record that it had to accept, or the reverse.
        `claim` is true for a record that no machine wrote: a request, or an event from a node.
        """
        envelope = fed.envelope
        claim = fed.topic in (REQUESTS.name, NODE_EVENTS.name)
        if refused_here and not claim:
            self._report.add("S2", fed, "refused, but a machine's record is never refused")
        if envelope is None:
            if claim and not refused_here:
                self._report.add("S2", fed, "undecodable: expected it refused")
        elif claim and not refused_here and fed.topic not in envelope.data.TOPICS:
            self._report.add("S2", fed, f"{envelope.type} in {fed.topic}: expected it refused")
        elif refused_here:
            body = envelope.data
            if isinstance(body, TaskStartedV1) and written_by_agent(
                envelope.source, body.node, body.incarnation
            ):
                self._cluster.started(fed, body, refused=True)
        elif not scheduling:
            if claim:
                self._verdicts.consume(fed, envelope)
        elif claim or fed.batch_end is not None:
            self._cluster.consume(fed, envelope)


def _input_order(taken: InputRange) -> tuple[int, int]:
    known = taken.topic in INPUT_ORDER
    return (INPUT_ORDER.index(taken.topic) if known else len(INPUT_ORDER), taken.partition)


def audit(
    records: Iterable[tuple[str, int, int, Envelope[Any] | None, bytes]],
    *,
    honest_agents: bool = True,
) -> tuple[Finding, ...]:
    """The findings in a log of records (topic, partition, offset, envelope or None, digest)."""
    auditor = Audit(honest_agents=honest_agents)
    for record in records:
        auditor.feed(*record)
    return auditor.finish()
