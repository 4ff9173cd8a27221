"""Which records of a machine's topic count: terms and their owners, cycles, the chain of commits.

A machine's topic holds TermStarted records and, after each, the cycles of that term: some decisions
and a CycleCommitted that makes them valid. Every reader (leader, standby, replay, relay, views)
feeds the records in order to a `CommitReader` and acts on the cycles it gives back, so that all of
them agree:

- A term belongs to the first incarnation that wrote its TermStarted. What comes after from a lower
  term, or from another incarnation of the same one, is dropped: a fenced leader's late batch. Such
  a batch that lands before the higher term starts counts, and the new leader reads it before it
  decides.
- A cycle may lie in several consecutive batches; without its CycleCommitted none of it counts, and
  the next term drops it.
- The version of the rules never falls, and a log that has begun changes to higher ones only in a
  cycle with a RulesEnabled.
- Each commit names the digest of the one before (`prev`), of its decisions and of its inputs. What
  does not fit is loud (`ChainBroken`, `ForeignRecord`), with topic and offset; nothing is skipped.

Digests. A record's digest is the SHA-256 of its key, the name and content of each header and its
value, each preceded by its length (8 bytes, big endian); a record without a value has no last part.
A range's digest is the SHA-256 of its records' digests. A mark is the first 8 bytes of a record's
digest, in hex. The head of the chain is the digest of the last counted CycleCommitted; a new term's
head is the SHA-256 of the head before and the digest of its TermStarted.
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
#: The lengths that nearly all parts have, packed.
_LENGTHS: Final = tuple(map(_length, range(2048)))


class _Named(dict[str, bytes]):
    """Headers' names after their lengths; those of our own are few, others are not kept."""

    LIMIT: Final = 64

    def __missing__(self, name: str) -> bytes:
        raw = name.encode()
        framed = _length(len(raw)) + raw
        if len(self) < self.LIMIT:
            self[name] = framed
        return framed


_named: Final = _Named()


def record_digest(
    key: bytes, headers: Iterable[tuple[str, bytes]] | bytes, value: bytes | None
) -> bytes:
    """The 32 bytes that identify all of a record: nothing of it changes without them.

    Headers may come in one piece, each name and content after its length already.
    """
    few = len(_LENGTHS)
    parts = [_length(len(key)), key]
    if isinstance(headers, bytes):
        parts.append(headers)
    else:
        for name, content in headers:
            size = len(content)
            parts += (_named[name], _LENGTHS[size] if size < few else _length(size), content)
    if value is not None:
        size = len(value)
        parts += (_LENGTHS[size] if size < few else _length(size), value)
    return sha256(b"".join(parts)).digest()


def range_digest(digests: Sequence[bytes]) -> str:
    """The digest of consecutive records, 64 hex digits."""
    return sha256(b"".join(digests)).hexdigest()


def marks(digests: Sequence[bytes]) -> str:
    """The first 8 bytes of each record's digest: 16 hex digits a record."""
    return "".join([digest[:8].hex() for digest in digests])


def first_unmarked(digests: Sequence[bytes], recorded: str) -> int | None:
    """Index of the first record whose mark is not the recorded one; None when all are."""
    for index, digest in enumerate(digests):
        at = index * MARK_DIGITS
        if digest[:8].hex() != recorded[at : at + MARK_DIGITS]:
            return index
    return None if len(recorded) == len(digests) * MARK_DIGITS else len(digests)


def head_of_term(head: str, digest: bytes) -> str:
    """The head of the chain once a term has begun after `head`; `digest` is its TermStarted's."""
    return sha256(bytes.fromhex(head) + digest).hexdigest()


def source_of(machine: str, cell: str, incarnation: str) -> str:
    """What a machine's incarnation calls itself in its records."""
    return f"{machine}/{cell}.{incarnation}"


@dataclass(frozen=True, slots=True)
class CountedCycle:
    """A cycle that counts: its decisions (observations included) and its commit."""

    #: Offset of the CycleCommitted.
    offset: int
    commit: CycleCommittedV1
    record_id: str
    #: Each with its offset, ascending.
    decisions: tuple[tuple[int, Envelope[Event]], ...]
    owner: str
    #: `seq` of the first record of the cycle.
    first_seq: int

    @property
    def first_offset(self) -> int:
        """Offset of the cycle's first record."""
        return self.decisions[0][0] if self.decisions else self.offset


class CommitReader:
    """Reads one machine's topic in order and tells which cycles count.

    What is public is as of the last record fed, but for `cycle`, `rules`, `now_ms`, `complete`,
    `inputs` and `boundary`, which change only with a counted commit. `dump` gives the state at
    `boundary`.
    """

    __slots__ = (
        *("_base", "_buffer", "_digests", "actor", "boundary", "cell", "complete", "cycle"),
        *(
            "_ended_at",
            "_starts",
            "_suspect",
            "dropped",
            "head",
            "inputs",
            "machine",
            "next",
            "now_ms",
            "owner",
        ),
        *("prefix", "rules", "seq", "state_digest", "term", "topic"),
    )

    def __init__(self, machine: str, cell: str, topic: str) -> None:
        self.machine = machine
        self.cell = cell
        self.topic = topic
        self.prefix = source_of(machine, cell, "")
        self.actor = Actor(kind=ActorKind.SERVICE, id=machine)
        #: Offset of the record to be fed next.
        self.next = 0
        self.term = 0
        #: Source of the incarnation that owns `term`; empty before the first.
        self.owner = ""
        #: `seq` that the owner's next record must have.
        self.seq = 0
        self.head = GENESIS
        #: Records that do not count: of fenced leaders, and of cycles never committed.
        self.dropped = 0
        #: The last counted cycle, its rules, its time, and whether it decided all there was to
        #: decide.
        self.cycle = 0
        self.rules = 0
        self.now_ms = 0
        self.complete = True
        self.state_digest = ""
        #: The offset each input is taken up to, by (topic, partition).
        self.inputs: dict[tuple[str, int], int] = {}
        #: Offset after the last counted CycleCommitted.
        self.boundary = 0
        #: Since the last commit: where a term began, best one that dropped decisions, and whether
        #: it did. A commit that is missed was there.
        self._ended_at: tuple[int, bool] | None = None
        #: Since the last commit: where which terms began, and the one that outdid a commit of the
        #: cycle that should have been next, if one did. A cycle that is missed was dropped for it.
        self._starts: list[tuple[int, int]] = []
        self._suspect: int | None = None
        self._buffer: list[tuple[int, Envelope[Event]]] = []
        self._digests: list[bytes] = []
        self._base: tuple[int, str, int, str, int] = (0, "", 0, GENESIS, 0)

    @property
    def pending(self) -> int:
        """Records since the last commit that count only if one follows."""
        return len(self._buffer)

    def feed(self, offset: int, digest: bytes, envelope: Envelope[Event]) -> CountedCycle | None:
        """Take the topic's next record; returns a cycle when the record is a commit that counts.

        Raises:
            ForeignRecord: the record is not this machine's to write.
            ChainBroken: the record contradicts those before it.
        """
        if offset != self.next:
            raise self._broken(self.next, f"no record; the next one is at offset {offset}")
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
                self._suspect = self._suspect or self._outdone(envelope.epoch)
            return None
        if envelope.epoch > self.term:
            raise self._broken(
                offset, f"term {envelope.epoch} has not started; the newest is {self.term}"
            )
        if envelope.seq != self.seq:
            raise self._broken(offset, f"has seq {envelope.seq} where {self.seq} must follow")
        if isinstance(data, TermStartedV1):
            raise self._broken(offset, f"starts term {self.term} again")
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
        if not envelope.source.startswith(self.prefix) or envelope.actor != self.actor:
            raise self._foreign(
                offset,
                f"written by {envelope.source} for {envelope.actor.kind} {envelope.actor.id}",
            )
        if self.topic not in envelope.data.TOPICS:
            raise self._foreign(offset, f"{envelope.type} does not belong in this topic")

    def _start_term(
        self, offset: int, digest: bytes, envelope: Envelope[Event], data: TermStartedV1
    ) -> None:
        if (data.term, data.cell, data.machine) != (envelope.epoch, self.cell, self.machine) or (
            source_of(self.machine, self.cell, data.incarnation) != envelope.source
        ):
            raise self._foreign(offset, "body and envelope of TermStarted disagree")
        if data.term != self.term + 1 or envelope.seq != 0:
            raise self._broken(
                offset, f"starts term {data.term} (seq {envelope.seq}) after term {self.term}"
            )
        self.term = data.term
        self._starts.append((offset, data.term))
        self.owner = envelope.source
        self.seq = 1
        self.head = head_of_term(self.head, digest)
        if self._ended_at is None or (self._buffer and not self._ended_at[1]):
            self._ended_at = (offset, bool(self._buffer))
        self.dropped += len(self._buffer)
        self._buffer.clear()
        self._digests.clear()
        self.next = offset + 1

    def _outdone(self, term: int) -> int | None:
        """Where the first higher term since the last commit began."""
        return next((offset for offset, started in self._starts if started > term), None)

    def _commit(
        self, offset: int, digest: bytes, envelope: Envelope[Event], data: CycleCommittedV1
    ) -> CountedCycle:
        self._check_commit(offset, envelope, data)
        self._check_inputs(offset, data.inputs)
        self._check_decisions(offset, data)
        self._check_rules(offset, data)
        counted = CountedCycle(
            offset=offset,
            commit=data,
            record_id=envelope.id,
            decisions=tuple(self._buffer),
            owner=self.owner,
            first_seq=self.seq - len(self._buffer),
        )
        self._buffer.clear()
        self._digests.clear()
        self._ended_at = self._suspect = None
        self._starts.clear()
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
        self._base = (self.term, self.owner, self.seq, self.head, self.dropped)
        return counted

    def _check_commit(self, offset: int, envelope: Envelope[Event], data: CycleCommittedV1) -> None:
        if (data.cell, data.machine, data.term) != (self.cell, self.machine, self.term):
            raise self._broken(
                offset, f"commits for {data.machine} of {data.cell}, term {data.term}"
            )
        if data.now_ms != envelope.time_ms:
            raise self._broken(offset, "its time and its now_ms differ")
        missed = data.cycle > self.cycle + 1 and data.prev != self.head
        if missed and self._ended_at is not None:
            raise self._broken(
                self._ended_at[0] if self._suspect is None else self._suspect,
                f"a term begins without a commit of cycle {self.cycle + 1}, "
                f"though cycle {data.cycle} follows it",
            )
        if data.cycle != self.cycle + 1:
            raise self._broken(offset, f"cycle {data.cycle} follows cycle {self.cycle}")
        if data.now_ms < self.now_ms:
            raise self._broken(offset, f"now_ms falls from {self.now_ms} to {data.now_ms}")
        if data.prev != self.head:
            raise self._broken(offset, "prev is not the digest of what it follows")

    def _check_inputs(self, offset: int, inputs: Sequence[InputRange]) -> None:
        seen = set()
        for taken in inputs:
            place = (taken.topic, taken.partition)
            where = f"the input {taken.topic}/{taken.partition}"
            if place in seen:
                raise self._broken(offset, f"{where} is taken twice")
            seen.add(place)
            if taken.first != self.inputs.get(place, 0):
                raise self._broken(
                    offset,
                    f"{where} goes on at {taken.first}, not at {self.inputs.get(place, 0)}",
                )
            count = taken.next - taken.first
            if count <= 0 or len(taken.marks) != count * MARK_DIGITS:
                raise self._broken(offset, f"the range of {where} does not fit its marks")

    def _check_decisions(self, offset: int, data: CycleCommittedV1) -> None:
        if range_digest(self._digests) != data.decisions_digest:
            index = first_unmarked(self._digests, data.decision_marks)
            if index is None:
                raise self._broken(offset, "the digest of its decisions is another")
            at = self._buffer[index][0] if index < len(self._buffer) else offset
            raise self._broken(at, f"is not decision {index + 1} of cycle {data.cycle}")
        if marks(self._digests) != data.decision_marks or data.decisions != len(self._digests):
            raise self._broken(offset, "count and marks of its decisions are others")
        if any(decision.time_ms != data.now_ms for _, decision in self._buffer):
            raise self._broken(offset, "its decisions were made at another time")

    def _check_rules(self, offset: int, data: CycleCommittedV1) -> None:
        enabled = [
            one.data.rules for _, one in self._buffer if isinstance(one.data, RulesEnabledV1)
        ]
        changed = self.cycle > 0 and data.rules != self.rules
        if data.rules < self.rules:
            raise self._broken(offset, f"its rules fall from {self.rules} to {data.rules}")
        if enabled != ([data.rules] if changed else []):
            raise self._broken(
                offset,
                f"its rules are {data.rules} after {self.rules}, but its cycle enables {enabled}",
            )

    def _broken(self, offset: int, found: str) -> ChainBroken:
        return ChainBroken(topic=self.topic, offset=offset, found=found)

    def _foreign(self, offset: int, found: str) -> ForeignRecord:
        return ForeignRecord(topic=self.topic, offset=offset, found=found)

    def dump(self) -> dict[str, Any]:
        """The reader as of `boundary`, as plain JSON; what was fed after it is to be fed again."""
        term, owner, seq, head, dropped = self._base
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
        """The reader that `dump` gave.

        Raises:
            SnapshotUnreadable: it is no such dump.
        """
        try:
            reader = cls(str(dump["machine"]), str(dump["cell"]), str(dump["topic"]))
            reader.next = reader.boundary = int(dump["next"])
            reader.term, reader.owner = int(dump["term"]), str(dump["owner"])
            reader.seq, reader.head = int(dump["seq"]), str(dump["head"])
            reader.dropped, reader.cycle = int(dump["dropped"]), int(dump["cycle"])
            # Snapshots taken before rules were recorded do not have them.
            reader.rules = int(dump.get("rules", 0))
            reader.now_ms, reader.complete = int(dump["now_ms"]), bool(dump["complete"])
            reader.state_digest = str(dump["state_digest"])
            reader.inputs = {(str(t), int(n)): int(at) for t, n, at in dump["inputs"]}
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotUnreadable(found=f"reader: {type(error).__name__} {error}") from None
        reader._base = (reader.term, reader.owner, reader.seq, reader.head, reader.dropped)
        return reader
