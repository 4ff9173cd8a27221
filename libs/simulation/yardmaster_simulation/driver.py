"""Run a state machine as its leader does, with the same records but without waiting.

`yardmaster_runtime.machine.leader` defines a cycle. Here a cycle runs in one step at a given time,
and its appends succeed at once. `yard replay verify` verifies such a log like any other.

Without a sink nothing is written: the machines consume the same inputs and make the same decisions,
but no record is encoded or hashed, which saves a quarter to two thirds of a run's time.
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
#: The limits of a cycle and of a batch in production.
MAX_INPUTS: Final = 2_000
MAX_DECISIONS: Final = 5_000
MAX_BATCH_BYTES: Final = 900_000
INCARNATION: Final = "0" * 12
#: The digest of a record that is not written.
UNWRITTEN: Final = b""
#: Without a sink, cycles between two digests; a machine keeps its set of changed entities until the
#: next digest.
DIGEST_EVERY: Final = 1_000


class LogSink(Protocol):
    """The destination of a new log's records."""

    def append(self, partition: Partition, records: Sequence[Record], now_ms: int) -> int:
        """Append records and return the offset of the first."""


def write(sink: LogSink, topic: Topic, records: Sequence[Record], now_ms: int) -> None:
    """Append records in as few batches as the topic's limits allow."""
    limit = topic.max_batch_bytes
    for batch in split_batches(records, min(MAX_BATCH_BYTES, limit), limit, topic.name):
        sink.append(Partition(topic.name), batch, now_ms)


@dataclass(slots=True)
class InputBatch:
    """Inputs of a machine from one topic: events with the ids of their records and actors.

    `digests` are the digests of the records; if the topic is the output of another machine, also
    of the commit records between them. `events_ms`: the times of the events, if they differ from
    the cycle's time.
    """

    partition: Partition
    first: int
    events: list[tuple[Event, str, str]] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    events_ms: Sequence[int] = ()

    def range(self) -> InputRange:
        """The range of these inputs, as a commit record names the range."""
        return TakenRange(self.partition, self.first, self.digests).range()


class InputQueue:
    """Events that users and agents wrote into one topic and that no cycle has consumed yet."""

    def __init__(self, topic: Topic, sink: LogSink | None) -> None:
        self._topic = topic
        self._partition = Partition(topic.name)
        self._sink = sink
        self._next = 0
        self._events: list[tuple[Event, str, str]] = []
        self._events_ms: list[int] = []
        #: The same events with their envelopes; empty without a sink.
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
        """Enqueue an event."""
        self._events.append((event, f"{source}/{epoch}/{seq}", actor.id))
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
        """Dequeue up to MAX_INPUTS events; all of them count as accepted."""
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
    """One machine with its state and the head of its chain of commits."""

    def __init__(self, machine: InPlaceMachine[S], sink: LogSink | None, now_ms: int) -> None:
        self.machine = machine
        self.state = machine.initial(CELL)
        self.cycles = 0
        self.complete = True
        self._sink = sink
        self._source = source_of(machine.name, CELL, INCARNATION)
        #: Sequence number of the next record.
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
        """Apply `inputs` in the machine's order, decide, append records; return the decisions."""
        machine = self.machine
        self.cycles += 1
        state = machine.begin_cycle(self.state, self.cycles, now_ms)
        for batch in inputs:
            for event, record_id, actor in batch.events:
                state = machine.apply(state, event, record_id, actor)
        # The driver is the log's only writer, so the decisions are final.
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
        output.events += [
            (event, f"{first}{seq}", machine.name) for seq, event in enumerate(decided, self._seq)
        ]
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

    @property
    def waiting(self) -> int:
        """Number of records in whole cycles that no reader has consumed yet."""
        return len(self._output.digests) if self.cycles else 0

    def take_output(self) -> InputBatch:
        """Dequeue the output that no reader has consumed yet."""
        output, self._output = self._output, InputBatch(self._own, self._seq)
        return output
