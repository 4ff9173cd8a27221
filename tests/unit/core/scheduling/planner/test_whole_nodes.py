"""Tasks on whole nodes: on one, else on equal idle ones; and nodes to avoid."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.scheduling.planner.test_placement import index_of
from tests.unit.core.scheduling.reading import all_of, only, running, started, waits
from tests.unit.core.scheduling.soundness import assert_sound
from tests.unit.core.scheduling.state.test_capacity_index import shape
from yardmaster_core.scheduling.planner.placement import nodes_for, place, strategy_named
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Layout, Unschedulable
from yardmaster_schemas.resources import Resources

WHOLE: dict[str, Any] = {"layout": Layout.WHOLE_NODES}


def cell_of(*sizes: int, **options: Any) -> Cell:
    """Return a cell with nodes n1, n2, ... of those sizes."""
    cell = Cell(**options)
    for number, gpus in enumerate(sizes, start=1):
        cell.node(f"n{number}", gpus=gpus)
    return cell


def laid(cell: Cell, name: str) -> list[tuple[str, int]]:
    """Return node and number of GPUs of each replica."""
    return [(node, len(slots)) for node, slots in cell.slots_of(name)]


# One node, or several


def test_one_node_that_holds_the_whole_task_is_preferred_even_if_it_is_in_use() -> None:
    cell = cell_of(4, 4, 8)
    cell.submit("held", node_types=("any",), avoid_nodes=("n1", "n2"))
    cell.cycle()
    cell.submit("job", gpus=7, **WHOLE)
    cell.cycle()
    assert laid(cell, "job") == [("n3", 7)]
    assert_sound(cell.state)


@pytest.mark.parametrize(
    ("sizes", "gpus", "expected"),
    [
        ((8, 7, 7, 4, 4, 4, 4), 16, [("n4", 4), ("n5", 4), ("n6", 4), ("n7", 4)]),
        ((4, 4, 4, 4, 4), 8, [("n1", 4), ("n2", 4)]),
        ((2, 4, 2, 4), 8, [("n2", 4), ("n4", 4)]),
        ((4, 8, 8), 16, [("n2", 8), ("n3", 8)]),
    ],
)
def test_else_idle_nodes_of_equal_size_are_used_the_largest_divisor_first(
    sizes: tuple[int, ...], gpus: int, expected: list[tuple[str, int]]
) -> None:
    cell = cell_of(*sizes)
    cell.submit("job", gpus=gpus, **WHOLE)
    cell.cycle()
    assert laid(cell, "job") == expected
    assert_sound(cell.state)


def test_a_gang_on_whole_nodes_has_a_port_and_cpus_for_each_replica() -> None:
    cell = cell_of(2, 2)
    requested = Resources(gpus=4, gpu_milli=1000, cpu_milli=3000, memory_mib=100)
    cell.submit("job", resources=requested, **WHOLE)
    start = only(cell.cycle(), dec.SlotsAllocatedV1)
    assert start.master_port == 20_000
    assert [(p.replica, p.node, p.cpu_milli, p.memory_mib) for p in start.placements] == [
        (0, "n1", 3000, 100),
        (1, "n2", 3000, 100),
    ]


def test_a_node_with_a_gpu_in_use_is_not_idle_and_one_with_gpuless_tasks_is() -> None:
    cell = cell_of(2, 2, 2)
    cell.submit("held", gpus=1, avoid_nodes=("n2", "n3"), preemptible=False)
    cell.submit("free", gpus=0, avoid_nodes=("n1", "n3"))
    cell.cycle()
    cell.submit("job", gpus=4, **WHOLE)
    cell.cycle()
    assert laid(cell, "job") == [("n2", 2), ("n3", 2)]
    cell.submit("more", gpus=4, **WHOLE, preemptible=False, priority=90)
    cell.cycle()
    wait = waits(cell, "more")
    assert (wait.code, wait.numbers["free_milli"]) == ("insufficient_free", 1000)


def test_cpus_and_memory_are_needed_on_each_of_the_nodes() -> None:
    cell = Cell()
    for name, cpu_milli in (("n1", 1000), ("n2", 5000), ("n3", 4000), ("n4", 7000)):
        cell.node(name, gpus=2, cpu_milli=cpu_milli)
    requested = Resources(gpus=4, gpu_milli=1000, cpu_milli=5000)
    cell.submit("job", resources=requested, **WHOLE)
    cell.cycle()
    assert laid(cell, "job") == [("n2", 2), ("n4", 2)]
    cell.submit("other", resources=Resources(gpus=6, gpu_milli=1000, cpu_milli=5000), **WHOLE)
    cell.cycle()
    assert waits(cell, "other").code == "exceeds_pool", "two nodes have the CPUs, for 4 GPUs"


def test_unequal_nodes_are_used_only_if_the_pool_allows_it() -> None:
    for unequal, expected in ((False, []), (True, [("n1", 2), ("n2", 1), ("n3", 1)])):
        cell = cell_of(2, 1, 1, unequal_gangs=unequal)
        cell.submit("job", gpus=4, **WHOLE)
        cell.cycle()
        assert laid(cell, "job") == expected
        assert_sound(cell.state)


def test_a_gang_that_fits_only_while_other_nodes_are_in_use_is_not_never() -> None:
    cell = cell_of(5, 4, 3, unequal_gangs=True)
    cell.submit("job", gpus=7, **WHOLE)
    cell.cycle()
    assert waits(cell, "job").code == "fragmented", (
        "taking the largest first leaves two GPUs that no node has"
    )
    cell.submit("held", avoid_nodes=("n2", "n3"), preemptible=False)
    cell.cycle()
    cell.cordon("n3")
    cell.uncordon("n3")
    cell.cycle()
    assert laid(cell, "job") == [("n2", 4), ("n3", 3)]


def test_allowing_unequal_nodes_reconsiders_gangs_at_once() -> None:
    cell = cell_of(2, 1, 1)
    cell.submit("job", gpus=4, **WHOLE)
    cell.cycle()
    assert waits(cell, "job").code == "gang_indivisible"
    cell.pool("main", unequal_gangs=True)
    assert started(cell.cycle()) == ["job"]


def test_a_layout_changes_nothing_for_one_gpu_or_none() -> None:
    cell = cell_of(2)
    plain, whole = cell.submit("plain"), cell.submit("whole", **WHOLE)
    cell.submit("none", gpus=0, **WHOLE)
    cell.cycle()
    jobs = cell.state.jobs
    assert jobs[plain].shape is jobs[whole].shape
    assert cell.phase("none") == "starting"


# Wait reasons


def test_exceeds_pool() -> None:
    cell = cell_of(4, 4)
    cell.submit("job", gpus=9, **WHOLE)
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.numbers) == (
        "exceeds_pool",
        {"asked_milli": 9000, "pool_milli": 8000},
    )


@pytest.mark.parametrize(
    ("sizes", "gpus", "numbers"),
    [
        ((8, 8, 3, 3, 3), 12, {"asked": 12, "largest": 8, "divisible": 9}),
        ((6, 6), 8, {"asked": 8, "largest": 6, "divisible": 0}),
    ],
)
def test_gang_indivisible(sizes: tuple[int, ...], gpus: int, numbers: dict[str, int]) -> None:
    cell = cell_of(*sizes)
    cell.submit("job", gpus=gpus, **WHOLE, unschedulable=Unschedulable.FAIL)
    decided = cell.cycle()
    wait = only(decided, dec.TaskUnschedulableV1).wait
    assert (wait.code, wait.numbers) == ("gang_indivisible", numbers)
    assert only(decided, dec.TaskEndedV1).code == "unschedulable"


def test_fragmented_reports_the_idle_capacity() -> None:
    cell = cell_of(4, 4, 4)
    for name, others in (("one", ("n2", "n3")), ("two", ("n1", "n3"))):
        cell.submit(name, preemptible=False, avoid_nodes=others)
    running(cell, "one")
    cell.submit("job", gpus=8, **WHOLE)
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.numbers) == (
        "fragmented",
        {
            "asked_milli": 8000,
            "free_milli": 10_000,
            "largest_milli": 4000,
            "idle_milli": 4000,
        },
    )
    cell.ends("one")
    assert started(cell.cycle()) == ["job"]


def test_nodes_unavailable() -> None:
    cell = cell_of(4, 4)
    cell.cordon("n2")
    cell.submit("job", gpus=8, **WHOLE)
    cell.cycle()
    assert waits(cell, "job").code == "nodes_unavailable"
    cell.uncordon("n2")
    assert started(cell.cycle()) == ["job"]


# Preemption


def test_only_the_whole_nodes_that_it_needs_are_emptied_for_a_task() -> None:
    cell = cell_of(2, 2, 2)
    cell.submit("low", tasks=6, priority=90)
    cell.cycle()
    cell.submit("top", gpus=4, priority=1, **WHOLE)
    decided = cell.cycle()
    stopped = {e.task_id for e in all_of(decided, dec.PreemptionRequestedV1)}
    assert len(stopped) == 4
    for index in range(6):
        if cell.task("low", index).id in stopped:
            cell.never_starts("low", index)
    cell.submit("low2", tasks=2, priority=90)
    decided = cell.cycle()
    assert "top" in started(decided)
    assert laid(cell, "top") == [("n2", 2), ("n3", 2)]
    assert_sound(cell.state)


def test_slots_released_for_a_task_stay_reserved_for_it() -> None:
    cell = cell_of(2, 2)
    cell.submit("low", tasks=4, priority=90)
    cell.cycle()
    cell.submit("top", gpus=4, priority=1, **WHOLE)
    cell.cycle()
    for index in (0, 1):
        cell.never_starts("low", index)
    cell.submit("pair", gpus=2, priority=1, preemptible=False)
    assert started(cell.cycle()) == []
    for index in (2, 3):
        cell.never_starts("low", index)
    assert started(cell.cycle()) == ["top"]


# Nodes to avoid


def test_an_avoided_node_gets_no_task_and_is_counted() -> None:
    cell = cell_of(4, 4)
    cell.submit("job", gpus=4, avoid_nodes=("n1", "n9"))
    cell.submit("other", gpus=4, avoid_nodes=("n1",), preemptible=False, priority=90)
    cell.cycle()
    assert laid(cell, "job") == [("n2", 4)]
    wait = waits(cell, "other")
    assert (wait.code, wait.numbers) == (
        "insufficient_free",
        {"asked_milli": 4000, "free_milli": 0, "short_milli": 4000, "blocked": 1},
    )
    cell.submit("free", gpus=4)
    cell.cycle()
    assert laid(cell, "free") == [("n1", 4)]


def test_all_nodes_avoided_is_never() -> None:
    cell = cell_of(4, 4)
    cell.submit("job", avoid_nodes=("n1", "n2"))
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.numbers) == (
        "no_matching_node",
        {"nodes": 2, "left_by_pool": 2, "left_by_type": 2, "left_by_avoid": 0},
    )
    cell.node("n3", gpus=1)
    assert started(cell.cycle()) == ["job"]


def test_a_gang_too_large_without_its_avoided_nodes_reports_their_number() -> None:
    cell = cell_of(4, 4, 4)
    cell.submit("job", gpus=12, avoid_nodes=("n2",), **WHOLE)
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.numbers) == (
        "exceeds_pool",
        {"asked_milli": 12_000, "pool_milli": 8000, "blocked": 1},
    )


def test_no_task_is_preempted_on_an_avoided_node() -> None:
    cell = cell_of(2, 2)
    cell.submit("low", tasks=4, priority=90)
    cell.cycle()
    cell.submit("top", gpus=2, priority=1, avoid_nodes=("n2",))
    stops = all_of(cell.cycle(), dec.PreemptionRequestedV1)
    assert {e.nodes for e in stops} == {("n1",)}


def test_a_job_with_neither_layout_nor_avoided_nodes_keeps_its_shape() -> None:
    cell = Cell()
    known = cell.submit("job", gpus=2)
    avoiding = cell.submit("avoiding", gpus=2, avoid_nodes=("n1",))
    whole = cell.submit("whole", gpus=2, **WHOLE)
    cell.cycle()
    ids = [cell.state.jobs[id_].shape.id for id_ in (known, avoiding, whole)]
    assert ids[0] == "99fa77931309b94b"
    assert len(set(ids)) == 3


# Gangs over several nodes


free_slots = st.lists(st.sampled_from([0, 500, 1000, 1000, 1000]), max_size=4)
offers_of_nodes = st.lists(
    st.tuples(free_slots | st.sampled_from([[1000] * 2, [1000] * 3]), st.integers(0, 3)),
    min_size=1,
    max_size=6,
)


def expected_nodes(
    offers: list[tuple[list[int], int]], requested: Shape, *, unequal: bool
) -> list[int] | None:
    """Return the nodes that get the task, by the rule, node by node; None: it waits."""
    able = [(o, slots) for o, (slots, cpu) in enumerate(offers) if cpu >= requested.cpu_milli]
    if holding := [
        (slots.count(1000), o) for o, slots in able if slots.count(1000) >= requested.gpus
    ]:
        return [min(holding)[1]]
    idle = [(len(slots), o) for o, slots in able if slots and set(slots) == {1000}]
    for size in sorted({size for size, _ in idle}, reverse=True):
        equal = [o for n, o in idle if n == size]
        if requested.gpus % size == 0 and len(equal) * size >= requested.gpus:
            return equal[: requested.gpus // size]
    taken, need = [], requested.gpus
    for size, ordinal in sorted(idle, key=lambda each: (-each[0], each[1])) if unequal else ():
        if size <= need:
            taken.append(ordinal)
            need -= size
    return taken if unequal and not need else None


@given(offers_of_nodes, st.integers(2, 9), st.integers(0, 2), st.booleans())
def test_a_task_on_whole_nodes_is_placed_by_the_documented_rule(
    offers: list[tuple[list[int], int]], gpus: int, cpu_milli: int, unequal: bool
) -> None:
    index = index_of([(slots, cpu, 0) for slots, cpu in offers])
    requested = shape(Resources(gpus=gpus, gpu_milli=1000, cpu_milli=cpu_milli), **WHOLE)
    strategy = replace(strategy_named("best_fit"), unequal=unequal)
    expected = expected_nodes(offers, requested, unequal=unequal)
    places = place(index, requested, strategy)
    found = None if places is None else [capacity.ordinal for capacity, _ in places]
    assert found == expected
    for capacity, slots in places or ():
        assert all(capacity.slots[slot] == 1000 for slot in slots)
        assert len(places or ()) == 1 or len(slots) == len(capacity.slots)
    assert sum(len(slots) for _, slots in places or ()) in (0, gpus)


counts = st.dictionaries(st.integers(1, 8), st.integers(1, 4), max_size=4).map(
    lambda found: {size: found[size] for size in sorted(found, reverse=True)}
)


@given(st.integers(2, 40), counts, st.booleans())
def test_a_layout_is_exact_and_equal_unless_the_pool_allows_otherwise(
    gpus: int, nodes: dict[int, int], unequal: bool
) -> None:
    found = nodes_for(gpus, nodes, unequal=unequal)
    equal = [n for n, count in nodes.items() if gpus % n == 0 and n * count >= gpus]
    if found is None:
        assert not equal
        return
    assert sum(size * number for size, number in found) == gpus
    assert all(number <= nodes[size] for size, number in found)
    if equal:
        assert found == [(max(equal), gpus // max(equal))]
    else:
        assert unequal


@given(st.integers(2, 40), st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.integers(1, 4)))
def test_if_each_size_divides_the_next_unequal_nodes_are_found_whenever_they_exist(
    gpus: int, some: dict[int, int]
) -> None:
    nodes = {size: some[size] for size in sorted(some, reverse=True)}
    sums = {0}
    for size, count in nodes.items():
        sums = {total + size * number for total in sums for number in range(count + 1)}
    assert (nodes_for(gpus, nodes, unequal=True) is not None) == (gpus in sums)


def test_a_gang_on_whole_nodes_waits_for_a_task_that_stops_on_a_disabled_slot() -> None:
    cell = cell_of(3, 3)
    cell.submit("holds", preemptible=False, grace_s=30)
    running(cell, "holds")
    cell.submit("job", gpus=4, **WHOLE)
    cell.disable("n1", 0, stop=True)
    cell.disable("n2", 0)
    only(cell.cycle(), dec.SlotsReservedV1)
    assert started(cell.cycle()) == []
    cell.ends("holds")
    assert started(cell.cycle()) == ["job"]
    assert laid(cell, "job") == [("n1", 2), ("n2", 2)]
    assert_sound(cell.state)


def test_slots_reserved_for_a_gang_on_whole_nodes_are_dropped_when_the_nodes_have_more() -> None:
    cell = cell_of(3, 3)
    cell.submit("holds", preemptible=False, grace_s=30)
    running(cell, "holds")
    cell.submit("job", gpus=4, **WHOLE)
    cell.disable("n1", 0, stop=True)
    cell.disable("n2", 0)
    only(cell.cycle(), dec.SlotsReservedV1)
    cell.disable("n2")
    dropped = only(cell.cycle(), dec.ReservationDroppedV1)
    assert (dropped.code, dropped.about) == ("node_unavailable", "n2")
    cell.ends("holds")
    cell.cycle()
    assert laid(cell, "job") == []
    assert_sound(cell.state)
