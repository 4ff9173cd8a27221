"""A cycle's records: made here for the leader that writes them and for `verify` that checks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from yardmaster_core.commit import marks, range_digest, source_of
from yardmaster_core.machine import Decision
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import Record, batch_bytes
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.errors import CycleTooLarge
from yardmaster_runtime.telemetry.tracing import is_sampled
from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.machine import (
    CycleCommittedV2,
    InputRange,
    PolicyInUse,
    RefusedRange,
    TermStartedV1,
)


@cache
def _actor(machine: str) -> Actor:
    return Actor(kind=ActorKind.SERVICE, id=machine)


@writes_slots
@dataclass(frozen=True, slots=True)
class CycleHeader:
    """Where in a machine's topic a cycle belongs: whose it is, and what it follows."""

    machine: str
    cell: str
    source: str
    term: int
    #: Of the cycle's first record.
    seq: int
    cycle: int
    prev: str
    now_ms: int

    def envelope(
        self,
        index: int,
        event: Event,
        subject: str,
        cause: str | None,
        traceparent: str | None = None,
    ) -> Envelope[Event]:
        """What surrounds the cycle's record number `index`."""
        return Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=self.source,
            epoch=self.term,
            seq=self.seq + index,
            subject=subject,
            time_ms=self.now_ms,
            actor=_actor(self.machine),
            cause=cause,
            traceparent=traceparent,
            data=event,
        )


def term_record(machine: str, cell: str, term: int, incarnation: str, now_ms: int) -> Record:
    """The TermStarted of an incarnation."""
    header = CycleHeader(
        machine=machine,
        cell=cell,
        source=source_of(machine, cell, incarnation),
        term=term,
        seq=0,
        cycle=0,
        prev="",
        now_ms=now_ms,
    )
    event = TermStartedV1(cell=cell, machine=machine, term=term, incarnation=incarnation)
    return encode(header.envelope(0, event, cell, None), cell)


def with_observed(
    observed: Sequence[Decision], decisions: Sequence[Decision]
) -> Sequence[Decision]:
    """A cycle's records: the observations, then what was decided.

    A machine may give the observations back before its decisions, or leave them out.
    """
    if tuple(decisions[: len(observed)]) == tuple(observed):
        return decisions
    return (*observed, *decisions)


def traces_of(accepted: Iterable[Envelope[Any]]) -> dict[str, str]:
    """The trace contexts of a cycle's inputs, by record id: those of the decisions they cause.

    Only of inputs that this very cycle took, so that the state keeps no context and whoever has the
    cycle's records makes the same decisions' records again. What a decision follows from may lie
    cycles back: such a decision carries none. Nor does one of a trace that nobody keeps: without
    tracing the log grows by nothing.
    """
    return {
        envelope.id: envelope.traceparent
        for envelope in accepted
        if envelope.traceparent is not None and is_sampled(envelope.traceparent)
    }


@dataclass(frozen=True, slots=True)
class WrittenCycle:
    """A cycle as it is written, the CycleCommitted last: records, their digests, their events."""

    records: list[Record]
    digests: list[bytes]
    envelopes: list[Envelope[Event]]


def write_cycle(
    header: CycleHeader,
    decisions: Sequence[Decision],
    traces: Mapping[str, str],
    *,
    inputs: tuple[InputRange, ...],
    refused: tuple[RefusedRange, ...],
    policies: tuple[PolicyInUse, ...],
    state_digest: str,
    complete: bool,
    limit: int | None,
    rules: int,
) -> WrittenCycle:
    """The decisions' records and, last, the CycleCommitted over them.

    `traces`: what `traces_of` gives for the cycle's inputs.
    """
    cell = header.cell
    envelopes = [
        header.envelope(
            index,
            made.event,
            made.subject,
            made.cause,
            traces.get(made.cause) if made.cause is not None else None,
        )
        for index, made in enumerate(decisions)
    ]
    records = [encode(envelope, cell) for envelope in envelopes]
    digests = [digest_of(record) for record in records]
    commit = CycleCommittedV2(
        cell=cell,
        machine=header.machine,
        term=header.term,
        cycle=header.cycle,
        now_ms=header.now_ms,
        inputs=inputs,
        refused=refused,
        policies=policies,
        decisions=len(records),
        decisions_digest=range_digest(digests),
        decision_marks=marks(digests),
        state_digest=state_digest,
        prev=header.prev,
        complete=complete,
        limit=limit,
        rules=rules,
    )
    envelopes.append(header.envelope(len(records), commit, cell, None))
    records.append(encode(envelopes[-1], cell))
    digests.append(digest_of(records[-1]))
    return WrittenCycle(records, digests, envelopes)


def cut(records: Sequence[Record], wanted: int, limit: int, topic: str) -> list[list[Record]]:
    """Consecutive batches of at most `wanted` bytes each (see `batch_bytes`), as few as may be.

    A record that alone is larger has a batch for itself, up to `limit`, what the topic takes.

    Raises:
        CycleTooLarge: one record alone is over the limit.
    """
    frame = batch_bytes(())
    batches: list[list[Record]] = []
    room = 0
    for index, record in enumerate(records):
        size = record.size
        if frame + size > limit:
            raise CycleTooLarge(size=frame + size, limit=limit, topic=topic, record=index)
        if size > room:
            batches.append([])
            room = wanted - frame
        batches[-1].append(record)
        room -= size
    return batches
