"""Seeded random numbers, and placement by them."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.scheduling.planner.test_placement import index_of
from tests.unit.core.scheduling.state.test_capacity_index import shape
from yardmaster_core.scheduling.planner.placement import place, strategy_named
from yardmaster_core.scheduling.planner.seeded_random import SeededRandom, nth_bit, shuffled
from yardmaster_core.testing import Cell
from yardmaster_schemas.resources import Resources

ONE = Resources(gpus=1, gpu_milli=1000)


def test_random_numbers_are_the_same_on_every_machine() -> None:
    draws = SeededRandom("a key")
    expected = [402128, 960695, 894664, 4569, 26647, 355027, 158907, 581116, 789741, 548881]
    assert [draws.below(1_000_000) for _ in expected] == expected


@given(st.text(), st.integers(1, 2**40))
def test_a_random_number_is_below_the_given_bound(key: str, number: int) -> None:
    draws = SeededRandom(key)
    assert all(0 <= draws.below(number) < number for _ in range(20))


@given(st.integers(1, 2**200))
def test_bits_are_counted_from_the_lowest(mask: int) -> None:
    expected = [at for at in range(mask.bit_length()) if mask >> at & 1]
    assert [nth_bit(mask, n) for n in range(len(expected))] == expected


def test_each_node_that_fits_is_equally_likely_and_no_other_is_drawn() -> None:
    index = index_of([([1000] * (n % 3), 8 if n % 5 else 0, 8) for n in range(30)])
    requested = shape(Resources(gpus=1, gpu_milli=1000, cpu_milli=8))
    holding = {
        capacity.ordinal for capacity in index.capacities.values() if capacity.holds(requested)
    }
    drawn: Counter[int] = Counter()
    for number in range(200 * len(holding)):
        places = place(index, requested, strategy_named("random"), key=str(number))
        assert places is not None
        drawn[places[0][0].ordinal] += 1
    assert drawn.keys() == holding
    # Four standard deviations around the mean of 200.
    assert all(abs(count - 200) < 57 for count in drawn.values())


def test_each_gpu_with_a_fraction_free_is_equally_likely() -> None:
    index = index_of([([1000, 400, 600, 300], 0, 0)])
    fraction = shape(Resources(gpus=1, gpu_milli=400))
    drawn: Counter[Any] = Counter()
    for number in range(600):
        places = place(index, fraction, strategy_named("random"), key=str(number))
        assert places is not None
        drawn[places[0][1]] += 1
    assert drawn.keys() == {(0,), (1,), (2,)}
    assert all(abs(count - 200) < 57 for count in drawn.values())


def _where(seed: int, *, restarts: bool) -> list[Any]:
    cell = Cell(placement="random", seed=seed)
    for number in range(9):
        cell.node(f"n{number}", gpus=2)
    found = []
    for number in range(8):
        cell.submit(f"job{number}", resources=ONE, replicas=1 + number % 3)
        if restarts:
            cell.restart()
        cell.run_until_idle()
        found.append(cell.slots_of(f"job{number}"))
    return found


def test_one_seed_gives_the_same_placements_also_after_a_snapshot_and_another_seed_others() -> None:
    once = _where(7, restarts=False)
    assert _where(7, restarts=True) == once
    assert _where(8, restarts=False) != once


def test_replicas_of_a_gang_are_drawn_one_by_one() -> None:
    index = index_of([([1000] * 8, 0, 0) for _ in range(20)])
    places = place(index, shape(ONE, replicas=12), strategy_named("random"))
    assert places is not None
    assert len({capacity.ordinal for capacity, _ in places}) > 6


def test_each_attempt_is_drawn_separately() -> None:
    cell = Cell(placement="random")
    for number in range(30):
        cell.node(f"n{number}", gpus=1)
    cell.submit("job", resources=ONE, max_restarts=5)
    seen = set()
    for _ in range(4):
        cell.run_until_idle()
        seen.add(cell.slots_of("job")[0][0])
        cell.starts("job")
        cell.run_until_idle()
        cell.ends("job", exit_code=1)
        cell.cycle(after_s=1)
        cell.cycle(after_s=400)
    assert len(seen) > 1


def test_each_item_is_drawn_once() -> None:
    assert sorted(shuffled(1, "x", range(20))) == list(range(20))
    assert list(shuffled(1, "x", [])) == []


def test_the_random_order_is_the_same_on_every_machine() -> None:
    assert list(shuffled(0, "rand/a.0/0", "abcdefgh")) == list("bfdheacg")


def test_the_random_order_depends_on_the_seed_and_the_purpose() -> None:
    things = range(10)
    lots = {tuple(shuffled(seed, what_for, things)) for seed in (1, 2) for what_for in ("a", "b")}
    assert len(lots) == 4


def test_each_item_is_equally_likely_to_come_first() -> None:
    first = Counter(next(shuffled(seed, "x", range(4))) for seed in range(4000))
    assert all(900 < count < 1100 for count in first.values())
