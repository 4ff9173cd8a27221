"""The leader: takes a term, then runs cycles until another leader takes over.

One cycle: read the inputs, refuse invalid claims, apply the rest, decide, append the decisions with
their CycleCommitted, read them back, and apply them. From `begin_cycle` until the commit is read
back, the fold's state is ahead of the log. When anything fails in between, `candidate.py` discards
the leader with its state and its term, so nothing is ever rolled back.

Pacing: a cycle starts at once when the last one started at least `min_interval_ms` ago; under load
one cycle takes all inputs that arrived in between. A cycle without inputs, due work or unfinished
decisions is not appended.
"""

from collections.abc import Sequence
from typing import Generic, NoReturn, Protocol, TypeVar

from yardmaster_core.commit import source_of
from yardmaster_core.machine import Decision
from yardmaster_eventlog.errors import LogTruncated
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.machine.cycle_records import (
    CycleHeader,
    term_record,
    traces_of,
    with_observed,
    write_cycle,
)
from yardmaster_runtime.machine.cycle_writer import CycleWriter, fenced
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.input_taker import InputTaker
from yardmaster_runtime.machine.inputs import MachineInput, TakenRange, cursor_of, refused_ranges
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.machine.quarantine import Quarantine
from yardmaster_runtime.settings import CycleLimits
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_runtime.telemetry.tracing import trace_cycle
from yardmaster_runtime.waiting import first_of
from yardmaster_schemas.events.machine import RulesEnabledV1
from yardmaster_schemas.instants import LAST_MS

S = TypeVar("S")


class AfterCycle(Protocol):
    """Called between two cycles, while the state equals the log's (for snapshots)."""

    def __call__(self) -> None:
        """Must not block."""


class Leader(Generic[S]):
    """Decides for one cell during one term; a new term needs a new leader."""

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
        self._inputs = InputTaker(fold, limits)
        self._writer = CycleWriter(fold, clock, limits, metrics)
        self._last_start_s: float | None = None
        #: The newest time of a cycle that was ahead of the clock (ms), and when that cycle was read
        #: (`monotonic_s`). From that moment the time of cycles passes at half speed.
        self._ahead: tuple[int, float] = (0, 0.0)
        self._ahead_said = False
        #: Whether the last cycle left records of an input for the next one.
        self._inputs_left = False
        #: A due time that an empty cycle did not change; ignored until it moves.
        self._idle_due: int | None = None

    async def run(self) -> NoReturn:
        """Run cycles until an error ends the term; call `take_term` first.

        Raises:
            Fenced: another leader took over.
            AppendOutcomeUnknown: the last append may or may not count.
            CycleTooLarge: decide in smaller cycles.
            DecisionRefused: the next cycle has to observe that a decision cannot be written.
            ForeignRecord, ChainBroken, ReplayDiverged, ImpossibleEvent, UnwritableDecision,
            LogTruncated, LogCorrupt: the machine has to stop.
        """
        while True:
            await self._pace()
            if not await self.step():
                await self._wait()

    async def take_term(self) -> None:
        """Start the next term with a new incarnation, and read the record back.

        Raises:
            Fenced: `max_lost_terms` attempts lost against other candidates.
        """
        fold, reader = self.fold, self.fold.reader
        for _ in range(self._limits.max_lost_terms):
            await fold.catch_up()
            incarnation = self._chance.hex("incarnation", 12)
            term = reader.term + 1
            # This append is what tells the clock the log's time, so no decision uses this time.
            now_ms = min(max(self._clock.now_ms(), reader.now_ms), LAST_MS)
            record = term_record(reader.machine, reader.cell, term, incarnation, now_ms)
            offset = await fold.log.append(fold.own, [record])
            while reader.next <= offset:
                if not await fold.cursor.fill(1):
                    raise LogTruncated(found=f"{fold.own} has no offset {offset} any more")
                counted = fold.feed(fold.cursor.pop())
                if counted is not None:
                    # A batch of the previous leader was appended before this term's record.
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
        raise fenced(reader, self.term)

    async def step(self) -> bool:
        """Run one cycle; False when there was no work and nothing was appended."""
        fold, limits = self.fold, self._limits
        started_s = self._clock.monotonic_s()
        trace_start_ms = self._metrics.telemetry.now_ms()
        continuing = not fold.reader.complete
        if not continuing:
            await self._inputs.read()
            if not self._inputs.call_for_cycle() and not self._has_work(self.now_ms()):
                await self.check_fenced(buffered_only=True)
                return False
        # The cycle's time is not before the append times of its inputs. A gateway's epoch is an
        # append time, so it is never later than a cycle that takes the gateway's requests.
        now_ms = max(self.now_ms(), min(self._inputs.newest_ms(), LAST_MS))
        rules = self._rules()
        enabling = self._enabling(rules)
        # Observations also go into a cycle that continues the decisions of the last one: an
        # observation may say that one of those decisions cannot be written. RulesEnabled takes no
        # observations, so that it fits into any cycle.
        waiting = self._observations.first(0 if enabling else max(1, limits.max_decisions // 2))
        self._last_start_s = started_s
        observed = (*enabling, *waiting)
        fold.begin_cycle(fold.reader.cycle + 1, now_ms, rules)
        taken = [] if continuing else self._inputs.take()
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
            rules=rules,
        ).records
        counted = await self._writer.write(records, decisions, self.term)
        fold.finish(counted, accepted)
        for each in taken:
            fold.mark(each.partition, each.first, each.digests)
        self._observations.recorded(len(waiting))
        due_ms = None if taken or decisions else fold.machine.due_ms(fold.state)
        # Ignore only a due time in the past that this cycle did not change. A due time in the
        # future starts a cycle when it comes.
        self._idle_due = due_ms if due_ms is not None and due_ms <= now_ms else None
        self._count(taken, len(decisions), verdict.complete)
        if refused and self._quarantine is not None:
            await self._quarantine.put(refused, now_ms, limits.max_quarantined)
        self._metrics.cycle_seconds.observe(self._clock.monotonic_s() - started_s)
        trace_cycle(self._metrics.telemetry.tracer, trace_start_ms, accepted, counted)
        if self._after_cycle is not None:
            self._after_cycle()
        return True

    async def check_fenced(self, *, buffered_only: bool = False) -> None:
        """Read what other leaders appended to the own topic.

        With `buffered_only`, only records that this process has received already are read.

        Raises:
            Fenced: a higher term.
        """
        fold = self.fold
        while await fold.cursor.fill(1, buffered_only=buffered_only):
            fold.feed(fold.cursor.pop())
        self._metrics.dropped.set(fold.reader.dropped)
        if fold.reader.term != self.term:
            raise fenced(fold.reader, self.term)

    # Pacing

    async def _pace(self) -> None:
        """Wait until a cycle may start; at once when the last one left work behind."""
        if self._last_start_s is None or self._inputs_left or not self.fold.reader.complete:
            return
        since_s = self._clock.monotonic_s() - self._last_start_s
        left_s = self._limits.min_interval_ms / 1000 - since_s
        if left_s > 0:
            await self._clock.sleep(left_s)

    async def _wait(self) -> None:
        """Wait for a record, an urgent observation, or the machine's due time."""
        cursors = [self.fold.cursor, *map(cursor_of, self._inputs.sources())]
        ends = {cursor.partition: cursor.end for cursor in cursors}
        timeout_s = self._limits.idle_wait_s
        due_ms = self._due_ms()
        if due_ms is not None:
            timeout_s = min(timeout_s, max(due_ms - self.now_ms(), 1) / 1000)
        await first_of(self.fold.log.wait(ends, timeout_s), self._observations.urgent.wait())

    def _due_ms(self) -> int | None:
        due_ms = self.fold.machine.due_ms(self.fold.state)
        return None if due_ms == self._idle_due else due_ms

    def _has_work(self, now_ms: int) -> bool:
        """Whether anything but other machines' cycles calls for a cycle."""
        if self._observations.urgent.is_set() or self._inputs.has_claims():
            return True
        due_ms = self._due_ms()
        return due_ms is not None and due_ms <= now_ms

    def now_ms(self) -> int:
        """The time of the next cycle: the clock's time, or later if an earlier cycle was ahead.

        An earlier cycle may have a later time than the clock, because the clock of its leader or of
        a broker was ahead. The time of cycles never decreases. It therefore passes at half speed
        from that cycle on until the clock has caught up, so it neither stands still nor stays
        ahead.
        """
        clock_ms, elapsed_s = self._clock.now_ms(), self._clock.monotonic_s()
        ahead_ms, since_s = self._ahead
        slow_ms = ahead_ms + int(max(0.0, elapsed_s - since_s) * 500)
        newest_ms = self.fold.reader.now_ms
        if newest_ms > max(clock_ms, slow_ms):
            self._ahead = (newest_ms, elapsed_s)
            slow_ms = newest_ms
        now_ms = max(clock_ms, slow_ms)
        behind_ms = now_ms - clock_ms + self._clock.ahead_ms()
        self._metrics.clock_behind_ms.set(behind_ms)
        if behind_ms > self._limits.clock_alarm_ms and not self._ahead_said:
            self._metrics.telemetry.warn("clock_behind_log", behind_ms=behind_ms)
        self._ahead_said = behind_ms > self._limits.clock_alarm_ms
        return min(now_ms, LAST_MS)

    # Parts of a cycle

    def _rules(self) -> int:
        """The rules with which the next cycle begins.

        A new log starts with the newest rules. Afterwards, quota keeps its rules until a request
        switches them, and the scheduler keeps its rules until quota has newer ones. Rules that this
        program no longer has are replaced by the oldest that it has.
        """
        reader, machine = self.fold.reader, self.fold.machine
        followed = max(
            (
                source.reader.rules
                for source in self.fold.inputs.values()
                if isinstance(source, MachineInput)
            ),
            default=0,
        )
        if reader.cycle == 0 and not followed:
            return machine.rules
        return max(reader.rules, machine.oldest_rules, min(followed, machine.rules))

    def _enabling(self, rules: int) -> tuple[Decision, ...]:
        """The decision that switches the log to `rules`; empty if nothing changes."""
        reader = self.fold.reader
        if reader.cycle == 0 or reader.rules == rules:
            return ()
        return (Decision(RulesEnabledV1(rules=rules), reader.cell),)

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

    def _count(self, taken: Sequence[TakenRange], decisions: int, complete: bool) -> None:
        """Count the cycle in the metrics; remember whether it left records of an input behind."""
        metrics, limits = self._metrics, self._limits
        metrics.cycles.inc()
        metrics.rules.set(self.fold.reader.rules)
        metrics.decisions.inc(decisions)
        metrics.dropped.set(self.fold.reader.dropped)
        if not complete:
            metrics.cycles_cut.inc()
        self._inputs_left = False
        for each in taken:
            topic = each.partition.topic
            metrics.inputs.labels(topic).inc(len(each.digests))
            cursor = cursor_of(self.fold.inputs[each.partition])
            metrics.input_lag.labels(topic).set(len(cursor))
            if len(cursor) and len(each.digests) >= limits.max_inputs:
                metrics.inputs_cut.labels(topic).inc()
                self._inputs_left = True
