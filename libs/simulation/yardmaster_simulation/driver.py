"""A state machine as its leader runs it: the same records, without anybody to wait for.

What a cycle is, `yardmaster_runtime.machine.leader` says; here it runs in one step, on the time it
is given, and what it appends is there. `replay verify` proves such a log like any other.

Without a tape nothing is written: the machines take and decide the same, but no record is made and
nothing is hashed, which is a quarter to two thirds of a run's time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from yardmaster_core.commit import GENESIS, head_of_term, source_of
from yardmaster_core.machine import Decision, InPlaceMachine
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import Partition, Record
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.machine.cycle_records import (
    CycleHeader,
    split_batches,
    term_record,
    with_observed,
    write_cycle,
)
from yardmaster_runtime.machine.inputs import TakenRange
from yardmaster_schemas.envelope import Actor, Envelope, Event
from yardmaster_schemas.events.machine import InputRange
from yardmaster_schemas.topics import Topic

S = TypeVar("S")
CELL: Final = "main"
#: As many inputs and decisions as a cycle has in production at most, and as large batches.
MAX_INPUTS: Final = 2_000
MAX_DECISIONS: Final = 5_000
MAX_BATCH_BYTES: Final = 900_000
INCARNATION: Final = "0" * 12
#: The digest of a record that is not written.
UNWRITTEN: Final = b""
#: Cycles after which a machine that writes nothing is asked for its digest all the same: until then
#: it keeps all that changed.
DIGEST_EVERY: Final = 1_000


class LogSink(Protocol):
    """Where a log is written from its start."""

    def append(self, partition: Partition, records: Sequence[Record], now_ms: int) -> int:
        """Write records; returns the offset of the first."""


def write(sink: LogSink, topic: Topic, records: Sequence[Record], now_ms: int) -> None:
    """Write records in as few batches as the topic takes."""
    limit = topic.max_batch_bytes
    for batch in split_batches(records, min(MAX_BATCH_BYTES, limit), limit, topic.name):
        sink.append(Partition(topic.name), batch, now_ms)


@dataclass(slots=True)
class InputBatch:
    """What a machine takes from one topic: events, their records' ids, and those records' digests;
    a machine's own topic holds a commit for each of its cycles beside.

    `said_ms`: the events' own times, where they are not the cycle's.
    """

    partition: Partition
    first: int
    events: list[tuple[Event, str]] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    events_ms: Sequence[int] = ()

    def range(self) -> InputRange:
        """As a commit names it."""
        return TakenRange(self.partition, self.first, self.digests).range()


class InputQueue:
    """What others than machines write into one topic, until a machine takes it."""

    def __init__(self, topic: Topic, sink: LogSink | None) -> None:
        self._topic = topic
        self._partition = Partition(topic.name)
        self._sink = sink
        self._next = 0
        self._events: list[tuple[Event, str]] = []
        self._events_ms: list[int] = []
        #: The same, if they are written.
        self._envelopes: list[Envelope[Event]] = []

    def __len__(self) -> int:
        return len(self._events)

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
        self._events.append((event, f"{source}/{epoch}/{seq}"))
        self._events_ms.append(now_ms)
        if self._sink is None:
            return
        self._envelopes.append(
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

    def take(self) -> InputBatch:
        """What waits, as much as one cycle takes; all of it is believed."""
        events = self._events[:MAX_INPUTS]
        del self._events[:MAX_INPUTS]
        events_ms = self._events_ms[:MAX_INPUTS]
        del self._events_ms[:MAX_INPUTS]
        digests = [UNWRITTEN] * len(events)
        if self._sink is not None and events:
            envelopes = self._envelopes[:MAX_INPUTS]
            del self._envelopes[:MAX_INPUTS]
            records = [encode(envelope, CELL) for envelope in envelopes]
            digests = [digest_of(record) for record in records]
            write(self._sink, self._topic, records, envelopes[-1].time_ms)
        batch = InputBatch(self._partition, self._next, events, digests, events_ms)
        self._next += len(events)
        return batch


class Driver(Generic[S]):
    """One machine, its state, and where its chain of commits is."""

    def __init__(self, machine: InPlaceMachine[S], sink: LogSink | None, now_ms: int) -> None:
        self.machine = machine
        self.state = machine.initial(CELL)
        self.cycles = 0
        self.complete = True
        self._sink = sink
        self._source = source_of(machine.name, CELL, INCARNATION)
        #: The record that is written next.
        self._seq = 1
        self._head = GENESIS
        digest = UNWRITTEN
        if sink is not None:
            term = term_record(machine.name, CELL, 1, INCARNATION, now_ms)
            digest = digest_of(term)
            self._head = head_of_term(GENESIS, digest)
            write(sink, machine.output, [term], now_ms)
        self._own = Partition(machine.output.name)
        self._output = InputBatch(self._own, 0, digests=[digest])

    def cycle(
        self, now_ms: int, inputs: Sequence[InputBatch], observed: Sequence[Decision] = ()
    ) -> list[Event]:
        """Take inputs, in the machine's order, decide, write it down; what was decided."""
        machine = self.machine
        self.cycles += 1
        state = machine.begin_cycle(self.state, self.cycles, now_ms)
        for batch in inputs:
            for event, record_id in batch.events:
                state = machine.apply(state, event, record_id)
        # Nobody else writes here, so what is decided counts.
        state, decisions, complete = machine.decide_in_place(
            state, limit=MAX_DECISIONS, observed=observed
        )
        decisions = with_observed(observed, decisions)
        output, digests = self._output, [UNWRITTEN] * (len(decisions) + 1)
        if self._sink is not None:
            digests = self._write(state, now_ms, inputs, decisions, complete)
        elif self.cycles % DIGEST_EVERY == 0:
            machine.digest(state)
        first = f"{self._source}/1/"
        decided = [made.event for made in decisions]
        output.events += [(event, f"{first}{seq}") for seq, event in enumerate(decided, self._seq)]
        output.digests += digests
        self._seq += len(digests)
        self.state = machine.end_cycle(state, complete=complete)
        self.complete = complete
        return decided

    def _write(
        self,
        state: S,
        now_ms: int,
        inputs: Sequence[InputBatch],
        decisions: Sequence[Decision],
        complete: bool,
    ) -> list[bytes]:
        machine, sink = self.machine, self._sink
        assert sink is not None
        header = CycleHeader(
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
            header,
            decisions,
            {},
            inputs=tuple(batch.range() for batch in inputs),
            refused=(),
            policies=machine.policies(state),
            state_digest=machine.digest(state),
            complete=complete,
            limit=None if complete else MAX_DECISIONS,
            rules=machine.rules,
        )
        self._head = written.digests[-1].hex()
        write(sink, machine.output, written.records, now_ms)
        return written.digests

    def take_output(self) -> InputBatch:
        """What its readers have not taken yet."""
        output, self._output = self._output, InputBatch(self._own, self._seq)
        return output
