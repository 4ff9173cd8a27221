"""The fold that proves a machine's topic: it checks claims and decides again, and compares bytes.

`Prover` is the fold of production with two more steps: it checks claims again, and it makes each
cycle's records again from the state, the cycle's inputs and its observations. Observations and
TermStarted records are taken as given, and so are refusals of claims that the program of that time
did not know. Comparing bytes reveals every change:

- of an input's record, by its mark in the commit that took it;
- of a decision, by its mark in its commit, and by deciding again;
- of a commit, by making it again; of all commits, by the hash chain.

Only cycles that were decided by rules that this program has are recomputed. For older rules, the
chain, the digests of inputs and decisions, and the digest of each state are proved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from yardmaster_core.commit import CountedCycle
from yardmaster_core.machine import Decision, Machine
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.errors import MachineError
from yardmaster_runtime.machine.cycle_records import (
    CycleHeader,
    traces_of,
    with_observed,
    write_cycle,
)
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.inputs import (
    MachineInput,
    RefusedRecord,
    check_claim,
    refused_ranges,
)
from yardmaster_runtime.replay.difference import difference, first_difference
from yardmaster_runtime.replay.report import MachineProof, RulesRange
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.admissions import DetailsErasedV1, RequestRefusedV1
from yardmaster_schemas.events.machine import CycleCommittedV1, InputRange
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.reasons import AdmissionCode, RefusalCode

S = TypeVar("S")
#: More than any cycle decides: the limit for deciding a complete cycle again.
UNLIMITED: Final = 1 << 31


@dataclass(slots=True)
class DetailsRefs:
    """References of proved requests to `details`, and what was erased."""

    #: For each reference: the reference, the keys that its record may have, and the id and the
    #: subject of the request that contains it.
    wanted: list[tuple[DetailsRef, frozenset[bytes], tuple[str, str]]] = field(default_factory=list)
    erased: set[str] = field(default_factory=set)
    #: Ids of submissions that quota refused as repeats; a gateway removes their details.
    repeats: set[str] = field(default_factory=set)

    def note_request(self, envelope: Envelope[Event]) -> None:
        """Note the details to which a request refers."""
        for name in ("details", "note"):
            ref = getattr(envelope.data, name, None)
            if isinstance(ref, DetailsRef):
                keys = {envelope.subject, envelope.id, getattr(envelope.data, "job_id", "")}
                request = (envelope.id, envelope.subject)
                self.wanted.append((ref, frozenset(key.encode() for key in keys), request))

    def note_decision(self, envelope: Envelope[Event]) -> None:
        """Note the details that may be missing.

        These are the details of a job that quota erased, and of a submission that quota refused as
        a repeat.
        """
        event = envelope.data
        if isinstance(event, DetailsErasedV1):
            self.erased.add(event.job_id)
        elif (
            isinstance(event, RequestRefusedV1)
            and event.code is AdmissionCode.DUPLICATE_ID
            and envelope.cause is not None
        ):
            self.repeats.add(envelope.cause)


class Prover(Fold[S]):
    """A fold that recomputes the decisions of every cycle."""

    def __init__(
        self,
        log: EventLog,
        machine: Machine[S],
        cell: str,
        partition: int = 0,
        *,
        dump: Any = None,
    ) -> None:
        """Prove from the start of the log, or from the state in `dump`, which is taken as given."""
        super().__init__(log, machine, cell, partition=partition, dump=dump)
        self.refs = DetailsRefs()
        self.from_cycle = self.reader.cycle
        #: The number of terms that were read, including the term of the dump.
        self.terms = 0 if dump is None else 1
        self.cycles = self.decisions = self.taken = self.refused = 0
        #: Refused claims that the version that refused them could not read, and this one can.
        self.unreadable_then = 0
        self._ranges: list[RulesRange] = []
        self._raw: dict[int, Record] = {}

    def feed(
        self, stored: StoredRecord, envelope: Envelope[Event] | None = None
    ) -> CountedCycle | None:
        """Keep the raw record until its cycle is proved."""
        term = self.reader.term
        counted = super().feed(stored, envelope)
        if self.reader.term != term:
            self.terms += 1
            self._raw.clear()
        if self.reader.pending or counted is not None:
            self._raw[stored.offset] = stored.record
        return counted

    async def follow(self, counted: CountedCycle) -> None:
        """Check a cycle: recompute it if this program has the rules that decided, else fold it."""
        derived = self.machine.oldest_rules <= counted.rules <= self.machine.rules
        if derived:
            self.refused += await self._derive(counted)
        else:
            self.refused += await self._fold(counted)
        self._note_rules(counted, derived)
        for _, envelope in counted.decisions:
            self.refs.note_decision(envelope)
        self.cycles += 1
        self.decisions += len(counted.decisions)
        self._raw.clear()

    async def _fold(self, counted: CountedCycle) -> int:
        """Apply the cycle as it was committed; return the number of refused records."""
        commit = counted.commit
        self.begin_cycle(commit.cycle, commit.now_ms, counted.rules)
        for wanted in self.ordered(counted):
            self.taken += wanted.next - wanted.first
            for envelope in await self.take(counted, wanted):
                self.refs.note_request(envelope)
                self.apply(envelope)
        self.finish(counted, ())
        return sum(one.last - one.first + 1 for one in commit.refused)

    async def _derive(self, counted: CountedCycle) -> int:
        """Check the inputs and decide again, compare; return the number of refused records."""
        commit = counted.commit
        self.begin_cycle(commit.cycle, commit.now_ms, counted.rules)
        refused: list[RefusedRecord] = []
        traces: dict[str, str] = {}
        for wanted in self.ordered(counted):
            accepted, refused_again = await self._check_inputs(counted, wanted)
            refused += refused_again
            traces |= traces_of(accepted)
        again = tuple(refused_ranges(refused))
        if again != commit.refused:
            raise self.diverged(
                self.own,
                counted.offset,
                commit.cycle,
                f"refused records differ: {first_difference(commit.refused, again)}",
            )
        self._decide_again(counted, traces)
        self.finish(counted, ())
        return len(refused)

    async def _check_inputs(
        self, counted: CountedCycle, wanted: InputRange
    ) -> tuple[list[Envelope[Event]], list[RefusedRecord]]:
        """Check a range's claims again; return the accepted events and the refused records."""
        partition = Partition(wanted.topic, wanted.partition)
        source = self.inputs[partition]
        self.taken += wanted.next - wanted.first
        if isinstance(source, MachineInput):
            accepted = await self.take(counted, wanted)
            for envelope in accepted:
                self.apply(envelope)
            return accepted, []
        records = await source.take(wanted.next)
        self.check_range(counted, wanted, [digest_of(stored.record) for stored in records])
        accepted, refused = [], []
        key = self.cell.encode()
        unknown = _unknown_then(counted.commit, wanted)
        for stored in records:
            checked = check_claim(self.machine, self.state, self.rules, key, stored)
            code = unknown.get(stored.offset)
            known = not isinstance(checked, RefusedRecord) or checked.code is not code
            if code is not None and known:
                checked = RefusedRecord(stored, code, "the version that decided did not know it")
                self.unreadable_then += 1
            if isinstance(checked, RefusedRecord):
                refused.append(checked)
            else:
                self.refs.note_request(checked)
                self.apply(checked)
                accepted.append(checked)
        return accepted, refused

    def _decide_again(self, counted: CountedCycle, traces: Mapping[str, str]) -> None:
        """Decide the cycle again from its inputs and observations; compare the records.

        Raises: ReplayDiverged: names the first record that differs.
        """
        commit = counted.commit
        observed = []
        for _, envelope in counted.decisions:
            # RulesEnabled with a cause is a decision: quota's verdict on a request.
            if type(envelope.data) not in self.machine.observations or envelope.cause is not None:
                break
            observed.append(Decision(envelope.data, envelope.subject, envelope.cause))
        verdict = self.machine.decide(
            self.state, limit=commit.limit or UNLIMITED, observed=observed
        )
        header = CycleHeader(
            machine=self.machine.name,
            cell=self.cell,
            source=counted.owner,
            term=commit.term,
            seq=counted.first_seq,
            cycle=commit.cycle,
            prev=commit.prev,
            now_ms=commit.now_ms,
        )
        expected = write_cycle(
            header,
            with_observed(observed, verdict.decisions),
            traces,
            inputs=commit.inputs,
            refused=commit.refused,
            policies=self.machine.policies(self.state),
            state_digest=verdict.state_digest,
            complete=verdict.complete,
            limit=commit.limit,
            rules=counted.rules,
        ).records
        self._compare(counted, expected)

    def _compare(self, counted: CountedCycle, expected: Sequence[Record]) -> None:
        offsets = [*(offset for offset, _ in counted.decisions), counted.offset]
        count = min(len(offsets), len(expected)) - 1
        for offset, made in zip(offsets[:count], expected[:count], strict=True):
            if self._raw[offset] != made:
                raise self._differs(counted, offset, made)
        if len(offsets) != len(expected):
            at = offsets[count]
            raise self.diverged(
                self.own,
                at,
                counted.commit.cycle,
                f"decided again, there are {len(expected) - 1} decisions, "
                f"in the log {len(offsets) - 1}",
            )
        if self._raw[counted.offset] != expected[-1]:
            raise self._differs(counted, counted.offset, expected[-1])

    def _differs(self, counted: CountedCycle, offset: int, made: Record) -> MachineError:
        return self.diverged(
            self.own, offset, counted.commit.cycle, difference(self._raw[offset], made)
        )

    def _note_rules(self, counted: CountedCycle, derived: bool) -> None:
        last = self._ranges[-1] if self._ranges else None
        rules, first = counted.rules, counted.commit.cycle
        if last is not None and last.rules == rules:
            first = self._ranges.pop().first_cycle
        self._ranges.append(RulesRange(rules, first, counted.commit.cycle, derived=derived))

    def proved(self) -> MachineProof:
        """Return what is proved so far."""
        return MachineProof(
            machine=self.machine.name,
            ranges=tuple(self._ranges),
            terms=self.terms,
            cycles=self.cycles,
            decisions=self.decisions,
            inputs=self.taken,
            refused=self.refused,
            unreadable_then=self.unreadable_then,
            dropped=self.reader.dropped,
            from_cycle=self.from_cycle,
            last_cycle=self.reader.cycle,
            now_ms=self.reader.now_ms,
        )


def _unknown_then(commit: CycleCommittedV1, taken: InputRange) -> dict[int, RefusalCode]:
    """The records of an input that the program of a cycle refused because it did not know them.

    A later program knows them, so this refusal cannot be recomputed and is taken as recorded.
    """
    return {
        offset: one.code
        for one in commit.refused
        if one.code in (RefusalCode.UNKNOWN_TYPE, RefusalCode.UNKNOWN_VERSION)
        and (one.topic, one.partition) == (taken.topic, taken.partition)
        for offset in range(max(one.first, taken.first), min(one.last + 1, taken.next))
    }
