"""Why a task waits: each code that can occur, with its numbers; and what decides the placement of
tasks.
"""

import pytest
from pydantic_core import from_json

from tests.unit.core.scheduling.reading import all_of, only, running, started, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas import plain
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.resources import Resources

HALF = Resources(gpus=1, gpu_milli=500)


# never


def test_no_matching_node() -> None:
    cell = Cell()
    cell.node("n1", node_type="pcie")
    cell.node("n2", node_type="pcie")
    cell.submit("job", node_types=("sxm",))
    cell.cycle()
    wait = waits(cell, "job")
    assert wait.code == "no_matching_node"
    assert wait.numbers == {"nodes": 2, "left_by_pool": 2, "left_by_type": 0}


def test_a_pool_without_nodes_matches_no_task() -> None:
    cell = Cell()
    cell.submit("job")
    cell.cycle()
    assert waits(cell, "job").numbers == {"nodes": 0, "left_by_pool": 0, "left_by_type": 0}


@pytest.mark.parametrize(
    ("requested", "about", "numbers"),
    [
        (Resources(gpus=9, gpu_milli=1000), "gpus", {"asked": 9, "largest": 8}),
        (Resources(cpu_milli=65_000), "cpus", {"asked": 65_000, "largest": 64_000}),
        (
            Resources(gpus=1, gpu_milli=1000, memory_mib=600_000),
            "memory",
            {"asked": 600_000, "largest": 512 * 1024},
        ),
    ],
)
def test_exceeds_every_node(requested: Resources, about: str, numbers: dict[str, int]) -> None:
    cell = Cell()
    cell.node("n1", gpus=8)
    cell.node("n2", gpus=4)
    cell.submit("job", resources=requested)
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.about, wait.numbers) == ("exceeds_every_node", about, numbers)


def test_unavailable_nodes_count_for_whether_a_task_can_ever_fit() -> None:
    cell = Cell()
    cell.node("n1", gpus=8)
    cell.node("n2", gpus=4)
    cell.cycle(silent={"n1": cell.now_ms - 60_000})
    cell.submit("job", gpus=8)
    cell.cycle()
    assert waits(cell, "job").code == "nodes_unavailable"


def test_exceeds_pool() -> None:
    cell = Cell()
    cell.node("n1", gpus=5)
    cell.node("n2", gpus=3)
    cell.submit("gang", replicas=4, gpus=2)
    cell.cycle()
    wait = waits(cell, "gang")
    assert wait.code == "exceeds_pool"
    numbers = {"asked_milli": 8000, "pool_milli": 8000, "replicas": 4, "places": 3}
    assert wait.numbers == numbers, "8 GPUs, but not four pairs on one node each"


def test_pairs_of_halves_need_two_gpus_each() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("job", resources=Resources(gpus=2, gpu_milli=500))
    cell.cycle()
    assert waits(cell, "job").code == "exceeds_every_node"
    cell.node("n3", gpus=3)
    cell.submit("gang", replicas=4, resources=Resources(gpus=2, gpu_milli=500))
    cell.cycle()
    assert waits(cell, "gang").numbers["places"] == 3


# not now


def test_insufficient_free() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("held", gpus=3, preemptible=False)
    running(cell, "held")
    cell.submit("job", gpus=2)
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.about) == ("insufficient_free", "gpus")
    assert wait.numbers == {"asked_milli": 2000, "free_milli": 1000, "short_milli": 1000}


def test_fragmented() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    for name in ("one", "two"):
        cell.submit(name, preemptible=False)
        cell.cycle()
        cell.cordon("n1")
    cell.uncordon("n1")
    cell.submit("job", gpus=2)
    cell.cycle()
    wait = waits(cell, "job")
    assert wait.code == "fragmented"
    numbers = {"asked_milli": 2000, "free_milli": 2000, "largest_milli": 1000, "replicas": 1}
    assert wait.numbers == numbers


@pytest.mark.parametrize("resource", ["cpus", "memory"])
def test_fragmented_names_the_resource_that_is_short_where_enough_gpus_are_free(
    resource: str,
) -> None:
    cell = Cell()
    cell.node("n1", gpus=8, cpu_milli=8000, memory_mib=8000)
    held = Resources(memory_mib=8000) if resource == "memory" else Resources(cpu_milli=8000)
    cell.submit("held", resources=held, preemptible=False)
    running(cell, "held")
    cell.submit("job", resources=Resources(gpus=8, gpu_milli=1000, cpu_milli=1000, memory_mib=1000))
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.about) == ("fragmented", resource)


def test_tasks_without_gpus_wait_for_cpus() -> None:
    cell = Cell()
    cell.node("n1", gpus=4, cpu_milli=4000)
    cell.submit("held", resources=Resources(cpu_milli=3000), preemptible=False)
    running(cell, "held")
    cell.submit("job", resources=Resources(cpu_milli=2000))
    cell.cycle()
    wait = waits(cell, "job")
    assert (wait.code, wait.about) == ("insufficient_free", "cpus")
    assert wait.numbers == {"free_cpu_milli": 1000, "short_cpu_milli": 1000}


def test_tasks_without_gpus_wait_for_memory() -> None:
    cell = Cell()
    for name in ("n1", "n2"):
        cell.node(name, gpus=4, cpu_milli=8000, memory_mib=4096)
    for name in ("one", "two"):
        cell.submit(name, resources=Resources(cpu_milli=1000, memory_mib=3072), preemptible=False)
        running(cell, name)
    cell.submit("job", resources=Resources(cpu_milli=1000, memory_mib=2048))
    cell.submit("gang", resources=Resources(cpu_milli=1000, memory_mib=2048), replicas=2)
    cell.cycle()
    for name, numbers in (
        ("job", {"free_memory_mib": 1024, "short_memory_mib": 1024}),
        ("gang", {"free_memory_mib": 2048, "short_memory_mib": 2048}),
    ):
        wait = waits(cell, name)
        assert (wait.code, wait.about, wait.numbers) == ("insufficient_free", "memory", numbers)


def test_nodes_unavailable() -> None:
    cell = Cell()
    for name in ("n1", "n2", "n3"):
        cell.node(name, gpus=4)
    cell.cycle()
    cell.cordon("n1")
    cell.submit("gang", gpus=4, replicas=2, preemptible=False)
    cell.cycle(silent={"n2": cell.now_ms - 60_000})
    wait = waits(cell, "gang")
    assert (wait.code, wait.numbers) == (
        "nodes_unavailable",
        {"nodes": 3, "cordoned": 1, "lost": 1},
    )
    cell.uncordon("n1")
    assert started(cell.cycle()) == ["gang"]


def test_waiting_for_victims() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("low", tasks=2, priority=90)
    cell.cycle()
    cell.submit("top", gpus=2, priority=1)
    cell.cycle()
    wait = waits(cell, "top")
    assert wait.code == "waiting_for_victims"
    until = cell.now_ms + 30_000
    assert wait.numbers == {"victims": 2, "asked_milli": 2000, "until_at_ms": until}


def test_tasks_behind_one_that_waits_for_victims_do_not_take_its_slots() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("low", priority=90)
    running(cell, "low")
    cell.submit("top", tasks=3, priority=1)
    decided = cell.cycle()
    assert len(all_of(decided, dec.TaskUnschedulableV1)) == 1, "one reason for the others"
    assert waits(cell, "top").code == "waiting_for_victims"
    assert cell.cycle() == []


def test_behind_task() -> None:
    cell = Cell(preemption=False)
    cell.node("n1", gpus=2)
    cell.submit("held", preemptible=False)
    cell.cycle()
    cell.submit("pair", gpus=2, priority=10)
    cell.submit("low", priority=60)
    cell.cycle()
    wait = waits(cell, "low")
    assert (wait.code, wait.about) == ("behind_task", cell.task("pair").id)
    assert wait.numbers == {"priority": 60, "priority_ahead": 10}


def test_backfill_not_allowed() -> None:
    cell = Cell(backfill=False)
    cell.node("n1", gpus=2)
    cell.submit("held", preemptible=False)
    cell.cycle()
    cell.submit("pair", gpus=2, priority=10)
    cell.submit("low", priority=60)
    cell.cycle()
    wait = waits(cell, "low")
    assert (wait.code, wait.about) == ("backfill_not_allowed", cell.task("pair").id)
    assert wait.numbers == {"priority": 60, "priority_ahead": 10}


def test_victims_protected() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("one", priority=90, min_runtime_s=60)
    cell.submit("two", priority=90, min_runtime_s=90)
    cell.cycle()
    cell.starts("one")
    cell.starts("two")
    cell.cycle()
    began_ms = cell.now_ms
    cell.submit("top", gpus=2, priority=1)
    cell.cycle()
    wait = waits(cell, "top")
    assert wait.code == "victims_protected"
    assert wait.numbers == {"victims": 2, "until_at_ms": began_ms + 60_000}
    assert all_of(cell.cycle(after_s=60), dec.PreemptionRequestedV1) == []
    assert waits(cell, "top").numbers == {"victims": 1, "until_at_ms": began_ms + 90_000}
    assert cell.machine.due_ms(cell.state) == began_ms + 90_000
    assert len(all_of(cell.cycle(after_s=30), dec.PreemptionRequestedV1)) == 2


def test_a_reason_is_recorded_again_only_when_it_changes() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("one", preemptible=False)
    cell.submit("two", preemptible=False)
    running(cell, "two")
    cell.submit("job", gpus=4)
    written = only(cell.cycle(), dec.TaskUnschedulableV1)
    since = cell.task("job").group.waits["main"][1]  # type: ignore[union-attr]
    cell.ends("two")
    assert all_of(cell.cycle(after_s=60), dec.TaskUnschedulableV1) == []
    assert cell.task("job").group.waits["main"][1:] == (since, cell.cycles - 1)  # type: ignore[union-attr]
    assert written.shape == cell.task("job").job.shape.id
    cell.cordon("n1")
    assert only(cell.cycle(), dec.TaskUnschedulableV1).wait.code == "nodes_unavailable"


def test_a_task_that_was_not_considered_yet_has_no_reason() -> None:
    cell = Cell()
    cell.submit("job", pools=("unknown",))
    assert cell.cycle() == []
    group = cell.task("job").group
    assert group is not None
    assert group.waits == {}


# Why a task starts or stops


def test_starts_and_stops_carry_the_rule_and_its_numbers() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("low", gpus=2, priority=60)
    start = only(cell.cycle(), dec.SlotsAllocatedV1).start
    assert (start.rule, start.numbers) == ("priority", {"priority": 60})
    cell.submit("top", priority=5)
    stop = only(cell.cycle(), dec.PreemptionRequestedV1).stop
    assert stop.numbers == {
        "priority": 60,
        "for_priority": 5,
        "held_milli": 2000,
        "asked_milli": 1000,
    }


# Where tasks go


def test_pools_are_tried_in_the_order_in_which_a_job_names_them() -> None:
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1, pool="side")
    cell.submit("job", tasks=3, pools=("side", "main"), preemptible=False)
    decided = cell.cycle()
    assert [e.pool for e in all_of(decided, dec.SlotsAllocatedV1)] == ["side", "main"]
    assert waits(cell, "job", "side").code == "insufficient_free"
    assert waits(cell, "job", "main").code == "insufficient_free"


def test_a_task_goes_to_a_later_pool_only_while_the_preferred_one_has_no_capacity() -> None:
    cell = Cell()
    cell.pool("side")
    cell.submit("job", pools=("side", "main"))
    cell.cycle()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1, pool="side")
    assert only(cell.cycle(), dec.SlotsAllocatedV1).pool == "side"


def test_requested_node_types_are_respected() -> None:
    cell = Cell()
    cell.node("n1", gpus=1, node_type="pcie")
    cell.node("n2", gpus=1, node_type="sxm")
    cell.node("n3", gpus=1, node_type="nvl")
    cell.submit("job", tasks=3, node_types=("sxm", "nvl"), preemptible=False)
    cell.cycle()
    assert [cell.slots_of("job", i) for i in range(3)] == [[("n2", (0,))], [("n3", (0,))], []]


def test_cpus_and_memory_limit_what_fits_as_gpus_do() -> None:
    cell = Cell()
    cell.node("n1", gpus=8, cpu_milli=5000)
    cell.node("n2", gpus=8, cpu_milli=64_000, memory_mib=3000)
    requested = Resources(gpus=1, gpu_milli=1000, cpu_milli=2000, memory_mib=1000)
    cell.submit("job", tasks=10, resources=requested, preemptible=False)
    cell.cycle()
    nodes = [cell.slots_of("job", i)[0][0] for i in range(10) if cell.slots_of("job", i)]
    assert (nodes.count("n1"), nodes.count("n2")) == (2, 3)
    assert_sound(cell.state)


def test_fractions_are_packed_onto_one_gpu_and_leave_the_others_whole() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.node("n2", gpus=2)
    for name, milli in (("one", 300), ("two", 500), ("three", 500), ("four", 200)):
        cell.submit(name, resources=Resources(gpus=1, gpu_milli=milli), preemptible=False)
        cell.cycle()
    places = [cell.slots_of(name) for name in ("one", "two", "three", "four")]
    assert places == [[("n1", (0,))], [("n1", (0,))], [("n1", (1,))], [("n1", (0,))]]
    cell.submit("whole", gpus=2)
    cell.cycle()
    assert cell.slots_of("whole") == [("n2", (0, 1))]
    assert_sound(cell.state)


def test_a_shared_gpu_is_whole_again_when_its_last_fraction_is_released() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("half", tasks=2, resources=HALF)
    cell.cycle()
    cell.submit("whole", preemptible=False)
    cell.cycle()
    cell.never_starts("half", 0)
    cell.pause("half")
    cell.cycle()
    assert cell.phase("whole") == "pending"
    cell.never_starts("half", 1)
    assert "whole" in started(cell.cycle())
    assert_sound(cell.state)


def test_best_fit_fills_nodes_and_worst_fit_spreads_over_them() -> None:
    for placement, expected in (("best_fit", ["n1", "n1"]), ("worst_fit", ["n1", "n2"])):
        cell = Cell(placement=placement)
        cell.node("n1", gpus=4)
        cell.node("n2", gpus=4)
        nodes = []
        for name in ("one", "two"):
            cell.submit(name)
            cell.cycle()
            nodes.append(cell.slots_of(name)[0][0])
        assert nodes == expected


def protected_cell() -> Cell:
    """Return a cell in which `a` and `b` fill the node and must not be preempted for an hour and a
    minute.
    """
    cell = Cell()
    cell.node("n1", gpus=8)
    cell.submit("a", gpus=4, priority=60, min_runtime_s=3600)
    cell.submit("b", gpus=4, priority=60, min_runtime_s=60)
    cell.cycle()
    for name in "ab":
        cell.starts(name)
    cell.cycle()
    return cell


def test_a_task_waits_for_the_victim_whose_minimum_run_time_ends_first() -> None:
    cell = protected_cell()
    cell.set_priority("b", 5)
    cell.submit("job", gpus=4, priority=10)
    cell.cycle()
    assert waits(cell, "job").numbers["until_at_ms"] == cell.now_ms + 3_600_000
    cell.set_priority("b", 90)
    cell.cycle()
    assert waits(cell, "job").numbers["until_at_ms"] == cell.now_ms + 60_000
    assert cell.machine.due_ms(cell.state) == cell.now_ms + 60_000
    cell.cycle(after_s=60)
    assert waits(cell, "job").code == "waiting_for_victims"


def test_victims_of_the_other_queue_class_are_not_waited_for() -> None:
    cell = Cell()
    cell.node("n1", gpus=4, cpu_milli=4000)
    cell.submit("gpus", gpus=4, priority=60, min_runtime_s=3600)
    nothing = {"gpus": 0, "gpu_milli": 0}
    cell.submit("one", priority=10, resources=Resources(**nothing, cpu_milli=4000))
    cell.submit("two", priority=10, resources=Resources(**nothing, cpu_milli=4000))
    cell.cycle()
    assert waits(cell, "two").code == "insufficient_free"


def test_an_obsolete_deadline_wakes_no_group_with_or_without_a_restart() -> None:
    cell = protected_cell()
    cell.submit("job", project="q", gpus=4, priority=20, preemptible=False)
    cell.cycle()
    cell.entitle("q", limit_milli=0)
    cell.cycle()
    cell.submit("top", gpus=4, priority=1, preemptible=False)
    cell.ends("b")
    cell.cycle()
    cell.entitle("q")
    cell.submit("big", gpus=8, priority=10, preemptible=False)
    cell.cycle(after_s=1)
    machine = cell.machine
    dumped = from_json(plain.encode(machine.dump(cell.state)))
    decided = []
    for state in (machine.load("main", dumped), cell.state):
        begun = machine.begin_cycle(state, cell.cycles + 1, cell.now_ms + 100_000)
        decided.append(machine.decide(begun, limit=100).decisions)
    assert decided[0] == decided[1]


def test_a_less_preferred_pool_is_tried_when_the_preferred_one_drops_its_reservation() -> None:
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=4)
    cell.node("n2", gpus=4, pool="side")
    cell.submit("low", gpus=4, priority=60)
    cell.submit("other", gpus=4, pools=("side",), preemptible=False)
    cell.cycle()
    cell.submit("job", gpus=4, priority=1, pools=("main", "side"))
    cell.cycle()
    assert waits(cell, "job").code == "waiting_for_victims"
    cell.cordon("n1")
    cell.cycle()
    assert waits(cell, "job").code == "nodes_unavailable"
    cell.starts("other")
    cell.ends("other")
    assert "job" in started(cell.run_until_idle())
    assert_sound(cell.state)


def test_no_more_tasks_are_preempted_over_all_pools_than_are_pending() -> None:
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=4)
    cell.node("n2", gpus=8, pool="side")
    cell.submit("one", gpus=4, priority=60)
    cell.submit("two", gpus=4, priority=60, pools=("side",), tasks=2)
    cell.cycle()
    cell.submit("job", gpus=4, priority=1, tasks=2, pools=("main", "side"))
    decided = cell.run_until_idle()
    assert len({e.stop.for_task for e in all_of(decided, dec.PreemptionRequestedV1)}) == 2
    assert len(all_of(decided, dec.PreemptionRequestedV1)) == 2
    assert_sound(cell.state)
