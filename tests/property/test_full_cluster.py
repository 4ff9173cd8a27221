"""On a full cluster a cell comes to rest, and each policy keeps what it promises."""

import pytest

from tests.histories.contention import FULL, FullPlayer, full_cluster
from tests.histories.shortest import broken_in

#: `make histories` plays many more.
SEEDS = range(100_000, 100_060)


@pytest.mark.parametrize("policy", FULL)
def test_what_a_policy_promises_holds_on_a_full_cluster(policy: str) -> None:
    broken = {
        seed: found
        for seed in SEEDS
        if (found := broken_in(full_cluster(seed, policy), FullPlayer)) is not None
    }
    assert not broken, (
        f"play one with: python -m tests.histories --policy full-{policy} --seeds {min(broken)}"
    )
