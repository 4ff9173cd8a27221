"""Searches that are known to fail are left out, and the decisions stay the same."""

from collections.abc import Sequence
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

SEEDS = range(3_000, 3_060)


class Both(SchedulerMachine):
    """Decides twice, once with every claim considered, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

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
        assert found == all_considered
        for pool in state.pools.values():
            assert_bounds_agree(pool)
        return found


def assert_bounds_agree(pool: Pool) -> None:
    """The bounds that were kept are those of new ones."""
    index = pool.index
    if not isinstance(index, QuotaIndex):
        return
    projects = list(index.victims)
    for losing in (frozenset[object](), *(frozenset(projects[:n]) for n in (1, 2)), projects):
        kept = index.node_bounds.most_on_one_node(frozenset(losing))  # type: ignore[arg-type]
        assert kept == NodeBounds(pool).most_on_one_node(frozenset(losing))  # type: ignore[arg-type]


def compared(inputs: list[Input], player: type[HistoryPlayer]) -> int:
    """Play a history; return how often a claim was refused."""
    playing, machine = player(), Both()
    playing.cell.machine = machine
    playing.play(inputs)
    return machine.refused


@pytest.mark.parametrize("first", SEEDS[::20])
def test_leaving_out_claims_that_cannot_succeed_changes_no_decision(first: int) -> None:
    refused = 0
    for seed in range(first, first + 20):
        refused += compared(full_cluster(seed, "quota"), FullPlayer)
        refused += compared(history(seed, "quota"), HistoryPlayer)
    assert refused
