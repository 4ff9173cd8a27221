"""Searches that are known to fail are left out, and the decisions stay the same."""

from collections.abc import Sequence
from contextlib import suppress
from unittest.mock import patch

import pytest

from tests.histories.contention import FullPlayer, full_cluster
from tests.histories.inputs import Input, history
from tests.histories.player import HistoryPlayer
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies.quota.index import QuotaIndex
from yardmaster_core.scheduling.policies.quota.node_bounds import NodeBounds
from yardmaster_core.scheduling.policies.quota.refused_claims import RefusedClaims
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import TaskUnschedulableV1

SEEDS = range(3_000, 3_060)


class Both(SchedulerMachine):
    """Decides twice, once with every claim considered, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0
        self.different: list[int] = []

    def decide(
        self, state: ClusterState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> CycleResult:
        """Return the decisions, equal in both ways."""
        contains = RefusedClaims.contains

        def counted(*args: object) -> bool:
            is_refused = contains(*args)  # type: ignore[arg-type]
            self.refused += is_refused
            return is_refused

        with patch.object(RefusedClaims, "contains", counted):
            found = super().decide(state, limit=limit, observed=observed)
        with (
            patch.object(RefusedClaims, "contains", lambda *_: False),
            patch.object(QuotaIndex, "anything_changed", lambda *_: True),
        ):
            all_considered = super().decide(state, limit=limit, observed=observed)
        agree = decisions_of(found) == decisions_of(all_considered)
        if not agree or not all(map(bounds_agree, state.pools.values())):
            self.different.append(state.cycle)
        return found


def decisions_of(result: CycleResult) -> list[Event]:
    """Return the decisions of a cycle.

    Since when slots are kept for a task is in its reason as soon as the task is considered again,
    for whatever cause.
    """
    return [
        event
        for event in (decision.event for decision in result.decisions)
        if not isinstance(event, TaskUnschedulableV1)
        or "reserved_from_at_ms" not in event.wait.numbers
    ]


def bounds_agree(pool: Pool) -> bool:
    """Whether the bounds that were kept are those of new ones."""
    index = pool.index
    if not isinstance(index, QuotaIndex):
        return True
    projects = list(index.victims)
    return all(
        index.node_bounds.most_on_one_node(frozenset(projects[:count]))
        == NodeBounds(pool).most_on_one_node(frozenset(projects[:count]))
        for count in (0, 1, 2, len(projects))
    )


def compared(inputs: list[Input], player: type[HistoryPlayer]) -> int:
    """Play a history; return how often a claim was refused."""
    playing, machine = player(), Both()
    playing.cell.machine = machine
    # What a history breaks otherwise is for the tests of that property.
    with suppress(AssertionError):
        playing.play(inputs)
    assert not machine.different
    return machine.refused


@pytest.mark.parametrize("first", SEEDS[::20])
def test_leaving_out_claims_that_cannot_succeed_changes_no_decision(first: int) -> None:
    refused = 0
    for seed in range(first, first + 20):
        refused += compared(full_cluster(seed, "quota"), FullPlayer)
        refused += compared(history(seed, "quota"), HistoryPlayer)
    assert refused
