"""The placement of gangs, compared with a search of all placements."""

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.scheduling.state.test_capacity_index import shape
from yardmaster_core.errors import UnknownPlacement
from yardmaster_core.scheduling.planner.placement import (
    PLACEMENTS,
    place,
    replicas_on,
    replicas_that_fit,
    strategy_named,
    strategy_of,
)
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.requests import GpuPlacement, PolicyRef, PoolConfig
from yardmaster_schemas.resources import Resources

free_slots = st.lists(st.sampled_from([0, 250, 500, 750, 1000, 1000]), max_size=4)
capacities = st.lists(
    st.tuples(free_slots, st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3
)
gangs = st.builds(
    lambda gpus, milli, cpu, memory, replicas: shape(
        Resources(gpus=gpus, gpu_milli=milli, cpu_milli=cpu, memory_mib=memory), replicas=replicas
    ),
    st.integers(1, 3),
    st.sampled_from([250, 500, 750, 1000]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 4),
)
strategies = st.sampled_from(sorted(PLACEMENTS))


def index_of(offers: list[tuple[list[int], int, int]]) -> CapacityIndex:
    """Return an index of nodes with those slots, CPUs and memory free."""
    index = CapacityIndex()
    for ordinal, (slots, cpu, memory) in enumerate(offers):
        capacity = NodeCapacity(ordinal, len(slots), cpu, memory)
        index.add(capacity, "any")
        index.open_node(capacity)
        for slot, free in enumerate(slots):
            if free < 1000:
                index.take(capacity, (slot,), 1000 - free, 0, 0)
    return index


def test_best_fit_splits_no_unused_gpu_while_a_shared_one_has_enough_left() -> None:
    index = index_of([([500, 1000], 1, 1), ([560, 1000], 1, 1)])
    strategy = strategy_of(PoolConfig(policy=PolicyRef(name="priority")))
    asked = shape(Resources(gpus=1, gpu_milli=520))
    placement = place(index, asked, strategy)
    assert placement is not None
    assert [(capacity.ordinal, slots) for capacity, slots in placement] == [(1, (0,))]


@pytest.mark.parametrize("name", list(PLACEMENTS))
@pytest.mark.parametrize(
    ("chosen", "one", "two"),
    [(GpuPlacement.PACKED, (0,), (0, 2)), (GpuPlacement.SPREAD, (1,), (1, 2))],
)
def test_a_pool_chooses_the_gpus_for_fractions_under_every_placement(
    name: str, chosen: GpuPlacement, one: tuple[int, ...], two: tuple[int, ...]
) -> None:
    config = PoolConfig(policy=PolicyRef(name="priority"), placement=name, gpu_placement=chosen)
    strategy = strategy_of(config)
    index = index_of([([300, 1000, 600, 200], 1, 1)])
    for resources, expected in (
        (Resources(gpus=1, gpu_milli=300), one),
        (Resources(gpus=2, gpu_milli=300), two),
    ):
        placement = place(index, shape(resources), strategy)
        assert placement is not None
        assert [slots for _, slots in placement] == [expected]


def test_equal_fractions_of_a_spread_pool_use_the_gpus_in_turn() -> None:
    cell = Cell(gpu_placement=GpuPlacement.SPREAD)
    cell.node("n1", gpus=2)
    for number in range(4):
        cell.submit(f"t{number}", resources=Resources(gpus=1, gpu_milli=400))
    cell.cycle()
    assert cell.state.nodes["n1"].free.slots == [200, 200]


def most(slots: tuple[int, ...], cpu: int, memory: int, gang: Shape) -> int:
    """Return how many replicas one node can hold, by a search of all choices of slots."""

    @cache
    def search(left: tuple[int, ...], placed: int) -> int:
        best = placed
        if placed == gang.replicas:
            return best
        if cpu < (placed + 1) * gang.cpu_milli or memory < (placed + 1) * gang.memory_mib:
            return best
        for chosen in combinations(range(len(left)), gang.gpus):
            if all(left[i] >= gang.gpu_milli for i in chosen):
                after = tuple(
                    free - gang.gpu_milli if i in chosen else free for i, free in enumerate(left)
                )
                best = max(best, search(tuple(sorted(after)), placed + 1))
        return best

    return search(tuple(sorted(slots)), 0)


@given(capacities, gangs, strategies)
def test_a_gang_is_placed_exactly_when_there_is_a_way(
    offers: list[tuple[list[int], int, int]], gang: Shape, name: str
) -> None:
    index = index_of(offers)
    possible = sum(most(tuple(slots), cpu, memory, gang) for slots, cpu, memory in offers)
    places = place(index, gang, strategy_named(name))
    assert (places is not None) == (possible >= gang.replicas)
    for capacity, (slots, cpu, memory) in zip(index.capacities.values(), offers, strict=True):
        assert (capacity.slots, capacity.cpu_milli, capacity.memory_mib) == (slots, cpu, memory)
    if places is not None:
        assert len(places) == gang.replicas
        for capacity, picked in places:
            assert len(set(picked)) == gang.gpus
            part = (picked, gang.gpu_milli, gang.cpu_milli, gang.memory_mib)
            index.take(capacity, *part)
        for capacity in index.capacities.values():
            assert min([*capacity.slots, capacity.cpu_milli, capacity.memory_mib]) >= 0, (
                "placed on what is not"
            )


@given(capacities, gangs)
def test_counting_replicas_that_fit_agrees_with_trying_every_way(
    offers: list[tuple[list[int], int, int]], gang: Shape
) -> None:
    index = index_of(offers)
    possible = [most(tuple(slots), cpu, memory, gang) for slots, cpu, memory in offers]
    counted = replicas_that_fit(index.capacities.values(), gang)
    assert min(counted, gang.replicas) == min(sum(possible), gang.replicas)


def test_a_gang_prefers_one_node_that_holds_all_of_it_only_if_it_comes_first() -> None:
    index = index_of([([1000, 0], 0, 0), ([1000] * 4, 0, 0)])
    pair = shape(Resources(gpus=1, gpu_milli=1000), replicas=2)
    best = place(index, pair, strategy_named("best_fit"))
    worst = place(index, pair, strategy_named("worst_fit"))
    assert best is not None
    assert worst is not None
    assert [capacity.ordinal for capacity, _ in best] == [0, 1], (
        "what is left over is used up first"
    )
    assert [capacity.ordinal for capacity, _ in worst] == [1, 1]


def test_the_error_for_an_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(UnknownPlacement, match="best_fit, worst_fit"):
        strategy_named("middle_fit")


def test_a_slot_that_is_disabled_and_still_held_takes_no_room_of_other_slots() -> None:
    capacity = NodeCapacity(0, 3, 1, 1)
    capacity.slots = [500, 500, -1000]
    pair = shape(Resources(gpus=2, gpu_milli=500), replicas=1)
    assert replicas_on(capacity, pair) == 1
