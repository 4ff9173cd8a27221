"""Draws that are the same everywhere, and distributed as they should be."""

from collections import Counter
from decimal import Decimal
from statistics import fmean, pstdev

import pytest

from yardmaster_simulation.distributions import Chance, Normal


def test_a_draw_depends_on_seed_and_purpose_alone() -> None:
    chance = Chance(7)
    assert chance.bits("x", 1) == Chance(7).bits("x", 1)
    assert len({chance.bits("x", 1), chance.bits("x", 2), Chance(8).bits("x", 1)}) == 3


def test_these_draws_are_those_of_every_machine() -> None:
    chance = Chance(100)
    of = Normal(Decimal(30), Decimal("9.4"), 1, 1440, steps=60)
    assert [chance.below(1000, "kind", each) for each in range(4)] == DRAWN["below"]
    assert [chance.normal(of, "work", each) for each in range(4)] == DRAWN["normal"]
    assert [chance.exponential(36_000, "more", each) for each in range(4)] == DRAWN["exponential"]


DRAWN = {
    "below": [893, 503, 590, 516],
    "normal": [1573, 2341, 1103, 3094],
    "exponential": [21402, 219, 73529, 33704],
}


@pytest.mark.parametrize(
    ("mean", "deviation", "low", "high"), [("30", "5", 0, 60), ("4", "1.1", 0, 20)]
)
def test_a_hardly_truncated_distribution_has_the_requested_mean_and_deviation(
    mean: str, deviation: str, low: int, high: int
) -> None:
    chance, of = Chance(1), Normal(Decimal(mean), Decimal(deviation), low, high, steps=60)
    drawn = [chance.normal(of, each) / 60 for each in range(20_000)]
    assert fmean(drawn) == pytest.approx(float(mean), rel=0.01)
    assert pstdev(drawn) == pytest.approx(float(deviation), rel=0.03)


def test_what_is_cut_off_never_leaves_its_ends_and_reaches_them() -> None:
    chance, of = Chance(1), Normal(Decimal("1.6"), Decimal("1.5"), 0, 8)
    drawn = Counter(chance.normal(of, each) for each in range(20_000))
    assert set(drawn) <= set(range(9))
    assert min(drawn[0], drawn[6]) > 0
    # The density of a whole number is that of the half around it.
    assert drawn[2] / drawn[0] == pytest.approx(0.2565 / 0.1545, rel=0.1)


@pytest.mark.parametrize(
    ("mean", "steps", "drawn"), [("0", 60, 0), ("2.5", 60, 150), ("9", 1, 8), ("-3", 1, 0)]
)
def test_without_deviation_everything_is_the_mean_within_the_ends(
    mean: str, steps: int, drawn: int
) -> None:
    chance, of = Chance(1), Normal(Decimal(mean), Decimal(0), 0, 8, steps=steps)
    assert {chance.normal(of, each) for each in range(50)} == {drawn}


def test_exponential_times_have_their_mean() -> None:
    chance = Chance(2)
    drawn = [chance.exponential(36_000, each) for each in range(20_000)]
    assert fmean(drawn) == pytest.approx(36_000, rel=0.03)
    assert pstdev(drawn) == pytest.approx(36_000, rel=0.05)


def test_an_order_is_shuffled_without_loss_and_evenly() -> None:
    chance = Chance(3)
    assert sorted(chance.shuffled(50)) == list(range(50))
    firsts = Counter(chance.shuffled(4, each)[0] for each in range(4_000))
    assert all(800 < count < 1_200 for count in firsts.values()), firsts
