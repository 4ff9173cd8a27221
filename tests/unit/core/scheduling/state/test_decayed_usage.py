"""Decayed usages: the factor of a time, and averages over what was held."""

import random
from decimal import Decimal, localcontext

import pytest

from yardmaster_core.scheduling.state.decayed_usage import (
    AVERAGE_BITS,
    FACTOR_BITS,
    DecayedUsage,
    decay,
)

HOUR_MS = 3_600_000


def exact(elapsed_ms: int, half_life_ms: int) -> Decimal:
    with localcontext() as context:
        context.prec = 60
        return Decimal(2) ** (-Decimal(elapsed_ms) / Decimal(half_life_ms))


@pytest.mark.parametrize("seed", range(4))
def test_the_factor_of_a_time_is_within_its_stated_error(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        half_life_ms = chance.choice([1000, HOUR_MS, 7 * 24 * HOUR_MS, 366 * 24 * HOUR_MS])
        elapsed_ms = chance.choice(
            [chance.randrange(1000), chance.randrange(half_life_ms), chance.randrange(10**11)]
        )
        scaled = exact(elapsed_ms, half_life_ms) * 2**FACTOR_BITS
        assert abs(decay(elapsed_ms, half_life_ms) - scaled) < scaled / 2**39 + 1


def test_after_one_half_life_half_is_left() -> None:
    assert decay(0, HOUR_MS) == 1 << FACTOR_BITS
    assert decay(HOUR_MS, HOUR_MS) == 1 << FACTOR_BITS - 1
    assert decay(100 * HOUR_MS, HOUR_MS) == 0


def test_a_project_that_always_holds_the_same_has_that_as_its_usage() -> None:
    usage = DecayedUsage(0, 8000, 0)
    assert usage.average_at(HOUR_MS, HOUR_MS) >> AVERAGE_BITS == 4000
    assert usage.average_at(2 * HOUR_MS, HOUR_MS) >> AVERAGE_BITS == 6000
    assert 7999 <= usage.average_at(50 * HOUR_MS, HOUR_MS) >> AVERAGE_BITS <= 8000


def test_many_steps_and_one_step_give_nearly_the_same() -> None:
    half_life_ms = 7 * 24 * HOUR_MS
    one = DecayedUsage(0, 1000, 0).average_at(HOUR_MS, half_life_ms)
    stepped = DecayedUsage(0, 1000, 0)
    for at_ms in range(10, HOUR_MS + 1, 10):
        average = stepped.average_at(at_ms, half_life_ms)
        stepped = DecayedUsage(average, 1000, at_ms)
    # 360,000 steps: less than a thousandth of a milli.
    assert abs(stepped.average - one) < 1 << AVERAGE_BITS - 10
