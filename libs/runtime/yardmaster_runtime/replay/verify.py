"""Proves a log: decides every cycle again with the core and compares what comes out, byte by byte.

`Prover` is the fold that production uses, with two steps more: claims are judged again, and each
cycle's records are made again from the state, its inputs and its observations (which are taken as
given, as are TermStarted records). What is compared in the end are bytes, so that whatever was
changed shows:

- a record of an input, by the mark that the commit which took it has of it;
- a decision, by its commit's mark of it, and by being decided again;
- a commit, by being made again; all of them, by the chain.

Only cycles that the rules of this program decided are derived again. Of cycles decided by older
rules the chain, the digests of inputs and decisions and the digest of each state are proved, and
the report says so for each range of cycles; the audit covers both alike.

The first record of a machine's history that differs ends the proof of that machine: what follows
from a state that is wrong says nothing.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic_core import from_json

from yardmaster_core import audit
from yardmaster_core.commit import CountedCycle
from yardmaster_core.errors import CoreError
from yardmaster_core.machine import Decision, Machine
from yardmaster_eventlog import codec
from yardmaster_eventlog.errors import LogCorrupt, LogTruncated, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_eventlog.reader import details_digest
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
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError, YardmasterError
from yardmaster_schemas.events.admissions import DetailsErasedV1, RequestRefusedV1
from yardmaster_schemas.events.details import JobDetailedV1, RequestNotedV1
from yardmaster_schemas.events.machine import CycleCommittedV1, InputRange
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_schemas.reasons import AdmissionCode
from yardmaster_schemas.topics import DETAILS, INPUT_ORDER

S = TypeVar("S")
#: More than any cycle decides: what a cycle that was not cut is decided again with.
UNLIMITED: Final = 1 << 31
#: Records of `details` that are read at once.
PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """A record that is not what the rest of the log says it was, and how it differs."""

    topic: str
    partition: int
    offset: int
    found: str
    #: Of the machine whose proof it ended; empty for `details`.
    machine: str = ""

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition} offset {self.offset}: {self.found}"


@dataclass(frozen=True, slots=True)
class RulesRange:
    """Consecutive cycles that the same rules decided (0: written before rules had a version)."""

    rules: int
    first_cycle: int
    last_cycle: int
    #: Whether the decisions were derived again; else chain, digests and states are proved.
    derived: bool


@dataclass(frozen=True, slots=True)
class MachineProof:
    """What was proved of one machine: counts, its last cycle, and which rules decided when."""

    machine: str
    ranges: tuple[RulesRange, ...]
    terms: int
    cycles: int
    decisions: int
    inputs: int
    refused: int
    #: Records of fenced leaders, which do not count.
    dropped: int
    last_cycle: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found; `ok` when the whole log is proved."""

    findings: tuple[Finding, ...]
    #: Broken promises, from the audit of the log alone.
    promises: tuple[audit.Finding, ...]
    proved: tuple[MachineProof, ...]
    #: By partition: first offset not proved, and the end; only where there are such records.
    unproved: Mapping[Partition, tuple[int, int]]
    details_checked: int
    #: Details that requests name and that were erased, or were a repeat's, which count for nothing.
    details_gone: int
    #: Details that no proved request names, so that nothing vouches for what they say.
    details_unnamed: int

    @property
    def ok(self) -> bool:
        """Whether nothing differs and no promise is broken."""
        return not self.findings and not self.promises

    @property
    def first(self) -> Finding | None:
        """The record to look at first."""
        return self.findings[0] if self.findings else None


@dataclass(slots=True)
class _Refs:
    """What proved requests say of `details`."""

    #: (reference, keys that the details record may have, id of the request)
    wanted: list[tuple[DetailsRef, frozenset[bytes], str]] = field(default_factory=list)
    erased: set[str] = field(default_factory=set)
    #: Ids of submissions that quota refused as repeats: a gateway removes their details.
    repeats: set[str] = field(default_factory=set)


class Prover(Fold[S]):
    """A fold that decides again."""

    def __init__(self, log: EventLog, machine: Machine[S], cell: str, partition: int = 0) -> None:
        super().__init__(log, machine, cell, partition=partition)
        self.refs = _Refs()
        self.terms = self.cycles = self.decisions = self.taken = self.refused = 0
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
        """Prove a cycle: derive it again if the current rules decided it, else fold it."""
        if counted.commit.rules == self.machine.rules:
            self.refused += await self._derive(counted)
        else:
            self.refused += await self._fold(counted)
        self._note_rules(counted.commit)
        self._note_erased(counted)
        self.cycles += 1
        self.decisions += len(counted.decisions)
        self._raw.clear()

    async def _fold(self, counted: CountedCycle) -> int:
        """Apply what the commit took as it took it, compare digests; the refused records."""
        commit = counted.commit
        self.begin_cycle(commit.cycle, commit.now_ms)
        for wanted in self.ordered(counted):
            self.taken += wanted.next - wanted.first
            for envelope in await self.take(counted, wanted):
                self._note_details(envelope)
                self.apply(envelope)
        self.finish(counted, ())
        return sum(one.last - one.first + 1 for one in commit.refused)

    async def _derive(self, counted: CountedCycle) -> int:
        """Judge the cycle's inputs again, decide again, compare; the refused records."""
        commit = counted.commit
        self.begin_cycle(commit.cycle, commit.now_ms)
        refused: list[RefusedRecord] = []
        traces: dict[str, str] = {}
        for wanted in self.ordered(counted):
            accepted, not_believed = await self._check_again(counted, wanted)
            refused += not_believed
            traces |= traces_of(accepted)
        again = tuple(refused_ranges(refused))
        if again != commit.refused:
            raise self.diverged(
                self.own,
                counted.offset,
                commit.cycle,
                f"refused records differ: {_first_unlike(commit.refused, again)}",
            )
        self._decide_again(counted, traces)
        self.finish(counted, ())
        return len(refused)

    async def _check_again(
        self, counted: CountedCycle, wanted: InputRange
    ) -> tuple[list[Envelope[Event]], list[RefusedRecord]]:
        """The events that are believed and the records that are not."""
        place = Partition(wanted.topic, wanted.partition)
        source = self.inputs[place]
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
        for stored in records:
            judged = check_claim(self.machine, self.state, key, stored)
            if isinstance(judged, RefusedRecord):
                refused.append(judged)
            else:
                self._note_details(judged)
                self.apply(judged)
                accepted.append(judged)
        return accepted, refused

    def _decide_again(self, counted: CountedCycle, traces: Mapping[str, str]) -> None:
        commit = counted.commit
        observed = []
        for _, envelope in counted.decisions:
            if type(envelope.data) not in self.machine.observations:
                break
            observed.append(Decision(envelope.data, envelope.subject, envelope.cause))
        verdict = self.machine.decide(
            self.state, limit=commit.limit or UNLIMITED, observed=observed
        )
        place = CycleHeader(
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
            place,
            with_observed(observed, verdict.decisions),
            traces,
            inputs=commit.inputs,
            refused=commit.refused,
            policies=self.machine.policies(self.state),
            state_digest=verdict.state_digest,
            complete=verdict.complete,
            limit=commit.limit,
            rules=self.machine.rules,
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

    def _note_details(self, envelope: Envelope[Event]) -> None:
        for name in ("details", "note"):
            ref = getattr(envelope.data, name, None)
            if isinstance(ref, DetailsRef):
                keys = {envelope.subject, envelope.id, getattr(envelope.data, "job_id", "")}
                self.refs.wanted.append((ref, frozenset(key.encode() for key in keys), envelope.id))

    def _note_rules(self, commit: CycleCommittedV1) -> None:
        last = self._ranges[-1] if self._ranges else None
        first = commit.cycle
        if last is not None and last.rules == commit.rules:
            first = self._ranges.pop().first_cycle
        derived = commit.rules == self.machine.rules
        self._ranges.append(RulesRange(commit.rules, first, commit.cycle, derived=derived))

    def _note_erased(self, counted: CountedCycle) -> None:
        for _, envelope in counted.decisions:
            event = envelope.data
            if isinstance(event, DetailsErasedV1):
                self.refs.erased.add(event.job_id)
            elif (
                isinstance(event, RequestRefusedV1)
                and event.code is AdmissionCode.DUPLICATE_ID
                and envelope.cause is not None
            ):
                self.refs.repeats.add(envelope.cause)

    def proved(self) -> MachineProof:
        """What has been proved so far."""
        return MachineProof(
            machine=self.machine.name,
            ranges=tuple(self._ranges),
            terms=self.terms,
            cycles=self.cycles,
            decisions=self.decisions,
            inputs=self.taken,
            refused=self.refused,
            dropped=self.reader.dropped,
            last_cycle=self.reader.cycle,
            now_ms=self.reader.now_ms,
        )


async def verify(
    log: EventLog,
    machines: Sequence[Machine[Any]],
    cell: str,
    *,
    partition: int = 0,
    promises: bool = True,
) -> Report:
    """Prove the log of a cell: every machine's, then `details`, then (with `promises`) the audit.

    Needs no snapshot and writes nothing. Raises LogUnavailable or LogClosed when the log cannot be
    read; whatever is wrong with its content is a finding.
    """
    findings: list[Finding] = []
    proved = []
    unproved: dict[Partition, tuple[int, int]] = {}
    refs = _Refs()
    for machine in machines:
        prover = Prover(log, machine, cell, partition)
        finding = await _prove(prover)
        if finding is not None:
            findings.append(finding)
        proved.append(prover.proved())
        await _note_unproved(log, prover, unproved)
        refs.wanted += prover.refs.wanted
        refs.erased |= prover.refs.erased
        refs.repeats |= prover.refs.repeats
    details = await _check_details(log, refs)
    findings += details.wrong
    broken: tuple[audit.Finding, ...] = ()
    if promises:
        broken = await audit_log(log, partition)
    return Report(
        findings=tuple(_once(findings)),
        promises=broken,
        proved=tuple(proved),
        unproved=unproved,
        details_checked=details.checked,
        details_gone=details.gone,
        details_unnamed=details.unnamed,
    )


async def _prove(prover: Prover[Any]) -> Finding | None:
    try:
        await prover.catch_up()
    except (MachineError, CoreError, LogCorrupt, LogTruncated) as error:
        return _finding(prover, error)
    return None


def _finding(prover: Prover[Any], error: YardmasterError) -> Finding:
    fields = error.fields
    place = fields.get("partition")
    topic = str(fields.get("topic", prover.own.topic))
    number = prover.own.number
    if isinstance(place, Partition):
        topic, number = place.topic, place.number
    elif isinstance(place, int):
        number = place
    offset = fields.get("offset")
    return Finding(
        topic=topic,
        partition=number,
        # A decision that cannot be applied: its cycle's commit was the last record read.
        offset=offset if isinstance(offset, int) else prover.reader.next - 1,
        found=str(fields["found"]) if "found" in fields and offset is not None else str(error),
        machine=prover.machine.name,
    )


async def _note_unproved(
    log: EventLog, prover: Prover[Any], unproved: dict[Partition, tuple[int, int]]
) -> None:
    reached = {prover.own: prover.reader.boundary}
    for place in prover.inputs:
        reached[place] = prover.reader.inputs.get((place.topic, place.number), 0)
    for place, offset in reached.items():
        end = await log.end(place)
        first = min(offset, unproved.get(place, (offset, 0))[0])
        if first < end:
            unproved[place] = (first, end)


@dataclass(slots=True)
class _Details:
    """What became of the records that requests name in `details`."""

    wrong: list[Finding] = field(default_factory=list)
    checked: int = 0
    gone: int = 0
    unnamed: int = 0


async def _check_details(log: EventLog, refs: _Refs) -> _Details:
    """Compare what requests say of `details` with what is there; the first that differ first."""
    there: dict[tuple[int, int], tuple[str | None, bool]] = {}
    found = _Details()
    for number in sorted({0} | {ref.partition for ref, _, _ in refs.wanted}):
        async for stored in _details_of(log, number, found.wrong):
            value = stored.record.value
            digest = None if value is None else details_digest(value)
            there[number, stored.offset] = (digest, _as_written(stored))
    damaged = {(one.partition, one.offset) for one in found.wrong}
    for ref, keys, request in refs.wanted:
        digest, as_written = there.get((ref.partition, ref.offset), (None, False))
        if (ref.partition, ref.offset) in damaged:
            continue
        if digest is not None:
            found.checked += 1
            text = ""
            if digest != ref.digest:
                text = f"it is not what request {request} recorded"
            elif not as_written:
                text = "its key or its headers are not those of what it holds"
        elif request in refs.repeats or any(key.decode() in refs.erased for key in keys):
            found.gone += 1
            continue
        else:
            text = f"it is gone, and no DetailsErased says why; request {request} refers to it"
        if text:
            found.wrong.append(Finding(DETAILS.name, ref.partition, ref.offset, text))
    named = {(ref.partition, ref.offset) for ref, _, _ in refs.wanted}
    found.unnamed = sum(digest is not None and at not in named for at, (digest, _) in there.items())
    found.wrong.sort(key=lambda finding: (finding.partition, finding.offset))
    return found


async def _details_of(
    log: EventLog, number: int, wrong: list[Finding]
) -> AsyncIterator[StoredRecord]:
    """All of a partition's details that can be read; a finding for each that cannot."""
    place = Partition(DETAILS.name, number)
    offset, most = 0, PAGE
    while True:
        try:
            records = await log.read(place, offset, max_records=most)
        except UnknownTopic:
            return
        except LogCorrupt as error:
            damaged = error.fields.get("offset")
            if isinstance(damaged, int) and most > 1:
                most = 1  # what lies before the damage is good
                continue
            at = damaged if isinstance(damaged, int) else offset
            wrong.append(Finding(place.topic, number, at, str(error)))
            if not isinstance(damaged, int):
                return
            offset, most = damaged + 1, PAGE
            continue
        for stored in records:
            yield stored
        if not records:
            return
        offset = records[-1].offset + 1


def _as_written(stored: StoredRecord) -> bool:
    """Whether key and headers of a details record are what its value makes them."""
    envelope = _decoded(stored)
    if envelope is None:
        return False
    data = envelope.data
    keys = [envelope.subject]
    if isinstance(data, RequestNotedV1):
        keys = [f"note.{data.salt}"]
    elif isinstance(data, JobDetailedV1):
        # So that a repeat, where nobody could say that it is one, takes no other's place.
        keys.append(f"{envelope.subject}.{data.salt}")
    return stored.record.key in [key.encode() for key in keys]


async def audit_log(log: EventLog, partition: int = 0) -> tuple[audit.Finding, ...]:
    """The audit of a cell's log as it lies there; claims that were refused bind nobody."""
    auditor = audit.Audit(honest_agents=False)
    # What is read first was written last, so that a log still written to has its cycles' inputs.
    for topic in reversed(INPUT_ORDER):
        place, offset = Partition(topic, partition), 0
        try:
            while records := await log.read(place, offset):
                for stored in records:
                    envelope = _decoded(stored)
                    digest = digest_of(stored.record)
                    auditor.feed(topic, partition, stored.offset, envelope, digest)
                offset = records[-1].offset + 1
        except (LogCorrupt, UnknownTopic):
            # The proof names the damaged record; the audit goes as far as the log can be read.
            continue
    return auditor.finish()


def _decoded(stored: StoredRecord) -> Envelope[Event] | None:
    try:
        return codec.decode(stored.record)
    except SchemaError:
        return None


def difference(found: Record, expected: Record) -> str:
    """Where two records differ first: in key, headers, or a field of the value."""
    if found.key != expected.key:
        return "its key differs from what is decided again"
    one, other = from_json(found.value or b"null"), from_json(expected.value or b"null")
    path, a, b = _unlike(one, other, "")
    if path is None:
        return "its headers or the form of its value differ from what is decided again"
    return f"{path} is {_short(a)}, decided again it is {_short(b)}"


def _unlike(one: Any, other: Any, path: str) -> tuple[str | None, Any, Any]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in (*one, *(key for key in other if key not in one)):
            found = _unlike(one.get(key), other.get(key), f"{path}.{key}" if path else key)
            if found[0] is not None:
                return found
        return None, None, None
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            found = _unlike(a, b, f"{path}[{index}]")
            if found[0] is not None:
                return found
        return None, None, None
    return (None if one == other else path or "it"), one, other


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _first_unlike(found: Sequence[object], again: Sequence[object]) -> str:
    for one, other in zip(found, again, strict=False):
        if one != other:
            return f"the log has {one}, judged again it is {other}"
    return f"the log has {len(found)} ranges, judged again there are {len(again)}"


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """One finding a record: two machines may meet the same."""
    seen = set()
    kept = []
    for finding in findings:
        place = (finding.topic, finding.partition, finding.offset)
        if place not in seen:
            seen.add(place)
            kept.append(finding)
    return kept
