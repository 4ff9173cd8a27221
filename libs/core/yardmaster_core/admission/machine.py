"""Quota's state machine, which the runtime drives through the same protocol as the scheduler's."""

from collections.abc import Sequence
from typing import Any, Final

from yardmaster_core.admission import snapshot
from yardmaster_core.admission.apply import JUDGED, apply_event
from yardmaster_core.admission.changes import PolicyCheck, any_policy
from yardmaster_core.admission.decide import decide, decide_in_place
from yardmaster_core.admission.state import AdmissionState
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.rules import OLDEST_RULES, RULES
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.decisions import TaskEndedV1
from yardmaster_schemas.events.machine import PolicyInUse, RulesEnabledV1, SnapshotTakenV1
from yardmaster_schemas.events.requests import LogCreatedV1, RulesRequestedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import MAX_EPOCH_AHEAD_MS
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, REQUESTS, Topic

GATEWAY: Final = "gateway"
#: Services that write only to topics of their own. Any other writer may append LogCreated: it is
#: the first record, appended by the tool that creates the log, before any gateway runs.
_OTHER_SERVICES: Final = frozenset({"quota", "scheduler", "node"})


class QuotaMachine:
    """Judges every request once. It has no clock, no randomness and no I/O, and keeps no state.

    `check_policy` checks whether a pool's policy is known and accepts its options. By default every
    policy is accepted, and the scheduler stops at an unknown one.
    """

    name: str = "quota"
    output: Topic = ADMISSIONS
    inputs: tuple[Topic, ...] = (REQUESTS, DECISIONS)
    observations: tuple[type[Event], ...] = (RulesEnabledV1, SnapshotTakenV1)
    rules: int = RULES
    oldest_rules: int = OLDEST_RULES

    def __init__(self, check_policy: PolicyCheck = any_policy) -> None:
        self._check_policy = check_policy

    def initial(self, cell: str) -> AdmissionState:
        """An empty cell."""
        return AdmissionState(cell)

    def begin_cycle(
        self, state: AdmissionState, cycle: int, now_ms: int, rules: int = RULES
    ) -> AdmissionState:
        """Start a cycle; `now_ms` becomes the submission time of jobs in its inputs."""
        state.rules = rules
        state.cycle = cycle
        state.now_ms = max(state.now_ms, now_ms)
        return state

    def calls_for_cycle(self, event: Event) -> bool:
        """Whether a decision of the scheduler ends a task; other decisions change no row here."""
        return isinstance(event, TaskEndedV1)

    def refusal(self, state: AdmissionState, envelope: Envelope[Event]) -> RefusalCode | None:
        """Why a record is not a valid request, or None; `decide` judges its content."""
        event = envelope.data
        if type(event) not in JUDGED and not isinstance(event, LogCreatedV1):
            return RefusalCode.WRONG_TOPIC
        last = state.sources.get(envelope.source)
        if last is not None and not last.precedes(envelope.epoch, envelope.seq):
            return RefusalCode.REPEATED
        service = envelope.source.partition("/")[0]
        log = state.logs.get(state.cell)
        if isinstance(event, LogCreatedV1):
            if event.cell != state.cell:
                return RefusalCode.WRONG_CELL
            if service in _OTHER_SERVICES:
                return RefusalCode.NOT_ITS_AUTHOR
            return RefusalCode.CONTRADICTION if log is not None else None
        if service != GATEWAY or log is None:
            return RefusalCode.NOT_ITS_AUTHOR
        # The time of a cycle is never before the appends of its inputs (`Machine.begin_cycle`).
        if envelope.epoch > state.now_ms + MAX_EPOCH_AHEAD_MS:
            return RefusalCode.EPOCH_AHEAD
        if isinstance(event, RulesRequestedV1):
            return self._refused_rules(state, event)
        return None

    def _refused_rules(self, state: AdmissionState, event: RulesRequestedV1) -> RefusalCode | None:
        """Return why a switch to the requested rules is refused, or None.

        The record itself is refused, without a verdict. So a program of the release before, which
        does not know newer rules, must stop only where the rules change.
        """
        if event.rules > self.rules:
            return RefusalCode.UNKNOWN_VERSION
        pending = any(isinstance(one.event, RulesRequestedV1) for one in state.work)
        return RefusalCode.REPEATED if pending or event.rules <= state.rules else None

    def apply(
        self, state: AdmissionState, event: Event, record_id: str, actor: str = ""
    ) -> AdmissionState:
        """The state after a request or a verdict; a repeat changes nothing.

        Raises:
            ImpossibleEvent: the verdict contradicts the state.
        """
        apply_event(state, event, record_id, actor)
        return state

    def decide(
        self, state: AdmissionState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> CycleResult:
        """A verdict on each pending request, up to `limit`; observations change no verdict."""
        return decide(state, limit - len(observed), self._check_policy)

    def decide_in_place(
        self, state: AdmissionState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> tuple[AdmissionState, Sequence[Decision], bool]:
        """Decide as `decide` does, but apply the verdicts to `state`.

        Returns the state, the verdicts, and whether no request is pending after them.
        """
        return state, *decide_in_place(state, limit - len(observed), self._check_policy)

    def unwritable(self, _: Event) -> None:
        """No verdict is larger than its request, so none is unwritable."""

    def end_cycle(self, state: AdmissionState, *, complete: bool) -> AdmissionState:
        """Return the state unchanged: requests without a verdict stay pending in order."""
        return state

    def policies(self, state: AdmissionState) -> tuple[PolicyInUse, ...]:
        """No policies: admission does not depend on a pool's policy."""
        return ()

    def digest(self, state: AdmissionState) -> str:
        """64 hex digits, independent of how requests are divided into cycles."""
        return state.digest()

    def committed_digest(self, state: AdmissionState) -> str:
        """The same as `digest`: the end of a cycle changes nothing."""
        return state.digest()

    def due_ms(self, state: AdmissionState) -> int | None:
        """Now while requests are pending (a cycle was cut at its limit), else None."""
        return state.now_ms if state.work else None

    def dump(self, state: AdmissionState) -> Any:
        """Return the state as plain JSON, for a snapshot."""
        return snapshot.dump(state)

    def load(self, cell: str, dump: Any) -> AdmissionState:
        """The state that `dump` returned.

        Raises:
            SnapshotUnreadable: the value is from another version, or not a dump.
        """
        return snapshot.load(cell, dump)
