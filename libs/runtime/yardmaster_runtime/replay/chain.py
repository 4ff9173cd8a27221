"""Checks the hash chain of a cell's log alone: nothing is decided again, and no state is built.

The chain shows that no record was changed, removed, inserted or moved since a commit named it: the
records of a machine by the commit of their cycle, its inputs by the commit that took them, and each
commit by the next one. It does not show that the decisions follow from their inputs, and it says
nothing about `details`, which requests name by digest.

Most records are not decoded. Their digests cover their headers and values, so these are as they
were when the commit was written.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from yardmaster_core.commit import CountedCycle
from yardmaster_core.errors import ForeignRecord
from yardmaster_core.machine import Machine
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.parallel import Progress, unreported
from yardmaster_runtime.replay.origin import begin
from yardmaster_runtime.replay.report import ChainProof, Finding
from yardmaster_runtime.replay.verify import replay, unproved_of
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import MalformedRecord, SchemaError, UnknownEventType
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.events.machine import CycleCommittedV1, RulesEnabledV1, TermStartedV1
from yardmaster_schemas.instants import parse_rfc3339
from yardmaster_schemas.upcasters import UPCASTERS

S = TypeVar("S")
#: The events whose content is part of the chain.
_DECODED: Final = {one.TYPE for one in (CycleCommittedV1, RulesEnabledV1, TermStartedV1)}


class ChainFold(Fold[S]):
    """Reads a machine's topic and the ranges that its commits took, and compares digests."""

    def __init__(
        self, log: EventLog, machine: Machine[S], cell: str, partition: int, *, dump: Any
    ) -> None:
        super().__init__(log, machine, cell, partition=partition, dump=dump)
        self.from_cycle = self.reader.cycle
        self.terms = 0 if dump is None else 1
        self.cycles = self.decisions = self.taken = 0
        self._key = cell.encode()
        self._times: tuple[bytes, int] = (b"", 0)

    def feed(
        self, stored: StoredRecord, envelope: Envelope[Event] | None = None
    ) -> CountedCycle | None:
        """Feed the own topic's next record, decoded only if its content is part of the chain."""
        term = self.reader.term
        try:
            envelope = self._attributes(stored.record)
        except SchemaError as error:
            raise ForeignRecord(
                topic=stored.partition.topic,
                offset=stored.offset,
                found=f"{error.code}: {error}",
            ) from error
        counted = super().feed(stored, envelope)
        self.terms += self.reader.term != term
        return counted

    async def follow(self, counted: CountedCycle) -> None:
        """Compare the inputs of a cycle with the digests in its commit."""
        for wanted in self.ordered(counted):
            self.taken += wanted.next - wanted.first
            await self.take_range(counted, wanted)
        self.cycles += 1
        self.decisions += len(counted.decisions)

    def proved(
        self, finding: Finding | None, unproved: Mapping[Partition, tuple[int, int]]
    ) -> ChainProof:
        """Return what was checked, the record that ended the check, and what follows it."""
        return ChainProof(
            machine=self.machine.name,
            terms=self.terms,
            cycles=self.cycles,
            decisions=self.decisions,
            inputs=self.taken,
            dropped=self.reader.dropped,
            from_cycle=self.from_cycle,
            last_cycle=self.reader.cycle,
            now_ms=self.reader.now_ms,
            head=self.reader.head,
            finding=finding,
            unproved=unproved,
        )

    def _attributes(self, record: Record) -> Envelope[Event]:
        """Return a record's envelope by its headers; its class stands for the event.

        Raises: SchemaError: the record is not one of this cell's, or of an unknown type.
        """
        headers = dict(record.headers)
        version = -1
        type_ = headers.get("ce_type", b"").decode(errors="replace")
        if record.key != self._key:
            raise MalformedRecord(found=f"its key is not {self.cell}")
        try:
            version = int(headers["yard_version"])
            if type_ in _DECODED or (type_, version) in UPCASTERS:
                return decode(record)
            source, epoch, seq = headers["ce_id"].decode().rsplit("/", 2)
            return Envelope(
                type=type_,
                version=version,
                source=source,
                epoch=int(epoch),
                seq=int(seq),
                subject="",
                time_ms=self._time_of(headers["ce_time"]),
                # The actor is a part of the value, which the digest covers.
                actor=self.reader.actor,
                data=cast(Event, EVENTS[type_, version]),
            )
        except KeyError as missing:
            if missing.args[0] == (type_, version):
                raise UnknownEventType(type=type_) from None
            raise MalformedRecord(found=f"the header {missing.args[0]} is missing") from None
        except ValueError:
            raise MalformedRecord(found="its headers are not those of an event") from None

    def _time_of(self, text: bytes) -> int:
        # All records of a cycle have the same time.
        if self._times[0] != text:
            self._times = text, parse_rfc3339(text.decode())
        return self._times[1]


async def check_chain(
    log: EventLog,
    machine: Machine[Any],
    cell: str,
    *,
    partition: int = 0,
    snapshots: SnapshotStore | None = None,
    progress: Progress = unreported,
) -> ChainProof:
    """Check the chain of one machine's topic, and the inputs that its commits took.

    If the first records have expired, the check begins at the oldest usable snapshot.

    Raises:
        LogBeginsLater: the first records have expired, and there is no usable snapshot.
        LogUnavailable, LogClosed.
    """
    fold = await begin(
        *(log, machine, cell, partition, snapshots),
        lambda dump: ChainFold(log, machine, cell, partition, dump=dump),
    )
    finding = await replay(fold, progress)
    return fold.proved(finding, await unproved_of(log, fold))
