"""Random static problems come to rest: `tests/histories/static_problems.py` plays many more."""

import pytest

from tests.histories.static_problems import POLICIES, fault, problem


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_a_static_problem_comes_to_rest_and_no_two_tasks_preempt_each_other(
    policy: str, first: int
) -> None:
    for seed in range(first, first + 20):
        cell, rests = problem(seed, policy)
        assert fault(cell, rests) is None, (seed, cell.log[-12:])
