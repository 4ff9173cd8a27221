"""The policy `quota`: tasks are moved to slots that are free already."""

from typing import Any, Final

from tests.histories.properties import CheckedCell
from tests.unit.core.scheduling.planner.test_gpu_memory import GIB, by_memory
from tests.unit.core.scheduling.reading import all_of, only, started
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.decisions import PreemptionRequestedV1, SlotsReservedV1
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.resources import Resources

#: Longer than the test waits.
GRACE_S: Final = 600


def cell_with_a_stopping_task(**options: Any) -> Cell:
    """Return a cell where a task of 4 GPUs is about to release its node, but has not yet."""
    cell = Cell(policy="quota", **options)
    cell.node("n1", gpus=4, node_type="a")
    cell.node("n2", gpus=4, node_type="b")
    for project, deserved in (("p", 4), ("q", 1)):
        cell.entitle(project, quotas={"main": Quota(deserved_milli=deserved * 1000)})
    cell.submit("leaving", project="q", gpus=4, node_types=("a",), grace_s=GRACE_S)
    cell.cycle()
    cell.starts("leaving")
    return cell


def moved(cell: Cell) -> list[str]:
    """Run a cycle; return the jobs of the tasks that it moves."""
    decided = cell.cycle()
    stops = [each for each in decided if isinstance(each, PreemptionRequestedV1)]
    assert all(stop.stop.rule == "moved" for stop in stops)
    assert len([each for each in decided if isinstance(each, SlotsReservedV1)]) in (
        0,
        1 + len(stops),
    )
    return [stop.task_id.partition("0000")[0] for stop in stops]


def test_tasks_are_moved_together_only_to_slots_that_are_free_already() -> None:
    cell = cell_with_a_stopping_task()
    cell.submit("small", project="q", gpus=1, node_types=("a", "b"))
    cell.cycle()
    cell.starts("small")
    cell.cancel("leaving")
    cell.cycle()
    cell.submit("wide", project="p", gpus=4, node_types=("b",), preemptible=False)
    assert moved(cell) == []
    cell.ends("leaving")
    assert moved(cell) == ["small"]


def test_a_task_that_may_not_be_reclaimed_is_moved_only_to_slots_that_are_free_already() -> None:
    cell = cell_with_a_stopping_task(actions=["allocate", "reclaim"])
    cell.cancel("leaving")
    cell.submit("small", project="q", gpus=1, tasks=2, node_types=("a", "b"))
    cell.cycle()
    for index in range(2):
        cell.starts("small", index)
    cell.submit("wide", project="p", gpus=4, node_types=("b",))
    # `q` deserves one of its two GPUs on this node.
    assert moved(cell) == []
    cell.ends("leaving")
    assert moved(cell) == ["small", "small"]


def test_a_task_that_requests_gpu_memory_is_stopped_rather_than_moved_to_a_smaller_gpu() -> None:
    """There it would hold a larger fraction. The random histories expect no move either."""
    cell = CheckedCell()
    cell.pool("main", policy="quota")
    cell.entitle("p", quotas={"main": Quota(deserved_milli=2000)})
    cell.node("small", gpus=1, gpu_memory_mib=40 * GIB, node_type="a")
    cell.node("large", gpus=1, gpu_memory_mib=80 * GIB)
    cell.submit("filler", project="p", gpus=1, node_types=("a",))
    cell.submit("part", project="p", resources=by_memory(20), priority=60)
    assert sorted(started(cell.cycle())) == ["filler", "part"]
    assert cell.slots_of("part") == [("large", (0,))]
    cell.starts("part")
    cell.ends("filler")
    cell.submit("whole", project="p", resources=by_memory(80), priority=10)
    cell.changes += 1
    decided = cell.cycle()
    assert only(decided, PreemptionRequestedV1).stop.rule == "better_priority"


def test_a_task_preempts_those_of_its_project_whether_or_not_they_can_be_moved_to_idle_slots() -> (
    None
):
    """A victim that stopped would start there again, also beyond the share of the project."""
    cell = Cell(policy="quota", max_moves=0)
    cell.node("na", gpus=1, node_type="a")
    cell.node("nb", gpus=2, node_type="b")
    cell.entitle("p", quotas={"main": Quota(deserved_milli=0)})
    cell.entitle("q", quotas={"main": Quota(deserved_milli=3000)})
    cell.submit("low", project="p", gpus=1, tasks=2, node_types=("a", "b"), priority=60)
    cell.cordon("na")
    cell.cycle()
    for index in range(2):
        cell.starts("low", index)
    cell.uncordon("na")
    cell.submit("wide", project="q", gpus=3, node_types=("none",))
    cell.submit("high", project="p", gpus=2, node_types=("b",))
    decided = cell.cycle()
    rules = {each.task_id: each.stop.rule for each in all_of(decided, PreemptionRequestedV1)}
    assert sorted(rules.values()) == ["better_priority", "moved"]


def test_a_task_that_moves_to_larger_gpus_counts_with_what_it_holds_until_it_has_stopped() -> None:
    cell = Cell(policy="quota")
    cell.node("small", gpus=1, node_type="a", gpu_memory_mib=40 * GIB)
    cell.entitle("p", quotas={"main": Quota(deserved_milli=0, limit_milli=700)})
    cell.entitle("q", quotas={"main": Quota(deserved_milli=1000)})
    cell.submit("moves", project="p", resources=by_memory(20))
    cell.cycle()
    cell.starts("moves")
    cell.node("large", gpus=1, node_type="b", gpu_memory_mib=80 * GIB)
    cell.submit("whole", project="q", gpus=1, node_types=("a",))
    part = Resources(gpus=1, gpu_milli=300)
    cell.submit("next", project="p", resources=part, node_types=("b",))
    decided = cell.cycle()
    assert only(decided, PreemptionRequestedV1).stop.rule == "moved"
    cell.restart()
    assert started([*decided, *cell.run_until_idle()]) == [], "p may hold 700 and holds 500"
    cell.ends("moves")
    assert started(cell.run_until_idle()) == ["moves", "whole", "next"]
    assert_sound(cell.state)
