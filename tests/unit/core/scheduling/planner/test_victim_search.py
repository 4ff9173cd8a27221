"""Which tasks `fair_share` preempts so that the receivers fit, and what the search costs."""

from collections.abc import Iterable, Sequence

import pytest

from yardmaster_core.scheduling.planner.budgeted_search import BudgetedSearch
from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.placement import strategy_named
from yardmaster_core.scheduling.planner.searched_nodes import SearchedNodes
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


class Rules:
    """The rules of a search among given victims, which are listed when they are asked for."""

    def __init__(self, victims: Sequence[Task] = (), limit: int = 1) -> None:
        self.searched = SearchedNodes()
        self.limits = {"owner": limit}
        self.victims = list(victims)
        self.asked: list[str] = []

    def new_budget(self) -> Unlimited:
        return Unlimited()

    def all(self) -> list[Task]:
        self.asked.append("all")
        return self.victims

    def victims_of(self, _: object) -> list[Task]:
        return self.victims

    def among(self, tasks: Iterable[Task]) -> list[Task]:
        found = [task for task in self.victims if task in tasks]
        self.asked.append(" ".join(task.id for task in found))
        return found

    def is_protected(self) -> bool:
        return False


def search(cell: Cell, name: str, rules: Rules, *left_out: Task) -> list[Task]:
    """Search victims for the first task of a job in a cycle of its own."""
    with Draft(cell.state, 1000) as draft:
        found = BudgetedSearch(
            draft, cell.state.pools["main"], strategy_named("best_fit"), lambda task: task.job.shape
        )
        task = cell.task(name)
        return found.within(task, rules.all, lambda: rules, lambda victim: victim in left_out)


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
    assert search(cell, "wide", Rules(victims)) == victims


def both(rules: Rules) -> str:
    return " ".join(task.id for task in rules.victims)


@pytest.fixture
def failed() -> tuple[Cell, Rules]:
    """Two nodes, one victim on each, and rules that remember that a task of four GPUs does not fit
    without it.
    """
    cell = Cell()
    for name in ("n1", "n2"):
        cell.node(name, gpus=4)
    cell.submit("held", gpus=3, tasks=2)
    cell.cycle()
    cell.starts("held", 0)
    cell.submit("victim", tasks=2)
    cell.submit("wide", gpus=4)
    cell.cycle()
    rules = Rules([cell.task("victim", 0), cell.task("victim", 1)])
    assert not search(cell, "wide", rules)
    assert rules.asked == [both(rules)]
    rules.asked.clear()
    return cell, rules


def node_of(cell: Cell, task: Task) -> int:
    assert task.run is not None
    return cell.state.nodes[task.run.nodes[0]].ordinal


def test_a_search_that_failed_asks_for_no_victims_while_nothing_changed(
    failed: tuple[Cell, Rules],
) -> None:
    cell, rules = failed
    assert not search(cell, "wide", rules)
    assert rules.asked == []


def test_a_node_is_searched_again_after_it_changed(failed: tuple[Cell, Rules]) -> None:
    cell, rules = failed
    cell.ends("held", 0)
    cell.cycle()
    ordinal = node_of(cell, cell.task("victim", 0))
    rules.searched.changed.add(ordinal)
    rules.searched.cycle_ended()
    found = search(cell, "wide", rules)
    assert found == [cell.task("victim", 0)]
    assert rules.asked == [found[0].id]


def test_a_node_that_changed_in_this_cycle_is_searched_again_in_the_next(
    failed: tuple[Cell, Rules],
) -> None:
    cell, rules = failed
    first = cell.task("victim", 0)
    rules.searched.changed.add(node_of(cell, first))
    assert not search(cell, "wide", rules)
    rules.searched.cycle_ended()
    assert not search(cell, "wide", rules)
    assert not search(cell, "wide", rules)
    assert rules.asked == [first.id, first.id]


def test_nodes_of_an_owner_are_searched_again_after_its_limit_changed(
    failed: tuple[Cell, Rules],
) -> None:
    cell, rules = failed
    rules.limits = {"owner": 2}
    assert not search(cell, "wide", rules)
    assert rules.asked == [both(rules)]


def test_nodes_of_victims_that_are_left_out_are_searched_in_the_next_cycle() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("victim")
    cell.submit("wide")
    cell.cycle()
    victim = cell.task("victim")
    rules = Rules([victim])
    assert not search(cell, "wide", rules, victim)
    assert search(cell, "wide", rules) == [victim]


def test_a_gang_is_searched_for_on_all_nodes_if_one_changed(failed: tuple[Cell, Rules]) -> None:
    cell, rules = failed
    cell.submit("gang", gpus=1, replicas=5)
    cell.cycle()
    assert not search(cell, "gang", rules)
    assert not search(cell, "gang", rules)
    assert rules.asked == [both(rules)]
    cell.ends("held", 0)
    cell.cycle()
    rules.searched.changed.add(node_of(cell, rules.victims[0]))
    assert search(cell, "gang", rules) == rules.victims
