"""Quota's machine: what the runtime drives, on the protocol that the scheduler's shares."""

from collections.abc import Sequence
from typing import Any, Final

from yardmaster_core.admission import snapshot
from yardmaster_core.admission.apply import JUDGED, apply_event
from yardmaster_core.admission.changes import PolicyCheck, any_policy
from yardmaster_core.admission.decide import advance, decide
from yardmaster_core.admission.state import AdmissionState
from yardmaster_core.machine import Decision, Verdict
from yardmaster_core.rules import RULES
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.machine import PolicyInUse, RulesEnabledV1, SnapshotTakenV1
from yardmaster_schemas.events.requests import LogCreatedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import ADMISSIONS, REQUESTS, Topic

GATEWAY: Final = "gateway"
#: Who writes to topics of its own only. LogCreated may come from anyone else: it is the first
#: record, written by what sets the log up, before any gateway runs.
_OTHERS: Final = frozenset({"quota", "scheduler", "node"})


class QuotaMachine:
    """Judges every request once. Pure: it has no clock, no chance and no I/O, and keeps no state.

    `check_policy` says whether a pool's policy is known and takes its options; without it all are
    let pass, and the scheduler's machine meets them first.
    """

    name: str = "quota"
    output: Topic = ADMISSIONS
    inputs: tuple[Topic, ...] = (REQUESTS,)
    observations: tuple[type[Event], ...] = (RulesEnabledV1, SnapshotTakenV1)
    rules: int = RULES

    def __init__(self, check_policy: PolicyCheck = any_policy) -> None:
        self._check_policy = check_policy

    def initial(self, cell: str) -> AdmissionState:
        """An empty cell."""
        return AdmissionState(cell)

    def begin_cycle(self, state: AdmissionState, cycle: int, now_ms: int) -> AdmissionState:
        """Start a cycle; `now_ms` becomes the submission time of jobs that this cycle takes."""
        state.cycle = cycle
        state.now_ms = max(state.now_ms, now_ms)
        return state

    def refusal(self, state: AdmissionState, envelope: Envelope[Event]) -> RefusalCode | None:
        """Why a request's record cannot be believed; what was asked in it is judged by `decide`."""
        event = envelope.data
        if type(event) not in JUDGED and not isinstance(event, LogCreatedV1):
            return RefusalCode.WRONG_TOPIC
        mark = state.sources.get(envelope.source)
        if mark is not None and not mark.below(envelope.epoch, envelope.seq):
            return RefusalCode.REPEATED
        service = envelope.source.partition("/")[0]
        log = state.logs.get(state.cell)
        if isinstance(event, LogCreatedV1):
            if event.cell != state.cell:
                return RefusalCode.WRONG_CELL
            if service in _OTHERS:
                return RefusalCode.NOT_ITS_AUTHOR
            return RefusalCode.CONTRADICTION if log is not None else None
        if service != GATEWAY or log is None:
            return RefusalCode.NOT_ITS_AUTHOR
        return None

    def apply(self, state: AdmissionState, event: Event, record_id: str) -> AdmissionState:
        """The state after a request or a verdict; one that was taken before changes nothing.

        Raises:
            ImpossibleEvent: a verdict that does not fit the state.
        """
        apply_event(state, event, record_id)
        return state

    def decide(
        self, state: AdmissionState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> Verdict:
        """A verdict on each request that waits, up to `limit`; observations decide nothing."""
        return decide(state, limit - len(observed), self._check_policy)

    def advance(
        self, state: AdmissionState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> tuple[AdmissionState, Sequence[Decision], bool]:
        """See `core.machine.Advancing.advance`."""
        return state, *advance(state, limit - len(observed), self._check_policy)

    def unwritable(self, _: Event) -> None:
        """See `core.machine.Machine.unwritable`: no verdict is larger than its request."""

    def end_cycle(self, state: AdmissionState, *, complete: bool) -> AdmissionState:
        """Nothing sleeps: what was not judged waits in order."""
        return state

    def policies(self, state: AdmissionState) -> tuple[PolicyInUse, ...]:
        """None: admission follows no pool's policy."""
        return ()

    def digest(self, state: AdmissionState) -> str:
        """64 hex digits; does not depend on how requests were spread over cycles."""
        return state.digest()

    def due_ms(self, state: AdmissionState) -> int | None:
        """At once while requests wait (a cycle was cut at its limit); time calls for nothing."""
        return state.now_ms if state.work else None

    def dump(self, state: AdmissionState) -> Any:
        """The state as plain JSON."""
        return snapshot.dump(state)

    def load(self, cell: str, dump: Any) -> AdmissionState:
        """The state that `dump` gave.

        Raises:
            SnapshotUnreadable: another version's, or not a dump.
        """
        return snapshot.load(cell, dump)
