"""Decide which records of a machine's topic count: terms, owners, cycles, the chain of commits.

A machine's topic has TermStarted records, each followed by the cycles of that term. A cycle is a
sequence of decisions and a CycleCommitted that makes them valid. Every reader (leader, standby,
replay, relay, views) feeds the records in order to a `CommitReader` and acts only on the cycles
that it returns, so that all readers agree:

- A term belongs to the first incarnation that wrote its TermStarted. Later records of a lower term,
  or of another incarnation in the same term, are a fenced leader's late batch and are dropped. A
  batch that was appended before the higher term started counts, and the new leader reads the batch
  before it decides.
- A cycle may span several consecutive batches. Without its CycleCommitted no record of it counts,
  and the next term drops it.
- The version of the rules never decreases. After the first cycle it increases only in a cycle with
  a RulesEnabled.
- Each commit names the digests of the previous commit (`prev`), of its decisions and of its inputs.
  A mismatch raises `ChainBroken` or `ForeignRecord` with topic and offset; no record is skipped.

Digests. A record's digest is the SHA-256 of its key, the name and content of each header and its
value, each preceded by its length (8 bytes, big endian); a record without a value has no last part.
A range's digest is the SHA-256 of its records' digests. A mark is the first 8 bytes of a record's
digest, in hex. The head of the chain is the digest of the last counted CycleCommitted; a new term's
head is the SHA-256 of the previous head and the digest of its TermStarted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Any, Final

from yardmaster_core.errors import ChainBroken, ForeignRecord, SnapshotUnreadable
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.machine import (
    CycleCommittedV1,
    InputRange,
    RulesEnabledV1,
    TermStartedV1,
)

#: The head before the first commit.
GENESIS: Final = "0" * 64
MARK_DIGITS: Final = 16
_length = Struct(">Q").pack
#: Packed lengths, cached for the lengths of nearly all parts.
_LENGTHS: Final = tuple(map(_length, range(2048)))


class _FramedNames(dict[str, bytes]):
    """Header names, each preceded by its length; keeps only the first `LIMIT` names."""

    LIMIT: Final = 64

    def __missing__(self, name: str) -> bytes:
        raw = name.encode()
        framed = _length(len(raw)) + raw
        if len(self) < self.LIMIT:
            self[name] = framed
        return framed


_framed: Final = _FramedNames()


def record_digest(
    key: bytes, headers: Iterable[tuple[str, bytes]] | bytes, value: bytes | None
) -> bytes:
    """The SHA-256 digest of a record (32 bytes).

    Headers may be given as bytes in which each name and content is preceded by its length.
    """
    cached = len(_LENGTHS)
    parts = [_length(len(key)), key]
    if isinstance(headers, bytes):
        parts.append(headers)
    else:
        for name, content in headers:
            size = len(content)
            parts += (
                _framed[name],
                _LENGTHS[size] if size < cached else _length(size),
                content,
            )
    if value is not None:
        size = len(value)
        parts += (_LENGTHS[size] if size < cached else _length(size), value)
    return sha256(b"".join(parts)).digest()


def range_digest(digests: Sequence[bytes]) -> str:
    """The digest of consecutive records, 64 hex digits."""
    return sha256(b"".join(digests)).hexdigest()


def marks(digests: Sequence[bytes]) -> str:
    """The mark of each record: 16 hex digits per record, concatenated."""
    return "".join([digest[:8].hex() for digest in digests])


def first_unmarked(digests: Sequence[bytes], recorded: str) -> int | None:
    """Index of the first record whose mark differs from `recorded`; None if all marks are equal."""
    for index, digest in enumerate(digests):
        at = index * MARK_DIGITS
        if digest[:8].hex() != recorded[at : at + MARK_DIGITS]:
            return index
    return None if len(recorded) == len(digests) * MARK_DIGITS else len(digests)


def head_of_term(head: str, digest: bytes) -> str:
    """Return the head of the chain after a term started; `digest` is the TermStarted's digest."""
    return sha256(bytes.fromhex(head) + digest).hexdigest()


def source_of(machine: str, cell: str, incarnation: str) -> str:
    """The `source` that an incarnation of a machine writes into its records."""
    return f"{machine}/{cell}.{incarnation}"


@dataclass(frozen=True, slots=True)
class CountedCycle:
    """A cycle that counts: its decisions, including observations, and its commit."""

    #: Offset of the CycleCommitted.
    offset: int
    commit: CycleCommittedV1
    record_id: str
    #: (offset, decision), ascending.
    decisions: tuple[tuple[int, Envelope[Event]], ...]
    owner: str
    #: `seq` of the first record of the cycle.
    first_seq: int
    #: The rules in force when the cycle began: those of the cycle before, unless the leader itself
    #: enabled newer ones for the whole cycle. A RulesEnabled that answers a request applies to the
    #: decisions after it.
    rules: int

    @property
    def first_offset(self) -> int:
        """Offset of the cycle's first record."""
        return self.decisions[0][0] if self.decisions else self.offset


class CommitReader:
    """Reads one machine's topic in order and returns the cycles that count.

    Public attributes include the last record that was fed, except `cycle`, `rules`, `now_ms`,
    `complete`, `state_digest`, `inputs` and `boundary`, which only a counted commit changes. `dump`
    returns the reader at `boundary`.
    """

    __slots__ = (
        *("_at_boundary", "_buffer", "_digests", "_missing_after", "_outdone_by", "_terms"),
        *("actor", "boundary", "cell", "complete", "cycle", "dropped", "head", "inputs"),
        *("machine", "next", "now_ms", "owner"),
        *("prefix", "rules", "seq", "state_digest", "term", "topic"),
    )

    def __init__(self, machine: str, cell: str, topic: str) -> None:
        self.machine = machine
        self.cell = cell
        self.topic = topic
        self.prefix = source_of(machine, cell, "")
        self.actor = Actor(kind=ActorKind.SERVICE, id=machine)
        #: Offset of the record to feed next.
        self.next = 0
        self.term = 0
        #: Source of the incarnation that owns `term`; empty before the first.
        self.owner = ""
        #: `seq` that the owner's next record must have.
        self.seq = 0
        self.head = GENESIS
        #: Number of records that do not count: from fenced leaders and uncommitted cycles.
        self.dropped = 0
        #: The last counted cycle, its rules and time, and whether its decisions were complete.
        self.cycle = 0
        self.rules = 0
        self.now_ms = 0
        self.complete = True
        self.state_digest = ""
        #: (topic, partition) -> the next offset to consume from this input.
        self.inputs: dict[tuple[str, int], int] = {}
        #: Offset after the last counted CycleCommitted.
        self.boundary = 0
        #: The offset of a term that started since the last commit, and whether it dropped
        #: decisions; a term that did is preferred. A missing commit is reported at this offset.
        self._missing_after: tuple[int, bool] | None = None
        #: Since the last commit: (offset, term) of each term started, and the offset of the term
        #: that caused a commit of the next cycle to be dropped, if there was one.
        self._terms: list[tuple[int, int]] = []
        self._outdone_by: int | None = None
        self._buffer: list[tuple[int, Envelope[Event]]] = []
        self._digests: list[bytes] = []
        #: term, owner, seq, head and dropped as they were at `boundary`.
        self._at_boundary: tuple[int, str, int, str, int] = (0, "", 0, GENESIS, 0)

    @property
    def pending(self) -> int:
        """Number of records since the last commit; they count only if a commit follows."""
        return len(self._buffer)

    def feed(self, offset: int, digest: bytes, envelope: Envelope[Event]) -> CountedCycle | None:
        """Consume the topic's next record; return a cycle if the record is a commit that counts.

        Raises:
            ForeignRecord: this machine may not write such a record.
            ChainBroken: the record contradicts earlier records.
        """
        if offset != self.next:
            raise self._broken(self.next, f"no record; the next one has offset {offset}")
        data = envelope.data
        self._check_author(offset, envelope)
        if isinstance(data, TermStartedV1) and envelope.epoch > self.term:
            self._start_term(offset, digest, envelope, data)
            return None
        if envelope.epoch < self.term or (
            envelope.epoch == self.term and envelope.source != self.owner
        ):
            self.next = offset + 1
            self.dropped += 1
            if isinstance(data, CycleCommittedV1) and data.cycle == self.cycle + 1:
                self._outdone_by = self._outdone_by or self._first_term_above(envelope.epoch)
            return None
        if envelope.epoch > self.term:
            raise self._broken(
                offset, f"term {envelope.epoch} has not started; the newest is {self.term}"
            )
        if envelope.seq != self.seq:
            raise self._broken(offset, f"its seq is {envelope.seq}, expected {self.seq}")
        if isinstance(data, TermStartedV1):
            raise self._broken(offset, f"it starts term {self.term} a second time")
        counted = None
        if isinstance(data, CycleCommittedV1):
            counted = self._commit(offset, digest, envelope, data)
        else:
            self._buffer.append((offset, envelope))
            self._digests.append(digest)
            self.next = offset + 1
            self.seq += 1
        return counted

    def _check_author(self, offset: int, envelope: Envelope[Event]) -> None:
        """Raise ForeignRecord unless this machine may write the record to its topic."""
        if not envelope.source.startswith(self.prefix) or envelope.actor != self.actor:
            raise self._foreign(
                offset,
                f"it is written by {envelope.source} for {envelope.actor.kind} {envelope.actor.id}",
            )
        if self.topic not in envelope.data.TOPICS:
            raise self._foreign(offset, f"{envelope.type} does not belong to this topic")

    def _start_term(
        self, offset: int, digest: bytes, envelope: Envelope[Event], data: TermStartedV1
    ) -> None:
        """Start a term: its writer becomes the owner, and records without a commit are dropped."""
        if (data.term, data.cell, data.machine) != (envelope.epoch, self.cell, self.machine) or (
            source_of(self.machine, self.cell, data.incarnation) != envelope.source
        ):
            raise self._foreign(offset, "body and envelope of TermStarted disagree")
        if data.term != self.term + 1 or envelope.seq != 0:
            raise self._broken(
                offset, f"it starts term {data.term} (seq {envelope.seq}) after term {self.term}"
            )
        self.term = data.term
        self._terms.append((offset, data.term))
        self.owner = envelope.source
        self.seq = 1
        self.head = head_of_term(self.head, digest)
        if self._missing_after is None or (self._buffer and not self._missing_after[1]):
            self._missing_after = (offset, bool(self._buffer))
        self.dropped += len(self._buffer)
        self._buffer.clear()
        self._digests.clear()
        self.next = offset + 1

    def _first_term_above(self, term: int) -> int | None:
        """The offset at which the first term above `term` started since the last commit."""
        return next((offset for offset, started in self._terms if started > term), None)

    def _commit(
        self, offset: int, digest: bytes, envelope: Envelope[Event], data: CycleCommittedV1
    ) -> CountedCycle:
        """Check a commit of the owner; return its cycle, which counts from now on."""
        self._check_commit(offset, envelope, data)
        self._check_inputs(offset, data.inputs)
        self._check_decisions(offset, data)
        rules = self._check_rules(offset, data)
        counted = CountedCycle(
            offset=offset,
            commit=data,
            record_id=envelope.id,
            decisions=tuple(self._buffer),
            owner=self.owner,
            first_seq=self.seq - len(self._buffer),
            rules=rules,
        )
        self._buffer.clear()
        self._digests.clear()
        self._missing_after = self._outdone_by = None
        self._terms.clear()
        self.next = self.boundary = offset + 1
        self.seq += 1
        self.head = digest.hex()
        self.cycle = data.cycle
        self.rules = data.rules
        self.now_ms = data.now_ms
        self.complete = data.complete
        self.state_digest = data.state_digest
        for taken in data.inputs:
            self.inputs[taken.topic, taken.partition] = taken.next
        self._at_boundary = (self.term, self.owner, self.seq, self.head, self.dropped)
        return counted

    def _check_commit(self, offset: int, envelope: Envelope[Event], data: CycleCommittedV1) -> None:
        """Check that a commit continues the chain.

        If a commit before this one is missing, raise at the offset where a term started without it.
        """
        if (data.cell, data.machine, data.term) != (self.cell, self.machine, self.term):
            raise self._broken(
                offset, f"it commits for {data.machine} of {data.cell}, term {data.term}"
            )
        if data.now_ms != envelope.time_ms:
            raise self._broken(offset, "its envelope's time and its now_ms differ")
        missing = data.cycle > self.cycle + 1 and data.prev != self.head
        if missing and self._missing_after is not None:
            raise self._broken(
                self._missing_after[0] if self._outdone_by is None else self._outdone_by,
                f"a term starts without a commit of cycle {self.cycle + 1}, "
                f"although cycle {data.cycle} follows",
            )
        if data.cycle != self.cycle + 1:
            raise self._broken(offset, f"cycle {data.cycle} follows cycle {self.cycle}")
        if data.now_ms < self.now_ms:
            raise self._broken(offset, f"now_ms decreases from {self.now_ms} to {data.now_ms}")
        if data.prev != self.head:
            raise self._broken(offset, "prev is not the digest of the previous commit")

    def _check_inputs(self, offset: int, inputs: Sequence[InputRange]) -> None:
        """Check that each input range continues the one before and has a mark for each record."""
        seen = set()
        for taken in inputs:
            partition = (taken.topic, taken.partition)
            name = f"the input {taken.topic}/{taken.partition}"
            if partition in seen:
                raise self._broken(offset, f"{name} is listed twice")
            seen.add(partition)
            expected = self.inputs.get(partition, 0)
            if taken.first != expected:
                raise self._broken(
                    offset, f"{name} continues at {taken.first}, expected {expected}"
                )
            count = taken.next - taken.first
            if count <= 0 or len(taken.marks) != count * MARK_DIGITS:
                raise self._broken(offset, f"the range of {name} does not match its marks")

    def _check_decisions(self, offset: int, data: CycleCommittedV1) -> None:
        """Check the digest, the marks, the number and the time of a commit's decisions."""
        if range_digest(self._digests) != data.decisions_digest:
            index = first_unmarked(self._digests, data.decision_marks)
            if index is None:
                raise self._broken(offset, "the digest of its decisions does not match")
            at = self._buffer[index][0] if index < len(self._buffer) else offset
            raise self._broken(at, f"it is not decision {index + 1} of cycle {data.cycle}")
        if marks(self._digests) != data.decision_marks or data.decisions != len(self._digests):
            raise self._broken(offset, "the count or the marks of its decisions do not match")
        if any(decision.time_ms != data.now_ms for _, decision in self._buffer):
            raise self._broken(offset, "its decisions have another time")

    def _check_rules(self, offset: int, data: CycleCommittedV1) -> int:
        """Check the rules of a commit; return the rules in force when its cycle began."""
        enabled = [
            one.data.rules for _, one in self._buffer if isinstance(one.data, RulesEnabledV1)
        ]
        changed = self.cycle > 0 and data.rules != self.rules
        if data.rules < self.rules:
            raise self._broken(offset, f"its rules decrease from {self.rules} to {data.rules}")
        if enabled != ([data.rules] if changed else []):
            raise self._broken(
                offset,
                f"its rules are {data.rules} after {self.rules}, but its cycle enables {enabled}",
            )
        requested = False
        for at, decision in self._buffer:
            if isinstance(decision.data, RulesEnabledV1):
                requested = decision.cause is not None
            if data.rules < decision.data.RULES:
                raise self._broken(
                    at,
                    f"rules {decision.data.RULES} introduce {decision.type}, but its cycle has "
                    f"rules {data.rules}",
                )
        return self.rules if requested else data.rules

    def _broken(self, offset: int, found: str) -> ChainBroken:
        return ChainBroken(topic=self.topic, offset=offset, found=found)

    def _foreign(self, offset: int, found: str) -> ForeignRecord:
        return ForeignRecord(topic=self.topic, offset=offset, found=found)

    def dump(self) -> dict[str, Any]:
        """The reader at `boundary` as plain JSON; records after it must be fed again."""
        term, owner, seq, head, dropped = self._at_boundary
        return {
            "machine": self.machine,
            "cell": self.cell,
            "topic": self.topic,
            "next": self.boundary,
            "term": term,
            "owner": owner,
            "seq": seq,
            "head": head,
            "dropped": dropped,
            "cycle": self.cycle,
            "rules": self.rules,
            "now_ms": self.now_ms,
            "complete": self.complete,
            "state_digest": self.state_digest,
            "inputs": [[topic, number, at] for (topic, number), at in sorted(self.inputs.items())],
        }

    @classmethod
    def load(cls, dump: Any) -> "CommitReader":
        """The reader that `dump` returned.

        Raises:
            SnapshotUnreadable: the value is not such a dump.
        """
        try:
            reader = cls(str(dump["machine"]), str(dump["cell"]), str(dump["topic"]))
            reader.next = reader.boundary = int(dump["next"])
            reader.term, reader.owner = int(dump["term"]), str(dump["owner"])
            reader.seq, reader.head = int(dump["seq"]), str(dump["head"])
            reader.dropped, reader.cycle = int(dump["dropped"]), int(dump["cycle"])
            reader.rules = int(dump["rules"])
            reader.now_ms, reader.complete = int(dump["now_ms"]), bool(dump["complete"])
            reader.state_digest = str(dump["state_digest"])
            reader.inputs = {(str(t), int(n)): int(at) for t, n, at in dump["inputs"]}
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotUnreadable(found=f"reader: {type(error).__name__} {error}") from None
        reader._at_boundary = (reader.term, reader.owner, reader.seq, reader.head, reader.dropped)
        return reader
