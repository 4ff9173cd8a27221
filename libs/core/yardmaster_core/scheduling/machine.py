"""The scheduler's state machine, which the runtime drives. Start reading at `_decide`."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.rules import OLDEST_RULES, RULES
from yardmaster_core.scheduling.planner import cycle_boundaries as cycling
from yardmaster_core.scheduling.planner.draft import CycleFull, Draft
from yardmaster_core.scheduling.planner.lifecycle import decide_lifecycle
from yardmaster_core.scheduling.planner.plan import plan
from yardmaster_core.scheduling.planner.policy import PolicyRegistry
from yardmaster_core.scheduling.planner.refusals import refusal
from yardmaster_core.scheduling.planner.share_records import record_shares
from yardmaster_core.scheduling.policies import REGISTRY
from yardmaster_core.scheduling.state import apply as applying
from yardmaster_core.scheduling.state import snapshot
from yardmaster_core.scheduling.state.appliers.entitlements import reconsider_entitled
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.decisions import (
    AllocationUnwritableV1,
    NodeSilenceObservedV1,
    SlotsAllocatedV1,
    SlotsReservedV1,
)
from yardmaster_schemas.events.machine import PolicyInUse, RulesEnabledV1, SnapshotTakenV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, NODE_EVENTS, Topic


def _decide(
    state: ClusterState, limit: int, observed: Sequence[Decision], policies: PolicyRegistry
) -> CycleResult:
    """The decisions that follow from the state; changes no state.

    First ends of tasks and losses of nodes, then the starts, stops and waits of each pool. At most
    `limit` decisions, but at least one step that cannot be divided (the victims of one task).
    """
    # Hash the changes of the inputs now: then the draft's digest, which is not kept, hashes only
    # the changes of the draft.
    state.digest()
    with Draft(state, limit) as draft:
        complete = _fill(draft, observed, policies)
        return CycleResult(tuple(draft.decisions), state.digest(), complete)


def _fill(draft: Draft, observed: Sequence[Decision], policies: PolicyRegistry) -> bool:
    """Decide on `draft`; return whether all decisions fitted into it."""
    try:
        reconsider_entitled(draft.state)
        for decision in observed:
            draft.record(decision.event, decision.subject, decision.cause)
        decide_lifecycle(draft)
        plan(draft, policies)
        record_shares(draft, policies)
    except CycleFull:
        return False
    finally:
        # The digest of the decisions does not cover what the planner tried.
        draft.roll_back()
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
    oldest_rules: ClassVar[int] = OLDEST_RULES

    def __init__(self, policies: PolicyRegistry = REGISTRY) -> None:
        self._policies = policies

    def initial(self, cell: str) -> ClusterState:
        """An empty cell."""
        return ClusterState(cell, self._policies)

    def begin_cycle(
        self, state: ClusterState, cycle: int, now_ms: int, rules: int = RULES
    ) -> ClusterState:
        return cycling.begin_cycle(state, cycle, now_ms, rules)

    def calls_for_cycle(self, event: Event) -> bool:
        return True

    def refusal(self, state: ClusterState, envelope: Envelope[Event]) -> RefusalCode | None:
        return refusal(state, envelope)

    def apply(
        self, state: ClusterState, event: Event, record_id: str, actor: str = ""
    ) -> ClusterState:
        return applying.apply(state, event, record_id)

    def decide(
        self, state: ClusterState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> CycleResult:
        return _decide(state, limit, observed, self._policies)

    def decide_in_place(
        self, state: ClusterState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> tuple[ClusterState, Sequence[Decision], bool]:
        with Draft(state, limit, keep=True) as draft:
            complete = _fill(draft, observed, self._policies)
        return state, draft.decisions, complete

    def unwritable(self, event: Event) -> Decision | None:
        if not isinstance(event, SlotsAllocatedV1 | SlotsReservedV1):
            return None
        return Decision(AllocationUnwritableV1(task_id=event.task_id), event.task_id)

    def end_cycle(self, state: ClusterState, *, complete: bool) -> ClusterState:
        return cycling.end_cycle(state, complete=complete)

    def policies(self, state: ClusterState) -> tuple[PolicyInUse, ...]:
        """The policy of each configured pool, in order of pool names."""
        return tuple(
            PolicyInUse(pool=name, name=pool.config.policy.name, version=pool.config.policy.version)
            for name, pool in sorted(state.pools.items())
            if pool.config is not None
        )

    def digest(self, state: ClusterState) -> str:
        return state.digest()

    def committed_digest(self, state: ClusterState) -> str:
        return state.committed_digest()

    def due_ms(self, state: ClusterState) -> int | None:
        return cycling.due_ms(state)

    def dump(self, state: ClusterState) -> Any:
        return snapshot.dump(state)

    def load(self, cell: str, dump: Any) -> ClusterState:
        return snapshot.load(cell, dump, self._policies)
