"""The leader: takes a term, then runs cycles until another leader takes over.

One cycle: take what the inputs have, refuse what is not believed, apply the rest, decide, append
the decisions with their CycleCommitted, read them back, and apply what was read. From `begin` until
the commit is read back the fold's state is ahead of the log; whenever something fails in between,
the leader, its state and its term are thrown away (`candidate.py` does), so nothing is ever taken
back.

Pacing: a cycle starts at once when the last one started `min_interval_ms` ago; what arrives in
between is taken together. With nothing to take, nothing due and nothing left to decide, nothing is
appended.
"""

from collections.abc import Sequence
from typing import Generic, NoReturn, Protocol, TypeVar

from yardmaster_core.commit import CountedCycle, source_of
from yardmaster_core.machine import Decision
from yardmaster_eventlog.errors import BatchTooLarge, LogTruncated
from yardmaster_eventlog.port import Record, batch_bytes
from yardmaster_eventlog.reader import Cursor
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.cycle_reader import decode_own, digest_of
from yardmaster_runtime.errors import (
    CycleTooLarge,
    DecisionRefused,
    Fenced,
    MachineError,
    UnwritableDecision,
)
from yardmaster_runtime.machine.batch import (
    CycleHeader,
    cut,
    term_record,
    traces_of,
    with_observed,
    write_cycle,
)
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.inputs import (
    MachineInput,
    RefusedRecord,
    TakenRange,
    check_claim,
    refused_ranges,
)
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.machine.quarantine import Quarantine
from yardmaster_runtime.settings import CycleLimits
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_runtime.telemetry.tracing import trace_cycle
from yardmaster_runtime.waiting import first_of
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.machine import RulesEnabledV1

S = TypeVar("S")


class AfterCycle(Protocol):
    """What is done between cycles, while the state is that of the log (snapshots)."""

    def __call__(self) -> None:
        """Must not wait."""


class Leader(Generic[S]):
    """Decides for one cell while its term lasts. Used once: a new term has a new leader."""

    def __init__(
        self,
        fold: Fold[S],
        *,
        clock: Clock,
        chance: Chance,
        limits: CycleLimits,
        metrics: RuntimeMetrics,
        observations: Observations,
        after_cycle: AfterCycle | None = None,
    ) -> None:
        self.fold = fold
        self.term = 0
        self.source = ""
        self._clock = clock
        self._chance = chance
        self._limits = limits
        self._metrics = metrics
        self._observations = observations
        self._after_cycle = after_cycle
        self._quarantine: Quarantine | None = None
        self._batch_bytes = limits.max_batch_bytes
        self._last_start_s: float | None = None
        self._more = False
        #: A due time that an empty cycle did not change; not asked again until it moves.
        self._idle_due: int | None = None

    async def run(self) -> NoReturn:
        """Lead until that ends; `take_term` first.

        Raises:
            Fenced: another leader took over.
            AppendOutcomeUnknown: what was appended may or may not count.
            CycleTooLarge: decide in smaller cycles.
            DecisionRefused: observe in the next cycle that one of them cannot be written.
            and whatever stops a machine for good: ForeignRecord, ChainBroken, ReplayDiverged,
            ImpossibleEvent, UnwritableDecision, LogTruncated, LogCorrupt.
        """
        while True:
            await self._pace()
            if not await self.step():
                await self._wait()

    async def take_term(self) -> None:
        """Start the next term, as an incarnation of its own, and read that back.

        Raises:
            Fenced: others started as many terms first as `max_lost_terms`.
        """
        fold, reader = self.fold, self.fold.reader
        for _ in range(self._limits.max_lost_terms):
            await fold.catch_up()
            incarnation = self._chance.hex("incarnation", 12)
            term = reader.term + 1
            record = term_record(reader.machine, reader.cell, term, incarnation, self._now())
            offset = await fold.log.append(fold.own, [record])
            while reader.next <= offset:
                if not await fold.cursor.fill(1):
                    raise LogTruncated(found=f"{fold.own} has no offset {offset} any more")
                counted = fold.feed(fold.cursor.pop())
                if counted is not None:
                    # The leader before was not done yet: this batch of it landed in time.
                    await fold.follow(counted)
            self.source = source_of(reader.machine, reader.cell, incarnation)
            self._metrics.term.set(reader.term)
            if (reader.term, reader.owner) == (term, self.source):
                self.term = term
                self._quarantine = Quarantine(
                    fold.log, reader.machine, self.source, term, self._metrics
                )
                self._metrics.telemetry.info("term_started", term=term, source=self.source)
                return
            self._metrics.terms_lost.inc()
        raise self._fenced()

    async def step(self) -> bool:
        """One cycle; False when there was nothing to do and so nothing was appended."""
        fold, limits = self.fold, self._limits
        now_ms, started_s = self._now(), self._clock.monotonic_s()
        traced_ms = self._clock.now_ms()
        whole: dict[MachineInput, TakenRange] = {}
        enabling = self._enabling()
        # Also in a cycle that goes on with the last one's decisions: one of those may be what the
        # observation says cannot be written. RulesEnabled comes alone: so it fits into any cycle.
        most = 0 if enabling else max(1, limits.max_decisions // 2)
        waiting = self._observations.first(most)
        continuing = not fold.reader.complete
        if not continuing:
            whole = await self._read_inputs()
            if not whole and not self._called_for(now_ms):
                await self.check_fenced(buffered_only=True)
                return False
        self._last_start_s = started_s
        observed = (*enabling, *waiting)
        fold.begin_cycle(fold.reader.cycle + 1, now_ms)
        taken = [] if continuing else self._take_inputs(whole)
        refused = [one for each in taken for one in each.refused]
        verdict = fold.machine.decide(fold.state, limit=limits.max_decisions, observed=observed)
        decisions = with_observed(observed, verdict.decisions)
        accepted = [envelope for each in taken for envelope in each.accepted]
        records = write_cycle(
            self._header(now_ms),
            decisions,
            traces_of(accepted),
            inputs=tuple(each.range() for each in taken),
            refused=tuple(refused_ranges(refused)),
            policies=fold.machine.policies(fold.state),
            state_digest=verdict.state_digest,
            complete=verdict.complete,
            limit=None if verdict.complete else limits.max_decisions,
            rules=fold.machine.rules,
        ).records
        try:
            envelopes = self._checked(records)
            offsets = await self._append(records)
        except (UnwritableDecision, CycleTooLarge) as error:
            self._refuse_unwritable(decisions, records, error)
            raise
        counted = await self._read_back(records, envelopes, offsets)
        fold.finish(counted, accepted)
        self._observations.recorded(len(waiting))
        due_ms = None if taken or decisions else fold.machine.due_ms(fold.state)
        # Only a moment that has come and stays: a later one calls for its cycle when it comes.
        self._idle_due = due_ms if due_ms is not None and due_ms <= now_ms else None
        self._count(taken, len(decisions), verdict.complete)
        if refused and self._quarantine is not None:
            await self._quarantine.put(refused, now_ms, limits.max_quarantined)
        self._metrics.cycle_seconds.observe(self._clock.monotonic_s() - started_s)
        trace_cycle(self._metrics.telemetry.tracer, traced_ms, accepted, counted)
        if self._after_cycle is not None:
            self._after_cycle()
        return True

    def _enabling(self) -> tuple[Decision, ...]:
        """The record that switches a log begun under older rules to those of this program."""
        reader, rules = self.fold.reader, self.fold.machine.rules
        if reader.cycle == 0 or reader.rules == rules:
            return ()
        return (Decision(RulesEnabledV1(rules=rules), reader.cell),)

    async def check_fenced(self, *, buffered_only: bool = False) -> None:
        """Read what others wrote into the own topic, or what of it is at hand (while idle).

        Raises:
            Fenced: a higher term.
        """
        fold = self.fold
        while await fold.cursor.fill(1, buffered_only=buffered_only):
            fold.feed(fold.cursor.pop())
        self._metrics.dropped.set(fold.reader.dropped)
        if fold.reader.term != self.term:
            raise self._fenced()

    # When

    async def _pace(self) -> None:
        """Wait until a cycle may start; at once when the last one left something behind."""
        if self._last_start_s is None or self._more or not self.fold.reader.complete:
            return
        since_s = self._clock.monotonic_s() - self._last_start_s
        left_s = self._limits.min_interval_ms / 1000 - since_s
        if left_s > 0:
            await self._clock.sleep(left_s)

    async def _wait(self) -> None:
        """Until there may be something to do: a record, an observation, or what is due."""
        ends = {place: _cursor(source).end for place, source in self.fold.inputs.items()}
        ends[self.fold.own] = self.fold.cursor.end
        timeout_s = self._limits.idle_wait_s
        due_ms = self._due_ms()
        if due_ms is not None:
            timeout_s = min(timeout_s, max(due_ms - self._clock.now_ms(), 1) / 1000)
        await first_of(self.fold.log.wait(ends, timeout_s), self._observations.urgent.wait())

    def _due_ms(self) -> int | None:
        due_ms = self.fold.machine.due_ms(self.fold.state)
        return None if due_ms == self._idle_due else due_ms

    def _called_for(self, now_ms: int) -> bool:
        if self._observations.urgent.is_set():
            return True
        if any(isinstance(source, Cursor) and len(source) for source in self.fold.inputs.values()):
            return True
        due_ms = self._due_ms()
        return due_ms is not None and due_ms <= now_ms

    def _now(self) -> int:
        """The clock's time, but never before the log's."""
        now_ms, log_ms = self._clock.now_ms(), self.fold.reader.now_ms
        behind_ms = max(0, log_ms - now_ms)
        self._metrics.clock_behind_ms.set(behind_ms)
        if behind_ms > self._limits.clock_alarm_ms:
            self._metrics.telemetry.warn("clock_behind_log", behind_ms=behind_ms)
        return max(now_ms, log_ms)

    # What goes in

    async def _read_inputs(self) -> dict[MachineInput, TakenRange]:
        """Read ahead; returns the whole cycles of other machines that are there."""
        whole = {}
        for source in self.fold.inputs.values():
            there = await _cursor(source).fill(self._limits.max_inputs, buffered_only=True)
            # What was read ahead may end within a cycle whose rest is there too.
            while there and isinstance(source, MachineInput):
                taken = source.take_counted(self._limits.max_inputs)
                if taken is not None:
                    whole[source] = taken
                    break
                there = await source.cursor.fill(1, buffered_only=True)
        return whole

    def _take_inputs(self, whole: dict[MachineInput, TakenRange]) -> list[TakenRange]:
        """Apply what the inputs have, in their order."""
        taken: list[TakenRange] = []
        ranges_left = self._limits.max_refused
        for source in self.fold.inputs.values():
            if isinstance(source, MachineInput):
                if source in whole:
                    taken.append(whole[source])
                    for envelope in whole[source].accepted:
                        self.fold.apply(envelope)
                continue
            claims = self._take_claims(source, ranges_left)
            ranges_left -= len(refused_ranges(claims.refused))
            if claims.digests:
                taken.append(claims)
        return taken

    def _take_claims(self, cursor: Cursor, ranges_left: int) -> TakenRange:
        fold = self.fold
        taken = TakenRange(cursor.partition, cursor.offset)
        key = fold.cell.encode()
        while len(cursor) and len(taken.digests) < self._limits.max_inputs:
            judged = check_claim(fold.machine, fold.state, key, cursor.peek())
            if isinstance(judged, RefusedRecord):
                if not _extends(taken.refused, judged):
                    if ranges_left == 0:
                        break
                    ranges_left -= 1
                taken.refused.append(judged)
            else:
                fold.apply(judged)
                taken.accepted.append(judged)
            taken.digests.append(digest_of(cursor.pop().record))
        return taken

    # What comes out

    def _header(self, now_ms: int) -> CycleHeader:
        reader = self.fold.reader
        return CycleHeader(
            machine=reader.machine,
            cell=reader.cell,
            source=self.source,
            term=self.term,
            seq=reader.seq,
            cycle=reader.cycle + 1,
            prev=reader.head,
            now_ms=now_ms,
        )

    def _refuse_unwritable(
        self, decisions: Sequence[Decision], records: Sequence[Record], error: MachineError
    ) -> None:
        """Name the decision that cannot be written, if the machine has another way.

        Raises:
            DecisionRefused.
        """
        place = error.fields["record"]
        assert isinstance(place, int), "both name their record"
        decision = decisions[place] if place < len(decisions) else None
        observed = None if decision is None else self.fold.machine.unwritable(decision.event)
        if decision is not None and observed is not None:
            raise DecisionRefused(
                type=decision.event.TYPE,
                subject=decision.subject,
                found=str(error),
                observed=observed,
            ) from error

    def _checked(self, records: Sequence[Record]) -> list[Envelope[Event]]:
        """The events of the records as any reader will find them.

        What readers cannot decode would stop them all, for good; so it is not written.
        """
        envelopes = []
        for index, record in enumerate(records):
            try:
                envelopes.append(decode_own(record, self.fold.cell))
            except SchemaError as error:
                raise UnwritableDecision(
                    machine=self.fold.machine.name,
                    type=dict(record.headers)["ce_type"].decode(),
                    found=str(error),
                    record=index,
                ) from error
        return envelopes

    async def _append(self, records: Sequence[Record]) -> list[int]:
        """Append a cycle in as few batches as may be; the offset of each record."""
        fold, limit = self.fold, self.fold.machine.output.max_batch_bytes
        started_s = self._clock.monotonic_s()
        batches = cut(records, min(self._batch_bytes, limit), limit, fold.own.topic)
        offsets: list[int] = []
        while batches:
            batch = batches[0]
            try:
                first = await fold.log.append(fold.own, batch)
            except BatchTooLarge as error:
                # The log takes less than its catalogue says: smaller batches from now on.
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
                batches = cut(records[len(offsets) :], size // 2, limit, fold.own.topic)
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
    ) -> CountedCycle:
        """Read the own topic up to the commit; the cycle as every reader sees it.

        Raises:
            Fenced: a higher term started before it, so it does not count.
        """
        fold = self.fold
        mine = dict(zip(offsets, range(len(records)), strict=True))
        counted: CountedCycle | None = None
        while fold.reader.next <= offsets[-1]:
            if not await fold.cursor.fill(1, buffered_only=True):
                # It is on its way: waiting for it costs less than asking where the log ends.
                await fold.log.wait({fold.own: fold.cursor.end}, self._limits.idle_wait_s)
                if not await fold.cursor.fill(1):
                    raise LogTruncated(found=f"{fold.own} has no offset {offsets[-1]} any more")
            stored = fold.cursor.pop()
            index = mine.get(stored.offset)
            known = index is not None and stored.record == records[index]
            counted = fold.feed(stored, envelopes[index] if known and index is not None else None)
        if counted is None or fold.reader.term != self.term:
            raise self._fenced()
        return counted

    def _fenced(self) -> Fenced:
        reader = self.fold.reader
        return Fenced(
            term=self.term,
            machine=reader.machine,
            topic=reader.topic,
            offset=reader.next - 1,
            other=reader.term,
        )

    def _count(self, taken: Sequence[TakenRange], decisions: int, complete: bool) -> None:
        metrics, limits = self._metrics, self._limits
        metrics.cycles.inc()
        metrics.decisions.inc(decisions)
        metrics.dropped.set(self.fold.reader.dropped)
        if not complete:
            metrics.cycles_cut.inc()
        self._more = False
        for each in taken:
            topic = each.partition.topic
            metrics.inputs.labels(topic).inc(len(each.digests))
            cursor = _cursor(self.fold.inputs[each.partition])
            metrics.input_lag.labels(topic).set(len(cursor))
            if len(cursor) and len(each.digests) >= limits.max_inputs:
                metrics.inputs_cut.labels(topic).inc()
                self._more = True


def _cursor(source: Cursor | MachineInput) -> Cursor:
    return source.cursor if isinstance(source, MachineInput) else source


def _extends(refused: Sequence[RefusedRecord], one: RefusedRecord) -> bool:
    """Whether `one` only makes the last range longer."""
    if not refused:
        return False
    last = refused[-1]
    return last.code is one.code and last.stored.offset + 1 == one.stored.offset
