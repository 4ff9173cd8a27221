"""The fold of a machine's log, shared by leader, standby, restore and replay.

A counted cycle in the machine's own topic names the ranges that it took from its inputs. The fold
reads those ranges, checks them against the commit's marks and digests, applies the records that
were not refused in the commit's order, applies the cycle's decisions, and compares the state's
digest with the commit's.

The cost of a cycle depends on its inputs and decisions, not on the size of the state.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from yardmaster_core.commit import CommitReader, CountedCycle, first_unmarked, range_digest
from yardmaster_core.errors import ChainBroken, SnapshotUnreadable
from yardmaster_core.machine import Machine
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogTruncated
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_eventlog.reader import Cursor
from yardmaster_runtime.cycle_reader import CycleReader, digest_of
from yardmaster_runtime.errors import ReplayDiverged, UnknownRules
from yardmaster_runtime.fence import Mark
from yardmaster_runtime.machine.inputs import MachineInput, writer_of
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import InputRange
from yardmaster_schemas.position import Position

S = TypeVar("S")
#: Version of `Fold.dump`; other versions are refused.
FORMAT = 1


class Listener(Protocol):
    """Called for each counted cycle with its accepted inputs and the cycle."""

    def __call__(self, accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        """Must not raise or block, and must return soon."""


class Fold(Generic[S]):
    """A machine's state and its position in each topic.

    `state` is the state after the last counted cycle, except while a leader is within a cycle.
    """

    def __init__(
        self,
        log: EventLog,
        machine: Machine[S],
        cell: str,
        *,
        partition: int = 0,
        read_ahead: int = 1000,
        dump: Any = None,
    ) -> None:
        """Start at the start of the log, or where `dump` was made.

        Raises:
            SnapshotUnreadable: the dump is of another machine or version.
        """
        self.log = log
        self.machine = machine
        self.cell = cell
        self.own = Partition(machine.output.name, partition)
        self.listeners: list[Listener] = []
        #: The rules with which the last cycle began.
        self.rules = 0
        readers: dict[str, CommitReader] = {}
        if dump is None:
            self.state = machine.initial(cell)
            self.reader = CommitReader(machine.name, cell, machine.output.name)
        else:
            self.reader, readers = _load_readers(machine, cell, dump)
            self.state = machine.load(cell, dump["state"])
        #: A dump of the own topic's reader where this fold started; None at the log's start.
        self.origin: Mapping[str, Any] | None = None if dump is None else self.reader.dump()
        #: The last record that was folded, of each topic that was read since the start.
        self.marks: dict[Partition, Mark] = {}
        self.cursor = Cursor(log, self.own, self.reader.next, read_ahead)
        self._own_cycles = CycleReader(self.cursor, self.reader)
        self.inputs: dict[Partition, Cursor | MachineInput] = {}
        for topic in machine.inputs:
            source = Partition(topic.name, partition)
            offset = self.reader.inputs.get((source.topic, source.number), 0)
            cursor = Cursor(log, source, offset, read_ahead)
            if topic.claims:
                self.inputs[source] = cursor
                continue
            reader = readers.get(topic.name) or CommitReader(writer_of(topic), cell, topic.name)
            if reader.next != offset:
                raise SnapshotUnreadable(found=f"{source} is read to {reader.next}, not {offset}")
            self.inputs[source] = MachineInput(cursor, reader)

    @property
    def position(self) -> Position:
        """The position in each topic up to which the state is built."""
        position = Position(cell=self.cell).at(self.own.topic, self.reader.boundary)
        for partition in self.inputs:
            taken = self.reader.inputs.get((partition.topic, partition.number), 0)
            position = position.at(partition.topic, taken)
        return position

    def dump(self) -> dict[str, Any]:
        """Return state, readers and offsets after the last counted cycle, for `plain.encode`."""
        return {
            "format": FORMAT,
            "machine": self.machine.name,
            "cell": self.cell,
            "cycle": self.reader.cycle,
            "now_ms": self.reader.now_ms,
            "digest": self.machine.digest(self.state),
            "reader": self.reader.dump(),
            "upstream": {
                partition.topic: source.dump()
                for partition, source in self.inputs.items()
                if isinstance(source, MachineInput)
            },
            "state": self.machine.dump(self.state),
        }

    async def catch_up(self, until: Callable[[CountedCycle], bool] | None = None) -> int:
        """Fold every cycle in the log; return the number of cycles.

        `until` is called before each cycle; when it returns True, the cycle is not folded and the
        fold must not be used further.

        Raises:
            ForeignRecord, ChainBroken: the own topic, or another machine's, contradicts itself.
            ReplayDiverged: inputs or state differ from the commit.
            UnknownRules: a newer program wrote the log.
            ImpossibleEvent: a decision does not fit the state.
            LogTruncated: a commit took records that the log does not have.
            LogCorrupt and the other errors of `EventLog.read`.
        """
        folded = 0
        while await self.cursor.fill(1):
            counted = self.feed(self.cursor.pop())
            if counted is None:
                continue
            if until is not None and until(counted):
                break
            await self.follow(counted)
            folded += 1
        return folded

    def feed(
        self, stored: StoredRecord, envelope: Envelope[Event] | None = None
    ) -> CountedCycle | None:
        """Feed the own topic's next record; `envelope` if the caller has decoded it already.

        Raises:
            UnknownRules: a newer program decided the cycle that the record commits.
            and the errors of `CommitReader.feed`.
        """
        counted = self._own_cycles.feed(stored, envelope)
        if counted is not None:
            self.marks[self.own] = Mark(stored.offset, self._own_cycles.digest.hex())
        if counted is not None and counted.commit.rules > self.machine.rules:
            raise UnknownRules(
                topic=self.own.topic,
                offset=counted.offset,
                cycle=counted.commit.cycle,
                rules=counted.commit.rules,
                known=self.machine.rules,
            )
        return counted

    async def follow(self, counted: CountedCycle) -> None:
        """Fold a cycle: take its inputs from the log, apply them, end the cycle."""
        commit = counted.commit
        self.begin_cycle(commit.cycle, commit.now_ms, counted.rules)
        accepted: list[Envelope[Event]] = []
        for wanted in self.ordered(counted):
            taken = await self.take(counted, wanted)
            for envelope in taken:
                self.apply(envelope)
            accepted += taken
        self.finish(counted, accepted)

    def begin_cycle(self, cycle: int, now_ms: int, rules: int) -> None:
        """Start a cycle with these rules."""
        self.rules = rules
        self.state = self.machine.begin_cycle(self.state, cycle, now_ms, rules)

    def apply(self, envelope: Envelope[Event]) -> None:
        """Apply an accepted input or a decision."""
        self.state = self.machine.apply(self.state, envelope.data, envelope.id, envelope.actor.id)

    def finish(self, counted: CountedCycle, accepted: Sequence[Envelope[Event]]) -> None:
        """Apply a cycle's decisions, check the state's digest, and end the cycle.

        Raises:
            ImpossibleEvent, ReplayDiverged.
        """
        commit = counted.commit
        for _, envelope in counted.decisions:
            self.apply(envelope)
        if self.machine.digest(self.state) != commit.state_digest:
            raise self.diverged(
                self.own,
                counted.offset,
                commit.cycle,
                "the state's digest differs",
            )
        self.state = self.machine.end_cycle(self.state, complete=commit.complete)
        for listener in self.listeners:
            listener(accepted, counted)

    async def take(self, counted: CountedCycle, wanted: InputRange) -> list[Envelope[Event]]:
        """Read a range that a commit took, check its records, return the accepted events."""
        partition = Partition(wanted.topic, wanted.partition)
        source = self.inputs[partition]
        cycle = counted.commit.cycle
        records = await self.take_range(counted, wanted)
        if isinstance(source, MachineInput):
            return source.take_until(records, cycle).accepted
        refused = {
            offset
            for one in counted.commit.refused
            if (one.topic, one.partition) == (wanted.topic, wanted.partition)
            for offset in range(max(one.first, wanted.first), min(one.last + 1, wanted.next))
        }
        accepted = []
        for stored in records:
            if stored.offset in refused:
                continue
            try:
                accepted.append(decode(stored.record))
            except SchemaError as error:
                raise self.diverged(
                    partition, stored.offset, cycle, f"the leader accepted it: {error}"
                ) from error
        return accepted

    async def take_range(self, counted: CountedCycle, wanted: InputRange) -> list[StoredRecord]:
        """Read the records of a range that a commit took, and compare them with its marks."""
        partition = Partition(wanted.topic, wanted.partition)
        source = self.inputs[partition]
        cycle = counted.commit.cycle
        cursor = source.cursor if isinstance(source, MachineInput) else source
        records = await cursor.take(wanted.next)
        digests = [digest_of(stored.record) for stored in records]
        if cursor.offset < wanted.next and first_unmarked(digests, wanted.marks) == len(digests):
            raise LogTruncated(
                topic=partition.topic,
                partition=partition.number,
                offset=cursor.offset,
                found=f"{partition} ends at {cursor.offset}, but cycle {cycle} took its records up "
                f"to {wanted.next - 1}",
            )
        self.check_range(counted, wanted, digests)
        self.mark(partition, wanted.first, digests)
        return records

    def mark(self, partition: Partition, first: int, digests: Sequence[bytes]) -> None:
        """Note the last record of a range that was taken from an input."""
        if digests:
            self.marks[partition] = Mark(first + len(digests) - 1, digests[-1].hex())

    def check_range(
        self, counted: CountedCycle, wanted: InputRange, digests: Sequence[bytes]
    ) -> None:
        """Compare records with the marks and the digest of a range that a commit took.

        Raises:
            ReplayDiverged: names the first record that differs.
            ChainBroken: the commit's marks contradict its digest.
        """
        changed = first_unmarked(digests, wanted.marks)
        same = range_digest(digests) == wanted.digest
        if changed is None and same:
            return
        if changed is None or same:
            raise ChainBroken(
                topic=self.own.topic,
                offset=counted.offset,
                found=f"marks and digest of the input {wanted.topic} contradict each other",
            )
        raise self.diverged(
            Partition(wanted.topic, wanted.partition),
            wanted.first + changed,
            counted.commit.cycle,
            _what_changed(digests, wanted.marks, changed),
        )

    def ordered(self, counted: CountedCycle) -> Sequence[InputRange]:
        """Return the ranges that the commit took from inputs.

        First checks that they belong to inputs of the machine and are in the order of the inputs.
        """
        order = {partition: index for index, partition in enumerate(self.inputs)}
        ranks = [
            order.get(Partition(taken.topic, taken.partition), -1)
            for taken in counted.commit.inputs
        ]
        if -1 in ranks or ranks != sorted(ranks):
            raise ChainBroken(
                topic=self.own.topic,
                offset=counted.offset,
                found="its inputs are not the machine's inputs in their order",
            )
        return counted.commit.inputs

    def diverged(self, partition: Partition, offset: int, cycle: int, found: str) -> ReplayDiverged:
        """The error of a record that differs from a commit."""
        return ReplayDiverged(
            topic=partition.topic,
            partition=partition.number,
            offset=offset,
            cycle=cycle,
            found=found,
        )


def _what_changed(digests: Sequence[bytes], recorded: str, at: int) -> str:
    """Say whether a record was changed, removed, inserted, or swapped with the next one."""
    if at == len(digests):
        return "the record is missing, but a commit took it"
    marks = [recorded[i : i + 16] for i in range(0, len(recorded), 16)]
    found = [digest[:8].hex() for digest in digests]
    if found[at : at + 2] == marks[at : at + 2][::-1] and len(marks) > at + 1:
        return "it and the next record are swapped"
    if at + 1 < len(marks) and found[at] == marks[at + 1]:
        return "the record that the commit took is missing; the next one is in its place"
    if at + 1 < len(found) and found[at + 1] == marks[at]:
        return "a record was inserted here"
    return "it is not the record that the commit took"


def _load_readers(
    machine: Machine[S], cell: str, dump: Any
) -> tuple[CommitReader, dict[str, CommitReader]]:
    """Return the readers in a dump: that of the own topic, and those of inputs by topic.

    Raises: SnapshotUnreadable: the dump is of another format, machine or cell, or is incomplete.
    """
    try:
        found = (dump["format"], dump["machine"], dump["cell"])
        if found != (FORMAT, machine.name, cell):
            raise SnapshotUnreadable(
                found=f"format {found[0]} of {found[1]} of {found[2]}, "
                f"expected {FORMAT} of {machine.name} of {cell}"
            )
        reader = CommitReader.load(dump["reader"])
        readers = {topic: CommitReader.load(one) for topic, one in dump["upstream"].items()}
        if "state" not in dump or "digest" not in dump:
            raise SnapshotUnreadable(found="no state")
    except (KeyError, TypeError, AttributeError) as error:
        raise SnapshotUnreadable(found=f"{type(error).__name__} {error}") from None
    return reader, readers
