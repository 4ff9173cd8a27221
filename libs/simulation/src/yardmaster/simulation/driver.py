"""A state machine as its leader runs it: the same records, without anybody to wait for.

What a cycle is, `yardmaster.runtime.cycle` says; here it runs in one step, on the time it is given,
and what it appends is there. `replay verify` proves such a log like any other.
"""

from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

from yardmaster.core.commit import GENESIS, head_of_term, source_of
from yardmaster.core.machine import Advancing, Decision
from yardmaster.eventlog.codec import encode
from yardmaster.eventlog.port import Partition, Record
from yardmaster.runtime.batch import (
    Place,
    cut,
    digest_of,
    term_record,
    with_observed,
    write_cycle,
)
from yardmaster.runtime.inputs import Taken
from yardmaster.schemas.envelope import Actor, Envelope, Event
from yardmaster.schemas.topics import Topic

S = TypeVar("S")
CELL: Final = "main"
#: As many inputs and decisions as a cycle has in production at most, and as large batches.
MAX_INPUTS: Final = 2_000
MAX_DECISIONS: Final = 5_000
MAX_BATCH_BYTES: Final = 900_000
INCARNATION: Final = "0" * 12


class Tape(Protocol):
    """Where a log is written from its start."""

    def append(self, partition: Partition, records: Sequence[Record], now_ms: int) -> int:
        """Write records; returns the offset of the first."""


def write(tape: Tape, topic: Topic, records: Sequence[Record], now_ms: int) -> None:
    """Write records in as few batches as the topic takes."""
    limit = topic.max_batch_bytes
    for batch in cut(records, min(MAX_BATCH_BYTES, limit), limit, topic.name):
        tape.append(Partition(topic.name), batch, now_ms)


class Claims:
    """What others than machines write into one topic, until a machine takes it."""

    def __init__(self, topic: Topic, tape: Tape) -> None:
        self._topic = topic
        self._partition = Partition(topic.name)
        self._tape = tape
        self._next = 0
        self._waiting: list[Envelope[Event]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(
        self,
        event: Event,
        source: str,
        epoch: int,
        seq: int,
        actor: Actor,
        subject: str,
        now_ms: int,
    ) -> None:
        """Somebody says something."""
        self._waiting.append(
            Envelope(
                type=event.TYPE,
                version=event.VERSION,
                source=source,
                epoch=epoch,
                seq=seq,
                subject=subject,
                time_ms=now_ms,
                actor=actor,
                data=event,
            )
        )

    def take(self) -> Taken:
        """What waits, as much as one cycle takes; all of it is believed."""
        accepted = self._waiting[:MAX_INPUTS]
        del self._waiting[:MAX_INPUTS]
        records = [encode(envelope, CELL) for envelope in accepted]
        if records:
            write(self._tape, self._topic, records, accepted[-1].time_ms)
        taken = Taken(self._partition, self._next, [digest_of(record) for record in records])
        taken.accepted = accepted
        self._next += len(records)
        return taken


class Driver(Generic[S]):
    """One machine, its state, and where its chain of commits is."""

    def __init__(self, machine: Advancing[S], tape: Tape, now_ms: int) -> None:
        self.machine = machine
        self.state = machine.initial(CELL)
        self.cycles = 0
        self.complete = True
        self._own = Partition(machine.output.name)
        self._tape = tape
        self._source = source_of(machine.name, CELL, INCARNATION)
        self._next = self._seq = 0
        self._output = Taken(self._own, 0)
        term = term_record(machine.name, CELL, 1, INCARNATION, now_ms)
        digest = digest_of(term)
        self._head = head_of_term(GENESIS, digest)
        self._append([term], [digest], [], now_ms)

    def cycle(
        self, now_ms: int, inputs: Sequence[Taken], observed: Sequence[Decision] = ()
    ) -> list[Envelope[Event]]:
        """Take inputs, in the machine's order, decide, write it down; what was decided."""
        machine = self.machine
        self.cycles += 1
        state = machine.begin(self.state, self.cycles, now_ms)
        for taken in inputs:
            for envelope in taken.accepted:
                state = machine.apply(state, envelope.data, envelope.id)
        # Nobody else writes here, so what is decided counts.
        state, verdict = machine.advance(state, limit=MAX_DECISIONS, observed=observed)
        place = Place(
            machine=machine.name,
            cell=CELL,
            source=self._source,
            term=1,
            seq=self._seq,
            cycle=self.cycles,
            prev=self._head,
            now_ms=now_ms,
        )
        written = write_cycle(
            place,
            with_observed(observed, verdict),
            {},
            inputs=tuple(taken.range() for taken in inputs),
            refused=(),
            policies=machine.policies(state),
            state_digest=verdict.state_digest,
            complete=verdict.complete,
            limit=None if verdict.complete else MAX_DECISIONS,
        )
        decided = written.envelopes[:-1]
        self.state = machine.settle(state, complete=verdict.complete)
        self.complete = verdict.complete
        self._head = written.digests[-1].hex()
        self._append(written.records, written.digests, decided, now_ms)
        return decided

    def take_output(self) -> Taken:
        """What its readers have not taken yet."""
        output, self._output = self._output, Taken(self._own, self._next)
        return output

    def _append(
        self,
        records: list[Record],
        digests: list[bytes],
        decided: list[Envelope[Event]],
        now_ms: int,
    ) -> None:
        write(self._tape, self.machine.output, records, now_ms)
        self._next += len(records)
        self._seq += len(records)
        self._output.digests += digests
        self._output.accepted += decided
