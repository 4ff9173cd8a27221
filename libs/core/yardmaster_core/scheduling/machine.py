"""The scheduler's state machine: what the runtime drives. Start reading at `_decide`."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from yardmaster_core.machine import Decision, Verdict
from yardmaster_core.rules import RULES
from yardmaster_core.scheduling.planner import cycle_boundaries as cycling
from yardmaster_core.scheduling.planner.draft import CycleFull, Draft
from yardmaster_core.scheduling.planner.lifecycle import decide_lifecycle
from yardmaster_core.scheduling.planner.plan import plan
from yardmaster_core.scheduling.planner.policy import PolicyRegistry
from yardmaster_core.scheduling.planner.refusals import refusal
from yardmaster_core.scheduling.policies import REGISTRY
from yardmaster_core.scheduling.state import apply as applying
from yardmaster_core.scheduling.state import snapshot
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.decisions import (
    AllocationUnwritableV1,
    NodeSilenceObservedV1,
    SlotsAllocatedV1,
)
from yardmaster_schemas.events.machine import PolicyInUse, RulesEnabledV1, SnapshotTakenV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, NODE_EVENTS, Topic


def _decide(
    state: ClusterState, limit: int, observed: Sequence[Decision], policies: PolicyRegistry
) -> Verdict:
    """What follows from the state: ends and losses first, then pool by pool who starts, stops and
    waits.

    The state is left as it was. At most `limit` decisions, but never fewer than one step that
    belongs together (the victims of one task).
    """
    # Hashes what the inputs changed, and keeps it: the draft's digest then hashes only what the
    # draft changed, which is forgotten with it.
    state.digest()
    with Draft(state, limit) as draft:
        complete = _fill(draft, observed, policies)
        return Verdict(tuple(draft.decisions), state.digest(), complete)


def _fill(draft: Draft, observed: Sequence[Decision], policies: PolicyRegistry) -> bool:
    """Decide all there is to decide; whether the draft took all of it."""
    try:
        for decision in observed:
            draft.record(decision.event, decision.subject, decision.cause)
        decide_lifecycle(draft)
        plan(draft, policies)
    except CycleFull:
        return False
    return True


class SchedulerMachine:
    """`core.machine.Machine` of the scheduler."""

    name: Final = "scheduler"
    output: ClassVar[Topic] = DECISIONS
    inputs: ClassVar[tuple[Topic, ...]] = (ADMISSIONS, NODE_EVENTS)
    observations: ClassVar[tuple[type[Event], ...]] = (
        AllocationUnwritableV1,
        NodeSilenceObservedV1,
        RulesEnabledV1,
        SnapshotTakenV1,
    )
    rules: ClassVar[int] = RULES

    def __init__(self, policies: PolicyRegistry = REGISTRY) -> None:
        self._policies = policies

    def initial(self, cell: str) -> ClusterState:
        """An empty cell."""
        return ClusterState(cell, self._policies)

    def begin_cycle(self, state: ClusterState, cycle: int, now_ms: int) -> ClusterState:
        """See `core.machine.Machine.begin_cycle`."""
        return cycling.begin_cycle(state, cycle, now_ms)

    def refusal(self, state: ClusterState, envelope: Envelope[Event]) -> RefusalCode | None:
        """See `core.machine.Machine.refusal`."""
        return refusal(state, envelope)

    def apply(self, state: ClusterState, event: Event, record_id: str) -> ClusterState:
        """See `core.machine.Machine.apply`."""
        return applying.apply(state, event, record_id)

    def decide(
        self, state: ClusterState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> Verdict:
        """See `core.machine.Machine.decide`."""
        return _decide(state, limit, observed, self._policies)

    def advance(
        self, state: ClusterState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> tuple[ClusterState, Sequence[Decision], bool]:
        """See `core.machine.Advancing.advance`."""
        with Draft(state, limit, keep=True) as draft:
            complete = _fill(draft, observed, self._policies)
        return state, draft.decisions, complete

    def unwritable(self, event: Event) -> Decision | None:
        """See `core.machine.Machine.unwritable`."""
        if not isinstance(event, SlotsAllocatedV1):
            return None
        return Decision(AllocationUnwritableV1(task_id=event.task_id), event.task_id)

    def end_cycle(self, state: ClusterState, *, complete: bool) -> ClusterState:
        """See `core.machine.Machine.end_cycle`."""
        return cycling.end_cycle(state, complete=complete)

    def policies(self, state: ClusterState) -> tuple[PolicyInUse, ...]:
        """The policy of each configured pool, by pool name."""
        return tuple(
            PolicyInUse(pool=name, name=pool.config.policy.name, version=pool.config.policy.version)
            for name, pool in sorted(state.pools.items())
            if pool.config is not None
        )

    def digest(self, state: ClusterState) -> str:
        """See `core.machine.Machine.digest`."""
        return state.digest()

    def due_ms(self, state: ClusterState) -> int | None:
        """The next deadline that still holds, in milliseconds since the epoch."""
        return cycling.due_ms(state)

    def dump(self, state: ClusterState) -> Any:
        """See `core.machine.Machine.dump`."""
        return snapshot.dump(state)

    def load(self, cell: str, dump: Any) -> ClusterState:
        """See `core.machine.Machine.load`."""
        return snapshot.load(cell, dump, self._policies)
