"""Which batches of a machine's topic count (S1); that its time never falls (S10).

A batch counts when it is whole, from the owner of the highest term before it, and its `prev` is the
chain's head. Records of a lower term, or of another incarnation's, are dropped without a word: that
is what terms are for. A batch of the owner that is not whole or not chained is a finding, and
counts all the same, so that one fault is told once and not again at every later record.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from yardmaster_core.audit.findings import Report, Seen
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
    """32 bytes: sha256 of key, each header's name and content, and value, each after its length."""
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
    """64 hex digits for consecutive records, from the digest of each."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def unmarked(digests: Sequence[bytes], marks: str) -> int | None:
    """Index of the first record that is not as `marks` (16 hex digits each) says, or None."""
    for index, digest in enumerate(digests):
        if marks[16 * index : 16 * index + 16] != digest[:8].hex():
            return index
    return None if len(marks) == 16 * len(digests) else len(digests)


@dataclass(frozen=True, slots=True)
class Batch:
    """A cycle that counts: its commit, and what it decided and observed."""

    commit: Seen
    body: CycleCommittedV1
    records: tuple[Seen, ...]


class Chain:
    """One machine's topic, record by record."""

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
        self.pending: list[Seen] = []
        #: Whether a fault of the cycle at hand was told already.
        self.told = False
        #: The state's digest after each cycle.
        self.digests: dict[int, str] = {}

    def feed(self, seen: Seen) -> Batch | None:
        """Take the next record; returns the cycle that it completes, if that counts."""
        envelope = seen.envelope
        if envelope is None:
            self._broken(seen, "expected a record of the machine, found undecodable bytes")
            return None
        if self.topic not in envelope.data.TOPICS:
            self._broken(seen, f"expected a record of the machine, found {envelope.type}")
            return None
        body = envelope.data
        if isinstance(body, TermStartedV1) and envelope.epoch > self.term:
            self._start_term(seen, envelope, body)
            return None
        if envelope.epoch > self.term:
            self._broken(seen, f"written in term {envelope.epoch}, but {self.term} is the newest")
            return None
        if envelope.epoch < self.term or envelope.source != self.owner:
            return None
        if envelope.seq != self.seq:
            self._broken(seen, f"expected seq {self.seq} of term {self.term}, found {envelope.seq}")
        self.seq = envelope.seq + 1
        if isinstance(body, CycleCommittedV1):
            return self._commit(seen, body)
        if isinstance(body, TermStartedV1):
            self._broken(seen, f"term {self.term} starts a second time")
            return None
        self.pending.append(seen)
        return None

    def _broken(self, seen: Seen, message: str) -> None:
        if not self.told:
            self.report.add("S1", seen, message)
        self.told = True

    def _start_term(self, seen: Seen, envelope: Envelope[Any], body: TermStartedV1) -> None:
        source = f"{body.machine}/{body.cell}.{body.incarnation}"
        if envelope.source != source or envelope.epoch != body.term:
            self._broken(
                seen, f"expected {source} to start term {body.term}, found {envelope.id} doing it"
            )
        elif body.term != self.term + 1:
            self._broken(seen, f"expected term {self.term + 1} to start, found {body.term}")
        self.term = envelope.epoch
        self.owner = envelope.source
        self.seq = envelope.seq + 1
        self.head = hashlib.sha256(bytes.fromhex(self.head) + seen.digest).hexdigest()
        self.pending.clear()
        self.told = False

    def _commit(self, seen: Seen, body: CycleCommittedV1) -> Batch:
        records = tuple(self.pending)
        self.pending.clear()
        self._check(seen, body, records)
        self.told = False
        if body.now_ms < self.now_ms:
            self.report.add(
                "S10", seen, f"cycle {body.cycle}: now falls from {self.now_ms} to {body.now_ms} ms"
            )
        for record in records:
            record.batch_end = seen.offset
            if record.envelope is not None and isinstance(record.envelope.data, SnapshotTakenV1):
                self._snapshot(record, record.envelope.data)
        seen.batch_end = seen.offset
        self.digests[body.cycle] = body.state_digest
        self.head = seen.digest.hex()
        self.cycle = body.cycle
        self.rules = body.rules
        self.now_ms = max(self.now_ms, body.now_ms)
        return Batch(seen, body, records)

    def _check(self, seen: Seen, body: CycleCommittedV1, records: tuple[Seen, ...]) -> None:
        where = f"cycle {body.cycle} of term {body.term}"
        digests = [record.digest for record in records]
        changed = unmarked(digests, body.decision_marks)
        if body.term != self.term:
            self._broken(seen, f"{where} was written in term {self.term}")
        elif body.cycle != self.cycle + 1:
            self._broken(seen, f"expected cycle {self.cycle + 1}, found {where}")
        elif body.decisions != len(records):
            self._broken(
                seen, f"{where}: expected {body.decisions} decisions, found {len(records)}"
            )
        elif changed is not None:
            at = records[changed] if changed < len(records) else seen
            self._broken(at, f"not decision {changed + 1} of {where} as it was committed")
        elif body.decisions_digest != range_digest(digests):
            self._broken(seen, f"{where}: decisions_digest is not that of its decisions")
        elif body.prev != self.head:
            self._broken(
                seen, f"{where}: expected prev {self.head[:16]}..., found {body.prev[:16]}..."
            )
        elif body.rules != self.rules and self.cycle > 0 and not _enables(records, body.rules):
            self._broken(
                seen,
                f"{where}: rules change from {self.rules} to {body.rules}, which nothing enables",
            )
        elif body.rules < self.rules:
            self._broken(seen, f"{where}: rules fall from {self.rules} to {body.rules}")

    def _snapshot(self, seen: Seen, body: SnapshotTakenV1) -> None:
        expected = self.digests.get(body.cycle, "of no counted cycle")
        if expected != body.state_digest:
            self.report.add(
                "S11",
                seen,
                f"snapshot of cycle {body.cycle}: expected state {expected[:20]}, "
                f"found {body.state_digest[:20]}",
            )


def _enables(records: Iterable[Seen], rules: int) -> bool:
    """Whether a cycle's records switch the log to this version of the rules."""
    return any(
        one.envelope is not None and one.envelope.data == RulesEnabledV1(rules=rules)
        for one in records
    )
