"""The core's divisions asked claim by claim, oldest first: equal claims are made one kind.

The kinds are handed over youngest first: their order is not to matter.
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
    offers = [-1] * len(claims)
    for run in divide(capacity, runs_of(list(reversed(kinds.values())))):
        for _, age in run.ages[run.first : run.end]:
            assert offers[age] == -1, "he is in two runs"
            offers[age] = run.share
    assert -1 not in offers, "somebody is in no run"
    return offers


demand_proportional: Final[Division] = partial(_by_kinds, division.demand_proportional)
max_min: Final[Division] = partial(_by_kinds, division.max_min)
VARIANTS: Final[Mapping[str, Division]] = {
    "demand_proportional": demand_proportional,
    "max_min": max_min,
}
