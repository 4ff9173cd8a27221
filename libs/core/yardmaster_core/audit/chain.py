"""Select the batches of a machine's topic that count (S1); check that time never decreases (S10).

A batch counts if it is complete, comes from the owner of the highest term before it, and its `prev`
is the chain's head. A record of a lower term or of another incarnation is dropped without a
finding: terms exist to fence the writer of such a record. An incomplete or unchained batch of the
owner is a finding, but counts nevertheless, so that one fault is not reported again at each later
record.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from yardmaster_core.audit.findings import FedRecord, Report
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events.machine import (
    CycleCommittedV1,
    RulesEnabledV1,
    SnapshotTakenV1,
    TermStartedV1,
)

#: The chain's head before any record.
NO_HEAD: Final = "0" * 64


def record_digest(key: bytes, headers: Iterable[tuple[str, bytes]], value: bytes | None) -> bytes:
    """The SHA-256 of key, header names and contents, and value, each preceded by its length."""
    parts = [key]
    for name, content in headers:
        parts += (name.encode(), content)
    if value is not None:
        parts.append(value)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def range_digest(digests: Iterable[bytes]) -> str:
    """Return the digest (64 hex digits) of consecutive records from the digests of the records."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def unmarked(digests: Sequence[bytes], marks: str) -> int | None:
    """Return the index of the first record whose mark differs from its mark in `marks`, or None.

    A mark is the first 16 hex digits of a record's digest; `marks` concatenates the expected marks.
    If `marks` has more marks than there are records, the result is the number of records.
    """
    for index, digest in enumerate(digests):
        if marks[16 * index : 16 * index + 16] != digest[:8].hex():
            return index
    return None if len(marks) == 16 * len(digests) else len(digests)


@dataclass(frozen=True, slots=True)
class Batch:
    """A cycle that counts: its commit, and its decisions and observations (`records`)."""

    commit: FedRecord
    body: CycleCommittedV1
    records: tuple[FedRecord, ...]


class Chain:
    """The chain of commits of one machine's topic."""

    def __init__(self, topic: str, report: Report) -> None:
        self.topic = topic
        self.report = report
        self.term = 0
        self.owner = ""
        self.seq = 0
        self.head = NO_HEAD
        self.cycle = 0
        #: The version of the rules of the last cycle.
        self.rules = 0
        self.now_ms = 0
        #: The records of the current cycle, which has no commit yet.
        self.pending: list[FedRecord] = []
        #: Whether a fault of the current cycle was reported.
        self.reported = False
        #: The state's digest after each cycle.
        self.digests: dict[int, str] = {}

    def feed(self, fed: FedRecord) -> Batch | None:
        """Consume the next record; return the cycle that it completes, if the cycle counts."""
        envelope = fed.envelope
        if envelope is None:
            self._broken(fed, "expected a record of the machine, found undecodable bytes")
            return None
        if self.topic not in envelope.data.TOPICS:
            self._broken(fed, f"expected a record of the machine, found {envelope.type}")
            return None
        body = envelope.data
        if isinstance(body, TermStartedV1) and envelope.epoch > self.term:
            self._start_term(fed, envelope, body)
            return None
        if envelope.epoch > self.term:
            self._broken(fed, f"written in term {envelope.epoch}, but {self.term} is the newest")
            return None
        if envelope.epoch < self.term or envelope.source != self.owner:
            return None
        if envelope.seq != self.seq:
            self._broken(fed, f"expected seq {self.seq} of term {self.term}, found {envelope.seq}")
        self.seq = envelope.seq + 1
        if isinstance(body, CycleCommittedV1):
            return self._commit(fed, body)
        if isinstance(body, TermStartedV1):
            self._broken(fed, f"term {self.term} starts a second time")
            return None
        self.pending.append(fed)
        return None

    def _broken(self, fed: FedRecord, message: str) -> None:
        """Add a finding (S1), unless the current cycle has one already."""
        if not self.reported:
            self.report.add("S1", fed, message)
        self.reported = True

    def _start_term(self, fed: FedRecord, envelope: Envelope[Any], body: TermStartedV1) -> None:
        """Start a term: its writer becomes the owner, and records without a commit are dropped."""
        source = f"{body.machine}/{body.cell}.{body.incarnation}"
        if envelope.source != source or envelope.epoch != body.term:
            self._broken(
                fed, f"expected {source} to start term {body.term}, found {envelope.id} doing it"
            )
        elif body.term != self.term + 1:
            self._broken(fed, f"expected term {self.term + 1} to start, found {body.term}")
        self.term = envelope.epoch
        self.owner = envelope.source
        self.seq = envelope.seq + 1
        self.head = hashlib.sha256(bytes.fromhex(self.head) + fed.digest).hexdigest()
        self.pending.clear()
        self.reported = False

    def _commit(self, fed: FedRecord, body: CycleCommittedV1) -> Batch:
        """Return the cycle that the record `fed` commits; a cycle with a fault counts too."""
        records = tuple(self.pending)
        self.pending.clear()
        self._check(fed, body, records)
        self.reported = False
        if body.now_ms < self.now_ms:
            self.report.add(
                "S10",
                fed,
                f"cycle {body.cycle}: time decreases from {self.now_ms} to {body.now_ms} ms",
            )
        for record in records:
            record.batch_end = fed.offset
            if record.envelope is not None and isinstance(record.envelope.data, SnapshotTakenV1):
                self._snapshot(record, record.envelope.data)
        fed.batch_end = fed.offset
        self.digests[body.cycle] = body.state_digest
        self.head = fed.digest.hex()
        self.cycle = body.cycle
        self.rules = body.rules
        self.now_ms = max(self.now_ms, body.now_ms)
        return Batch(fed, body, records)

    def _check(
        self, fed: FedRecord, body: CycleCommittedV1, records: tuple[FedRecord, ...]
    ) -> None:
        """Report the first fault of a commit (S1): its position, its decisions or its rules."""
        where = f"cycle {body.cycle} of term {body.term}"
        digests = [record.digest for record in records]
        changed = unmarked(digests, body.decision_marks)
        if body.term != self.term:
            self._broken(fed, f"{where} was written in term {self.term}")
        elif body.cycle != self.cycle + 1:
            self._broken(fed, f"expected cycle {self.cycle + 1}, found {where}")
        elif body.decisions != len(records):
            self._broken(fed, f"{where}: expected {body.decisions} decisions, found {len(records)}")
        elif changed is not None:
            at = records[changed] if changed < len(records) else fed
            self._broken(at, f"it is not decision {changed + 1} of {where} as committed")
        elif body.decisions_digest != range_digest(digests):
            self._broken(fed, f"{where}: decisions_digest is not that of its decisions")
        elif body.prev != self.head:
            self._broken(
                fed, f"{where}: expected prev {self.head[:16]}..., found {body.prev[:16]}..."
            )
        elif body.rules != self.rules and self.cycle > 0 and not _enables(records, body.rules):
            self._broken(
                fed,
                f"{where}: rules change from {self.rules} to {body.rules} without a RulesEnabled",
            )
        elif above := [one for one in records if _introduced(one) > body.rules]:
            self._broken(
                above[0], f"{where}: rules {_introduced(above[0])} introduce it, not {body.rules}"
            )
        elif body.rules < self.rules:
            self._broken(fed, f"{where}: rules decrease from {self.rules} to {body.rules}")

    def _snapshot(self, fed: FedRecord, body: SnapshotTakenV1) -> None:
        """Check that a snapshot names the state digest that its cycle committed (S11)."""
        expected = self.digests.get(body.cycle, "of no counted cycle")
        if expected != body.state_digest:
            self.report.add(
                "S11",
                fed,
                f"snapshot of cycle {body.cycle}: expected state {expected[:20]}, "
                f"found {body.state_digest[:20]}",
            )


def _introduced(fed: FedRecord) -> int:
    """The version of the rules that introduces a record's event; 0 for an undecodable record."""
    return 0 if fed.envelope is None else fed.envelope.data.RULES


def _enables(records: Iterable[FedRecord], rules: int) -> bool:
    """Whether a cycle's records enable this version of the rules."""
    return any(
        one.envelope is not None and one.envelope.data == RulesEnabledV1(rules=rules)
        for one in records
    )
