"""Requests for memory of GPUs, on nodes whose GPUs have different memory."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.scheduling.reading import all_of, started
from tests.unit.core.scheduling.soundness import assert_sound
from tests.unit.core.scheduling.state.test_capacity_index import shape
from yardmaster_core.scheduling.planner.placement import (
    PLACEMENTS,
    place,
    replicas_that_fit,
    strategy_named,
)
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.shapes import Shape
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.decisions import SharesDividedV1
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.resources import TOO_LARGE, Resources, fraction_of

GIB = 1024


def by_memory(gib: int, *, gpus: int = 1, **more: int) -> Resources:
    """A request for an amount of memory of each GPU."""
    return Resources(gpus=gpus, gpu_memory_mib=gib * GIB, **more)


def unequal(**config: Any) -> Cell:
    """A cell with a GPU of 40 GiB on `small`, and one of 80 GiB on `large`."""
    cell = Cell(**config)
    cell.node("small", gpus=1, gpu_memory_mib=40 * GIB)
    cell.node("large", gpus=1, gpu_memory_mib=80 * GIB)
    return cell


def milli_of(cell: Cell, name: str) -> list[int]:
    """The gpu_milli of each GPU that the replicas of a task hold."""
    run = cell.task(name).run
    assert run is not None
    return [placement.gpu_milli for placement in run.placements]


# The fraction


@pytest.mark.parametrize(
    ("requested", "of", "milli"),
    [(20, 40, 500), (20, 80, 250), (1, 3, 340), (40, 40, 1000), (41, 40, TOO_LARGE)],
)
def test_a_fraction_is_the_part_of_the_memory_in_hundredths_rounded_up(
    requested: int, of: int, milli: int
) -> None:
    assert fraction_of(requested, of) == milli


def test_a_gpu_of_unknown_memory_is_too_small() -> None:
    assert fraction_of(1, 0) == TOO_LARGE


@given(st.integers(1, 200_000), st.lists(st.integers(1, 200_000), max_size=30))
def test_fractions_that_fit_on_a_gpu_together_request_no_more_memory_than_it_has(
    of: int, requests: list[int]
) -> None:
    milli = memory = 0
    for requested in requests:
        fraction = fraction_of(requested, of)
        if milli + fraction <= 1000:
            milli += fraction
            memory += requested
    assert memory <= of


# Placement


@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if name != "random"])
def test_a_request_takes_another_part_of_a_larger_gpu(placement: str) -> None:
    cell = unequal(placement=placement)
    for number in range(6):
        cell.submit(f"t{number}", resources=by_memory(20))
    assert len(started(cell.cycle())) == 6
    held = sorted(milli_of(cell, f"t{number}")[0] for number in range(6))
    assert held == [250, 250, 250, 250, 500, 500]
    assert all(node.free.slots == [0] for node in cell.state.nodes.values())
    assert_sound(cell.state)


def test_a_placement_records_the_fraction_and_the_memory() -> None:
    cell = Cell()
    cell.node("n1", gpus=2, gpu_memory_mib=80 * GIB)
    cell.submit("t", resources=by_memory(30, gpus=2))
    cell.cycle()
    run = cell.task("t").run
    assert run is not None
    [placement] = run.placements
    assert (placement.slots, placement.gpu_milli) == ((0, 1), 380)
    assert placement.gpu_memory_mib == 30 * GIB


def test_best_fit_uses_a_shared_gpu_before_an_unused_one_whatever_their_memory() -> None:
    cell = unequal()
    cell.submit("large", resources=by_memory(50))
    cell.cycle()
    cell.submit("t", resources=by_memory(20))
    cell.cycle()
    assert cell.slots_of("t") == [("large", (0,))]


def test_a_request_for_all_memory_of_a_gpu_takes_a_whole_unused_one() -> None:
    cell = unequal()
    cell.submit("part", resources=Resources(gpus=1, gpu_milli=100), node_types=("any",))
    cell.submit("all", resources=by_memory(40))
    cell.cycle()
    assert cell.slots_of("part") == [("small", (0,))]
    assert (cell.slots_of("all"), milli_of(cell, "all")) == ([("large", (0,))], [500])


def test_a_gang_uses_gpus_of_different_memory() -> None:
    cell = unequal()
    cell.submit("gang", resources=by_memory(40), replicas_min=3, replicas_max=3)
    cell.cycle()
    assert sorted(milli_of(cell, "gang")) == [500, 500, 1000]
    assert_sound(cell.state)


def test_what_a_task_released_is_free_again() -> None:
    cell = unequal()
    cell.submit("first", resources=by_memory(60))
    cell.cycle()
    cell.starts("first")
    cell.submit("next", resources=by_memory(50))
    cell.cycle()
    assert cell.wait_code("next") == "fragmented"
    cell.ends("first")
    assert started(cell.cycle()) == ["next"]
    assert_sound(cell.state)


nodes = st.lists(
    st.tuples(
        st.lists(st.sampled_from([0, 130, 250, 480, 500, 750, 1000, 1000]), max_size=3),
        st.sampled_from([0, 16, 40, 41, 80]),
    ),
    min_size=1,
    max_size=4,
)


def index_of(offers: list[tuple[list[int], int]]) -> CapacityIndex:
    """Return an index of nodes with those parts of GPUs free, which have that memory."""
    index = CapacityIndex()
    for ordinal, (slots, memory) in enumerate(offers):
        capacity = NodeCapacity(ordinal, len(slots), 0, 0, memory)
        index.add(capacity, "any", f"n{ordinal}")
        index.open_node(capacity)
        for slot, free in enumerate(slots):
            if free < 1000:
                index.take(capacity, (slot,), 1000 - free, 0, 0)
    return index


def fits(capacity: NodeCapacity, wanted: Shape) -> bool:
    """Whether a replica fits, by checking every slot."""
    milli = fraction_of(wanted.gpu_memory_mib, capacity.gpu_memory_mib)
    return sum(free >= milli for free in capacity.slots) >= wanted.gpus


@given(nodes, st.sampled_from([1, 4, 8, 16, 20, 40, 41, 79, 80, 81]), st.integers(1, 2))
def test_the_index_finds_exactly_the_nodes_that_hold_a_request(
    offers: list[tuple[list[int], int]], memory: int, gpus: int
) -> None:
    index = index_of(offers)
    wanted = shape(Resources(gpus=gpus, gpu_memory_mib=memory))
    expected = {c.ordinal for c in index.capacities.values() if fits(c, wanted)}
    for name in PLACEMENTS:
        strategy = strategy_named(name).for_task("t")
        found = {capacity.ordinal for capacity in strategy.order(index, wanted, -1)}
        assert found == expected, name
    mask = index.promising(wanted)
    assert all(mask >> ordinal & 1 for ordinal in expected)


@given(nodes, st.sampled_from([4, 8, 16, 20, 40]), st.integers(1, 2), st.integers(2, 5))
def test_a_gang_by_memory_is_placed_exactly_when_its_replicas_fit(
    offers: list[tuple[list[int], int]], memory: int, gpus: int, replicas: int
) -> None:
    index = index_of(offers)
    gang = shape(Resources(gpus=gpus, gpu_memory_mib=memory), replicas=replicas)
    fit = replicas_that_fit(index.capacities.values(), gang) >= replicas
    before = [list(capacity.slots) for capacity in index.capacities.values()]
    for name in PLACEMENTS:
        placement = place(index, gang, strategy_named(name))
        assert (placement is not None) == fit, name
        assert [c.slots for c in index.capacities.values()] == before
        used: dict[tuple[int, int], int] = {}
        for capacity, slots in placement or ():
            assert len(set(slots)) == gpus
            for slot in slots:
                held = used.get((capacity.ordinal, slot), 0) + capacity.milli_of(gang)
                used[capacity.ordinal, slot] = held
                assert held <= capacity.slots[slot], name


# Why it waits


def test_a_request_beyond_every_gpu_says_how_much_the_largest_has() -> None:
    cell = unequal()
    cell.node("silent", gpus=1)
    cell.submit("t", resources=by_memory(81))
    cell.cycle()
    group = cell.task("t").group
    assert group is not None
    wait = group.waits["main"][0]
    assert (wait.code, wait.about) == ("exceeds_every_node", "gpu_memory")
    assert wait.numbers == {"asked": 81 * GIB, "largest": 80 * GIB, "unknown_nodes": 1}


def test_a_node_that_does_not_report_the_memory_of_its_gpus_takes_no_request_by_memory() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1, gpu_memory_mib=40 * GIB)
    for name in ("first", "second"):
        cell.submit(name, resources=by_memory(30))
    assert started(cell.cycle()) == ["first"]
    group = cell.task("second").group
    assert group is not None
    wait = group.waits["main"][0]
    assert wait.code == "fragmented"
    assert wait.numbers["unknown_nodes"] == 1


def test_a_node_whose_agent_learns_the_memory_of_its_gpus_takes_requests() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("t", resources=by_memory(30))
    assert not started(cell.cycle())
    cell.node("n1", gpus=1, gpu_memory_mib=40 * GIB)
    assert started(cell.cycle()) == ["t"]
    cell.node("n1", gpus=1, gpu_memory_mib=80 * GIB)
    cell.cycle()
    assert cell.state.nodes["n1"].gpu_memory_mib == 40 * GIB, "tasks hold fractions of 40 GiB"
    assert_sound(cell.state)


# Counting


def test_limits_count_a_request_by_the_largest_gpus_until_it_is_placed() -> None:
    cell = unequal()
    cell.entitle("p", limit_milli=600)
    for name in ("a", "b", "c"):
        cell.submit(name, resources=by_memory(20), project="p")
    # 250 each; the first is placed as 500 of the smaller GPU.
    assert started(cell.cycle()) == ["a"]
    assert milli_of(cell, "a") == [500]
    group = cell.task("b").group
    assert group is not None
    wait = group.waits["main"][0]
    assert wait.code == "at_limit"
    assert wait.numbers == {"limit_milli": 600, "used_milli": 500, "asked_milli": 250}


def three_of_20(cell: Cell, **how: Any) -> None:
    """Submit a gang of three requests for 20 GiB: 1,500 on GPUs of 40 GiB, 750 on those of 80."""
    gang = by_memory(20)
    cell.submit("gang", resources=gang, replicas_min=3, replicas_max=3, project="p", **how)


def wait_of(cell: Cell, name: str) -> tuple[str, dict[str, int]]:
    """The recorded wait code of a task, and its numbers."""
    group = cell.task(name).group
    assert group is not None
    wait = group.waits["main"][0]
    return wait.code, wait.numbers


def limited(policy: str, milli: int) -> dict[str, Any]:
    """The configuration of a project with this limit (gpu_milli), which deserves a whole GPU."""
    deserves = {"main": Quota(deserved_milli=1000)} if policy == "quota" else {}
    return {"limit_milli": milli, "quotas": deserves}


def bounded(policy: str, milli: int) -> dict[str, Any]:
    """The configuration of a project that a policy bounds to this gpu_milli."""
    if policy == "quota":
        return {"quotas": {"main": Quota(deserved_milli=milli)}}
    return {"limit_milli": milli}


@pytest.mark.parametrize("policy", ["priority", "quota", "fifo", "starved_first"])
def test_a_lost_node_with_larger_gpus_does_not_let_a_gang_exceed_a_bound(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("small", gpus=2, gpu_memory_mib=40 * GIB)
    cell.node("large", gpus=1, gpu_memory_mib=80 * GIB)
    cell.entitle("p", **bounded(policy, 1000))
    cell.cycle()
    cell.cycle(after_s=100, silent={"large": cell.now_ms})
    three_of_20(cell, preemptible=False)
    assert started(cell.cycle()) == []
    code, numbers = wait_of(cell, "gang")
    assert code == ("at_deserved" if policy == "quota" else "at_limit")
    assert numbers["asked_milli"] == 1500
    # It comes back, and the gang takes 750 there.
    cell.node("large", gpus=1, gpu_memory_mib=80 * GIB, incarnation=2)
    cell.run_until_idle()
    assert milli_of(cell, "gang") == [250, 250, 250]
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", ["priority", "quota", "fifo"])
def test_a_request_is_placed_on_larger_gpus_where_smaller_ones_exceed_a_bound(policy: str) -> None:
    cell = unequal(policy=policy)
    cell.entitle("p", **bounded(policy, 300))
    cell.submit("t", resources=by_memory(20), project="p", preemptible=False)
    assert started(cell.cycle()) == ["t"]
    assert cell.slots_of("t") == [("large", (0,))]


@pytest.mark.parametrize("preemptible", [True, False])
@pytest.mark.parametrize("policy", ["priority", "quota", "fifo", "starved_first"])
def test_a_request_within_a_bound_on_larger_gpus_only_waits_for_these(
    policy: str, preemptible: bool
) -> None:
    cell = unequal(policy=policy)
    cell.entitle("p", **limited(policy, 300))
    cell.entitle("q", **bounded(policy, 2000))
    cell.submit("full", resources=by_memory(80), project="q", preemptible=False, priority=1)
    cell.cycle()
    cell.starts("full")
    cell.submit("t", resources=by_memory(20), project="p", preemptible=preemptible)
    assert started(cell.cycle()) == []
    assert wait_of(cell, "t")[0] in {"insufficient_free", "fragmented"}
    cell.ends("full", done=True)
    cell.run_until_idle()
    assert cell.slots_of("t") == [("large", (0,))]
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", ["priority", "quota", "fifo"])
def test_a_request_that_waits_for_larger_gpus_starts_on_smaller_ones_once_a_limit_allows_it(
    policy: str,
) -> None:
    cell = unequal(policy=policy)
    cell.entitle("p", **limited(policy, 300))
    cell.entitle("q", **bounded(policy, 2000))
    cell.submit("full", resources=by_memory(80), project="q", preemptible=False, priority=1)
    cell.cycle()
    cell.submit("t", resources=by_memory(20), project="p", preemptible=False)
    assert started(cell.cycle()) == []
    cell.entitle("p", **limited(policy, 500))
    assert started(cell.cycle()) == ["t"]
    assert cell.slots_of("t") == [("small", (0,))]


def test_a_task_preempts_only_on_gpus_where_a_limit_lets_it_start() -> None:
    cell = unequal()
    cell.entitle("p", limit_milli=300)
    for number in range(2):
        cell.submit(f"low{number}", gpus=1, project="q", priority=60)
    cell.cycle()
    for number in range(2):
        cell.starts(f"low{number}")
    cell.submit("top", resources=by_memory(20), project="p", priority=10)
    cell.cycle()
    [victim] = [f"low{n}" for n in range(2) if cell.phase(f"low{n}") == "stopping"]
    assert cell.slots_of(victim) == [("large", (0,))]
    cell.ends(victim)
    assert started(cell.cycle()) == ["top"]
    assert milli_of(cell, "top") == [250]


def test_an_equal_request_of_another_project_is_not_held_up_by_a_limit() -> None:
    cell = unequal()
    cell.entitle("p", limit_milli=300)
    cell.submit("full", resources=by_memory(80), project="q", preemptible=False, priority=1)
    cell.submit("other", resources=by_memory(40), project="q", preemptible=False, priority=1)
    cell.cycle()
    for name in ("full", "other"):
        cell.starts(name)
    cell.submit("t", resources=by_memory(20), project="p", preemptible=False)
    cell.submit("u", resources=by_memory(20), project="r", preemptible=False)
    cell.cycle()
    small = next(name for name in ("full", "other") if cell.slots_of(name)[0][0] == "small")
    cell.ends(small, done=True)
    assert started(cell.cycle()) == ["u"]


def test_a_request_above_a_limit_on_the_largest_gpus_never_starts() -> None:
    cell = unequal()
    cell.entitle("p", limit_milli=200)
    cell.submit("t", resources=by_memory(20), project="p")
    cell.cycle()
    assert cell.wait_code("t") == "exceeds_limit"


def test_quota_counts_wishes_by_the_smallest_gpus_and_what_is_held_as_placed() -> None:
    cell = unequal(policy="quota")
    cell.entitle("a", quotas={"main": Quota(deserved_milli=1000)})
    for number in range(8):
        cell.submit(f"a{number}", resources=by_memory(20), project="a")
    decided = cell.cycle()
    [divided] = all_of(decided, SharesDividedV1)
    [row] = [row for row in divided.queues if row.name == "a"]
    # Two of 500 and four of 250 hold slots; two more are pending, which may be of 500.
    assert (row.held.gpu_milli, row.requested.gpu_milli) == (2000, 1000)
    assert_sound(cell.state)


def test_quota_reclaims_fractions_by_memory() -> None:
    cell = unequal(policy="quota")
    for project in ("a", "b"):
        cell.entitle(project, quotas={"main": Quota(deserved_milli=1000)})
    for number in range(6):
        cell.submit(f"a{number}", resources=by_memory(20), project="a")
    cell.cycle()
    for number in range(6):
        cell.starts(f"a{number}")
    cell.submit("b0", resources=by_memory(40), project="b")
    cell.cycle()
    stopped = [f"a{n}" for n in range(6) if cell.phase(f"a{n}") == "stopping"]
    assert stopped, "b deserves what a holds beyond its own"
    for name in stopped:
        cell.ends(name)
    cell.run_until_idle()
    assert cell.phase("b0") == "starting"
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", ["priority", "fitgpp"])
def test_a_task_preempts_fractions_by_memory(policy: str) -> None:
    cell = unequal(policy=policy)
    for number in range(6):
        cell.submit(f"low{number}", resources=by_memory(20), priority=50)
    cell.cycle()
    for number in range(6):
        cell.starts(f"low{number}")
    top = {"priority": 10} if policy == "priority" else {"preemptible": False}
    cell.submit("top", resources=by_memory(60), **top)
    cell.cycle()
    stopped = [f"low{n}" for n in range(6) if cell.phase(f"low{n}") == "stopping"]
    assert {node for name in stopped for node, _ in cell.slots_of(name)} == {"large"}
    assert len(stopped) == 3
    for name in stopped:
        cell.ends(name)
    assert "top" in started(cell.cycle())
    assert milli_of(cell, "top") == [750]
    assert_sound(cell.state)


@pytest.mark.parametrize("among", ["job", "project"])
def test_fair_share_counts_demand_by_the_smallest_gpus(among: str) -> None:
    cell = unequal(policy="fair_share", among=among)
    for job in ("a", "b"):
        cell.submit(job, resources=by_memory(20), tasks=8, project=job)
    cell.cycle()
    held = {"a": 0, "b": 0}
    for task in cell.state.tasks.values():
        if task.run is not None:
            held[task.job.project.name] += sum(p.gpu_milli for p in task.run.placements)
    assert sum(held.values()) > 1000
    assert max(held.values()) <= 1000
    # The smallest GPU leaves: a task is a smaller part of those that are left.
    for index in range(8):
        for job in ("a", "b"):
            if cell.phase(job, index) == "starting":
                cell.starts(job, index)
    cell.cycle()
    assert_sound(cell.state)
    cell.node("smaller", gpus=1, gpu_memory_mib=20 * GIB)
    cell.run_until_idle()
    assert_sound(cell.state)


def test_a_restored_machine_knows_the_memory_of_gpus() -> None:
    cell = unequal()
    cell.submit("first", resources=by_memory(20))
    cell.cycle()
    cell.restart()
    assert cell.state.pools["main"].free.of_gpu_memory == {40 * GIB: 1, 80 * GIB: 2}
    cell.submit("next", resources=by_memory(80))
    assert started(cell.cycle()) == ["next"]
    assert_sound(cell.state)
