"""How a pool is divided: the documented numbers, and each rule on its own."""

import pytest

from tests.support.shares_by_demands import VARIANTS, demand_proportional, max_min
from tests.support.shares_reference import Division
from yardmaster_core.scheduling.policies.fair_share.demand_runs import Demand


def gpus(*milli: int) -> list[int]:
    """Return shares in whole GPUs."""
    assert all(each % 1000 == 0 for each in milli)
    return [each // 1000 for each in milli]


def demand(amount: int, weight: int = 1, *, fixed: int = 0, least: int = 1) -> Demand:
    """Return a demand in whole GPUs."""
    return Demand(weight, amount * 1000, fixed * 1000, least * 1000)


both = pytest.mark.parametrize("divide", VARIANTS.values(), ids=VARIANTS)


# The documentation's numbers


def test_demands_of_10_and_30_on_8_give_2_and_6() -> None:
    assert gpus(*demand_proportional(8000, [demand(10), demand(30)])) == [2, 6]


def test_the_same_with_weights_of_3_and_1_give_4_and_4() -> None:
    assert gpus(*demand_proportional(8000, [demand(10, 3), demand(30, 1)])) == [4, 4]


def test_as_determineds_code_computes_they_give_4_and_4_and_6_and_2() -> None:
    assert gpus(*max_min(8000, [demand(10), demand(30)])) == [4, 4]
    assert gpus(*max_min(8000, [demand(10, 3), demand(30, 1)])) == [6, 2]


def test_weights_of_10_and_30_give_2_and_6_as_the_codes_own_test_has_it() -> None:
    assert gpus(*max_min(8000, [demand(3, 10), demand(7, 30)])) == [2, 6]


# Both variants


@both
def test_what_exceeds_a_demand_goes_to_others(
    divide: Division,
) -> None:
    assert gpus(*divide(8000, [demand(1), demand(20)])) == [1, 7]
    assert gpus(*divide(8000, [demand(1), demand(2)])) == [1, 2]


def test_a_heavy_claimant_with_a_small_demand_leaves_the_rest_to_others() -> None:
    assert gpus(*demand_proportional(8000, [demand(4, 10), demand(20, 1)])) == [4, 4]
    assert gpus(*max_min(8000, [demand(4, 10), demand(20, 1)])) == [4, 4]


@both
def test_equal_demands_share_equally_and_the_remainder_goes_to_the_oldest(divide: Division) -> None:
    assert gpus(*divide(3000, [demand(3), demand(3)])) == [2, 1]


def test_the_smallest_demand_comes_first_where_there_is_less_than_one_each() -> None:
    assert gpus(*max_min(1000, [demand(2), demand(1)])) == [0, 1]


def test_the_rounding_remainder_goes_to_the_oldest() -> None:
    # 10 of 3, 5 and 2 parts of 10 are 3, 5 and 2; 9 of them are 2.7, 4.5 and 1.8.
    assert gpus(*demand_proportional(9000, [demand(30), demand(50), demand(20)])) == [3, 5, 1]


def test_a_demand_with_its_exact_share_gets_no_more() -> None:
    # 2, 1.5 and 1.5 of 5.
    assert gpus(*demand_proportional(5000, [demand(4), demand(3), demand(3)])) == [2, 2, 1]


def test_a_demand_that_would_get_nothing_comes_first() -> None:
    # 7.6 and 0.4 of 8: else the small demand would wait as long as the large one exists.
    assert gpus(*demand_proportional(8000, [demand(20), demand(1)])) == [7, 1]


@both
def test_no_capacity_gives_no_shares_and_no_demands_give_no_shares(divide: Division) -> None:
    assert divide(0, [demand(3)]) == [0]
    assert divide(8000, []) == []


@both
def test_the_fixed_part_counts_as_part_of_the_share(divide: Division) -> None:
    assert gpus(*divide(8000, [demand(10, fixed=2), demand(10)])) == [4, 4]


@both
def test_a_demand_with_a_fixed_part_above_its_share_keeps_the_fixed_part(divide: Division) -> None:
    assert gpus(*divide(8000, [demand(10, fixed=6), demand(10)])) == [6, 2]
    assert gpus(*divide(4000, [demand(6, fixed=6), demand(10)])) == [6, 0]


@both
def test_fractions_of_gpus_are_divided_in_the_grain_of_the_demands(divide: Division) -> None:
    assert divide(1000, [Demand(1, 3000, 0, 500), Demand(1, 3000, 0, 500)]) == [500, 500]
    assert divide(1000, [Demand(1, 900, 0, 300), Demand(1, 900, 0, 300)]) == [500, 500]
    assert divide(1000, [Demand(1, 3000, 0, 1000), Demand(1, 3000, 0, 1000)]) == [1000, 0]


@both
def test_a_fractional_demand_leaves_the_others_whole_slots(divide: Division) -> None:
    jobs = [Demand(1, 10_000, 0, 1000, 1000) for _ in range(8)]
    offers = divide(15_000, [*jobs, Demand(1, 500, 0, 500, 500)])
    assert sorted(offers) == [500, 1000, 1000, 2000, 2000, 2000, 2000, 2000, 2000]


def test_a_part_that_makes_no_whole_task_goes_to_a_demand_that_can_use_it() -> None:
    pairs = Demand(1, 20_000, 0, 2000, 2000)
    assert gpus(*demand_proportional(10_000, [pairs, demand(20)])) == [4, 6]


@pytest.mark.parametrize("held", [(2, 1), (1, 2), (0, 3)])
def test_shares_do_not_depend_on_what_each_claimant_holds(held: tuple[int, int]) -> None:
    for demands in ((50, 52), (52, 50), (60, 50), (50, 60)):
        requested = [
            Demand(1, demand * 1000, held=each * 1000)
            for demand, each in zip(demands, held, strict=True)
        ]
        assert gpus(*demand_proportional(3000, requested)) == [2, 1]


def test_the_fixed_part_is_counted_in_one_step_however_large_it_is() -> None:
    many = 10**12
    demands = [Demand(1, many + 1000, many, 1000), Demand(1, 999, 999)]
    assert max_min(many + 1000, demands) == [many + 1, 999]
    demands = [Demand(1, many, many // 2, 1), Demand(3, many, 0, 1), Demand(2, many, many // 4, 1)]
    assert sum(max_min(many, demands)) == many


# A share in which no task fits


@both
def test_of_two_gangs_with_half_their_slots_each_the_older_gets_all(
    divide: Division,
) -> None:
    assert gpus(*divide(2000, [demand(2, least=2), demand(2, least=2)])) == [2, 0]


@both
def test_a_demand_that_can_start_a_task_returns_nothing(divide: Division) -> None:
    assert gpus(*divide(8000, [demand(8, least=8), demand(40, least=1)])) == [0, 8]
    assert gpus(*divide(8000, [demand(8, least=4), demand(8, least=4)])) == [4, 4]


@both
def test_what_no_demand_can_use_goes_to_none(divide: Division) -> None:
    assert gpus(*divide(3000, [demand(8, least=4), demand(8, least=4)])) == [0, 0]


@both
def test_the_youngest_return_their_shares_first_until_the_older_have_enough(
    divide: Division,
) -> None:
    demands = [demand(4, least=4) for _ in range(5)]
    assert gpus(*divide(8000, demands)) == [4, 4, 0, 0, 0]


def test_the_fixed_part_does_not_count_towards_another_task() -> None:
    demands = [demand(8, fixed=3, least=4), demand(20, least=1)]
    assert gpus(*demand_proportional(8000, demands)) == [3, 5]


def test_with_max_min_the_fixed_part_counts_towards_a_task_as_in_determined() -> None:
    demands = [demand(8, fixed=3, least=4), demand(20, least=1)]
    assert gpus(*max_min(8000, demands)) == [4, 4]
    assert gpus(*max_min(6000, [demand(8, fixed=2, least=4), demand(20, least=1)])) == [2, 4]
