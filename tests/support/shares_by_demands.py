"""The core's divisions, called with single demands, oldest first; equal demands become one kind.

The kinds are passed youngest first, because their order must not matter.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from tests.support.shares_reference import Division
from yardmaster_core.scheduling.policies.fair_share import demand_runs, division
from yardmaster_core.scheduling.policies.fair_share.demand_runs import Demand, DemandKind, runs_of


def _by_kinds(divide: demand_runs.Division, capacity: int, demands: Sequence[Demand]) -> list[int]:
    kinds: dict[Demand, DemandKind] = {}
    for age, demand in enumerate(demands):
        kinds.setdefault(demand, DemandKind(demand, [])).ages.append((0, age))
    shares = [-1] * len(demands)
    for run in divide(capacity, runs_of(list(reversed(kinds.values())))):
        for _, age in run.ages[run.first : run.end]:
            assert shares[age] == -1, "a demand is in two runs"
            shares[age] = run.share
    assert -1 not in shares, "a demand is in no run"
    return shares


demand_proportional: Final[Division] = partial(_by_kinds, division.demand_proportional)
max_min: Final[Division] = partial(_by_kinds, division.max_min)
VARIANTS: Final[Mapping[str, Division]] = {
    "demand_proportional": demand_proportional,
    "max_min": max_min,
}
