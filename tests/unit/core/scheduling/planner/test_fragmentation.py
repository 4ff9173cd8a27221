"""`fgd` against its definition, and the workload that it counts."""

from string import ascii_lowercase
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fragmentation import grade, useless, ways
from tests.unit.core.scheduling.state.test_capacity_index import Model, nodes, shape, shapes, steps
from yardmaster_core.scheduling.planner.fragmentation import slots_of_least_growth
from yardmaster_core.scheduling.planner.placement import fgd
from yardmaster_core.scheduling.state.workload import (
    CLASSES,
    COUNTED,
    Class,
    Workload,
    WorkloadCounter,
)
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.resources import Resources

classes = st.one_of(
    st.tuples(
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(1, 4),
        st.sampled_from([200, 330, 500, 950, 1000, 1000]),
        st.sampled_from([(), (), ("sxm",), ("any", "sxm")]),
    ),
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.just(0), st.just(0), st.just(())),
)
counted = st.dictionaries(classes, st.integers(1, 50), max_size=12)
slots = st.lists(st.sampled_from([-500, 0, 50, 330, 500, 770, 1000, 1000]), max_size=5)


@given(counted, slots, st.integers(0, 12), st.integers(0, 12), st.sampled_from(["any", "sxm", ""]))
def test_unusable_capacity_matches_the_definition(
    counts: dict[Class, int], free: list[int], cpu: int, memory: int, node_type: str
) -> None:
    requested = Workload(counts)
    state = tuple(sorted(max(0, one) for one in free))
    for _ in range(2):
        found = requested.useless(state, cpu, memory, node_type)
        assert found == useless(counts, free, cpu, memory, node_type)


@given(nodes, steps, st.lists(shapes, min_size=1, max_size=3), counted, counted)
def test_nodes_come_in_the_order_of_the_growth_of_unusable_capacity(
    offers: list[Any],
    changes: list[Any],
    some: list[Any],
    counts: dict[Class, int],
    later: dict[Class, int],
) -> None:
    model = Model(offers)
    model.index.count_on(Workload(counts))
    for number, change in enumerate(changes):
        model.step(*change)
        if number == 10:
            counts = later
            model.index.count_on(Workload(counts))
        # Orders are not updated after each change, so that several changes are pending at once.
        requested = some[number % len(some)]
        expected = []
        for capacity in model.fitting(requested):
            best = min(
                (grade(counts, capacity, requested, way), way) for way in ways(requested, capacity)
            )
            expected.append((best[0], capacity.ordinal, best[1]))
        found = list(fgd(model.index, requested))
        plain = [ordinal for _, ordinal, _ in sorted(expected, key=_without_the_rest)]
        assert [capacity.ordinal for capacity in found] == plain
        picked = {
            capacity.ordinal: slots_of_least_growth(model.index, capacity, requested)
            for capacity in found
        }
        assert picked == {ordinal: way for _, ordinal, way in expected}


def _without_the_rest(row: tuple[tuple[int, ...], int, tuple[int, ...]]) -> Any:
    # The free part of a slot distinguishes two slots of one node, not two nodes.
    return row[0][:4], row[1]


def test_a_gpu_fraction_goes_where_it_leaves_capacity_for_larger_requests() -> None:
    cell = Cell(placement="fgd")
    for name in ("a", "b"):
        cell.node(name, gpus=1)
    cell.submit("two_thirds", resources=Resources(gpus=1, gpu_milli=660))
    cell.run_until_idle()
    cell.submit("often", resources=Resources(gpus=1, gpu_milli=500), tasks=20, max_concurrent=1)
    cell.run_until_idle()
    cell.submit("third", resources=Resources(gpus=1, gpu_milli=340))
    cell.run_until_idle()
    (full,), (other,) = cell.slots_of("two_thirds"), cell.slots_of("often")
    assert cell.slots_of("third") == [full], "half a GPU is still free for requests of halves"
    assert other[0] != full[0]


def test_a_task_without_gpus_goes_where_it_strands_none() -> None:
    for placement, expected in (("best_fit", "small"), ("fgd", "large")):
        cell = Cell(placement=placement)
        cell.node("small", gpus=4, cpu_milli=8_000)
        cell.node("large", gpus=4, cpu_milli=64_000)
        needs_cpu = Resources(gpus=1, gpu_milli=1000, cpu_milli=4_000)
        cell.submit("often", resources=needs_cpu, tasks=10, max_concurrent=1)
        cell.run_until_idle()
        cell.submit("filler", resources=Resources(gpus=1, gpu_milli=1000))
        cell.submit("plain", resources=Resources(cpu_milli=4_000))
        cell.run_until_idle()
        assert cell.slots_of("often")[0][0] == "small", "whole nodes are kept"
        assert cell.slots_of("plain")[0][0] == expected


def test_each_replica_of_a_gang_is_placed_by_itself() -> None:
    cell = Cell(placement="fgd")
    for name in ("a", "b"):
        cell.node(name, gpus=2)
    fraction = Resources(gpus=1, gpu_milli=500)
    cell.submit("gang", resources=fraction, replicas=3)
    cell.run_until_idle()
    assert cell.slots_of("gang") == [("a", (0,)), ("a", (0,)), ("a", (1,))]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([250, 400, 1000]),
            st.integers(0, 4),
            st.integers(1, 2),
            st.booleans(),
        ),
        min_size=3,
        max_size=12,
    ),
    st.sampled_from(["fgd", "tight_fit", "random"]),
)
def test_a_cell_restored_from_snapshots_places_tasks_as_one_that_kept_running(
    jobs: list[tuple[int, int, int, int, bool]], placement: str
) -> None:
    cells = [Cell(placement=placement, seed=3), Cell(placement=placement, seed=3)]
    for cell in cells:
        for number in range(4):
            cell.node(f"n{number}", gpus=1 + number, cpu_milli=8, memory_mib=8)
    names = ascii_lowercase
    for number, (gpus, milli, cpu, replicas, ends) in enumerate(jobs):
        requested = Resources(gpus=gpus, gpu_milli=milli if gpus else 0, cpu_milli=cpu)
        over = names[number // 2]
        decided: list[list[Event]] = []
        for cell in cells:
            cell.submit(names[number], resources=requested, replicas=replicas, preemptible=False)
            if cell is cells[1]:
                cell.restart()
            decided.append(cell.cycle())
            if ends and cell.phase(over) == "starting":
                cell.starts(over)
                cell.ends(over, done=True)
                decided[-1] += cell.cycle()
        assert decided[0] == decided[1]


def test_the_workload_is_updated_when_half_as_many_tasks_again_were_admitted() -> None:
    counter = WorkloadCounter()
    one = shape(Resources(gpus=1, gpu_milli=1000))
    seen = []
    for _ in range(13):
        counter.add(one, 1)
        seen.append(counter.workload.total)
    assert seen == [1, 2, 3, 3, 5, 5, 5, 8, 8, 8, 8, 12, 12]
    counter.add(shape(Resources(gpus=2, gpu_milli=1000), replicas=3), 4)
    assert counter.workload.total == 25, "every replica of every task counts"


def test_the_most_requested_classes_count_and_rare_ones_are_forgotten() -> None:
    counter = WorkloadCounter()
    often = shape(Resources(gpus=2, gpu_milli=1000, cpu_milli=5_000))
    for number in range(3 * COUNTED):
        counter.add(shape(Resources(gpus=1, gpu_milli=1000, cpu_milli=number)), 1)
        counter.add(often, 1)
    assert len(counter.counts) <= COUNTED
    assert counter.counts[5_000, 0, 2, 1000, ()] == 3 * COUNTED
    assert len(counter.workload.counts) == CLASSES
    assert (5_000, 0, 2, 1000, ()) in counter.workload.counts
    assert WorkloadCounter.load(counter.dump()).facts() == counter.facts()


def test_each_counted_request_changes_what_the_digest_covers() -> None:
    counter = WorkloadCounter()
    for number in range(10):
        counter.add(shape(Resources(gpus=1, gpu_milli=1000, cpu_milli=number)), 10)
    seen = {counter.facts()}
    for dump in (counter.dump() for _ in range(2)):
        for row in dump[0]:
            row[-1] += 1
            seen.add(WorkloadCounter.load(dump).facts())
            row[-1] -= 1
    assert len(seen) == 11


def test_a_pool_that_switches_to_fgd_counts_jobs_admitted_before() -> None:
    always, late = Cell(placement="fgd"), Cell()
    for cell in (always, late):
        cell.node("a", gpus=4)
        for number in range(5):
            cell.submit(f"job{number}", resources=Resources(gpus=1, gpu_milli=100 * number + 100))
        cell.run_until_idle()
    late.pool("main", placement="fgd")
    late.cycle()
    found = [cell.state.pools["main"].workload for cell in (always, late)]
    assert found[0].counts == found[1].counts
    assert found[0].workload.counts == found[1].workload.counts
