"""Which tasks `fair_share` preempts so that the receivers fit, and what the search costs."""

from collections.abc import Sequence

import pytest

from yardmaster_core.scheduling.planner.budgeted_search import BudgetedSearch
from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.placement import strategy_named
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import decisions as dec


def spread(nodes: int) -> Cell:
    """Return nodes of four GPUs, full of tasks of one GPU; consecutive tasks are on different
    nodes.
    """
    cell = Cell(policy="fair_share", placement="worst_fit")
    for number in range(nodes):
        cell.node(f"n{number:02}", gpus=4)
    cell.submit("singles", tasks=4 * nodes)
    cell.cycle()
    for index in range(4 * nodes):
        cell.starts("singles", index)
    cell.cycle()
    return cell


def stopped_on(cell: Cell) -> list[str]:
    """Return the nodes of the tasks that a cycle preempts."""
    found = []
    for event in cell.cycle():
        if isinstance(event, dec.PreemptionRequestedV1):
            run = cell.state.tasks[event.task_id].run
            assert run is not None
            found.append(run.placements[0].node)
    return found


def test_tasks_are_preempted_whose_removal_empties_whole_nodes() -> None:
    cell = spread(8)
    cell.submit("wide", gpus=4, tasks=2, weight=100)
    stopped = stopped_on(cell)
    assert len(stopped) == 8
    assert {stopped.count(node) for node in stopped} == {4}


def test_a_gang_over_several_nodes_gets_slots_of_each() -> None:
    cell = spread(8)
    cell.submit("gang", gpus=2, replicas=3, weight=100)
    stopped = stopped_on(cell)
    assert len(stopped) == 6
    assert {stopped.count(node) for node in stopped} <= {2, 4}


@pytest.mark.parametrize("wide", [1, 3])
def test_the_number_of_trials_grows_with_the_request_and_not_with_the_cell(
    wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    release = CapacityIndex.release

    def counted(
        index: CapacityIndex,
        capacity: NodeCapacity,
        slots: tuple[int, ...],
        gpu_milli: int,
        cpu_milli: int,
        memory_mib: int,
    ) -> None:
        tried.append(1)
        release(index, capacity, slots, gpu_milli, cpu_milli, memory_mib)

    costs = []
    for nodes in (6, 24):
        cell = spread(nodes)
        cell.submit("wide", gpus=4, tasks=wide, weight=100)
        with monkeypatch.context() as patch:
            patch.setattr(CapacityIndex, "release", counted)
            assert len(stopped_on(cell)) == 4 * wide
        costs.append(len(tried))
        tried.clear()
    assert costs[0] == costs[1] <= 6 * 4 * wide


class Unlimited:
    """A budget that permits every victim."""

    def spend(self, victims: Sequence[Task]) -> bool:
        return True


def test_slots_that_a_gang_released_already_do_not_count_again() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.submit("gang", gpus=2, replicas=2)
    cell.cycle()
    cell.starts("gang")
    # One replica has ended; other tasks run in its place.
    cell.ends("gang", replica=0)
    cell.cycle()
    cell.submit("late", tasks=2)
    cell.submit("wide", gpus=4)
    cell.cycle()
    victims = [cell.task("gang"), cell.task("late", 0), cell.task("late", 1)]
    with Draft(cell.state, 1000) as draft:
        search = BudgetedSearch(draft, cell.state.pools["main"], strategy_named("best_fit"))
        assert search.within(cell.task("wide"), victims, Unlimited) == victims
