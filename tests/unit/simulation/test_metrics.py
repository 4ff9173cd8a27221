"""The parts that figures consist of."""

from itertools import pairwise
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yardmaster_simulation.history import History
from yardmaster_simulation.metrics import fair_shares, jain, percentile, slowdown, spread, summary
from yardmaster_simulation.series import Series, windows


def series(*points: tuple[int, int]) -> Series:
    made = Series(1)
    for point in points:
        made.points.extend(point)
    return made


def test_percentiles_lie_between_the_two_nearest() -> None:
    values = [1.0, 2.0, 3.0, 10.0]
    assert [percentile(values, share) for share in (0, 0.5, 0.75, 1)] == [1, 2.5, 4.75, 10]
    assert percentile([7.0], 0.99) == 7


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_standard_library(values: list[int]) -> None:
    ordered = sorted(map(float, values))
    expected = quantiles(ordered, n=100, method="inclusive")
    ours = [percentile(ordered, share / 100) for share in range(1, 100)]
    assert ours == pytest.approx(expected)


def test_nothing_has_no_spread() -> None:
    assert spread([]).p50 is None
    assert spread([]).count == 0


def test_a_task_without_execution_time_has_no_slowdown() -> None:
    assert slowdown(5, 0) is None
    assert slowdown(0, 5) == 1
    assert slowdown(10, 5) == 3


def test_jain_is_1_for_equals_and_1_of_n_for_one_who_has_all() -> None:
    assert jain([2.0, 2.0, 2.0]) == 1
    assert jain([0.0, 0.0, 5.0, 0.0]) == 0.25
    assert jain([]) is None
    assert jain([0.0]) is None


def test_who_asks_for_less_leaves_the_rest_to_the_others() -> None:
    found = fair_shares(8, {"a": 1, "b": 10, "c": 10, "d": 0}, {"a": 1, "b": 1, "c": 2, "d": 9})
    assert found == {"a": 1, "b": pytest.approx(7 / 3), "c": pytest.approx(14 / 3), "d": 0}


@given(
    st.floats(0, 100),
    st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.floats(0, 100), st.integers(1, 5)), min_size=1
    ),
)
def test_fair_shares_sum_to_the_whole_demand(
    capacity: float, claims: dict[str, tuple[float, int]]
) -> None:
    asks = {name: ask for name, (ask, _) in claims.items()}
    found = fair_shares(capacity, asks, {name: weight for name, (_, weight) in claims.items()})
    assert sum(found.values()) == pytest.approx(min(capacity, sum(asks.values())))
    assert all(found[name] <= ask + 1e-9 for name, ask in asks.items())


def test_a_series_holds_until_its_next_change() -> None:
    made = series((10, 4), (20, 1), (20, 2), (50, 0))
    assert made.sums(0, [0, 100]) == [4 * 10 + 2 * 30]
    assert made.sums(0, [0, 15, 20, 60]) == [20, 20, 60]
    assert made.sums(0, [30, 40]) == [20]
    assert series().sums(0, [0, 5, 10]) == [0, 0]
    assert series((0, 3)).sums(0, [5, 10]) == [15]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=10),
    st.lists(st.integers(0, 60), min_size=2, max_size=6, unique=True),
)
def test_sums_of_windows_are_sums_of_moments(
    points: list[tuple[int, int]], edges: list[int]
) -> None:
    points.sort(key=lambda point: point[0])
    edges.sort()

    def at(ms: int) -> int:
        return next((value for when, value in reversed(points) if when <= ms), 0)

    expected = [sum(map(at, range(begin, end))) for begin, end in pairwise(edges)]
    assert series(*points).sums(0, edges) == expected


def test_windows_are_equal_and_none_is_empty() -> None:
    assert windows(0, 10, 4) == [0, 2, 5, 7, 10]
    assert windows(5, 5, 3) == [5, 6, 7, 8]


def test_a_run_of_nothing_has_figures_too() -> None:
    figures = summary(History())
    assert (figures.utilisation, figures.fairness, figures.makespan_s) == (None, None, 0)
    assert [row["kind"] for row in figures.rows()] == ["te", "be", "all"]
    assert figures.rows()[0]["slowdown_p50"] is None
