"""Cells with few nodes and obedient agents come to rest; no two tasks preempt each other in turn.

A few of the problems; `python -m tests.histories.fair_share_problems` plays as many as wanted.
"""

import pytest

from tests.histories.fair_share_problems import play


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_a_cell_comes_to_rest_with_few_preemptions_and_no_missed_wake_up(first: int) -> None:
    for seed in range(first, first + 50):
        play(seed, "fair_share")


@pytest.mark.parametrize("seed", [748])
def test_a_limit_over_two_pools_wakes_what_it_leaves_to_others(seed: int) -> None:
    play(seed, "fair_share")


@pytest.mark.parametrize("seed", [907, 3044, 4859, 8860])
def test_tasks_that_list_two_pools_do_not_take_turns(seed: int) -> None:
    play(seed, "fair_share")
