"""Random static problems come to rest: `tests/histories/static_problems.py` plays many more."""

import pytest

from tests.histories.static_problems import POLICIES, problem


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_a_static_problem_comes_to_rest_within_the_bound(policy: str, first: int) -> None:
    for seed in range(first, first + 20):
        cell, rests = problem(seed, policy)
        assert rests, (seed, cell.log[-12:])
