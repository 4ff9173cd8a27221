"""A machine's inputs: read in order, accepted or refused, consumed in ranges that a commit names.

There are two kinds. Claims (`requests`, `node-events`) are taken record by record; an invalid claim
is refused and changes nothing. Another machine's topic (`admissions`) is consumed in whole counted
cycles, so that a fenced leader's records are never applied and no reader sees half a cycle.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from yardmaster_core.commit import CommitReader, CountedCycle, marks, range_digest
from yardmaster_core.machine import Machine
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import Partition, StoredRecord
from yardmaster_eventlog.reader import Cursor
from yardmaster_runtime.cycle_reader import CycleReader
from yardmaster_runtime.errors import ReplayDiverged
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError, UnknownEventType, UnknownVersion
from yardmaster_schemas.events.machine import (
    InputRange,
    RefusedRange,
    RulesEnabledV1,
    SnapshotTakenV1,
)
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import Topic

S = TypeVar("S")

_SCHEMA_CODES: Final = {
    UnknownEventType: RefusalCode.UNKNOWN_TYPE,
    UnknownVersion: RefusalCode.UNKNOWN_VERSION,
}


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A refused claim, the reason code, and details that may quote the record."""

    stored: StoredRecord
    code: RefusalCode
    found: str


@dataclass(slots=True)
class TakenRange:
    """The records that a cycle took from one input."""

    partition: Partition
    first: int
    digests: list[bytes] = field(default_factory=list)
    refused: list[RefusedRecord] = field(default_factory=list)
    accepted: list[Envelope[Event]] = field(default_factory=list)

    def range(self) -> InputRange:
        """Return the range as a commit names it."""
        return InputRange(
            topic=self.partition.topic,
            partition=self.partition.number,
            first=self.first,
            next=self.first + len(self.digests),
            digest=range_digest(self.digests),
            marks=marks(self.digests),
        )


def refused_ranges(refused: Sequence[RefusedRecord]) -> list[RefusedRange]:
    """Return adjacent records with the same reason as one range; `refused` is in offset order."""
    ranges: list[tuple[RefusedRecord, int]] = []
    for one in refused:
        if ranges:
            first, last = ranges[-1]
            if (
                first.code is one.code
                and first.stored.partition == one.stored.partition
                and last + 1 == one.stored.offset
            ):
                ranges[-1] = (first, one.stored.offset)
                continue
        ranges.append((one, one.stored.offset))
    return [
        RefusedRange(
            topic=first.stored.partition.topic,
            partition=first.stored.partition.number,
            first=first.stored.offset,
            last=last,
            code=first.code,
        )
        for first, last in ranges
    ]


def check_claim(
    machine: Machine[S], state: S, rules: int, key: bytes, stored: StoredRecord
) -> Envelope[Event] | RefusedRecord:
    """Return the claim's event, or the reason why this state refuses it under these rules."""
    try:
        envelope = decode(stored.record)
    except SchemaError as error:
        code = _SCHEMA_CODES.get(type(error), RefusalCode.MALFORMED)
        return RefusedRecord(stored, code, str(error))
    if stored.partition.topic not in envelope.data.TOPICS:
        return RefusedRecord(
            stored, RefusalCode.WRONG_TOPIC, f"{envelope.type} belongs to another topic"
        )
    if stored.record.key != key:
        return RefusedRecord(stored, RefusalCode.WRONG_CELL, "its key names another cell")
    if rules < envelope.data.RULES:
        # A program that has only the older rules does not know the event, and refuses it with the
        # same code.
        first = envelope.version == 1
        code = RefusalCode.UNKNOWN_TYPE if first else RefusalCode.UNKNOWN_VERSION
        found = f"rules {envelope.data.RULES} introduce {envelope.type}, {rules} are in force"
        return RefusedRecord(stored, code, found)
    refusal = machine.refusal(state, envelope)
    if refusal is not None:
        return RefusedRecord(stored, refusal, f"{envelope.type} of {envelope.source}")
    return envelope


class MachineInput(CycleReader):
    """Another machine's topic as an input, consumed in whole counted cycles.

    It may have read the start of a cycle that is not committed yet; only records before the
    reader's `boundary` are taken.
    """

    def __init__(self, cursor: Cursor, reader: CommitReader) -> None:
        super().__init__(cursor, reader)
        #: Digests of the records after the last taken cycle.
        self._digests: list[bytes] = []
        #: The reader's dump from before the cycles that were read but that no commit has taken yet.
        self._before: dict[str, Any] | None = None

    def dump(self) -> dict[str, Any]:
        """Return the reader after the last cycle that a commit took, as plain JSON."""
        return self.reader.dump() if self._before is None else self._before

    def committed(self) -> None:
        """Note that a commit takes all cycles read so far."""
        self._before = None

    def feed(
        self, stored: StoredRecord, envelope: Envelope[Event] | None = None
    ) -> CountedCycle | None:
        """Feed the topic's next record; keep its digest until its cycle is taken."""
        counted = super().feed(stored, envelope)
        self._digests.append(self.digest)
        return counted

    def take_counted(self, limit: int) -> TakenRange | None:
        """Take buffered whole cycles until they have `limit` records; None without a whole cycle.

        A cycle larger than the limit is taken too.
        """
        taken = TakenRange(self.cursor.partition, self.reader.boundary)
        if self._before is None:
            self._before = self.reader.dump()
        while len(self.cursor) and len(taken.digests) < limit:
            counted = self.feed(self.cursor.pop())
            if counted is not None:
                taken.digests += self._digests
                self._digests = []
                taken.accepted += events_of(counted)
        return taken if taken.digests else None

    def take_until(self, records: Sequence[StoredRecord], cycle: int) -> TakenRange:
        """Take the cycles that a commit took; `records` are all their records.

        Raises:
            ReplayDiverged: the records end within a cycle.
        """
        taken = TakenRange(self.cursor.partition, self.reader.boundary)
        for stored in records:
            counted = self.feed(stored)
            if counted is not None:
                taken.accepted += events_of(counted)
        taken.digests, self._digests = self._digests, []
        if self.reader.boundary != self.reader.next:
            raise ReplayDiverged(
                topic=self.cursor.partition.topic,
                partition=self.cursor.partition.number,
                offset=self.reader.next - 1,
                cycle=cycle,
                found="a commit took records up to here, which is within a cycle",
            )
        return taken


def events_of(counted: CountedCycle) -> list[Envelope[Event]]:
    """Return a cycle's decisions that are inputs of other machines.

    These are all its decisions except those that record the work of the runtime itself.
    """
    return [
        envelope
        for _, envelope in counted.decisions
        if type(envelope.data) not in (SnapshotTakenV1, RulesEnabledV1)
    ]


def writer_of(topic: Topic) -> str:
    """The machine that is the topic's only writer."""
    return topic.writers[0]


def cursor_of(source: Cursor | MachineInput) -> Cursor:
    """The cursor of an input of either kind."""
    return source.cursor if isinstance(source, MachineInput) else source
