"""Grouping equal pending tasks changes no decision: it only avoids checking each of them again."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.planner.policy import no_equivalence
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_core.scheduling.policies.priority import PRIORITY
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.testing import Cell

ALONE = {
    ("priority", 1): replace(PRIORITY, order=replace(PRIORITY.order, equivalence=no_equivalence))
}
STEPS = 40


class Both(SchedulerMachine):
    """Decides twice, once with every group separate, and compares."""

    def decide(
        self, state: ClusterState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> CycleResult:
        """Return the decisions, equal in both ways."""
        found = super().decide(state, limit=limit, observed=observed)
        with patch.dict(POLICIES, ALONE):
            alone = super().decide(state, limit=limit, observed=observed)
        assert found == alone
        return found


def play(chance: Random, cell: Cell) -> None:
    """Jobs with similar requests arrive and end, on too few nodes."""
    for number in range(4):
        cell.node(f"n{number}", gpus=chance.choice([2, 4, 4]))
    jobs: list[str] = []
    for _ in range(STEPS):
        what = chance.random()
        running = [task for task in cell.state.tasks.values() if task.run is not None]
        if what < 0.45:
            jobs.append(f"j{len(jobs)}x")
            cell.submit(
                jobs[-1],
                project=f"p{chance.randrange(4)}",
                gpus=chance.choice([1, 1, 2, 4]),
                priority=chance.choice([10, 42, 42, 60]),
                tasks=chance.choice([1, 1, 3]),
                preemptible=chance.random() < 0.8,
                max_slots_milli=chance.choice([None, None, None, 1000, 4000]),
            )
        elif what < 0.85 and running:
            task = chance.choice(running)
            assert task.run is not None
            job = task.job.id.rstrip("0")
            (cell.ends if task.run.started else cell.starts)(job, task.index)
        elif what < 0.9 and jobs:
            cell.entitle(f"p{chance.randrange(4)}", limit_milli=chance.choice([None, 1000, 6000]))
        elif jobs:
            cell.set_priority(chance.choice(jobs), chance.choice([10, 42, 60]))
        if chance.random() < 0.7:
            cell.cycle()


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_grouped_tasks_get_the_same_decisions_as_separate_ones(
    seed: int, preemption: bool, backfill: bool
) -> None:
    cell = Cell(policy="priority", preemption=preemption, backfill=backfill)
    cell.machine = Both()
    play(Random(seed), cell)
