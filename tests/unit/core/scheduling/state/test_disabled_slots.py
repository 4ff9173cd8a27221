"""Disabled slots, and limits on tasks without GPUs."""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import all_of, only, running, started, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Layout
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.sources import next_incarnation

HALF = Resources(gpus=1, gpu_milli=500)
WHOLE_NODES: dict[str, Any] = {"layout": Layout.WHOLE_NODES}


def one_node(gpus: int = 4, **options: Any) -> Cell:
    cell = Cell(**options)
    cell.node("n1", gpus=gpus)
    return cell


# Disabled slots


def test_no_task_starts_on_a_disabled_slot() -> None:
    cell = one_node(4)
    cell.disable("n1", 0, 2)
    cell.submit("job", tasks=3, preemptible=False)
    cell.cycle()
    assert [cell.slots_of("job", i) for i in range(3)] == [[("n1", (1,))], [("n1", (3,))], []]
    assert waits(cell, "job").code == "insufficient_free"
    cell.disable("n1", 0)
    assert started(cell.cycle()) == ["job.2"]
    assert cell.slots_of("job", 2) == [("n1", (2,))]
    assert_sound(cell.state)


def test_a_task_on_a_disabled_slot_runs_on_and_frees_no_capacity() -> None:
    cell = one_node(2)
    cell.submit("job", tasks=2)
    cell.cycle()
    cell.starts("job", 0)
    cell.disable("n1", 0)
    assert cell.cycle() == []
    assert_sound(cell.state)
    cell.submit("next", preemptible=False)
    cell.ends("job", 0)
    cell.cycle()
    assert cell.phase("next") == "pending"
    assert_sound(cell.state)
    cell.never_starts("job", 1)
    cell.pause("job")
    assert started(cell.cycle()) == ["next"]
    assert cell.slots_of("next") == [("n1", (1,))]


@pytest.mark.parametrize("preemptible", [True, False])
def test_with_stop_a_task_is_stopped_with_grace_and_continues_elsewhere(
    preemptible: bool,
) -> None:
    cell = one_node(2)
    cell.submit("one", preemptible=preemptible)
    running(cell, "one")
    cell.submit("two", preemptible=False)
    running(cell, "two")
    cell.disable("n1", 0, stop=True)
    stop = only(cell.cycle(), dec.StopRequestedV1)
    assert (stop.task_id, stop.stop.code, stop.stop.about) == (
        cell.task("one").id,
        "slot_disabled",
        "n1",
    )
    assert (stop.stop.numbers, stop.grace_s) == ({"slot": 0}, 30)
    cell.node("n2", gpus=1)
    cell.ends("one")
    decided = cell.cycle()
    assert only(decided, dec.TaskRequeuedV1).code == "slot_disabled"
    assert cell.slots_of("one") == [("n2", (0,))]
    assert cell.phase("two") == "running"


def test_a_stop_can_be_requested_later() -> None:
    cell = one_node(1)
    cell.submit("job")
    running(cell, "job")
    cell.disable("n1", 0)
    assert cell.cycle() == []
    cell.disable("n1", 0, stop=True)
    assert only(cell.cycle(), dec.StopRequestedV1).stop.code == "slot_disabled"


def test_a_stop_beyond_the_limit_is_decided_in_the_next_cycle_also_after_a_restart() -> None:
    cell = one_node(2)
    cell.submit("job", tasks=2)
    cell.cycle()
    cell.disable("n1", 0, 1, stop=True)
    assert len(cell.cycle(limit=1)) == 1
    cell.restart()
    assert only(cell.cycle(), dec.StopRequestedV1).task_id == cell.task("job", 1).id


def test_slots_stay_disabled_when_their_node_joins_again_and_after_a_restart() -> None:
    cell = Cell()
    cell.disable("n1", 1, 7)
    cell.cycle()
    cell.node("n1", gpus=2)
    cell.submit("job", tasks=4, preemptible=False)
    cell.cycle()
    assert cell.slots_of("job", 0) == [("n1", (0,))]
    cell.restart()
    assert_sound(cell.state)
    cell.node("n1", gpus=8, incarnation=next_incarnation("0" * 12))
    cell.cycle()
    cell.cycle()
    assert sum(len(cell.slots_of("job", i)) for i in range(4)) == 4
    held = {slot for i in range(4) for _, slots in cell.slots_of("job", i) for slot in slots}
    assert held.isdisjoint({1, 7})
    assert_sound(cell.state)


def test_parts_of_a_disabled_slot_are_freed_one_by_one_and_not_reused() -> None:
    cell = one_node(2)
    cell.submit("half", tasks=2, resources=HALF)
    cell.cycle()
    cell.disable("n1", 0)
    cell.pause("half")
    cell.cycle()
    for index in (0, 1):
        cell.never_starts("half", index)
        cell.submit(f"more{index}", gpus=2, preemptible=False)
        cell.cycle()
        assert_sound(cell.state)
    cell.submit("pair", tasks=3, resources=HALF)
    cell.cycle()
    assert [cell.slots_of("pair", i) for i in range(3)] == [[("n1", (1,))], [("n1", (1,))], []]


def test_a_gang_that_fits_starts_although_a_disabled_slot_is_still_held() -> None:
    cell = one_node(1)
    cell.submit("held")
    cell.cycle()
    cell.node("n2", gpus=2)
    cell.disable("n1", 0)
    cell.submit("gang", replicas=2)
    cell.cycle()
    assert cell.slots_of("gang") == [("n2", (0,)), ("n2", (1,))]


def test_the_size_of_a_node_excludes_disabled_slots() -> None:
    cell = Cell()
    for name, gpus in (("n1", 4), ("n2", 3), ("n3", 3)):
        cell.node(name, gpus=gpus)
    cell.disable("n1", 2)
    cell.submit("job", gpus=9, **WHOLE_NODES)
    cell.cycle()
    assert cell.slots_of("job") == [("n1", (0, 1, 3)), ("n2", (0, 1, 2)), ("n3", (0, 1, 2))]
    assert_sound(cell.state)


def test_a_node_whose_disabled_slot_is_still_held_is_not_idle() -> None:
    cell = Cell()
    cell.node("n1", gpus=3)
    cell.submit("held", preemptible=False)
    running(cell, "held")
    cell.disable("n1", 0)
    cell.node("n2", gpus=2)
    cell.submit("job", gpus=4, **WHOLE_NODES)
    cell.cycle()
    assert waits(cell, "job").numbers["idle_milli"] == 2000
    cell.ends("held")
    assert started(cell.cycle()) == ["job"]


def test_too_few_enabled_slots_are_a_temporary_wait_with_its_reason() -> None:
    cell = one_node(4)
    cell.disable("n1", 0)
    cell.submit("job", gpus=4)
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.numbers) == (
        "nodes_unavailable",
        {"nodes": 1, "cordoned": 0, "lost": 0, "disabled": 1},
    )
    cell.disable("n1")
    assert started(cell.cycle()) == ["job"]


def test_no_task_is_preempted_for_a_disabled_slot() -> None:
    cell = one_node(2)
    cell.submit("low", tasks=2, priority=90)
    cell.cycle()
    cell.disable("n1", 1)
    cell.submit("top", priority=1)
    stops = all_of(cell.cycle(), dec.PreemptionRequestedV1)
    assert [e.task_id for e in stops] == [cell.task("low", 0).id]


def test_a_state_without_disabled_slots_keeps_its_digest() -> None:
    cell, other = one_node(2), one_node(2)
    other.disable("n1", 1)
    other.disable("n1")
    for each in (cell, other):
        each.cycle()
    assert cell.state.nodes["n1"].facts() == other.state.nodes["n1"].facts()


# Tasks without GPUs


def places(cell: Cell, name: str, count: int) -> list[str]:
    return [node for i in range(count) for node, _ in cell.slots_of(name, i)]


def test_the_number_of_tasks_without_gpus_is_limited_on_each_node() -> None:
    cell = Cell(gpuless_per_node=2)
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("job", gpus=0, tasks=5, preemptible=False)
    cell.submit("gpu", gpus=1)
    cell.cycle()
    assert sorted(places(cell, "job", 5)) == ["n1", "n1", "n2", "n2"]
    wait = waits(cell, "job")
    assert (wait.code, wait.about) == ("insufficient_free", "gpuless")
    assert cell.phase("gpu") == "starting", "the limit does not apply to tasks with GPUs"
    assert_sound(cell.state)
    cell.never_starts("job", 0)
    assert started(cell.cycle()) == ["job.4"]


def test_the_limit_can_be_changed_without_losing_a_task() -> None:
    cell = Cell(gpuless_per_node=1)
    cell.node("n1", gpus=1)
    cell.submit("job", gpus=0, tasks=4, preemptible=False)
    cell.cycle()
    cell.pool("main", gpuless_per_node=3)
    assert len(all_of(cell.cycle(), dec.SlotsAllocatedV1)) == 2
    cell.pool("main", gpuless_per_node=2)
    assert cell.cycle() == []
    assert_sound(cell.state)
    cell.restart()
    assert_sound(cell.state)
    cell.never_starts("job", 0)
    cell.pause("job", 0)
    assert started(cell.cycle()) == []
    cell.pool("main")
    assert started(cell.cycle()) == ["job.3"]
    assert_sound(cell.state)


def test_a_pool_may_take_no_tasks_without_gpus() -> None:
    cell = Cell(gpuless_per_node=0)
    cell.node("n1", gpus=1)
    cell.submit("job", gpus=0)
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.about, wait.numbers) == (
        "exceeds_every_node",
        "gpuless",
        {"asked": 1, "largest": 0},
    )


def test_a_gang_without_gpus_needs_a_place_for_each_replica() -> None:
    cell = Cell(gpuless_per_node=2)
    cell.node("n1", gpus=0)
    cell.submit("gang", gpus=0, replicas=3)
    cell.cycle()
    assert waits(cell, "gang").code == "exceeds_pool"
    cell.node("n2", gpus=0)
    assert started(cell.cycle()) == ["gang"]


def test_best_fit_places_tasks_without_gpus_on_used_nodes_then_on_the_fullest_idle_one() -> None:
    cell = Cell(gpuless_per_node=3)
    for name in ("n1", "n2", "n3"):
        cell.node(name, gpus=2)
    cell.submit("held", gpus=1, avoid_nodes=("n1", "n2"), preemptible=False)
    cell.submit("seed", gpus=0, avoid_nodes=("n1", "n3"), preemptible=False)
    cell.cycle()
    nodes = []
    for index in range(6):
        name = f"job{chr(ord('a') + index)}"
        cell.submit(name, gpus=0, preemptible=False)
        cell.cycle()
        nodes += places(cell, name, 1)
    # One free GPU on n3 scores the same as one place left on an idle node.
    assert nodes == ["n3", "n3", "n3", "n2", "n2", "n1"]


def test_worst_fit_spreads_tasks_without_gpus_over_idle_nodes_first() -> None:
    cell = Cell(placement="worst_fit", gpuless_per_node=4)
    for name in ("n1", "n2", "n3"):
        cell.node(name, gpus=4)
    cell.submit("held", gpus=2, avoid_nodes=("n2", "n3"), preemptible=False)
    cell.cycle()
    nodes = []
    for index in range(5):
        name = f"job{chr(ord('a') + index)}"
        cell.submit(name, gpus=0, preemptible=False)
        cell.cycle()
        nodes += places(cell, name, 1)
    # A fraction of 4/4 or 3/4 of the places is more than half of the GPUs; then all are equal.
    assert nodes == ["n2", "n3", "n2", "n3", "n1"]


def test_worst_fit_compares_the_free_fraction_of_gpus() -> None:
    cell = Cell(placement="worst_fit")
    cell.node("n1", gpus=5)
    cell.node("n2", gpus=2)
    cell.submit("held", gpus=3, avoid_nodes=("n2",), preemptible=False)
    cell.submit("other", gpus=1, avoid_nodes=("n1",), preemptible=False)
    cell.cycle()
    cell.submit("job")
    cell.cycle()
    assert cell.slots_of("job") == [("n2", (1,))], "1/2 is more than 2/5"


def test_a_node_takes_512_tasks_without_gpus_by_default() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("many", gpus=0, tasks=513)
    assert len(started(cell.cycle())) == 512
    wait = waits(cell, "many")
    assert (wait.code, wait.about) == ("insufficient_free", "gpuless")
    assert_sound(cell.state)
