"""The core's divisions, called with single claims, oldest first; equal claims become one kind.

The kinds are passed youngest first, because their order must not matter.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from tests.support.shares_reference import Division
from yardmaster_core.scheduling.policies.fair_share import claim_runs, division
from yardmaster_core.scheduling.policies.fair_share.claim_runs import Claim, ClaimKind, runs_of


def _by_kinds(divide: claim_runs.Division, capacity: int, claims: Sequence[Claim]) -> list[int]:
    kinds: dict[Claim, ClaimKind] = {}
    for age, claim in enumerate(claims):
        kinds.setdefault(claim, ClaimKind(claim, [])).ages.append((0, age))
    shares = [-1] * len(claims)
    for run in divide(capacity, runs_of(list(reversed(kinds.values())))):
        for _, age in run.ages[run.first : run.end]:
            assert shares[age] == -1, "a claim is in two runs"
            shares[age] = run.share
    assert -1 not in shares, "a claim is in no run"
    return shares


demand_proportional: Final[Division] = partial(_by_kinds, division.demand_proportional)
max_min: Final[Division] = partial(_by_kinds, division.max_min)
VARIANTS: Final[Mapping[str, Division]] = {
    "demand_proportional": demand_proportional,
    "max_min": max_min,
}
