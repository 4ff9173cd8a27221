"""A cycle's records, made by the leader that writes them and by `verify`, which compares them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from yardmaster_core.commit import marks, range_digest, source_of
from yardmaster_core.machine import Decision
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import Record, batch_bytes
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.errors import CycleTooLarge, DecisionNotEnabled
from yardmaster_runtime.telemetry.tracing import is_sampled
from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.machine import (
    CycleCommittedV1,
    InputRange,
    PolicyInUse,
    RefusedRange,
    RulesEnabledV1,
    TermStartedV1,
)


@cache
def _actor(machine: str) -> Actor:
    return Actor(kind=ActorKind.SERVICE, id=machine)


@writes_slots
@dataclass(frozen=True, slots=True)
class CycleHeader:
    """The common data of all records of a cycle: writer, term, time, and the cycle before."""

    machine: str
    cell: str
    source: str
    term: int
    #: Sequence number of the cycle's first record.
    seq: int
    cycle: int
    #: Digest of the last record before the cycle.
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
        """Return the envelope of the cycle's record number `index`."""
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
    """Return the TermStarted record of an incarnation."""
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
    """Return the decisions with the observations before them, each observation once.

    A machine may return the observations before its decisions, or leave them out.
    """
    if tuple(decisions[: len(observed)]) == tuple(observed):
        return decisions
    return (*observed, *decisions)


def traces_of(accepted: Iterable[Envelope[Any]]) -> dict[str, str]:
    """Return the trace contexts of a cycle's inputs by record id, for the decisions they cause.

    A decision gets the context of its cause only when the cause is an input of the same cycle: so
    the state stores no contexts, and `verify` can make the same records from the cycle's inputs. A
    decision whose cause was consumed in an earlier cycle has no context. Contexts of traces that
    are not kept are left out, so without tracing no record grows.
    """
    return {
        envelope.id: envelope.traceparent
        for envelope in accepted
        if envelope.traceparent is not None and is_sampled(envelope.traceparent)
    }


@dataclass(frozen=True, slots=True)
class WrittenCycle:
    """A cycle's records, digests and envelopes; the CycleCommitted is the last one."""

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
    """Return the decisions' records followed by the CycleCommitted over them.

    `traces`: the result of `traces_of` for the cycle's inputs. `limit`: the number of decisions at
    which the cycle was cut; None for a complete cycle. `rules`: the rules in force when the cycle
    began.

    Raises:
        DecisionNotEnabled: the cycle's rules do not have a decision's type.
    """
    cell = header.cell
    for made in decisions:
        if isinstance(made.event, RulesEnabledV1):
            rules = made.event.rules
    for made in decisions:
        if rules < made.event.RULES:
            raise DecisionNotEnabled(
                machine=header.machine,
                type=made.event.TYPE,
                introduced=made.event.RULES,
                rules=rules,
            )
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
    commit = CycleCommittedV1(
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


def split_batches(
    records: Sequence[Record], wanted: int, limit: int, topic: str
) -> list[list[Record]]:
    """Return the fewest consecutive batches of at most `wanted` bytes each (see `batch_bytes`).

    A larger record gets a batch of its own, up to `limit`, the most that the topic accepts.

    Raises:
        CycleTooLarge: one record is larger than the limit.
    """
    frame = batch_bytes(())
    batches: list[list[Record]] = []
    free = 0
    for index, record in enumerate(records):
        size = record.size
        if frame + size > limit:
            raise CycleTooLarge(size=frame + size, limit=limit, topic=topic, record=index)
        if size > free:
            batches.append([])
            free = wanted - frame
        batches[-1].append(record)
        free -= size
    return batches
