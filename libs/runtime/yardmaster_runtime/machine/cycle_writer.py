"""Appends a cycle's records and reads them back."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from yardmaster_core.commit import CommitReader, CountedCycle
from yardmaster_core.machine import Decision
from yardmaster_eventlog.errors import BatchTooLarge, LogTruncated
from yardmaster_eventlog.port import Record, batch_bytes
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.cycle_reader import decode_own
from yardmaster_runtime.errors import (
    CycleTooLarge,
    DecisionRefused,
    Fenced,
    MachineError,
    UnwritableDecision,
)
from yardmaster_runtime.machine.cycle_records import split_batches
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.settings import CycleLimits
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError

S = TypeVar("S")


def fenced(reader: CommitReader, term: int) -> Fenced:
    """The error of a leader whose `term` is not the newest term in the own topic."""
    return Fenced(
        term=term,
        machine=reader.machine,
        topic=reader.topic,
        offset=reader.next - 1,
        other=reader.term,
    )


class CycleWriter(Generic[S]):
    """Writes the cycles of one leader."""

    def __init__(
        self, fold: Fold[S], clock: Clock, limits: CycleLimits, metrics: RuntimeMetrics
    ) -> None:
        self._fold = fold
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._batch_bytes = limits.max_batch_bytes

    async def write(
        self, records: Sequence[Record], decisions: Sequence[Decision], term: int
    ) -> CountedCycle:
        """Append the cycle; return it as every reader reads it.

        Raises:
            Fenced: a higher term started before the commit, so the cycle does not count.
            DecisionRefused: a decision cannot be written, and the machine can observe that.
            UnwritableDecision, CycleTooLarge: a decision cannot be written, and the machine cannot
            observe that.
            AppendOutcomeUnknown: the append may or may not count.
        """
        try:
            envelopes = self._checked(records)
            offsets = await self._append(records)
        except (UnwritableDecision, CycleTooLarge) as error:
            self._refuse_unwritable(decisions, error)
            raise
        return await self._read_back(records, envelopes, offsets, term)

    def _refuse_unwritable(self, decisions: Sequence[Decision], error: MachineError) -> None:
        """Raise DecisionRefused if the machine can observe that the decision is unwritable."""
        index = error.fields["record"]
        assert isinstance(index, int), "both errors name their record"
        decision = decisions[index] if index < len(decisions) else None
        observed = None if decision is None else self._fold.machine.unwritable(decision.event)
        if decision is not None and observed is not None:
            raise DecisionRefused(
                type=decision.event.TYPE,
                subject=decision.subject,
                found=str(error),
                observed=observed,
            ) from error

    def _checked(self, records: Sequence[Record]) -> list[Envelope[Event]]:
        """Decode the records as any reader does.

        A record that readers cannot decode would stop every one of them for ever, so it must not be
        written.
        """
        envelopes = []
        for index, record in enumerate(records):
            try:
                envelopes.append(decode_own(record, self._fold.cell))
            except SchemaError as error:
                raise UnwritableDecision(
                    machine=self._fold.machine.name,
                    type=dict(record.headers)["ce_type"].decode(),
                    found=str(error),
                    record=index,
                ) from error
        return envelopes

    async def _append(self, records: Sequence[Record]) -> list[int]:
        """Append a cycle in as few batches as possible; return the offset of each record."""
        fold, limit = self._fold, self._fold.machine.output.max_batch_bytes
        started_s = self._clock.monotonic_s()
        batches = split_batches(records, min(self._batch_bytes, limit), limit, fold.own.topic)
        offsets: list[int] = []
        while batches:
            batch = batches[0]
            try:
                first = await fold.log.append(fold.own, batch)
            except BatchTooLarge as error:
                # The log accepts less than the topic's catalog entry says: use smaller batches.
                self._metrics.batches_too_large.inc()
                size = batch_bytes(batch)
                if len(batch) == 1:
                    raise CycleTooLarge(
                        size=size,
                        limit=error.fields.get("limit"),
                        topic=fold.own.topic,
                        record=len(offsets),
                    ) from error
                self._batch_bytes = size // 2
                batches = split_batches(records[len(offsets) :], size // 2, limit, fold.own.topic)
                continue
            self._metrics.batches.inc()
            offsets += range(first, first + len(batch))
            batches.pop(0)
        self._metrics.append_seconds.observe(self._clock.monotonic_s() - started_s)
        return offsets

    async def _read_back(
        self,
        records: Sequence[Record],
        envelopes: Sequence[Envelope[Event]],
        offsets: Sequence[int],
        term: int,
    ) -> CountedCycle:
        """Read the own topic up to the commit."""
        fold = self._fold
        index_of = dict(zip(offsets, range(len(records)), strict=True))
        counted: CountedCycle | None = None
        while fold.reader.next <= offsets[-1]:
            if not await fold.cursor.fill(1, buffered_only=True):
                # The record is about to arrive: waiting costs less than asking for the log's end.
                await fold.log.wait({fold.own: fold.cursor.end}, self._limits.idle_wait_s)
                if not await fold.cursor.fill(1):
                    raise LogTruncated(found=f"{fold.own} has no offset {offsets[-1]} any more")
            stored = fold.cursor.pop()
            index = index_of.get(stored.offset)
            known = index is not None and stored.record == records[index]
            counted = fold.feed(stored, envelopes[index] if known and index is not None else None)
        if counted is None or fold.reader.term != term:
            raise fenced(fold.reader, term)
        return counted
